"""What PyTorch's own stacks did of a row, by its model, month and words."""

import pytest

from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from autopar.validate import check
from stated import run_of


def test_positions_are_rotated_as_the_model_has_them(shelf: Shelf) -> None:
    def rotated(model: str, date: str, framework: str = "torchtitan (eager)") -> str:
        run = run_of(framework=framework, model=model, date=date)
        return setup(run, shelf).problem.framework.fused.rope

    assert rotated("Llama-3-8B", "2026-08") == rotated("DeepSeek-V3", "2025-12") == "complex"
    assert rotated("Qwen3-14B", "2026-05") == rotated("gpt-oss-20b", "2026-08") == "widened"
    assert rotated("Qwen3-14B", "2026-02") == "eager"
    compiled = "torchtitan, torch.compile"
    assert rotated("Qwen3-14B", "2026-05", compiled) == "compiled"
    assert rotated("Llama-3-8B", "2026-05", compiled) == "complex"
    # KempnerForge has one way for all models.
    eager = "KempnerForge, no torch.compile"
    assert rotated("Qwen3-14B", "2026-05", eager) == "complex"


def test_experts_were_left_out_of_what_is_compiled_for_some_months(shelf: Shelf) -> None:
    def left_out(date: str, framework: str = "torchtitan, torch.compile") -> tuple[float, int]:
        used = setup(run_of(framework=framework, date=date), shelf).problem.framework
        return used.dispatch_launch_us, used.held.weighted_result_bytes

    assert left_out("2026-08") == (0.0, 2)
    assert left_out("2026-04") == left_out("2025-11") == (64.0, 4)
    assert left_out("2025-10") == (0.0, 4)
    assert left_out("2026-03", "torchtitan (eager)") == (0.0, 4)


def test_what_experts_made_was_summed_by_a_product_for_some_months(shelf: Shelf) -> None:
    def summed(date: str, framework: str = "torchtitan (eager)") -> bool:
        return setup(
            run_of(framework=framework, date=date), shelf
        ).problem.framework.sums_by_product

    # Releases 0.2.0, 0.2.1, 0.2.2 and 0.3.0.
    assert [summed(date) for date in ("2025-10", "2025-12", "2026-02", "2026-06")] == [
        False,
        True,
        True,
        False,
    ]
    assert summed("2025-12", "torchtitan, torch.compile")
    assert not summed("2025-12", "FSDP2")


def test_fsdp2_copies_what_it_gathered(shelf: Shelf) -> None:
    def copies(framework: str) -> bool:
        return setup(run_of(framework=framework), shelf).problem.framework.shard_copies.gathered

    assert all(map(copies, ("Accelerate FSDP2", "FSDP2 compiled", "prime-rl")))
    assert not any(map(copies, ("PyTorch FSDP", "FSDP1, not FSDP2")))


def test_what_a_script_of_one_step_holds_is_read(shelf: Shelf) -> None:
    def held(notes: str) -> tuple[str, int, bool]:
        used = setup(run_of(framework="Picotron", notes=notes), shelf).problem.framework
        return used.held.gradients, used.held.logit_bytes, used.loss_in_16_bits

    assert held("") == ("kept", 8, True)
    assert held("gradients dropped before each step") == ("passing", 8, True)
    assert held("loss of 32-bit logits; gradients set to none") == ("passing", 14, False)
    assert held("no gradients dropped")[0] == "kept"


def test_hugging_face_repeats_key_heads_by_its_release_and_kernel(shelf: Shelf) -> None:
    def repeats(attention: str, date: str, model: str = "Llama-3-8B", notes: str = "") -> bool:
        run = run_of(
            framework="Hugging Face FSDP", model=model, attention=attention, date=date, notes=notes
        )
        return setup(run, shelf).problem.framework.repeats_key_heads

    assert repeats("sdpa", "2025-07")
    assert not repeats("sdpa", "2025-08")
    assert repeats("sdpa", "2025-08", notes="padded to 4096 tokens")
    assert repeats("unfused", "2026-08")
    assert not repeats("flash attention 2", "2024-05")
    assert repeats("flash attention 2", "2024-05", "Mixtral-8x7B")
    assert not repeats("flash attention 2", "2025-01", "Mixtral-8x7B")
    assert not repeats("flex", "2025-03")


def test_some_releases_and_windows_make_a_mask_of_every_batch(shelf: Shelf) -> None:
    def first(model: str, date: str, framework: str = "HF Trainer, FSDP") -> str:
        run = run_of(model=model, framework=framework, attention="sdpa", date=date)
        return setup(run, shelf).problem.framework.attention_kernels[0]

    assert first("Llama-2-7B", "2024-04") == "efficient_masked"
    assert first("Llama-2-7B", "2024-04", "PyTorch FSDP") != "efficient_masked"
    assert first("Llama-2-7B", "2024-06") != "efficient_masked"
    assert first("Mistral-7B", "2024-04") != "efficient_masked"
    assert first("Gemma-3-12B", "2025-11") == "efficient_masked"


