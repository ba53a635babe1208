"""Facts of a row in the words of people who write tables, each beside what it must change."""

from collections.abc import Callable

import pytest

from autopar.framework import Framework
from autopar.runs.setups import Setup, setup
from autopar.runs.shelf import Shelf, framework
from stated import run_of

HF = "HF transformers + Accelerate, FSDP of PyTorch 2.5.1"
MOE = {"experts": "128", "topk": "8", "expert_ffn": "768", "zero": "1", "framework": "Megatron-LM"}
WHOLE = {"tp": "1", "sp": "0", "dp": "8", "zero": "fsdp"}


def of(shelf: Shelf, cells: dict[str, str]) -> Setup:
    return setup(run_of(**cells), shelf)


@pytest.mark.parametrize(
    ("cells", "read", "told", "untold"),
    [
        ({**MOE, "notes": "use_turbo_deepep"}, lambda f: f.exchange_kernel, "deepep", ""),
        ({**MOE, "notes": "use_turbo_deepep: false"}, lambda f: f.exchange_kernel, "", ""),
        (
            {
                "framework": "Megatron-Core",
                "notes": "fp32 main params, exp_avg, exp_avg_sq in bf16",
            },
            lambda f: f.bytes.optimizer,
            8,
            12,
        ),
        (
            {
                "framework": "FSDP2",
                "notes": "Weights, grads, and moments of the fused AdamW are bf16",
            },
            lambda f: f.bytes.optimizer,
            4,
            10,
        ),
        (
            {
                "framework": "MindSpeed-LLM",
                "cp": "2",
                "dp": "2",
                "notes": "ring CP with double ring",
            },
            lambda f: f.context_exchange,
            "ring",
            "heads",
        ),
        (
            {"framework": "MindSpeed-LLM", "tp": "2", "sp": "1", "notes": "no --use-ascend-mc2"},
            lambda f: f.overlap.tensor,
            "none",
            "pipelined",
        ),
        (
            {
                **WHOLE,
                "framework": HF,
                "recompute": "full",
                "notes": "gradient_checkpointing via HF",
            },
            lambda f: f.recompute_stops_early,
            False,
            True,
        ),
        (
            {
                **WHOLE,
                "framework": HF,
                "recompute": "full",
                "notes": "gradient_checkpointing_enable()",
            },
            lambda f: f.recompute_gathers,
            True,
            False,
        ),
        (
            {
                "framework": "Megatron-LM",
                "notes": "overlap_grad_reduce / overlap_param_gather false",
            },
            lambda f: f.overlap.gradient_reduce,
            False,
            True,
        ),
        (
            {"framework": "Megatron-LM", "notes": "CE fused through TE"},
            lambda f: f.held.logit_bytes,
            2,
            6,
        ),
        (
            {"framework": "AscendSpeed", "notes": "--use-fused-rmsnorm and --use-x both absent"},
            lambda f: f.fused.norm,
            "eager",
            "fused",
        ),
        (
            {"framework": "AscendSpeed", "notes": "RMSNorm and RoPE run unfused"},
            lambda f: f.fused.rope,
            "eager",
            "fused",
        ),
        (
            {**WHOLE, "framework": "HF Trainer FSDP", "notes": "Triton RoPE, RMSNorm, CE kernels"},
            lambda f: f.fused.norm,
            "fused",
            "eager",
        ),
        (
            {"framework": "torchtitan", "notes": "CE over full logits"},
            lambda f: f.held.loss_pieces,
            1,
            8,
        ),
        (
            {**WHOLE, "framework": "Transformer Engine + FSDP", "notes": "loss chunked @512 tok"},
            lambda f: f.held.loss_pieces,
            8,
            1,
        ),
        (
            {**WHOLE, "framework": "FSDP2", "notes": "params bf16, fp32 gradients on the wire"},
            lambda f: f.bytes.gradient_sent,
            4,
            2,
        ),
        (
            {
                "framework": "Megatron-Bridge",
                "chip": "GB200",
                "notes": "CG off",
                **{k: MOE[k] for k in ("experts", "topk", "expert_ffn")},
            },
            lambda f: f.graphs.attention,
            False,
            True,
        ),
        (
            {"framework": "Megatron-LM", "notes": "--cross-entropy-loss-fusion, TE impl"},
            lambda f: f.held.logit_bytes,
            2,
            6,
        ),
        (
            {**WHOLE, "framework": "HF Trainer FSDP", "notes": "fused RMSNorm, RoPE, SwiGLU, CE"},
            lambda f: f.fused.cross_entropy,
            True,
            False,
        ),
        (
            {
                **WHOLE,
                "framework": "LitGPT FSDP",
                "notes": "CE outside thunder module on bf16 logits",
            },
            lambda f: f.loss_in_16_bits,
            True,
            False,
        ),
        (
            {
                "framework": "MaxText",
                "chip": "TPU v4",
                "notes": "XLA flags request async all-gather only, so grads aren't overlapped",
            },
            lambda f: f.overlap.gradient_reduce,
            False,
            True,
        ),
        (
            {
                **WHOLE,
                "zero": "0",
                "framework": "PyTorch DDP",
                "notes": "bf16 autocast (residual kept bf16)",
            },
            lambda f: f.held.fp32_residual,
            False,
            True,
        ),
        (
            {
                **WHOLE,
                "framework": "HF FSDP",
                "notes": "decoder layers replaced by te.TransformerLayer",
            },
            lambda f: f.projections,
            "packed",
            "apart",
        ),
        (
            {**WHOLE, "framework": "HF FSDP", "notes": "TransformerEngine linears"},
            lambda f: f.fused.norm,
            "eager",
            "eager",
        ),
        (
            {
                "framework": "Megatron-DeepSpeed",
                "notes": "CPU optimizer offload, one thread per rank",
            },
            lambda f: f.offload.threads,
            1,
            0,
        ),
        (
            {
                "framework": "Megatron-LM",
                "notes": "Fine-grained activation offload of core_attn to CPU",
            },
            lambda f: f.held.offloaded_share,
            0.0,
            0.0,
        ),
        (
            {
                "framework": "MaxText",
                "chip": "TPU v4",
                "notes": "XLA flags request async all-gathers; no dedicated overlap for gradients",
            },
            lambda f: f.overlap.gradient_reduce,
            False,
            True,
        ),
        (
            {"framework": "Megatron-LM", "notes": "CE fusion by TE"},
            lambda f: f.held.logit_bytes,
            2,
            6,
        ),
        (
            {"framework": "Picotron", "notes": "Logits are cast to fp32 for the loss"},
            lambda f: f.held.logit_bytes,
            14,
            8,
        ),
        (
            {"framework": "torchtitan", "notes": "CrossEntropyLoss in a single chunk"},
            lambda f: f.held.loss_pieces,
            1,
            8,
        ),
        (
            {**WHOLE, "framework": "TE + FSDP", "notes": "CE loss computed 512 tokens at a time"},
            lambda f: f.held.loss_pieces,
            8,
            1,
        ),
        (
            {"framework": "PyTorch DDP", "notes": "SGD without momentum, states in bf16"},
            lambda f: f.bytes.optimizer,
            0,
            8,
        ),
        (
            {"framework": "PyTorch DDP", "notes": "SGD with weight decay, no momentum"},
            lambda f: f.bytes.optimizer,
            0,
            8,
        ),
        (
            {**WHOLE, "framework": "TE + FSDP", "notes": "loss computed chunkwise"},
            lambda f: f.held.loss_pieces,
            8,
            1,
        ),
        (
            {"framework": "FSDP2", "notes": "Liger but with the ordinary (not FLCE) cross-entropy"},
            lambda f: f.held.loss_pieces,
            1,
            1,
        ),
        (
            {"framework": "PyTorch FSDP", "notes": "model and loss both under torch.compile"},
            lambda f: f.fused.norm,
            "compiled",
            "eager",
        ),
        (
            {"framework": "Megatron-LM", "date": "2026-01", "notes": "permute fusion unavailable"},
            lambda f: f.fused.permutation,
            False,
            True,
        ),
        (
            {"framework": "Megatron-LM", "notes": "Neither grad-reduce nor param-gather overlap"},
            lambda f: (f.overlap.gradient_reduce, f.overlap.parameter_gather),
            (False, False),
            (True, True),
        ),
        (
            {"framework": "HF Transformers", "zero": "0", "notes": "no DDP, reduced by hand"},
            lambda f: f.held.bucket_copies,
            False,
            True,
        ),
        (
            {"framework": "PyTorch DDP", "notes": "Adafactor"},
            lambda f: f.bytes.optimizer,
            0,
            8,
        ),
        (
            {"framework": "Picotron", "notes": "zero_grad(set_to_none) each step"},
            lambda f: f.held.gradients,
            "passing",
            "kept",
        ),
        (
            {"framework": "DeepSpeed", "cp": "2", "dp": "2", "notes": "zigzag_ring_attn"},
            lambda f: f.context_exchange,
            "ring",
            "heads",
        ),
        (
            {"framework": "DeepSpeed", "notes": "optimizer -> cpu, pin_memory=true"},
            lambda f: f.offload.pinned,
            True,
            False,
        ),
        (
            {"framework": "torchtitan", "date": "2024-08", "notes": "before chunked cross entropy"},
            lambda f: f.held.loss_pieces,
            1,
            1,
        ),
        (
            {"framework": "Picotron", "notes": ".grad set to None before each step"},
            lambda f: f.held.gradients,
            "passing",
            "kept",
        ),
        (
            {"framework": "PyTorch FSDP2", "notes": "Both model and loss are compiled"},
            lambda f: f.name,
            "fsdp-compiled",
            "fsdp",
        ),
    ],
)
def test_a_fact_is_read_in_other_words(
    shelf: Shelf,
    cells: dict[str, str],
    read: Callable[[Framework], object],
    told: object,
    untold: object,
) -> None:
    assert read(of(shelf, cells).problem.framework) == told
    silent = {key: value for key, value in cells.items() if key != "notes"}
    assert read(of(shelf, silent).problem.framework) == untold


