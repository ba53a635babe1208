"""What the words of a row say of its framework."""

from dataclasses import asdict
from pathlib import Path

import pytest

from autopar.framework import Graphs
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def test_the_width_of_moments_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str, framework: str = "Megatron-Core") -> int:
        run = run_of(notes=notes, framework=framework)
        return setup(run, shelf).problem.framework.bytes.optimizer

    # A 32-bit copy and two moments of 32, 16 or 8 bits.
    assert said("") == 12
    assert said("moments in 16 bits") == said("bf16 moments") == said("bf16 Adam moments") == 8
    assert said("8-bit Adam") == 6
    # torchtune's have 16 bits as it is, and no copy.
    assert said("", "torchtune") == said("bf16 moments", "torchtune") == 4
    assert said("8-bit Adam", "torchtune") == 2
    # Two moments of 16 bits and a copy as wide, DeepSpeed's; and no copy.
    assert said("bf16 weights and AdamW states, bf16_master_weights_and_grads", "DeepSpeed") == 6
    assert said("bf16 weights and AdamW states") == said("pure bf16") == 4
    # PyTorch's moments are as wide as what they are of; Megatron steps a copy, as others may.
    assert said("parameters held in bf16", "PyTorch DDP") == 4
    assert said("parameters held in bf16, fp32 master weights", "PyTorch DDP") == 8
    assert said("parameters held in bf16, moments in fp32", "PyTorch DDP") == 8
    assert said("parameters held in bf16") == 12


def test_gradients_in_16_bits_may_be_added_to_wider_sums(shelf: Shelf) -> None:
    def said(notes: str, framework: str) -> tuple[int, int]:
        stored = setup(run_of(notes=notes, framework=framework), shelf).problem.framework.bytes
        return stored.gradient, stored.gradient_sent

    assert said("", "Megatron-Core") == (4, 4)
    assert said("gradients reduced in bf16", "Megatron-Core") == (2, 2)
    # DeepSpeed's bf16 optimizer: 16 bits, and 32 of the sum.
    assert said("", "GPT-NeoX") == (6, 4)
    assert said("gradients reduced in bf16", "GPT-NeoX") == (6, 2)
    # FSDP2's shards of them are as wide as those of parameters.
    assert said("", "torchtitan") == (4, 4)
    assert said("gradients reduced in bf16", "torchtitan") == (4, 2)


def test_what_a_process_has_for_the_optimizer_on_the_host_is_read_from_words(
    shelf: Shelf,
) -> None:
    def said(notes: str, framework: str = "DeepSpeed") -> tuple[int, bool]:
        offload = setup(run_of(notes=notes, framework=framework), shelf).problem.framework.offload
        return offload.threads, offload.pinned

    assert said("") == (1, False)
    assert said("offload of the optimizer, 26 threads, pinned memory") == (26, True)
    assert said("", "Megatron-DeepSpeed") == (0, False)
    assert said("offload of the optimizer by 1 thread of a rank", "Megatron-DeepSpeed")[0] == 1


def test_one_rank_keeps_a_stage_that_sends_gradients_to_the_host(shelf: Shelf) -> None:
    def stage(notes: str, framework: str = "DeepSpeed") -> int:
        run = run_of(notes=notes, framework=framework, zero="3", dp="1", tp="1", gpus="1")
        return setup(run, shelf).plan.zero

    assert stage("") == stage("optimizer in host memory", "FSDP2") == 0
    assert stage("optimizer in host memory") == 3


def test_plain_linear_layers_keep_gathered_weights_where_nothing_is_computed_again(
    shelf: Shelf,
) -> None:
    def live(notes: str, recompute: str = "none") -> int:
        run = run_of(notes=notes, framework="DeepSpeed", recompute=recompute)
        return setup(run, shelf).problem.framework.held.live_parameters

    assert live("") == live("memory_efficient_linear off", "full") == 10**9
    assert live("memory_efficient_linear off") > 10**12
    assert live("stage3_max_live_parameters 100000") == 10**5


def test_the_host_s_part_follows_what_is_said_of_graphs(shelf: Shelf) -> None:
    def said(notes: str, framework: str = "Megatron-Bridge") -> float:
        run = run_of(framework=framework, notes=notes, date="2026-07")
        return setup(run, shelf).problem.framework.launch_us

    assert (
        said("CUDA graph of the whole iteration") == said("cuda_graph_impl full_iteration") == 0.0
    )
    assert said("MXFP8") == 0.0  # the recipes of that time replay a step as one graph
    assert said("MXFP8, no CUDA graphs") == said("MXFP8, CUDA graphs of attention") == said("")
    assert said("MXFP8, partial CUDA graphs") == said("MXFP8, TE graphs of router") == said("")
    assert said("") > 0.0
    # A counter of operations adds Python to each operator of what is launched.
    assert said("FLOPs counted by operator", "FSDP") == said("", "FSDP") + 27.0
    # What compiles a step to one program has no graphs to lose.
    assert said("no CUDA graphs", "MaxText") == 0.0


