"""What rows say of kernels in many words: attention, joined operators, dropout, optimizers."""

import pytest

from autopar.runs import Run
from autopar.runs.attention import attention_said
from autopar.runs.joined import joined
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


@pytest.mark.parametrize(
    "notes",
    [
        "plain XLA attention",
        "XLA attention, no kernel",
        "flash attention not configured",
        "Fused attention is not in use",
        "Vanilla HF attention",
        "eager SDPA attention",
        "Attention: vanilla (softmax(QK^T) materialized)",
        "attention implementation was the naive one",
        "Attention ran as SDPA math backend",
        "attn_implementation='eager'",
        "attn_impl: torch",
        "attention=dot_product",
        "no flash attention yet",
        "w/o FlashAttention",
        "Neither flash-attn nor SP flag",
        "use_flash_attention: no",
        "--use-flash-attn missing",
        "USE_FLASH_ATTN=0",
        "pre-flash attention",
        "No FusedSDPA; dropout 0",
        "attention probs materialised and kept",
        "it materializes the full score matrix, unlike FlashAttention",
        "scores get stored",
        "attention with the full score matrix in PyTorch operations",
        "jax.nn.dot_product_attention, full rematerialization",
        "That release lacks a fused attention kernel, and the softmax runs in 16 bits",
        "attention null, which falls back to vanilla (reference) attention",
    ],
)
def test_a_row_says_that_scores_were_stored(notes: str) -> None:
    assert attention_said(Run(id="a", notes=notes)) == "unfused"


@pytest.mark.parametrize(
    "notes",
    [
        "FA on",
        "--use-flash-attn (v1)",
        "attn_implementation=sdpa",
        "FlexAttention with block masks",
        "attention via AITER",
        "cuDNN attention",
        "FusedSDPA",
        "xformers memory_efficient_attention",
        "no flash-attn package, SDPA instead",
        "F.scaled_dot_product_attention",
        "fp8 dot product attention",
        "TransformerEngine dot product attention",
        "flash attention; stored scores would not have fitted",
        "flash attention; with materialized scores the run couldn't fit",
        "flash attention, not FlashAttention 3",
        "flash attention; eager PyTorch",
        "flash attention; products of matrices are kept",
        "FlashAttention, as NVTE_FUSED_ATTN=0",
    ],
)
def test_a_row_says_that_attention_was_one_kernel(notes: str) -> None:
    assert attention_said(Run(id="a", notes=notes)) == "flash"


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "eager mode",
        "math dataset",
        "FAQ",
        "no full attention",
        "attention math stays bf16",
        "full-attention reference run",
    ],
)
def test_a_row_says_nothing_of_attention(notes: str) -> None:
    assert attention_said(Run(id="a", notes=notes)) is None


def test_no_run_stored_scores_that_exceed_its_device(shelf: Shelf) -> None:
    def attention(**cells: str) -> str:
        row = {"framework": "Megatron-LM", "date": "2021-06", "attention": ""}
        row |= {"recompute": "full", "model": "mine", "cp": "1", **cells}
        return setup(run_of(**row), shelf).problem.workload.attention

    assert attention() == "unfused"
    # 16 heads of 131072 x 131072 scores, two copies in 16 bits: 1024 GiB of 80.
    assert attention(seq_len="131072") == "flash"
    # 16 heads of 4096 x 4096: 1 GiB a layer and sequence; 32 layers of 8 sequences are 256 GiB.
    assert attention(mbs="8", recompute="none") == "flash"
    assert attention(mbs="8") == "unfused"
    assert attention(cp="2", dp="2") == "flash"


@pytest.mark.parametrize(
    ("operator", "notes"),
    [
        ("norm", "--use-fused-rmsnorm"),
        ("norm", "fused LN"),
        ("norm", "SwiGLU fused, add+RMSNorm fused"),
        ("norm", "Triton fused RoPE / RMSNorm / CE"),
        ("activation", "fused RMSNorm, SwiGLU, RoPE and cross-entropy kernels"),
        ("rope", "fused: SwiGLU, RMSNorm+residual, RoPE"),
        ("rope", "fuse rope on"),
        ("rope", "apply_rope_fusion: true"),
        ("permutation", "fused ops for RMSNorm, permute, RoPE, grouped matmul"),
        ("permutation", "--moe-permute-fusion"),
        ("router", "moe_router_fusion"),
        ("softmax", "softmax in one kernel (no --no-masked-softmax-fusion)"),
        ("softmax", "no --no-masked-softmax-fusion"),
        (
            "softmax",
            "masked softmax is a fused kernel since --no-masked-softmax-fusion isn't passed",
        ),
        ("softmax", "--triangle-attn (scores kept, single-kernel softmax)"),
        ("norm", "LayerNorm kernel fused"),
        ("norm", "fused CE, SwiGLU, rotary and RMSNorm CUDA ops"),
        ("norm", "fla Triton kernels for RoPE, RMSNorm, SwiGLU, CE"),
        ("norm", "Fused ops: dense+bias+GELU via cublasLt epilogue, LayerNorm first/last"),
        ("norm", "fuse_attention_qkv, fused RoPE + RMSNorm"),
    ],
)
def test_an_operator_is_one_kernel(operator: str, notes: str) -> None:
    assert joined(Run(id="a", notes=notes), operator) is True