def test_a_trainer_without_python_launches_as_compiled_code_does(shelf: Shelf) -> None:
    def launch_us(framework: str) -> float:
        return of(shelf, {"framework": framework}).problem.framework.launch_us

    assert launch_us("llm.c") == launch_us("C/CUDA trainer") == launch_us("LLM.Q") == 5.0
    assert launch_us("Megatron-LM") > 60


@pytest.mark.parametrize(
    "notes",
    [
        "Load balancing is natural (aux_loss only, not forced)",
        "pretrained checkpoint on FineWeb, so routing is realistic",
        "Starts from pretrained weights, so real trained routing",
        "Starts from a checkpoint, so real router decisions, nothing forced",
        "continues from pretrained weights w/ real (unforced) routing",
    ],
)
def test_routers_that_choose_freely_load_experts_unevenly(shelf: Shelf, notes: str) -> None:
    assert of(shelf, {**MOE, "notes": notes}).problem.workload.expert_load_variation == 1.0


@pytest.mark.parametrize(
    "notes",
    [
        "256-way weight sharding in each pod",
        "FSDP in groups of 256",
        "FSDP of 256; FSDP degree = 2 x chips",
    ],
)
def test_the_size_of_a_group_of_shards_is_read(shelf: Shelf, notes: str) -> None:
    cells = {**WHOLE, "chip": "TPU v4", "gpus": "1024", "dp": "1024", "gbs": "1024"}
    assert of(shelf, {**cells, "framework": "MaxText", "notes": notes}).plan.shard_group == 256