def test_autocast_keeps_the_stream_as_wide_as_the_embedding(shelf: Shelf) -> None:
    alone = {"gpus": "8", "dp": "8", "tp": "1", "pp": "1", "zero": "0"}

    def said(framework: str, notes: str = "", **row: str) -> tuple[bool, bool]:
        run = run_of(framework=framework, notes=notes, **{**alone, **row})
        used = setup(run, shelf).problem.framework
        return used.casts_weights, used.held.fp32_residual

    assert said("PyTorch DDP") == said("HF Trainer") == said("nanoGPT") == (True, True)
    assert said("PyTorch DDP", "states in bf16") == (False, False)
    assert said("PyTorch DDP", "residual stream in bf16") == said("nanochat") == (True, False)
    assert said("PyTorch DDP", "embedding in 16 bits") == (True, False)
    # torchtitan without FSDP, until replicas were FSDP's too.
    assert said("torchtitan", date="2026-03") == (True, True)
    assert said("torchtitan", date="2026-04") == (False, False)
    assert said("torchtitan", date="2026-03", zero="fsdp") == (False, False)
    assert said("torchtitan", date="2026-03", dp="4", tp="2") == (False, False)


def test_groups_are_multiplied_in_a_loop_where_pytorch_has_no_kernel_for_a_chip(
    shelf: Shelf,
) -> None:
    def looped(chip: str, framework: str = "torchtitan", notes: str = "") -> bool:
        run = run_of(framework=framework, chip=chip, notes=notes)
        return setup(run, shelf).problem.framework.fused.looped_gemm

    assert all(map(looped, ("A100-80GB", "RTX 4090", "RTX 5090", "L40S")))
    assert not any(map(looped, ("H100", "GH200", "B200", "GB300", "MI300X")))
    # Kernels of others know those chips; experts in turn are no group.
    assert not looped("A100-80GB", "HF Trainer", "megablocks")
    assert not looped("A100-80GB", "HF Trainer")


def test_a_host_that_waits_for_every_kernel_launches_nothing_ahead(shelf: Shelf) -> None:
    def waits(notes: str) -> bool:
        run = run_of(framework="HF Trainer", notes=notes)
        return setup(run, shelf).problem.framework.blocking_launches

    assert waits("every kernel waited for (CUDA_LAUNCH_BLOCKING)")
    assert not any(map(waits, ("CUDA_LAUNCH_BLOCKING=0", "no CUDA_LAUNCH_BLOCKING")))


def test_torchtitan_casts_the_logits_of_any_model(shelf: Shelf) -> None:
    cells = {"model": "GPT-2 124M", "framework": "torchtitan", "date": "2024-08", "tp": "1"}
    run = run_of(**cells, sp="0", dp="8", zero="fsdp", notes="torch.compile")
    assert setup(run, shelf).problem.framework.held.logit_bytes == 14


def test_adam_goes_tensor_by_tensor_before_pytorch_2(shelf: Shelf) -> None:
    def adam(**stated: str) -> str:
        return setup(run_of(**stated), shelf).problem.framework.fused.optimizer

    assert adam(framework="PyTorch DDP", date="2022-10") == "by_tensor"
    assert adam(framework="PyTorch DDP", date="2022-10", notes="apex FusedAdam") == "native"
    assert adam(framework="PyTorch DDP", date="2023-04") == "separate"
    # One flat tensor a unit is no list of many.
    assert adam(framework="PyTorch FSDP", zero="fsdp", date="2022-10") == "separate"


def test_torchtitan_wraps_replicas_as_it_wraps_shards_since_april_2026(shelf: Shelf) -> None:
    def hooked(date: str, notes: str = "") -> bool:
        alone = {"gpus": "8", "dp": "8", "tp": "1", "pp": "1", "zero": "0"}
        run = run_of(framework="torchtitan", date=date, notes=notes, **alone)
        return setup(run, shelf).problem.framework.hooks_replicas

    assert hooked("2026-04")
    assert not hooked("2026-03")
    assert not hooked("2026-04", "DDP under autocast")