@pytest.mark.parametrize(
    ("operator", "notes"),
    [
        ("norm", "RMSNorm/RoPE unfused"),
        ("norm", "RMSNorm unfused (--use-fused-rmsnorm absent)"),
        ("activation", "SwiGLU eager, w1/w3 as two GEMMs"),
        ("activation", "bias_swiglu_fusion: false"),
        ("activation", "swiglu act unfused (eager ops)"),
        ("activation", "own layers of unfused ops"),
        ("rope", "neither permute, router nor RoPE fusion"),
        ("rope", "rotary embedding in separate operators"),
        ("rope", "apply_rope_fusion off"),
        ("permutation", "no --moe-permute-fusion"),
        ("permutation", "so permute fusion (a TE feature) is off too"),
        ("router", "router left unforced and without fusion"),
        ("residual", "All fusions disabled: bias-gelu, bias-dropout, masked softmax"),
        ("permutation", "neither --moe-permute-fusion nor --moe-router-fusion"),
        ("router", "neither --moe-permute-fusion nor --moe-router-fusion"),
        ("rope", "flags absent: --use-fused-rmsnorm, --use-fused-rotary-pos-emb"),
        ("activation", "RMSNorm/RoPE/act as discrete ops"),
        ("rope", "permutation, router and RoPE all unfused"),
        ("softmax", "scaled-upper-triang-masked-softmax-fusion and bias-gelu-fusion off"),
        ("softmax", "--no-masked-softmax-fusion"),
    ],
)
def test_an_operator_is_several_kernels(operator: str, notes: str) -> None:
    assert joined(Run(id="a", notes=notes), operator) is False


@pytest.mark.parametrize(
    ("operator", "notes"),
    [
        ("norm", "fused AdamW, RMSNorm in fp32"),
        ("rope", "fused cross-entropy; rotary positions"),
        ("permutation", "no unfused permutation"),
        ("activation", "activation not fused with the products"),
        ("norm", "eager"),
    ],
)
def test_nothing_is_said_of_an_operator(operator: str, notes: str) -> None:
    assert joined(Run(id="a", notes=notes), operator) is None


@pytest.mark.parametrize(
    ("notes", "dropout"),
    [
        ("dropout 0.1", True),
        ("hidden_dropout: 0.1, attention_dropout: 0", True),
        ("dropout active", True),
        ("eager modeling_gpt2.py (0.1 dropout default)", True),
        ("attn unfused; p_drop .1", True),
        ("rotary; dropout; untied", True),
        ("dropout-free", False),
        ("no dropout", False),
        ("--attention-dropout 0.0 --hidden-dropout 0.0", False),
        ("Dropout off", False),
    ],
)
def test_dropout_is_read_from_words(shelf: Shelf, notes: str, dropout: bool) -> None:
    for framework in ("GPT-NeoX", "torchtitan"):
        run = run_of(framework=framework, notes=notes)
        assert setup(run, shelf).problem.workload.dropout == dropout


@pytest.mark.parametrize(
    ("model", "month", "dropout"),
    [
        ("GPT3-5B", "2024-06", True),
        ("GPT-3 175B", "2024-06", True),
        ("GPT3-5B", "2025-02", True),
        ("GPT3-175B", "2025-02", False),
        ("Llama2-7B", "2024-06", False),
        ("Nemotron-22B", "2024-06", False),
    ],
)
def test_nemo_drops_out_of_its_gpt3_alone(
    shelf: Shelf, model: str, month: str, dropout: bool
) -> None:
    run = run_of(framework="NeMo", model=model, date=month)
    assert setup(run, shelf).problem.workload.dropout == dropout
    run = run_of(framework="NeMo", model=model, date=month, notes="no dropout")
    assert not setup(run, shelf).problem.workload.dropout


