"""What the words of a row say of its kernels."""

from dataclasses import replace

import pytest

from autopar.framework import Framework
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def test_hugging_face_computes_gelu_of_gpt2_term_by_term(shelf: Shelf) -> None:
    def one_operator(model: str, framework: str = "Hugging Face, PyTorch") -> bool:
        run = run_of(framework=framework, model=model, gated_mlp="0")
        return setup(run, shelf).problem.framework.fused.gelu

    assert not one_operator("GPT-2 1.5B")
    assert not one_operator("GPT-J-6B")
    assert one_operator("GPT-NeoX-20B")
    assert one_operator("Falcon-7B")
    assert one_operator("GPT-2 1.5B", "nanoGPT, no torch.compile")


def test_mingpt_computes_gelu_term_by_term_since_it_was_rewritten(shelf: Shelf) -> None:
    def one_operator(date: str) -> bool:
        run = run_of(framework="FSDP with minGPT", model="GPT 3B", gated_mlp="0", date=date)
        return setup(run, shelf).problem.framework.fused.gelu

    assert one_operator("2022-03")
    assert not one_operator("2022-10")


def test_what_torchscript_joined_is_apart_since_pytorch_joins_none_of_it(shelf: Shelf) -> None:
    def joined(framework: str, date: str) -> set[bool]:
        run = run_of(framework=framework, gated_mlp="0", date=date, precision="fp16")
        one = setup(run, shelf).problem.framework.fused
        assert one.gelu_again != one.gelu
        return {one.activation, one.residual, one.gelu}

    assert joined("Megatron-DeepSpeed", "2024-01") == {True}
    assert joined("Megatron-DeepSpeed", "2024-12") == {False}
    assert joined("Megatron-DeepSpeed, PyTorch 2.1", "2024-12") == {True}
    assert joined("GPT-NeoX, PyTorch 2.2", "2024-02") == {False}
    # Its core has had a compiler join them since January 2024; Gaudi has one of its own.
    assert joined("Megatron-LM", "2024-12") == {True}
    assert joined("Megatron-DeepSpeed on Gaudi2", "2024-12") == {True}


def test_deepspeed_reduced_to_one_owner_after_another_before_release_0_13(shelf: Shelf) -> None:
    def used(date: str, **row: str) -> tuple[str, bool]:
        run = run_of(**{"framework": "Megatron-DeepSpeed", "precision": "fp16", **row}, date=date)
        framework = setup(run, shelf).problem.framework
        return framework.shards, framework.all_reduces

    assert used("2023-12") == used("2023-12", framework="DeepSpeed") == ("owners", False)
    assert used("2024-03") == used("2024-03", framework="DeepSpeed") == ("slices", True)
    # Sums in 32 bits were all-reduced all along.
    assert used("2023-12", precision="bf16") == ("slices", True)


def test_autocast_has_powers_in_32_bits(shelf: Shelf) -> None:
    def wide(framework: str, notes: str = "") -> bool:
        run = run_of(framework=framework, model="GPT-2", gated_mlp="0", zero="", notes=notes)
        return setup(run, shelf).problem.framework.fused.gelu_in_fp32

    assert wide("HF Trainer DDP")
    assert not wide("HF Trainer DDP", "states all in bf16")
    assert not wide("Hugging Face FSDP")
    assert wide("Hugging Face FSDP", "FSDP in fp16 under autocast")


def test_a_gate_is_joined_where_a_row_joins_the_whole_activation(shelf: Shelf) -> None:
    def gate(notes: str) -> bool:
        run = run_of(framework="Megatron-DeepSpeed", precision="fp16", notes=notes)
        return setup(run, shelf).problem.framework.fused.gate

    assert all(map(gate, ("fused swiglu", "Liger kernels")))
    assert not any(map(gate, ("", "fused bias-gelu")))


def test_operators_that_a_script_leaves_apart_are_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[bool, str, str, str, str]:
        run = run_of(framework="ModelLink", chip="910B", notes=notes)
        used = setup(run, shelf).problem.framework
        one = used.fused
        return one.activation, one.rope, one.norm, one.softmax, used.projections

    usual = said("")
    assert said("activations in separate operators") == (False, *usual[1:])
    assert said("rotary embedding in separate operators")[1] == "eager"
    assert said("activations and norms in separate operators")[::2][:2] == (False, "eager")
    assert said("softmax in one kernel; gate and up apart")[3:] == ("fused", "gate_apart")