def test_a_graph_of_the_whole_step_goes_with_a_stash(shelf: Shelf) -> None:
    def stashes(notes: str, date: str = "2026-07") -> bool:
        run = run_of(framework="Megatron-Bridge", notes=notes, date=date)
        return setup(run, shelf).problem.framework.stashes_experts

    assert stashes("MXFP8")
    assert not stashes("MXFP8", "2026-04")
    assert not stashes("MXFP8, partial CUDA graphs")
    assert stashes("CUDA graph of the whole iteration, paged stash")
    assert not stashes("CUDA graph of the whole iteration")


def test_a_graph_level_joins_elementwise_operators(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, str]:
        run = run_of(framework="MindFormers", notes=notes, chip="910B")
        fused = setup(run, shelf).problem.framework.fused
        return fused.activation, fused.rope

    assert said("jit level O0") == said("jit level O2") == said("") == (False, "separate")
    assert said("jit level O1") == said("full recompute; graph level O1") == (True, "compiled")


def test_layers_written_for_a_rank_s_share_have_no_distributed_tensors(shelf: Shelf) -> None:
    def said(framework: str, date: str = "2025-12") -> float:
        run = run_of(framework=framework, date=date, tp=2)
        used = setup(run, shelf).problem.framework
        return used.distributed_tensor_us + used.distributed_heads_us

    assert said("torchtitan (eager)") > said("FSDP2") > 0.0
    assert said("torchtitan (eager)", "2026-05") < said("torchtitan (eager)")
    assert said("FSDP2, no DTensor") == said("torchtitan, torch.compile") == said("Megatron") == 0.0


def test_linear_layers_that_a_plan_names_alone_sum_their_inputs_gradients_apart(
    shelf: Shelf,
) -> None:
    def shares(framework: str, sp: str) -> bool:
        run = run_of(framework=framework, date="2025-12", tp=2, sp=sp)
        return setup(run, shelf).problem.framework.shared_edges

    assert [shares("FSDP2", sp) for sp in "10"] == [True, True]
    assert [shares("HF Accelerate FSDP", sp) for sp in "10"] == [True, False]


def test_what_a_script_leaves_open_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, bool, str, str, bool]:
        run = run_of(framework="Megatron-Core", notes=notes, date="2025-06")
        used = setup(run, shelf).problem.framework
        hidden = used.overlap.gradient_reduce, used.overlap.parameter_gather
        return (*hidden, used.context_exchange, used.fused.rope, used.overlap.expert)

    assert said("") == (True, True, "ring", "by_token", False)
    assert said("no overlap of gradients or parameters")[:2] == (False, False)
    assert said("overlap of gradients and parameters")[:2] == (True, True)
    assert said("no overlap of gradients alone")[:2] == (False, True)
    assert said("overlapped distributed optimizer")[:2] == (True, True)
    assert said("cp_comm_type a2a")[2] == "heads"
    assert said("rotary embedding not fused")[3] == "eager"
    assert said("overlap_moe_expert_parallel_comm")[4]
    assert said("expert overlap")[4]
    assert not said("expert overlap off")[4]
    assert said("all-to-all overlapped")[4]
    assert not said("all-to-all not overlapped")[4]
    assert not said("all-to-all overlapped with computation (moe-alltoall-overlap-comm)")[4]


