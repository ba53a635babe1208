"""What a row of measured runs is taken to be."""

from dataclasses import replace

import pytest

from autopar import catalog
from autopar.framework import Named
from autopar.report import NamedLayers, Recompute
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf, framework
from autopar.runs.stages import schedule_of
from stated import checked, run_of


def test_a_framework_that_nobody_knows_is_assumed_and_said_to_be(shelf: Shelf) -> None:
    known = setup(run_of(framework="our own"), shelf)
    assert known.problem.framework.name == "megatron-core"
    assert known.assumed == ("framework=megatron-core",)
    for cells, name in (
        ({"zero": "fsdp", "tp": "1"}, "fsdp"),
        ({"zero": "fsdp"}, "torchtitan-eager"),
        ({"zero": "2", "tp": "1"}, "deepspeed"),
        ({"attention": "unfused"}, "megatron-2022"),
        ({"date": "2021-06"}, "megatron-2021"),
        ({"date": "2024-05", "attention": ""}, "megatron-core-2023"),
        ({"chip": "TPU v4"}, "maxtext"),
        ({"chip": "Ascend 910B"}, "mindspeed"),
        ({"chip": "Gaudi2"}, "megatron-deepspeed-gaudi"),
    ):
        entry, named = framework(run_of(framework="our own", **cells), shelf)
        assert (entry.framework.name, named) == (name, False)


def test_the_habits_of_a_framework_that_is_assumed_are_not_those_of_a_run(shelf: Shelf) -> None:
    cells = {"vpp": "", "pp": "2", "tp": "2", "dp": "2", "zero": "fsdp"}
    assert "vpp=1" in setup(run_of(framework="torchtitan", **cells), shelf).assumed
    assert "vpp=1" not in setup(run_of(framework="our own", **cells), shelf).assumed


def test_a_sequence_that_tensor_parallel_does_not_divide_was_not_cut(shelf: Shelf) -> None:
    known = setup(run_of(sp="", seq_len="2047"), shelf)
    assert not known.plan.sp
    assert "sp=false" in known.assumed


def test_a_stated_run_assumes_nothing(shelf: Shelf) -> None:
    known = setup(run_of(), shelf)
    assert known.assumed == ()
    assert known.open == ()
    assert known.problem.model == replace(
        catalog.model("llama2-7b").model, name="llama2-7b", max_positions=4096
    )


@pytest.mark.parametrize(
    ("cells", "layers"),
    [
        ({"pp": "4"}, (8, 8, 8, 8)),
        ({"pp": "4", "layers_per_stage": "5-9-9-9"}, (5, 9, 9, 9)),
        # Embedding and head counted as a layer each.
        ({"pp": "4", "layers_per_stage": "7-9-9-9"}, (6, 9, 9, 8)),
        # Three entries before the layers and three behind: 38 for 32.
        ({"pp": "2", "notes": "layer boundaries [0, 18, 38]"}, (15, 17)),
        ({"pp": "4", "notes": "num-layer-list 7,8,8,9"}, (7, 8, 8, 9)),
        # 30 layers, embedding and head share eight stages equally.
        ({"pp": "8", "layers": "30", "dp": "1", "tp": "1"}, (3, 4, 4, 4, 4, 4, 4, 3)),
        ({"pp": "4", "notes": "last stage has 2 blocks"}, (8, 8, 8, 8)),
        ({"pp": "4", "layers": "31", "notes": "last stage has 1 block"}, (10, 10, 10, 1)),
        ({"pp": "4", "layers": "33"}, (9, 8, 8, 8)),
        # LiBai's later stages have one layer of the last each.
        ({"pp": "4", "layers": "24", "framework": "LiBai"}, (6, 7, 7, 4)),
        ({"pp": "8", "layers": "48", "framework": "LiBai"}, (6, 6, 7, 7, 7, 7, 7, 1)),
        ({"pp": "2", "layers": "24", "framework": "LiBai"}, (12, 12)),
    ],
)
def test_the_layers_of_each_stage(
    cells: dict[str, str], layers: tuple[int, ...], shelf: Shelf
) -> None:
    degrees = {"dp": str(8 // int(cells["pp"])), "tp": "1", "sp": "0"}
    plan = setup(run_of(**degrees | cells), shelf).plan
    assert tuple(stage.layers for stage in plan.stages) == layers


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("no recompute", Recompute()),
        (
            "layernorm, moe act",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(norm=32, activation=32)),
        ),
        (
            "selective (moe_act)",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(activation=32)),
        ),
        (
            "layer-partial",
            Recompute("parts", 0, regathers=False, operators=NamedLayers(norm=32, activation=32)),
        ),
        ("mla_up_proj, moe_act", Recompute("selective")),
        ("gradient checkpointing", Recompute("uniform", 1)),
        ("full AC", Recompute("uniform", 1)),
        ("nothing_saveable", Recompute("uniform", 1)),
        ("minimal", Recompute("selective")),
        ("dots_saveable", Recompute("selective")),
        ("save_qkv_proj", Recompute("selective")),
        ("SAC", Recompute("selective")),
        ("none", Recompute()),
        ("full", Recompute("uniform", 1)),
        ("1", Recompute("uniform", 1)),
        ("selective", Recompute("selective")),
        ("core attention", Recompute("selective")),
        ("block 4", Recompute("block", 4)),
        ("block/40", Recompute("block", 32)),
        ("uniform/2", Recompute("uniform", 2)),
        ("selective (every 2nd layer)", Recompute("block", 16)),
        ("25 %", Recompute("block", 8)),
        ("8 of 32 layers", Recompute("block", 8)),
        ("3/4 of layers", Recompute("block", 24)),
    ],
)
def test_recompute_is_read_from_its_words(text: str, recompute: Recompute, shelf: Shelf) -> None:
    known = setup(run_of(recompute=text), shelf)
    assert known.plan.stages[0].recompute == recompute
    assert known.open == ()