def test_heads_of_olmo_are_turned_in_32_bits(shelf: Shelf) -> None:
    def rotation(model: str, framework: str = "PyTorch FSDP") -> str:
        run = run_of(model=model, framework=framework)
        return setup(run, shelf).problem.framework.fused.rope

    assert rotation("OLMo-1B") == rotation("olmo2-7b") == "widened"
    assert rotation("Llama-2-7B") == "eager"
    assert rotation("OLMo2 7B", "PyTorch FSDP, torch.compile") == "compiled"


@pytest.mark.parametrize(
    ("framework", "notes", "projections"),
    [
        ("PyTorch FSDP", "", "apart"),
        ("PyTorch FSDP", "packed QKV", "gate_apart"),
        ("PyTorch FSDP", "QKV projections are fused", "gate_apart"),
        ("PyTorch FSDP", "fused QKV rope", "apart"),
        # Lightning-AI/litgpt, litgpt/model.py: self.qkv, but fc_1 and fc_2.
        ("LitGPT (PyTorch FSDP)", "", "gate_apart"),
    ],
)
def test_packed_heads_are_read_from_words(
    framework: str, notes: str, projections: str, shelf: Shelf
) -> None:
    run = run_of(framework=framework, notes=notes)
    assert setup(run, shelf).problem.framework.projections == projections


def test_tiles_of_grouped_products_are_read_from_words(shelf: Shelf) -> None:
    def tiles(notes: str, chip: str = "TPU v5p") -> tuple[int, int]:
        used = setup(run_of(framework="MaxText", notes=notes, chip=chip), shelf).problem.framework
        return used.grouped_tile_rows, used.grouped_tile_width

    assert tiles("") == (512, 1024)
    assert tiles("megablox with tuned tiles") == (512, 0)
    assert tiles("tokamax gmm in tiles of 256 rows") == (256, 0)
    assert tiles("ragged_dot, no grouped kernel") == (0, 0)
    assert tiles("tiles of 256 rows", "H100") == (0, 0)


def test_kernels_are_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[str, ...]:
        run = run_of(framework="FSDP", notes=notes, date="2025-12")
        used = setup(run, shelf).problem.framework
        return (*used.attention_kernels, used.fused.norm, used.fused.rope)

    usual = said("")
    # PyTorch's own attention: AOTriton on AMD's devices, FlashAttention-2 on NVIDIA's.
    assert usual[:2] == ("aotriton", "fa2")
    assert said("FlashAttention 4")[:3] == ("cudnn", "aotriton", "fa2")
    assert said("FA3")[:3] == ("fa3", "aotriton", "fa2")
    assert said("AITER")[:2] == ("aiter", "fa2")
    assert said("Composable Kernel v3")[:2] == ("aiter", "fa2")
    assert said("composable kernels v2")[:2] == ("fa2", "aotriton")
    assert said("attention of TE (AITER, a16)")[0] == "aiter-a16"
    for notes, fused in (
        ("QK RMSNorm + RoPE fused", True),
        ("fused QK norm with rotary positions", True),
        ("no fused QK norm with rotary positions", False),
        ("QK norms; fused rope", False),
    ):
        heads = setup(run_of(framework="Primus (Megatron)", notes=notes), shelf)
        assert heads.problem.framework.fused.normed_rotation is fused
    # Before PyTorch 2.5 AOTriton's backward pass was another.
    for month, first in (("2024-09", "aotriton-0.6"), ("2024-10", "aotriton")):
        for framework in ("FSDP", "torchtitan", "PyTorch DDP"):
            then = setup(run_of(framework=framework, date=month), shelf).problem.framework
            assert then.attention_kernels[0] == first
    for framework in ("MaxText", "Megatron-LM (ROCm)"):
        amd = run_of(framework=framework, notes="AITER", chip="MI355X", date="2026-06")
        assert setup(amd, shelf).problem.framework.attention_kernels[:2] == ("aiter-a16", "aiter")
        wide = setup(replace(amd, notes="AITER, a32"), shelf).problem.framework
        assert wide.attention_kernels[0] == "aiter"
    wide = setup(replace(amd, notes="Lumen"), shelf).problem.framework
    assert wide.attention_kernels[0] == "aiter"
    # Primus' framework alone says AITER's; its run file may say otherwise.
    primus = run_of(framework="Primus (Megatron)", chip="MI300X", date="2026-02")
    assert setup(primus, shelf).problem.framework.attention_kernels[0].startswith("aiter")
    second = setup(replace(primus, notes="composable kernels v2"), shelf).problem.framework
    assert set(second.attention_kernels) == {"fa2"}
    # Transformer Engine's norms on ROCm, unless a row has kernels of Triton or Primus-Turbo.
    assert setup(primus, shelf).problem.framework.fused.general_norms == "hip"
    for norms in ("Triton norm", "turbo RMSNorm"):
        own = setup(replace(primus, notes=norms), shelf).problem.framework
        assert own.fused.general_norms == "absent"
    early = run_of(framework="Megatron-LM (ROCm)", chip="MI300X", date="2025-08")
    assert setup(early, shelf).problem.framework.attention_kernels == ("fa2",)
    assert said("no AITER") == said("no Liger") == usual
    sparse = run_of(framework="Megatron-LM", date="2026-01", notes="permutation not fused")
    assert not setup(sparse, shelf).problem.framework.fused.permutation
    fused = run_of(framework="Megatron-LM", date="2026-01", notes="no unfused permutation")
    assert setup(fused, shelf).problem.framework.fused.permutation
    assert said("Liger kernels")[-2:] == ("fused", "fused")