def test_a_router_of_a_model_that_learned_nothing_favours_a_few(shelf: Shelf) -> None:
    few = {"experts": "8", "topk": "2", "expert_ffn": "1024", "framework": "PyTorch FSDP2"}
    notes = "natural routing from scratch (final loss 8.8)"
    variation = of(shelf, {**few, **WHOLE, "notes": notes}).problem.workload.expert_load_variation
    assert variation > 1
    settled = "from-scratch convergence run, so routing presumably balanced by then"
    many = of(shelf, {**MOE, "framework": "torchtitan", "notes": settled})
    assert many.problem.workload.expert_load_variation == 0.25


def test_the_optimizer_may_be_offloaded_to_the_cpu(shelf: Shelf) -> None:
    cells = {"framework": "Megatron-DeepSpeed", "zero": "1"}
    assert of(shelf, {**cells, "notes": "Optimizer is CPU-offloaded"}).plan.optimizer_offload
    assert not of(shelf, cells).plan.optimizer_offload


def test_padded_samples_have_masks(shelf: Shelf) -> None:
    cells = {"framework": "transformers 4.49 / torch 2.5.1", "attention": "sdpa", "zero": "0"}
    notes = "right-pads samples up to 8192 and passes an attention mask"
    kernels = of(shelf, {**cells, "notes": notes}).problem.framework.attention_kernels
    assert "efficient_masked" in kernels
    assert "efficient_masked" not in of(shelf, cells).problem.framework.attention_kernels