def test_modules_that_are_computed_again_are_operators_by_name(shelf: Shelf) -> None:
    used = setup(run_of(recompute="layernorm, mla_up_proj"), shelf).problem.framework
    assert (used.selective, used.named) == ("named", Named(projections=True, norm=True))
    plain = setup(run_of(recompute="selective"), shelf).problem.framework
    assert plain.selective == "attention"


def test_what_selective_means_is_the_framework_s_choice(shelf: Shelf) -> None:
    for name, meant in [("torchtitan", "operators"), ("Megatron-LM", "attention")]:
        known = setup(run_of(recompute="selective", framework=name), shelf)
        assert known.plan.stages[0].recompute == Recompute("selective")
        assert known.problem.framework.selective == meant


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"seq_len": ""}, "seq_len: missing"),
        ({"gbs": ""}, "gbs: missing"),
        ({"chip": ""}, "chip: missing"),
        ({"dp": "", "tp": "", "pp": ""}, "dp, tp, pp: missing"),
        ({"dp": "", "tp": "3"}, "dp: missing, and tp x pp x cp = 3 does not divide"),
        ({"gpus": "16"}, "gpus: 16, where the degrees multiply to 8"),
        ({"layers": "", "model": "ours"}, "layers: missing"),
        ({"precision": "int8"}, "precision: no estimate"),
        ({"recompute": "a little"}, "recompute: no estimate"),
        ({"layers_per_stage": "16-17"}, "layers_per_stage: 33 layers in 2 stages"),
        ({"mbs": "3"}, "plan: mbs x dp = 12 does not divide the batch 64"),
        ({"iter_time_s": ""}, "nothing was measured"),
        ({"notes": "a micro-benchmark"}, "notes: part of a model timed alone"),
        ({"mem_gb_per_gpu": "60", "mem_unit": "pounds"}, "mem_unit: must be GiB, GB, MiB or MB"),
        (
            {"iter_time_s": "", "mfu": "0.4", "flops_convention": "fast"},
            "flops_convention: no convention is called",
        ),
        (
            {"pp": "4", "tp": "1", "sp": "", "dp": "2", "layers": "31", "vpp": "",
             "layers_per_stage": "8-7-9-7", "schedule": "interleaved"},
            "vpp: missing, and no number of chunks divides",
        ),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_expressed_is_skipped_with_its_reason(
    cells: dict[str, str], reason: str
) -> None:
    [row] = checked(cells)
    assert row.skipped is not None
    assert row.skipped.startswith(reason)
    assert row.predicted_step_s is None or not cells["iter_time_s"]