def test_a_loss_is_in_separate_operators_where_nothing_says_that_it_is_fused(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "") -> tuple[bool, int]:
        used = setup(run_of(framework=framework, notes=notes), shelf).problem.framework
        return used.fused.cross_entropy, used.held.logit_bytes

    # 16-bit logits and their 32-bit copy, whose exponentials take its place; joined by the compiler
    # 2 bytes more.
    assert said("Megatron-LM") == (False, 6)
    assert said("Megatron-LM", "fused cross entropy") == (True, 8)
    assert said("Megatron-LM", "no fused cross entropy") == (False, 6)
    assert said("Pai-Megatron-Patch") == (True, 8)
    assert said("Primus (Megatron-LM)") == said("Megatron-LM", "TE cross-entropy") == (True, 2)
    assert said("Megatron-LM with Primus-Turbo") == (False, 6)
    assert said("Primus (Megatron-LM)", "loss in separate operators") == (False, 6)
    assert said("NeMo 24.07")[0]


def test_hugging_face_s_loss_is_that_of_its_time(shelf: Shelf) -> None:
    def said(date: str, notes: str = "", framework: str = "HF Trainer FSDP", **cells: str) -> int:
        run = run_of(framework=framework, notes=notes, date=date, **cells)
        return setup(run, shelf).problem.framework.held.logit_bytes

    # Logits of 32 bits, a shifted copy and its log-softmax as the loss is worked out; since labels
    # are shifted log-softmax, its gradient and that of the logits as the backward pass begins.
    assert (said("2024-05"), said("2025-06")) == (12, 12)
    # One kernel works on the shifted copy of 32 bits; since release 4.46 on 16-bit logits.
    kernel = "fused Triton kernels for RoPE and cross entropy"
    assert (said("2024-05", kernel), said("2025-06", kernel)) == (8, 4)
    assert said("2025-06", framework="PyTorch FSDP") == 12
    # GPT-2 casts nothing.
    assert said("2022-10", framework="DeepSpeed", model="GPT-2 XL") == 8


def test_softmax_is_as_wide_as_what_it_reads_where_nothing_casts_it(shelf: Shelf) -> None:
    def wide(framework: str, model: str, zero: str = "", notes: str = "") -> bool:
        run = run_of(framework=framework, model=model, zero=zero, notes=notes)
        return setup(run, shelf).problem.framework.softmax_in_fp32

    assert not wide("DeepSpeed", "GPT-2 XL")
    assert not wide("fairseq with fairscale FSDP", "GPT-3 13B", "fsdp")
    # Llama's code casts it, mixed precision does, and Megatron's own kernel.
    assert wide("DeepSpeed", "Llama-2-7B")
    assert wide("PyTorch DDP", "GPT-2 XL")
    assert wide("Megatron-LM", "GPT-2 XL")
    # Where the row says how wide it is.
    assert wide("MindFormers", "Llama-2-7B", notes="softmax in fp32")
    assert not wide("MindFormers", "Llama-2-7B", notes="softmax in fp16")