@pytest.mark.parametrize(
    ("notes", "by_products"),
    [
        ("--no-gradient-accumulation-fusion", False),
        ("no gradient accumulation fusion", False),
        ("gradient_accumulation_fusion: false", False),
        ("gradients not added by the products", False),
        ("gradient accumulation fusion", True),
        ("no gradient accumulation", True),
    ],
)
def test_who_adds_weight_gradients_is_read_from_words(
    shelf: Shelf, notes: str, by_products: bool
) -> None:
    run = run_of(framework="Megatron-LM", date="2025-06", notes=notes)
    assert setup(run, shelf).problem.framework.fused.gradient_accumulation == by_products


@pytest.mark.parametrize(
    ("notes", "kernel"),
    [
        ("AdamW(fused=True)", "native"),
        ("fused=True AdamW", "native"),
        ("FusedAdamW", "native"),
        ("--optim adamw_torch_fused", "native"),
        ("AdamW not fused", "separate"),
        ("AdamW(fused=False)", "by_tensor"),
        ("for-loop AdamW (not fused/foreach)", "by_tensor"),
        ("gradients and AdamW states (fused)", "native"),
        ("AdamW(foreach=False)", "by_tensor"),
        ("AdamW goes tensor by tensor", "by_tensor"),
        ("AdamW; fused LayerNorm", "separate"),
    ],
)
def test_a_fused_optimizer_is_read_from_words(shelf: Shelf, notes: str, kernel: str) -> None:
    run = run_of(framework="FSDP", notes=notes)
    assert setup(run, shelf).problem.framework.fused.optimizer == kernel


@pytest.mark.parametrize(
    ("notes", "first"),
    [
        ("--use-flash-attn (v1)", "fa1"),
        ("flash-attn 1.0.3", "fa1"),
        ("use_flash_attention_2", "fa2"),
        ("flash-attn==2.5.8", "fa2"),
        ("FlashAttention version 3", "fa3"),
    ],
)
def test_the_release_of_flash_attention_is_read_from_words(
    shelf: Shelf, notes: str, first: str
) -> None:
    run = run_of(framework="FSDP", attention="", notes=notes)
    assert setup(run, shelf).problem.framework.attention_kernels[0] == first


@pytest.mark.parametrize(
    ("column", "notes", "named"),
    [
        ("", "attn_implementation=flex_attention", True),
        ("", "FlexAttention compiled by itself", True),
        ("flex", "", True),
        ("", "SDPA instead of FlexAttention", False),
        ("", "--moe-token-dispatcher-type flex", False),
        ("cuDNN", "FlexAttention was tried too", False),
    ],
)
def test_flex_attention_is_read_from_words(
    shelf: Shelf, column: str, notes: str, named: bool
) -> None:
    run = run_of(framework="FSDP", attention=column, notes=notes)
    assert (setup(run, shelf).problem.framework.attention_kernels[0] == "flex") == named


@pytest.mark.parametrize(("notes", "layouts"), [("unpad_input before flash-attn", 1), ("", 0)])
def test_rows_gathered_for_attention_are_read_from_words(
    shelf: Shelf, notes: str, layouts: int
) -> None:
    run = run_of(framework="FSDP", attention="", notes=notes)
    assert setup(run, shelf).problem.framework.attention_layouts == layouts


@pytest.mark.parametrize(
    "notes",
    ["Splash, 2048 blocks", "tokamax splash attention, block size 2048", "sa_block_q: 2048"],
)
def test_blocks_of_splash_attention_are_read_from_words(shelf: Shelf, notes: str) -> None:
    run = run_of(framework="MaxText", chip="TPU v5p", attention="", notes=notes)
    assert setup(run, shelf).problem.framework.attention_block == 2048


@pytest.mark.parametrize(
    "notes",
    [
        "sequential for-loop over experts",
        "grouped GEMM flag missing, so experts (14336 wide) run sequentially",
        "SequentialMLP (no --moe-grouped-gemm)",
        "experts one by one",
        "Experts run in a sequential loop",
        "moe = HF python expert loop, no EP",
    ],
)
def test_experts_in_turn_are_read_from_words(shelf: Shelf, notes: str) -> None:
    run = run_of(framework="Megatron-LM", experts="8", topk="2", notes=notes)
    assert not setup(run, shelf).problem.framework.fused.grouped_gemm


@pytest.mark.parametrize(
    ("notes", "dispatch"),
    [
        ("--moe-token-dispatcher-type alltoall", "copies"),
        ("alltoall token dispatcher", "copies"),
        ("dispatcher: NCCL AlltoAll", "copies"),
        ("--moe-token-dispatcher-type allgather", "gather"),
        ("DeepEP dispatch", "once_a_node"),
    ],
)
def test_a_dispatcher_is_read_from_words(shelf: Shelf, notes: str, dispatch: str) -> None:
    run = run_of(framework="Megatron-LM", experts="8", topk="2", notes=notes)
    assert setup(run, shelf).problem.framework.expert_dispatch == dispatch