def test_what_a_row_leaves_open_is_the_fastest_that_fits() -> None:
    opened, *stated = checked(
        {"mbs": "", "recompute": ""},
        *(
            {"mbs": str(mbs), "recompute": recompute}
            for mbs in (1, 2, 4, 8, 16)
            for recompute in ("none", "selective", "full")
        ),
    )
    assert opened.setup is not None
    assert opened.setup.open == ("mbs", "recompute")
    fits = [
        row.predicted_step_s
        for row in stated
        if row.estimate and not row.estimate.violations and row.predicted_step_s
    ]
    assert 0 < len(fits) < len(stated)
    assert opened.predicted_step_s == min(fits)


def test_a_larger_micro_batch_is_not_bought_with_recompute(shelf: Shelf) -> None:
    # FSDP gathers for each micro-batch, so that fewer of them with recompute would be faster.
    cells = {"model": "llama2-70b", "gpus": "128", "dp": "128", "tp": "1", "gbs": "1024"}
    known = setup(run_of(**cells, sp="0", zero="fsdp", mbs="", recompute=""), shelf)
    assert known.plan.stages[0].recompute == Recompute()
    assert known.plan.mbs < 8


def test_a_step_is_one_micro_batch_where_the_framework_accumulates_nothing(shelf: Shelf) -> None:
    # 48 sequences over dp 8 are 6 a replica, of which the largest power of two that divides is 2.
    cells = {"gpus": "8", "dp": "8", "tp": "1", "sp": "0", "gbs": "48", "mbs": "", "layers": "4"}

    def of(framework: str, pp: str = "1", dp: str = "8") -> int:
        return setup(run_of(**cells | {"pp": pp, "dp": dp}, framework=framework), shelf).plan.mbs

    assert of("torchtitan") == of("MaxText") == 6
    # Unless the row says that it was several.
    told = run_of(**cells, framework="torchtitan", notes="gradient accumulation over 3 steps")
    assert setup(told, shelf).plan.mbs == 2
    # Who accumulates may do without it, but not in a pipeline.
    assert of("Megatron-LM") == 6
    assert of("Megatron-LM", pp="2", dp="4") in (1, 2, 4)


def test_a_pipeline_of_torchtitan_has_a_micro_batch_for_each_stage(shelf: Shelf) -> None:
    # 64 sequences over dp 2 are 32 a replica; in 4 micro-batches they are 8 each.
    cells = {"pp": "4", "dp": "2", "tp": "1", "sp": "0", "gbs": "64", "framework": "torchtitan"}
    known = setup(run_of(**cells, mbs="", vpp="", schedule="interleaved"), shelf)
    assert (known.plan.mbs, known.plan.vpp) == (8, 2)
    assert known.open == ("mbs", "vpp")


def test_torchtitan_without_fsdp_cuts_a_model_in_32_bits(shelf: Shelf) -> None:
    def trained_in(**cells: str) -> str:
        one = {"gpus": "8", "gbs": "8", "tp": "8", "dp": "1", "zero": "0", "precision": "bf16"}
        run = run_of(**one | {"framework": "torchtitan", "notes": ""} | cells)
        return setup(run, shelf).problem.workload.precision

    assert trained_in() == trained_in(tp="4", pp="2") == "fp32"
    assert trained_in(tp="4", dp="2", zero="fsdp") == trained_in(tp="4", cp="2") == "bf16"
    assert trained_in(tp="1", gpus="1") == trained_in(framework="Megatron-LM") == "bf16"
    assert trained_in(notes="training.dtype bfloat16") == "bf16"
    assert trained_in(precision="fp8") == "fp8"


def test_an_open_setting_is_the_framework_s_habit_where_it_has_one(shelf: Shelf) -> None:
    cells = {"pp": "4", "dp": "2", "tp": "1", "sp": "0", "vpp": "", "framework": "torchtitan"}
    known = setup(run_of(**cells), shelf)
    assert known.plan.vpp == 1
    assert known.open == ("vpp",)


@pytest.mark.parametrize(
    ("date", "logit_bytes"), [("2024-06", 18), ("2025-03", 14), ("2025-04", 4), ("", 4)]
)
def test_a_run_had_its_framework_as_it_was_then(shelf: Shelf, date: str, logit_bytes: int) -> None:
    run = run_of(framework="torchtitan", notes="torch.compile", date=date)
    assert setup(run, shelf).problem.framework.held.logit_bytes == logit_bytes


def test_offloaded_activations_are_a_share_of_every_layer_s(shelf: Shelf) -> None:
    waiting = setup(run_of(offload_fraction="0.3"), shelf)
    assert waiting.problem.framework.held.offloaded_share == 0.3
    assert waiting.plan.stages[0].offload == 0