def test_a_loss_in_one_kernel_reads_16_bits(shelf: Shelf) -> None:
    def said(framework: str, notes: str = "") -> tuple[bool, int]:
        used = setup(run_of(framework=framework, notes=notes), shelf).problem.framework
        assert used.fused.cross_entropy == used.loss_in_16_bits
        return used.loss_in_16_bits, used.held.logit_bytes

    # 16-bit logits with gradients as wide beside them, or in their place.
    assert (
        said("PyTorch DDP", "Xentropy") == said("PyTorch DDP", "fused cross entropy") == (True, 4)
    )
    assert said("llm.c", "a fused classifier") == said("LLM.Q (CUDA/C++)") == (True, 2)
    assert said("PyTorch DDP", "Liger kernels") == (True, 2)
    assert said("PyTorch DDP", "no Liger kernels") == said("PyTorch DDP")
    assert not said("PyTorch DDP")[0]


def test_the_release_of_flash_attention_is_read_or_of_the_time(shelf: Shelf) -> None:
    def used(**cells: str) -> tuple[str, ...]:
        return setup(run_of(**cells), shelf).problem.framework.attention_kernels

    old = {"framework": "Megatron-DeepSpeed", "date": "2023-05"}
    assert used(**old, attention="unfused") == ()
    assert used(**old, attention="flash") == ("fa1", "fa2")
    assert used(**old | {"date": "2023-08"}, attention="flash") == ("fa2",)
    assert used(**old, attention="FlashAttention 3") == ("fa3", "fa1", "fa2")
    late = {"framework": "Megatron-LM", "date": "2026-07"}
    assert used(**late)[0] != "fa2" == used(**late, attention="flash attention 2")[0]
    later = {"framework": "FSDP", "date": "2023-12"}
    assert used(**later, attention="flash attention 1") == ("fa1", *used(**later))
    # What a job names it takes, also where its profile would take a faster one.
    assert used(framework="Megatron-LM", date="2026-04", attention="flash attention 2")[0] == "fa2"


def test_splash_attention_has_the_blocks_that_a_row_names(shelf: Shelf) -> None:
    def used(notes: str = "") -> tuple[int, str]:
        run = run_of(framework="MaxText", chip="TPU v5p", notes=notes)
        framework = setup(run, shelf).problem.framework
        return framework.attention_block, framework.attention_kernels[0]

    assert used() == (512, "splash-512")
    assert used("splash attention in blocks of 2048") == (2048, "splash")
    assert used("tokamax splash in blocks of 512") == used()

    def kernel(notes: str) -> str:
        run = run_of(framework="torchprime", notes=notes)
        return setup(run, shelf).problem.framework.attention_kernels[0]

    assert (kernel("flash kernel"), kernel("splash kernel")) == ("tpu-flash", "splash-512")


def test_pytorch_s_attention_with_a_mask_is_another_kernel(shelf: Shelf) -> None:
    def used(notes: str, date: str, attention: str = "sdpa") -> tuple[str, ...]:
        run = run_of(framework="PyTorch FSDP", attention=attention, notes=notes, date=date)
        return setup(run, shelf).problem.framework.attention_kernels

    masked = "padded to 4096 tokens with masks"
    skips_nothing = ("efficient_masked", "npu_masked")
    assert used(masked, "2025-11") == (*skips_nothing, *used("", "2025-11"))
    assert used(masked, "2026-05")[:2] == ("cudnn_masked", "efficient_masked")
    assert used(masked, "2025-11", "flash") == used("", "2025-11", "flash")
    assert used("padded to 4096 tokens without masks", "2025-11") == used("", "2025-11")
    # Hugging Face's models make one of what is padded.
    padded = "HF Trainer; samples padded to the longest"
    assert used(padded, "2025-11")[0] == "efficient_masked"
    assert used("samples padded to the longest", "2025-11") == used("", "2025-11")
    assert used("attention masks are dense tensors", "2025-11") == used(masked, "2025-11")