def test_megatron_llamas_optimizer_scatters_gradients_each_pass(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[str, bool]:
        run = run_of(framework="Megatron-LLaMA", notes=notes, date="2022-09")
        used = setup(run, shelf).problem.framework
        return used.gathers, used.overlap.gradient_reduce

    overlapped = "overlapped distributed optimizer"
    assert said(overlapped) == ("micro_batch", False)
    assert said(f"{overlapped}, CUDA_DEVICE_MAX_CONNECTIONS unset") == ("micro_batch", True)
    assert said("") == ("step", False)


def test_parameters_that_stay_gathered_in_8_bits_lie_so(shelf: Shelf) -> None:
    def said(notes: str, zero: str = "2") -> tuple[bool, int, int]:
        run = run_of(framework="FSDP2 compiled", precision="fp8", notes=notes, zero=zero)
        used = setup(run, shelf).problem.framework
        held = used.held
        return used.eight_bit_gathers.parameters, held.gathered_copy_bytes, held.fp8_weight_bytes

    assert said("float8 all-gather") == (True, 1, 1)
    assert said("float8 all-gather, fp8 weights cast again in backward") == (True, 1, 0)
    assert said("float8 all-gather", "fsdp") == said("", "fsdp") == said("")


def test_experts_may_lie_outside_of_what_is_sharded(shelf: Shelf) -> None:
    def said(notes: str) -> bool:
        run = run_of(framework="FSDP2", notes=notes)
        return setup(run, shelf).problem.framework.held.whole_experts

    assert said("experts outside of FSDP")
    assert not said("")


def test_what_is_computed_again_may_be_all_but_attention(shelf: Shelf) -> None:
    # MaxText's custom policies that keep what attention made, on the device or on the host.
    run = run_of(framework="MaxText", recompute="all but attention")
    found = setup(run, shelf)
    assert found.problem.framework.selective == "named"
    again = found.problem.framework.named
    assert (again.norm, again.projections, again.expansion, again.activation) == (True,) * 4
    assert not again.attention
    assert found.plan.stages[0].recompute.granularity == "selective"
    # AXLearn's keeps what the projections made, and computes attention again.
    run = run_of(framework="AXLearn", recompute="all but attention's projections")
    again = setup(run, shelf).problem.framework.named
    assert (again.norm, again.attention, again.expansion, again.activation) == (True,) * 4
    assert not again.projections


def test_what_a_policy_of_jax_keeps_is_read_by_its_tensors(shelf: Shelf) -> None:
    def said(recompute: str = "", notes: str = "") -> tuple[set[str], set[str], float]:
        run = run_of(framework="MaxText", recompute=recompute, notes=notes)
        found = setup(run, shelf)
        framework = found.problem.framework
        kept = {name for name, again in asdict(framework.named).items() if not again}
        on_host = {name for name, waits in asdict(framework.held.offloaded).items() if waits}
        assert found.plan.stages[0].recompute.granularity == "selective"
        assert "recompute" not in found.open
        return kept, on_host, framework.held.offloaded_share

    products = {"projections", "output", "expansion", "contraction"}
    attention = {"projections", "output"}
    assert said("minimal") == said("dots_saveable") == (products, set(), 0)
    assert said("minimal_flash") == (products | {"attention"}, set(), 0)
    assert said("minimal_offloaded") == (products, products, 0)
    assert said("save_dot_except_mlpwi") == (attention | {"contraction"}, set(), 0)
    assert said("qkv_proj_offloaded") == ({"projections"}, {"projections"}, 0)
    # Of one's own: what goes to the host, in words or as arguments.
    listed = "custom remat, offloaded to host: decoder_layer_input,out_proj,q,k,v"
    arguments = "remat_policy=custom decoder_layer_input=offload out_proj=offload "
    arguments += "query_proj=offload key_proj=offload value_proj=offload context=remat"
    assert said(notes=listed) == said("full", arguments)
    assert said(notes=listed) == (attention, attention | {"input"}, 0)
    kept = "remat custom: kept on device are layer input, context, q, k, v, qkv"
    assert said(notes=kept) == ({"projections", "attention"}, set(), 0)
    # Keys and values without queries spare no projection; experts' results may wait too.
    some = "remat custom: layer input and mlpwo offloaded to host, k and v kept"
    assert said(notes=some) == ({"contraction"}, {"input", "contraction"}, 0)


def test_states_have_the_width_of_maxtext_s_weights(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[int, int, int]:
        stored = setup(run_of(framework="MaxText", notes=notes), shelf).problem.framework.bytes
        return stored.parameter, stored.gradient, stored.optimizer

    assert said("weight_dtype bfloat16") == said("weight_dtype=bf16") == (2, 2, 4)
    assert said("weight_dtype=float32") == (2, 4, 10)


def test_heads_of_further_tokens_keep_logits_of_their_own(shelf: Shelf) -> None:
    def said(framework: str, notes: str) -> int:
        run = run_of(framework=framework, notes=notes)
        return setup(run, shelf).problem.framework.held.logit_bytes

    alone = said("MaxText", "")
    assert said("MaxText", "one MTP layer besides") == 2 * alone
    assert said("MaxText", "2 multi-token prediction layers") == 3 * alone
    assert said("torchtitan", "one MTP layer besides") == said("torchtitan", "")


def test_who_reduces_gradients_once_a_step_is_read_from_words(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "", **cells: str) -> bool:
        run = run_of(framework=framework, notes=notes, **cells)
        return setup(run, shelf).problem.framework.reduces_once

    assert said("HF Trainer FSDP")
    assert said("LitGPT")
    assert said("PyTorch FSDP", "gradients accumulate under no_sync")
    assert not said("PyTorch FSDP")
    assert not said("PyTorch FSDP", "without no_sync")
    assert not said("LitGPT", gbs="4")  # nothing to accumulate
    last = "gradients reduced with the last micro-batch"
    assert said("torchtitan", last)
    assert said("torchtitan", "Grad reduction once, on the final microbatch")
    assert not said("torchtitan")
    # DeepSpeed reduces them in every backward pass.
    assert not said("HF Trainer + DeepSpeed ZeRO-3")


def test_reentrant_checkpoints_around_what_fsdp_wrapped_gather_for_themselves(shelf: Shelf) -> None:
    def again(framework: str, notes: str) -> bool:
        run = run_of(
            framework=framework, zero="fsdp", recompute="full", notes=notes, date="2024-12"
        )
        return setup(run, shelf).problem.framework.recompute_gathers

    assert again("Accelerate FSDP", "HF gradient checkpointing")
    assert again("PyTorch FSDP", "torch.compile; reentrant checkpoints")
    assert not again("Accelerate FSDP2", "HF gradient checkpointing")
    assert not again("PyTorch FSDP", "non-reentrant checkpoints")
    assert not again("PyTorch FSDP", "")


def test_hugging_face_s_checkpoints_ran_a_layer_to_its_end(shelf: Shelf) -> None:
    def early(notes: str, date: str = "2024-12") -> bool:
        run = run_of(framework="PyTorch FSDP", recompute="full", notes=notes, date=date)
        return setup(run, shelf).problem.framework.recompute_stops_early

    assert early("")
    assert not early("HF gradient checkpointing")
    assert early("HF gradient checkpointing", "2026-03")
    assert not early("reentrant checkpoints", "2026-03")
    assert early("non-reentrant checkpoints")


def test_a_row_names_the_scaling_of_its_8_bits(shelf: Shelf) -> None:
    def scaling(**words: str) -> str:
        return setup(run_of(precision="fp8", **words), shelf).problem.framework.fp8_scaling

    # Megatron's default, and what recipes had before Megatron-Bridge and have since.
    assert scaling() == "delayed"
    assert scaling(framework="NeMo 25.04", date="2025-04") == "delayed"
    assert scaling(framework="Megatron-Bridge 25.11", date="2025-11") == "current"
    assert scaling(framework="Megatron-Bridge 25.11", notes="delayed scaling") == "delayed"
    assert scaling(notes="current scaling (fp8_cs)") == scaling(notes="tensorwise") == "current"
    assert scaling(notes="current scaling instead of delayed scaling") == "current"
    assert scaling(notes="dynamic scaling") == "current"
    for block in ("fp8 blockwise", "blockwise fp8", "block-wise scaling", "Float8BlockScaling"):
        assert scaling(notes=block) == "block"


@pytest.mark.parametrize(
    "notes",
    [
        "expert overlap, delayed wgrad",
        "delayed-wgrad",
        "wgrad delayed",
        "gradient all-reduce delayed to the last micro-batch",
        "faster than delayed scaling",
        "block-wise activation checkpointing",
        "blockwise recompute",
        "fp8; blockwise wrapping",
        "unlike fp8 blockwise",
        "dynamic loss scaling",
    ],
)
def test_what_is_not_of_8_bits_names_no_scaling(shelf: Shelf, notes: str) -> None:
    for framework, usual in (("megatron-core", "delayed"), ("Megatron-Bridge 25.11", "current")):
        run = run_of(precision="fp8", framework=framework, date="2025-11", notes=notes)
        assert setup(run, shelf).problem.framework.fp8_scaling == usual


def test_experts_of_the_older_grouped_products_are_in_16_bits(shelf: Shelf) -> None:
    def wide(notes: str) -> bool:
        return setup(run_of(precision="fp8", notes=notes), shelf).problem.framework.wide_experts

    assert wide("legacy grouped GEMM, DeepEP")
    assert wide("fp8 on dense linears (experts bf16)")
    assert not wide("turbo grouped GEMM")


ALL = Graphs(attention=True, router=True, mlp=True)


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("", Graphs()),
        ("no CUDA graphs", Graphs()),
        ("recompute, CUDA graphs, fusion not in the table", Graphs()),
        ("CUDA graphs", ALL),
        ("fused norms, TE CUDA graphs", ALL),
        ("CUDA graphs of attention and router (TE)", Graphs(attention=True, router=True)),
        ("graphs of attention, router, preprocess; mock data", Graphs(attention=True, router=True)),
        ("TE CUDA graphs for router and preprocess", Graphs(router=True)),
        ("router and what precedes the exchange in CUDA graphs", Graphs(router=True)),
        ("graphs of the router; graphs of attention too", Graphs(attention=True, router=True)),
        ("CUDA-graphed: attn, router incl. shared expert", Graphs(attention=True, router=True)),
        ("CUDA graphs got silently disabled", Graphs()),
        ("feed-forward in CUDA graphs", Graphs(mlp=True)),
        ("the attention part captured in graphs", Graphs(attention=True)),
        ("rate read off a graph", Graphs()),
    ],
)
def test_what_was_a_graph_is_read_from_words(shelf: Shelf, notes: str, graphs: Graphs) -> None:
    run = run_of(framework="Megatron-Bridge", chip="H100", notes=notes, date="2026-01")
    assert setup(run, shelf).problem.framework.graphs == graphs