@pytest.mark.parametrize(
    "notes",
    [
        "checkpoints offloaded",
        "remat custom: layer input offloaded to host",
        "custom remat, decoder_layer_input offloaded to host",
    ],
)
def test_checkpoints_on_the_host_are_of_whole_layers(shelf: Shelf, notes: str) -> None:
    waiting = setup(run_of(notes=notes, recompute=""), shelf)
    assert waiting.problem.framework.held.offloaded_share == 1
    assert waiting.plan.stages[0].recompute.granularity == "uniform"
    assert waiting.open == ("recompute",)


def test_the_width_of_gradients_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[int, int]:
        stored = setup(run_of(notes=notes), shelf).problem.framework.bytes
        return stored.gradient, stored.gradient_sent

    assert said("") == said("gradient accumulation over 8 bf16 passes") == (4, 4)
    assert said("synthetic data, bf16 gradients") == said("bf16 gradient accumulation") == (2, 2)
    assert said("gradients reduced in 16 bits") == (2, 2)


def test_fsdp_reduces_gradients_in_32_bits_where_a_row_says_so(shelf: Shelf) -> None:
    def sent(framework: str, notes: str = "") -> int:
        run = run_of(framework=framework, zero="fsdp", notes=notes)
        return setup(run, shelf).problem.framework.bytes.gradient_sent

    assert sent("FSDP") == sent("FSDP", "gradients not reduced in fp32") == 2
    assert sent("FSDP", "gradients reduced in fp32") == sent("FSDP", "reduce_dtype=float32") == 4
    assert sent("verl (PyTorch FSDP)") == 4
    narrow = "states all bf16; FSDP reduces gradients in fp32 unless said"
    assert sent("FSDP", narrow) == 4
    assert sent("FSDP", "states all bf16") == 2
    assert sent("FSDP", f"{narrow}; gradients reduced in bf16") == 2


def test_the_capacity_of_experts_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> float:
        run = run_of(experts="8", topk="2", notes=notes)
        moe = setup(run, shelf).problem.model.moe
        assert moe is not None
        return moe.capacity_factor

    assert said("") == said("dropless; no token drop") == said("memory capacity 80 GB") == 0
    assert said("token-drop capacity factor 1.0") == said("expert capacity (tokendrop)") == 1
    assert said("dense_matmul, capacity_factor=1.25") == said("capacity of 1.25") == 1.25


def test_a_row_may_name_a_grouped_product_of_its_experts(shelf: Shelf) -> None:
    def said(notes: str) -> bool:
        return setup(
            run_of(framework="FSDP", notes=notes), shelf
        ).problem.framework.fused.grouped_gemm

    assert [said(notes) for notes in ("", "no grouped GEMM", "grouped GEMM", "grouped_mm")] == [
        False, False, True, True,
    ]  # fmt: skip


def test_parameters_that_a_row_shards_are_gathered_in_every_pass(shelf: Shelf) -> None:
    def said(zero: str) -> str:
        run = run_of(framework="InternEvo", zero=zero)
        return setup(run, shelf).problem.framework.gathers

    assert (said("1"), said("3")) == ("step", "step_in_pipeline")


def test_a_fused_kernel_of_another_part_says_nothing_of_attention(shelf: Shelf) -> None:
    def said(notes: str, framework: str = "Megatron-LM") -> str:
        run = run_of(framework=framework, attention="", notes=notes)
        return setup(run, shelf).problem.workload.attention

    assert said("unfused rotary positions") == "flash"
    assert said("unfused attention") == said("flash attention off") == "unfused"
    for words in ("w/o FA", "no flash-attn", "use_flash_attn=False", "attn_implementation=eager"):
        assert said(words) == "unfused", words
    old = "Megatron-LM v2.4"
    assert said("", old) == "unfused"
    for words in ("FA2", "xformers", "memory-efficient attention", "scaled_dot_product_attention"):
        assert said(words, old) == "flash", words


def test_hugging_face_s_gpt_oss_stores_scores_where_nobody_names_a_kernel(shelf: Shelf) -> None:
    def used(framework: str, **cells: str) -> str:
        run = run_of(framework=framework, model="gpt-oss-20b", date="2025-10", **cells)
        return setup(run, shelf).problem.workload.attention

    assert used("HF Trainer FSDP", attention="") == "unfused"
    assert used("HF Trainer FSDP", attention="flash") == "flash"
    assert used("torchtitan", attention="") == "flash"