def test_operators_in_one_kernel_are_read_from_words(shelf: Shelf) -> None:
    def used(notes: str = "", framework: str = "FSDP", date: str = "2025-01") -> Framework:
        return setup(run_of(framework=framework, notes=notes, date=date), shelf).problem.framework

    plain = used()
    assert plain.fused.norm == "eager"
    assert not any((plain.fused.activation, plain.fused.residual))
    assert plain.fused.optimizer == "separate"
    assert used("fused LayerNorm").fused == replace(plain.fused, norm="fused")
    assert used("fused bias-GELU").fused == replace(plain.fused, activation=True)
    assert used("fused dropout").fused == replace(plain.fused, residual=True)
    assert used("fused AdamW").fused == replace(plain.fused, optimizer="native")
    # Its modules under FSDP, not the whole of what stands beside them.
    under = used("layers with Transformer Engine")
    joined = replace(plain.fused, norm="fused", activation=True, rope="by_token")
    assert (under.fused, under.projections, under.repeats_key_heads) == (joined, "packed", False)
    assert used("layers without Transformer Engine").fused == plain.fused
    # Hugging Face's default since PyTorch 2.8.
    assert used(framework="HF Trainer FSDP", date="2025-09").fused.optimizer == "native"
    assert used(framework="HF Trainer FSDP", date="2025-07").fused.optimizer == "separate"
    assert used(framework="torchtune").fused.optimizer == "native"
    assert used(framework="nanoGPT").fused.optimizer == "native"
    assert used(framework="nanoGPT", notes="no fused AdamW").fused.optimizer == "separate"
    # DeepSpeed's own kernel stays its own.
    assert used("fused AdamW", framework="DeepSpeed").fused.optimizer == "fused"


def test_megatron_on_amd_sums_gradients_apart_from_their_product(shelf: Shelf) -> None:
    def fused(chip: str, framework: str) -> bool:
        run = run_of(framework=framework, chip=chip, date="2026-01")
        return setup(run, shelf).problem.framework.fused.gradient_accumulation

    assert fused("H100", "Megatron-LM")
    assert not fused("MI300X", "Megatron-LM")
    assert not fused("MI355X", "Primus (Megatron-LM, ROCm)")


def test_a_router_is_fused_where_its_row_or_a_recipe_says_so(shelf: Shelf) -> None:
    def fused(framework: str, notes: str = "", date: str = "2026-04") -> bool:
        run = run_of(framework=framework, date=date, notes=notes)
        return setup(run, shelf).problem.framework.fused.router

    assert not fused("Megatron-LM")
    assert fused("Megatron-LM", "router fusion")
    assert fused("Primus (Megatron-LM, ROCm)", "sync-free MoE stage 1")
    assert fused("Megatron-Bridge")
    assert not fused("Megatron-Bridge", "router not fused")
    assert not fused("Megatron-Bridge", "all-to-all; recipe moonlight_16b_pretrain")
    assert fused("Megatron-Bridge", "library recipe; fused router")
    assert not fused("NeMo 25.07", date="2025-07")


def test_the_grouped_product_of_primus_turbo_is_one_kernel(shelf: Shelf) -> None:
    def looped(notes: str) -> bool:
        run = run_of(framework="Primus (Megatron-LM, ROCm)", chip="MI355X", notes=notes)
        return setup(run, shelf).problem.framework.fused.looped_gemm

    assert looped("grouped GEMM")
    assert not looped("turbo grouped GEMM, fused activation")
    assert not looped("as before with grouped GEMM of FlyDSL")


def test_what_is_listed_as_fused_kernels_is_each_one(shelf: Shelf) -> None:
    def used(notes: str) -> Framework:
        return setup(run_of(framework="FSDP", notes=notes), shelf).problem.framework

    plain, listed = used("").fused, used("fused kernels (RoPE, RMSNorm, cross entropy)").fused
    assert (plain.norm, plain.rope, plain.cross_entropy) == ("eager", "eager", False)
    assert (listed.norm, listed.rope, listed.cross_entropy) == ("fused", "fused", True)
    assert not listed.activation
    assert used("without fused kernels (RoPE, RMSNorm)").fused == plain


def test_lumen_transposes_what_it_casts_in_part(shelf: Shelf) -> None:
    def across(
        precision: str, notes: str, framework: str = "Megatron-LM (ROCm) with Lumen"
    ) -> tuple[int, int]:
        run = run_of(framework=framework, chip="MI350X", precision=precision, notes=notes)
        found = setup(run, shelf).problem.framework.operands_across
        return found.input_gradient, found.weight_gradient

    assert across("fp8", "delayed scaling, hybrid (e5m2 backward)") == (0, 1)
    assert across("fp8", "delayed scaling, e4m3 both ways") == (1, 2)
    assert across("fp8", "blockwise FP8") == (0, 0)
    assert across("fp8", "delayed scaling, hybrid", "Megatron-LM (ROCm)") == (0, 0)


def test_lumen_had_an_attention_kernel_of_its_own(shelf: Shelf) -> None:
    def first(notes: str, framework: str = "Megatron-LM (ROCm) with Lumen") -> str:
        run = run_of(framework=framework, chip="MI350X", notes=notes, date="2026-09")
        return setup(run, shelf).problem.framework.attention_kernels[0]

    assert first("Triton attention") == "lumen-triton"
    assert first("tuned Triton products, CK attention") == "aiter"
    assert first("Triton attention", "Megatron-LM (ROCm)") == "aiter-a16"