def test_torchtitan_sends_32_bits_whatever_its_weights_are_in(shelf: Shelf) -> None:
    def sent(framework: str, zero: str, date: str = "2026-05") -> int:
        degrees = {"gpus": "8", "dp": "8", "tp": "1", "pp": "1", "sp": "0", "zero": zero}
        run = run_of(framework=framework, date=date, notes="states all bf16", **degrees)
        return setup(run, shelf).problem.framework.bytes.gradient_sent

    assert sent("torchtitan", "fsdp") == sent("torchtitan", "0") == 4
    # DistributedDataParallel, which that was, sums gradients as they are.
    assert sent("torchtitan", "0", "2025-05") == sent("FSDP2", "fsdp") == 2


def test_a_compiled_model_that_returns_its_loss_alone_holds_no_more_than_logits(
    shelf: Shelf,
) -> None:
    def held(date: str, notes: str = "") -> tuple[int, int]:
        run = run_of(framework="nanoGPT DDP", date=date, notes=f"torch.compile; {notes}")
        used = setup(run, shelf).problem.framework.held
        return used.logit_bytes, used.cached_logit_bytes

    # Logits that are returned have a gradient of zeros beside the loss's.
    assert held("2025-05") == held("2025-05", "does not return the loss alone") == (6, 2)
    # PyTorch 2.6 writes the gradient over them.
    assert held("2025-05", "the model returns the loss alone") == (2, 0)
    assert held("2025-01", "the model returns the loss alone") == (4, 0)


def test_llm_c_computes_gelu_again_unless_a_row_says_otherwise(shelf: Shelf) -> None:
    degrees = {"gpus": "4", "dp": "4", "tp": "1", "pp": "1", "sp": "0", "zero": "1"}
    for framework in ("llm.c", "llm.c (C/CUDA)", "C/CUDA trainer (llm.c style)"):
        known = setup(run_of(framework=framework, recompute="", **degrees), shelf)
        assert known.problem.framework.name == "llm-c"
        assert known.plan.stages[0].recompute.granularity == "selective"
        stored = known.problem.framework.bytes
        assert (stored.parameter, stored.gradient, stored.optimizer) == (2, 2, 12)
    none = setup(run_of(framework="llm.c", recompute="none", **degrees), shelf)
    assert none.plan.stages[0].recompute.granularity == "none"
    # Its trainer in Python is PyTorch's.
    python = run_of(framework="PyTorch DDP, torch.compile (llm.c trainer)", **degrees)
    assert setup(python, shelf).problem.framework.name == "ddp-compiled"


def test_what_torchtitan_s_list_of_operators_kept_has_dates(shelf: Shelf) -> None:
    def again(date: str, model: str = "Llama-3-8B") -> tuple[tuple[str, ...], bool]:
        used = setup(run_of(framework="torchtitan", model=model, date=date), shelf)
        framework = used.problem.framework
        return framework.reruns_attention, framework.reruns_exchange

    assert again("2025-12") == ((), False)
    assert again("2025-11") == (("cudnn",), False)
    assert again("2025-08") == (("cudnn",), True)
    # Of Qwen3 the exchange of experts came into the list with the one list for all models.
    assert again("2026-01", "Qwen3-30B-A3B") == ((), True)
    assert again("2026-02", "Qwen3-30B-A3B") == ((), False)


def test_attention_that_no_list_keeps_runs_again(shelf: Shelf) -> None:
    row = {"framework": "torchtitan, torch.compile", "chip": "B200", "precision": "bf16"}
    row |= {"recompute": "selective, op", "tp": "1", "dp": "8", "zero": "fsdp", "mbs": "2"}
    (kept,), (dropped,) = (
        list(check([run_of(**row, date=date)])) for date in ("2025-12", "2025-11")
    )
    assert kept.estimate
    assert dropped.estimate
    assert kept.setup
    model = kept.setup.problem.model
    # Half of the pairs of 4,096 tokens, two products, at the rate that cuDNN has for that length.
    pairs = kept.setup.plan.mbs * 4096**2 / 2
    [rate] = [
        rate.tflops[rate.sequence.index(4096)]
        for rate in kept.setup.problem.cluster.groups[0].chip.attention
        if (rate.kernel, rate.pass_, rate.head_dim, rate.causal) == ("cudnn", "forward", 128, True)
    ]
    passes = kept.setup.problem.workload.global_batch_size // 8 // kept.setup.plan.mbs
    flops = 4 * pairs * model.heads * model.head_dim * model.layers * passes
    more = (dropped.estimate.step_s or 0) - (kept.estimate.step_s or 0)
    assert more == pytest.approx(flops / (rate * 1e12), rel=0.1)
    # What is kept no more are its results, of two bytes.
    less = (
        kept.estimate.stages[0].memory.activations - dropped.estimate.stages[0].memory.activations
    )
    tokens = kept.setup.plan.mbs * 4096
    assert less == pytest.approx(2 * tokens * model.heads * model.head_dim * model.layers, rel=0.05)