def test_hugging_face_s_models_stored_scores_before_release_4_36(shelf: Shelf) -> None:
    def used(date: str, model: str = "Llama-7B", **cells: str) -> str:
        run = run_of(framework="HF Trainer FSDP", model=model, date=date, attention="", **cells)
        return setup(run, shelf).problem.workload.attention

    assert used("2023-11") == "unfused"
    assert used("2023-12") == used("2023-08", "Falcon-7B") == "flash"
    assert used("2023-08", notes="xformers") == "flash"


def test_a_compiled_model_that_is_sharded_is_fsdp_s(shelf: Shelf) -> None:
    run = run_of(framework="Accelerate FSDP2, torch.compile", zero="fsdp")
    assert setup(run, shelf).problem.framework.name == "fsdp-compiled"


@pytest.mark.parametrize(
    ("notes", "vocab", "pieces"),
    [
        ("", "32000", 1),
        ("loss in eight pieces", "32000", 8),
        ("loss in 4 chunks", "32000", 4),
        ("no Liger", "32000", 1),
        # As many as the vocabulary is wider than 4,096.
        ("Liger kernels", "32000", 8),
        ("Liger kernels", "128256", 32),
        # Two sequences of 4,096 tokens in pieces of 256.
        ("TRL SFTTrainer, chunked cross-entropy", "32000", 32),
        ("vocabulary tiled by 16", "32000", 16),
        ("loss in blocks of 4096 of the vocabulary", "32000", 8),
    ],
)
def test_a_loss_may_be_computed_in_pieces(
    notes: str, vocab: str, pieces: int, shelf: Shelf
) -> None:
    run = run_of(framework="FSDP", notes=notes, vocab=vocab, mbs="2", seq_len="4096", cp="1")
    assert setup(run, shelf).problem.framework.held.loss_pieces == pieces


def test_deepspeed_s_bf16_optimizer_shards_its_states_without_zero(shelf: Shelf) -> None:
    def stage(framework: str, **cells: str) -> int:
        run = run_of(framework=framework, **{"zero": "0", "precision": "bf16"} | cells)
        return setup(run, shelf).plan.zero

    assert stage("Megatron-DeepSpeed") == stage("DeepSpeed") == 1
    assert stage("Megatron-DeepSpeed", precision="fp16") == 0
    assert stage("Megatron-DeepSpeed", zero="2") == 2
    assert stage("Megatron-LM") == stage("PyTorch DDP") == 0


def test_parameters_that_stay_whole_until_the_backward_pass_are_sharded_as_in_zero_2(
    shelf: Shelf,
) -> None:
    def said(notes: str) -> int:
        return setup(run_of(framework="FSDP", zero="fsdp", notes=notes), shelf).plan.zero

    assert said("") == said("resharded after forward") == 3
    assert said("reshard_after_forward never") == said("parameters not resharded") == 2


def test_states_may_all_be_narrow(shelf: Shelf) -> None:
    for notes in ("parameters, gradients and AdamW states all bf16", "pure bf16"):
        used = setup(run_of(framework="FSDP", notes=notes), shelf).problem.framework.bytes
        assert (used.parameter, used.gradient, used.gradient_sent, used.optimizer) == (2, 2, 2, 4)
    usual = setup(run_of(framework="FSDP", notes="AdamW states in fp32"), shelf).problem.framework
    assert usual.bytes.optimizer > 4


def test_offloaded_checkpoints_wait_on_the_host(shelf: Shelf) -> None:
    def share(notes: str, told: str = "") -> float:
        run = run_of(notes=notes, offload_fraction=told)
        return setup(run, shelf).problem.framework.held.offloaded_share

    assert share("activation checkpoints offloaded to host") == 1
    assert share("offload of the optimizer and of checkpoints") == 1
    assert share("activation checkpoints offloaded to host", "0.25") == 0.25
    assert share("no checkpoints offloaded") == share("optimizer offloaded") == 0


def test_a_shard_group_may_lie_inside_a_node(shelf: Shelf) -> None:
    wide = {"gpus": "32", "dp": "32", "tp": "1", "sp": "0"}
    notes = "optimizer sharded over 4 GPUs inside a node"
    assert setup(run_of(**wide), shelf).plan.shard_group == 32
    assert setup(run_of(**wide, notes=notes), shelf).plan.shard_group == 4
    assert setup(run_of(**wide | {"zero": "hsdp"}), shelf).plan.shard_group == 8