def test_recipes_for_grace_have_graphs_where_nobody_says(shelf: Shelf) -> None:
    def usual(chip: str, notes: str = "", model: str = "llama2-7b") -> Graphs:
        run = run_of(
            framework="Megatron-Bridge", chip=chip, notes=notes, date="2026-01", model=model
        )
        return setup(run, shelf).problem.framework.graphs

    assert usual("GB200") == usual("GB300-288GB") == Graphs(attention=True, router=True)
    assert usual("GB200", "no CUDA graphs") == usual("B200") == Graphs()
    # gpt-oss has some on GB300 alone.
    assert usual("GB200", model="GPT-OSS-120B") == Graphs()
    assert usual("GB300-288GB", model="GPT-OSS-120B") == usual("GB200")


def test_a_profile_s_own_graphs_stay_where_a_row_says_nothing(tmp_path: Path, shelf: Shelf) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('follows = "megatron-core"\n[graphs]\nmlp = true\n[source]\ngraphs = "mine"\n')
    mine = setup(run_of(framework=str(file), chip="H100"), shelf).problem.framework
    assert mine.graphs == Graphs(mlp=True)
    assert mine.fused.looped_gemm


def test_parameters_and_the_optimizer_may_be_in_host_memory(shelf: Shelf) -> None:
    def there(notes: str) -> tuple[bool, bool]:
        found = setup(run_of(framework="FSDP", notes=notes), shelf)
        return found.problem.framework.held.parameters_on_host, found.plan.optimizer_offload

    assert there("parameters and optimizer in host memory (CPU Adam)") == (True, True)
    assert there("FSDP with CPUOffload") == (True, True)
    assert there("parameters kept in host memory") == (True, False)
    assert there("optimizer states are in host memory") == (False, True)
    assert there("checkpoints in host memory") == there("no CPUOffload") == (False, False)