def test_experts_cut_over_tensor_parallel_ranks_alone_get_tokens_by_gathers(shelf: Shelf) -> None:
    cells = {**MOE, "date": "2026-01", "tp": "8", "dp": "1", "zero": "0"}

    def dispatch(**more: str) -> str:
        return of(shelf, cells | more).problem.framework.expert_dispatch

    # The default of Megatron's --moe-token-dispatcher-type.
    assert dispatch() == "gather"
    assert dispatch(notes="alltoall dispatcher") == "copies"
    assert dispatch(tp="4", dp="2", ep="2") == "copies"


def test_software_may_have_a_short_name(shelf: Shelf) -> None:
    short, whole = "ds0.17.1 / pt2.8", "DeepSpeed 0.17.1 / PyTorch 2.8"
    built = [of(shelf, {**WHOLE, "zero": "3", "framework": words}) for words in (short, whole)]
    assert built[0] == built[1]
    assert built[0].problem.framework.name == "deepspeed"


def test_what_is_not_interleaved_is_not(shelf: Shelf) -> None:
    cells = {"framework": "Megatron-LM", "pp": "2", "dp": "2", "notes": "non-interleaved 1F1B"}
    assert of(shelf, cells).plan.schedule == "1f1b"


def test_pytorch_had_no_fused_attention_before_its_second_release(shelf: Shelf) -> None:
    def attention(framework: str) -> str:
        return of(shelf, {"framework": framework, "attention": ""}).problem.workload.attention

    assert attention("PyTorch 1.13 DDP") == "unfused"
    assert attention("PyTorch 2.0 DDP") == "flash"


def test_mingpt_stores_its_scores(shelf: Shelf) -> None:
    cells = {"framework": "PyTorch FSDP", "model": "minGPT-175B", "attention": ""}
    assert of(shelf, cells).problem.workload.attention == "unfused"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torch 2.8, compiled", "fsdp-compiled"),
        ("plain PyTorch, titan-style course code", "torchtitan-eager"),
        ("custom PyTorch trainer, compile / sharding n/s", "fsdp"),
        ("HF Llama under FSDP, torch.compile brought nothing", "fsdp"),
        ("Transformer Engine (PyTorch DDP)", "pytorch-ddp"),
        ("ms-swift 4.1.2 / mcore-bridge 1.1.2 / Megatron-Core 0.16", "megatron-swift"),
        ("ms-swift 3.0", "pytorch-ddp"),
        ("Megatron-Bridge stock recipes", "megatron-bridge-recipes"),
        ("Megatron-Core dev 2026 / Megatron-Bridge", "megatron-bridge"),
    ],
)
def test_a_script_of_pytorch_is_called_by_what_it_calls(
    shelf: Shelf, words: str, name: str
) -> None:
    run = run_of(framework=words, zero="", dp="8", tp="1")
    assert framework(run, shelf)[0].framework.name == name


def test_rocm_is_of_no_other_maker_s_chips(shelf: Shelf) -> None:
    run = run_of(framework="Megatron-LM", chip="B200-180GB", notes="the reference of an MI355X")
    assert framework(run, shelf)[0].framework.name == "megatron-core"


def test_whether_products_add_gradients_is_read_from_words(shelf: Shelf) -> None:
    def added(notes: str) -> bool:
        run = run_of(framework="Megatron-LM", notes=notes)
        return setup(run, shelf).problem.framework.fused.gradient_accumulation

    assert added("")
    assert added("gradient accumulation fused")
    assert not added("gradients not added by the products (--no-gradient-accumulation-fusion)")
    assert not added("no gradient-accumulation fusion")
    assert not added("gradient accumulation not fused")


def test_paddle_s_gradients_are_as_wide_and_as_whole_as_its_switches_say(shelf: Shelf) -> None:
    def stored(notes: str) -> tuple[int, int, bool]:
        run = run_of(framework="PaddleNLP", zero="2", tp="1", dp="8", sp="0", notes=notes)
        used = setup(run, shelf).problem.framework
        return used.bytes.gradient, used.bytes.gradient_sent, used.reduces_once

    assert stored("") == stored("no amp_master_grad") == (2, 2, False)
    assert stored("amp_master_grad") == stored("master grads on") == (4, 4, False)
    assert stored("gradient_sync_after_accumulate") == (2, 2, True)


def test_whoever_saves_grouped_products_beside_single_ones_is_read(shelf: Shelf) -> None:
    def kept(notes: str) -> bool:
        run = run_of(framework="torchtitan", notes=notes)
        return setup(run, shelf).problem.framework.keeps_grouped_products

    assert kept("SelectiveAC that also saves the expert grouped GEMMs")
    assert not kept("SelectiveAC recomputes the expert grouped GEMMs")