def test_a_run_without_degrees_is_data_parallel_where_it_is_sharded_so(shelf: Shelf) -> None:
    degrees = dict.fromkeys(("dp", "tp", "pp", "cp", "sp", "vpp"), "")
    known = setup(run_of(**degrees | {"zero": "fsdp"}), shelf)
    assert (known.plan.dp, known.plan.zero, known.assumed) == (8, 3, ("dp=8",))


def test_one_rank_shards_nothing(shelf: Shelf) -> None:
    plan = setup(run_of(gpus="2", dp="1"), shelf).plan
    assert (plan.zero, plan.shard_group) == (0, 1)


@pytest.mark.parametrize(
    ("notes", "schedule"),
    [
        ("1F1B pipeline", "1f1b"),
        ("Interleaved-1F1B, 64 microbatches", "interleaved"),
        ("interleaved PP schedule", "interleaved"),
        ("GPipe", "gpipe"),
        ("ZB-V", "zb-v"),
        ("1F1B expert-parallel overlap", None),
        ("EP communication overlap (1F1B of two micro-batches)", None),
        ("sail-sg/zero-bubble-pipeline-parallelism", None),
        ("interleaved offload", None),
    ],
)
def test_an_order_of_passes_is_read_of_notes(notes: str, schedule: str | None) -> None:
    assert schedule_of(run_of(notes=notes, pp="4")) == schedule


def test_what_interleaves_is_called_1f1b_too() -> None:
    assert schedule_of(run_of(notes="1F1B", pp="4", vpp="2")) is None


@pytest.mark.parametrize(
    ("notes", "mbs"),
    [
        ("gradient_accumulation_steps 4", 4),
        ("GA=4", 4),
        ("GAS 8", 2),
        ("8 accumulation steps", 2),
        ("2 grad-accum steps", 8),
    ],
)
def test_accumulation_tells_the_micro_batch(notes: str, mbs: int, shelf: Shelf) -> None:
    run = run_of(notes=notes, gpus="8", dp="8", tp="1", pp="1", gbs="128", mbs="")
    assert setup(run, shelf).plan.mbs == mbs


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("bfloat16", "bf16"),
        ("float16 with loss scaling", "fp16"),
        ("float8 (rowwise)", "fp8"),
        ("FP8 hybrid e4m3", "fp8"),
        ("torch.float32", "fp32"),
        ("BF16 mixed", "bf16"),
        ("bf16 (no fp8)", "bf16"),
        ("bf16, not FP8", "bf16"),
    ],
)
def test_number_formats_have_other_names(text: str, precision: str, shelf: Shelf) -> None:
    assert setup(run_of(precision=text), shelf).problem.workload.precision == precision


@pytest.mark.parametrize(
    ("row", "again"),
    [
        ({"framework": "MaxText", "chip": "TPUv5p"}, "uniform"),
        ({"framework": "Levanter; MaxText is faster", "chip": "TPUv5p"}, "none"),
        ({"framework": "MaxText", "chip": "H100-80GB"}, "none"),
        ({"framework": "neuronx-nemo-megatron", "chip": "Trainium1"}, "uniform"),
        (
            {"framework": "neuronx-nemo-megatron", "chip": "Trainium1", "model": "GPT-3 23B"},
            "selective",
        ),
    ],
)
def test_what_scripts_compute_again_where_a_row_does_not_say(
    row: dict[str, str], again: str, shelf: Shelf
) -> None:
    cells = {"recompute": "", "gpus": "64", "dp": "16", "tp": "4", "mbs": "1", "gbs": "64", **row}
    assert setup(run_of(**cells), shelf).plan.stages[0].recompute.granularity == again


def test_hugging_face_s_gpt_2_and_opt_have_dropout_unless_a_row_says_none(shelf: Shelf) -> None:
    def dropped(model: str, notes: str = "") -> bool:
        row = {"framework": "HF Trainer, DDP", "model": model, "gated_mlp": "0", "notes": notes}
        return setup(run_of(**row), shelf).problem.workload.dropout

    assert dropped("GPT-2 XL")
    assert dropped("OPT-1.3B")
    assert not dropped("GPT-2 XL", "no dropout")
    assert not dropped("Pythia-1B")
    plain = run_of(framework="PyTorch DDP", model="GPT-2 XL", gated_mlp="0")
    assert not setup(plain, shelf).problem.workload.dropout