def test_llmq_gathers_sharded_weights_from_where_their_master_copy_waits(shelf: Shelf) -> None:
    def there(notes: str, framework: str = "LLM.Q (CUDA/C++)") -> tuple[bool, bool, bool]:
        found = setup(run_of(framework=framework, notes=notes), shelf).problem.framework
        held = found.held
        return held.parameters_on_host, held.gradients_stay, found.eight_bit_gathers.parameters

    master = "master weights in host memory"
    assert there(f"{master}; weights sharded, gathered by copies") == (True, True, False)
    assert there(f"{master}; weights and gradients sharded") == (True, True, False)
    eight = f"{master}; weights sharded; 8-bit weights kept in host memory"
    assert there(eight) == (True, True, True)
    assert there("weights sharded, gathered by copies; 8-bit weights kept in host memory")[0]
    assert there(master) == there("weights sharded") == (False, False, False)
    assert there(f"{master}; weights sharded", "FSDP") == (False, False, False)


def test_experts_may_be_one_kernel(shelf: Shelf) -> None:
    for words in ("ScatterMoE kernels", "MegaBlocks"):
        cells = {"framework": "FSDP", "experts": "8", "topk": "2", "notes": words}
        fused = setup(run_of(**cells), shelf).problem.framework.fused
        assert (fused.grouped_gemm, fused.looped_gemm) == (True, False)