def test_maxtext_embeds_by_a_product_where_its_script_says_so(shelf: Shelf) -> None:
    def by_product(notes: str) -> bool:
        run = run_of(framework="MaxText", chip="TPU v5p", notes=notes)
        return setup(run, shelf).problem.framework.embeds_by_product

    assert by_product("synthetic data; use_iota_embed (its script)")
    assert not by_product("synthetic data")
    assert not by_product("no use_iota_embed")


def test_each_piece_of_liger_s_loss_adds_its_gradient_of_the_head(shelf: Shelf) -> None:
    def sums(
        date: str, notes: str = "Liger kernels, fused linear cross-entropy"
    ) -> tuple[int, int]:
        row = {"framework": "FSDP", "vocab": "262208", "mbs": "2", "date": date, "notes": notes}
        used = setup(run_of(**row), shelf).problem.framework
        return used.held.loss_pieces, used.piece_sum_bytes

    # Of 8,192 tokens, 65 times as wide a vocabulary: pieces of 126 tokens and so of 128.
    assert sums("2026-08") == (64, 16)
    assert sums("2025-12") == (64, 4)
    # Another one's head and loss in one.
    assert sums("2026-08", "fused linear cross-entropy of the framework")[1] == 0


def test_softmax_of_16_bit_scores_has_no_casts_in_mindformers_graph(shelf: Shelf) -> None:
    def softmax(framework: str, notes: str) -> tuple[str, bool]:
        row = {"framework": framework, "chip": "910B", "notes": f"no flash attention; {notes}"}
        used = setup(run_of(**row), shelf).problem.framework
        return used.fused.softmax, used.softmax_in_fp32

    assert softmax("MindFormers", "softmax in fp16") == ("narrow", False)
    assert softmax("MindFormers", "") == ("separate", True)
    assert softmax("MindSpeed", "softmax in fp16")[0] != "narrow"


def test_pytorch_s_math_kernel_casts_nothing(shelf: Shelf) -> None:
    run = run_of(framework="FSDP", attention="SDPA math", chip="H100-80GB")
    found = setup(run, shelf)
    assert found.problem.workload.attention == "unfused"
    assert not found.problem.framework.softmax_in_fp32


def test_local_layers_have_pytorch_s_norms_and_rotation(shelf: Shelf) -> None:
    def parts(framework: str, date: str) -> tuple[str, str]:
        used = setup(run_of(framework=framework, date=date), shelf).problem.framework.fused
        return used.norm, used.rope

    assert parts("Megatron Core 0.15 (local layers)", "2026-03") == ("native", "unfused")
    assert parts("Megatron Core 0.12 (local layers)", "2025-03") == ("eager", "unfused")
    assert parts("Megatron Core 0.15", "2026-03") == ("tuned", "by_token")


def test_rotation_by_complex_numbers_is_read(shelf: Shelf) -> None:
    def rope(notes: str) -> str:
        return setup(
            run_of(framework="PyTorch DDP", notes=notes), shelf
        ).problem.framework.fused.rope

    assert rope("complex rotary embedding") == rope("RoPE as complex numbers") == "complex"
    assert rope("rotary embedding") == "eager"


def test_weights_under_amp_o1_are_cast_in_each_pass(shelf: Shelf) -> None:
    def casts(notes: str) -> tuple[bool, int]:
        used = setup(run_of(framework="NeMo 24.07", notes=notes), shelf).problem.framework
        return used.casts_weights, used.bytes.parameter

    assert casts("megatron_amp_O2 False") == casts("AMP O1") == (True, 6)
    assert casts("") == (False, 2)


def test_grug_s_flash_attention_is_a_fork_of_the_fourth(shelf: Shelf) -> None:
    def kernels(framework: str, chip: str) -> str:
        row = {"framework": framework, "chip": chip, "notes": "FlashAttention-4 (CuTe)"}
        found = setup(run_of(**row), shelf).problem
        timed = {rate.kernel for rate in found.cluster.groups[0].chip.attention}
        return next(k for k in found.framework.attention_kernels if k in timed)

    assert kernels("Levanter Grug (JAX)", "B200") == "grug-fa4"
    assert kernels("Levanter Grug (JAX)", "H100-80GB") == "fa2"
    assert kernels("torchtitan", "B200") == "cudnn"
