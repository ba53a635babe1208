"""What the words of a row say of exchanges: of context, of experts, and of what hides them."""

from dataclasses import replace

import pytest

from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def test_mindspeed_s_scripts_say_what_hides_and_how_sequences_are_exchanged(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[str, str]:
        run = run_of(framework="ModelLink", chip="910B", notes=notes)
        used = setup(run, shelf).problem.framework
        return used.overlap.tensor, used.context_exchange

    assert said("MC2")[0] == "pipelined"
    assert said("no MC2 (scripts give no --use-mc2)")[0] == "none"
    assert said("ring attention")[1] == "ring"

    def of(notes: str, date: str) -> tuple[str, int]:
        run = run_of(framework="MindSpeed-LLM", chip="910B", date=date, notes=notes)
        used = setup(run, shelf).problem.framework
        return used.expert_dispatch, used.attention_padding

    assert of("", "2024-08") == of("allgather dispatcher", "2025-06") == ("gather", 128)
    assert of("mla-fa-without-pad", "2025-06") == ("copies", 0)
    # Of the legacy kind a table that says MC2 of all is not believed, a script is.
    run = run_of(framework="ModelLink Legacy", chip="910B", notes="MC2")
    script = replace(run, notes="MC2 (its script gives --use-mc2)")
    kinds = [setup(one, shelf).problem.framework.overlap.tensor for one in (run, script)]
    assert kinds == ["none", "pipelined"]


def test_context_is_exchanged_as_a_row_says(shelf: Shelf) -> None:
    def exchange(notes: str) -> str:
        run = run_of(framework="MaxText", notes=notes, cp="2", dp="2")
        return setup(run, shelf).problem.framework.context_exchange

    assert exchange("") == exchange("context by all-gather of keys and values") == "gather"
    assert exchange("context by all-to-all of heads") == exchange("DeepSpeed-Ulysses") == "heads"
    assert exchange("Ulysses instead of ring attention") == "heads"
    assert exchange("context by ring with causal balance") == exchange("ring attention") == "ring"


@pytest.mark.parametrize(
    "notes",
    [
        "no Ulysses",
        "unlike Ulysses",
        "vs. DeepSpeed-Ulysses",
        "instead of Ulysses",
        "faster than Ulysses",
        "beats Ulysses by 10 %",
        "USP (Ulysses 4 x ring 2)",
        "hybrid Ulysses-Ring",
        "Ulysses 2 by ring 2",
        "hybrid of ring and Ulysses",
    ],
)
def test_heads_are_not_exchanged_where_a_row_only_names_who_does(shelf: Shelf, notes: str) -> None:
    run = run_of(framework="MaxText", notes=notes, cp="2", dp="2")
    assert setup(run, shelf).problem.framework.context_exchange == "gather"


def test_what_pytorch_calls_ring_attention_is_attention_in_blocks(shelf: Shelf) -> None:
    def exchange(framework: str, notes: str) -> str:
        run = run_of(framework=framework, notes=notes, cp="2", dp="2")
        return setup(run, shelf).problem.framework.context_exchange

    for framework in ("torchtitan", "PyTorch FSDP2"):
        assert exchange(framework, "ring attention") == exchange(framework, "") == "blocks"
        assert exchange(framework, "zigzag ring attention") == "ring"
        assert exchange(framework, "Ulysses") == "heads"


def test_what_hides_and_shortens_the_experts_exchange_is_read_from_words(shelf: Shelf) -> None:
    def said(notes: str) -> tuple[str, bool, float]:
        used = setup(run_of(notes=notes), shelf).problem.framework
        return used.expert_dispatch, used.overlap.expert, used.launch_us

    usual = said("")
    assert usual[:2] == ("copies", False)
    assert said("DeepEP dispatch") == ("once_a_node", False, usual[2])
    assert said("1F1B with EP communication overlap") == ("copies", True, usual[2])
    assert said("HybridEP, expert overlap, delayed wgrad")[1]
    assert said("full-iteration CUDA graphs") == ("copies", False, 0.0)
    # Recipes of July 2026 hide it; a row may say that its own did not.
    recipe = run_of(framework="Megatron-Bridge", notes="MXFP8", date="2026-07")
    assert setup(recipe, shelf).problem.framework.overlap.expert
    denied = replace(recipe, notes="MXFP8; no expert overlap")
    assert not setup(denied, shelf).problem.framework.overlap.expert
    mxfp8 = run_of(framework="Megatron-Bridge 26.04", notes="MXFP8; all-to-all dispatch")
    used = setup(mxfp8, shelf).problem.framework
    assert (used.expert_dispatch, used.fp8_scaling) == ("copies", "block")
    assert said("HybridEP, no all-to-all dispatch")[0] == "once_a_node"
    assert said("exchange by padded all-gathers")[0] == "gather"
    assert said("keys and values exchanged by all-gather")[0] == said("")[0]
    assert said("all-gather dispatcher")[0] == said("AllGather dispatch")[0] == "gather"
    assert said("no DeepEP; CUDA graphs not in the table; no EP overlap") == usual


def test_a_library_for_tokens_is_read_from_words_or_was_usual_at_the_time(shelf: Shelf) -> None:
    def library(notes: str, **columns: str) -> str:
        used = setup(run_of(notes=notes, **columns), shelf).problem.framework
        return used.exchange_kernel

    assert library("") == ""
    assert library("DeepEP dispatch") == library("deep-ep") == "deepep"
    assert library("HybridEP dispatch") == "hybridep"
    assert library("DeepEP v2 dispatch") == ""  # Another library than the timed one.
    bridge = {"framework": "Megatron-Bridge", "chip": "GB200", "gpus_per_node": "4"}
    assert library("", date="2025-12", **bridge) == "hybridep"
    assert library("", date="2025-10", **bridge) == "deepep"
    assert library("DeepEP", date="2025-12", **bridge) == "deepep"
    assert library("DeepEP v2", date="2025-10", **bridge) == ""


def test_experts_products_cast_what_they_make_where_a_recipe_or_a_row_says_so(shelf: Shelf) -> None:
    def joined(notes: str, framework: str = "Megatron-Bridge", date: str = "2026-07") -> bool:
        run = run_of(framework=framework, notes=notes, date=date, chip="GB200", gpus_per_node="4")
        return setup(run, shelf).problem.framework.fused.quantized_mlp

    assert joined("MXFP8")
    assert not joined("MXFP8", date="2026-04")
    assert not joined("MXFP8; CUDA graphs of attention and router")
    assert joined("MXFP8; CUDA graphs of attention and router, fused grouped MLP (cutedsl)")
    assert not joined("HybridEP")
    assert joined("fused grouped MLP", framework="Megatron-LM")


def test_an_exchange_lies_behind_compute_whatever_it_is_called(shelf: Shelf) -> None:
    def hidden(notes: str) -> bool:
        run = run_of(framework="Megatron-LM", date="2026-03", notes=notes, experts="8", topk="2")
        return setup(run, shelf).problem.framework.overlap.expert

    assert hidden("EP overlap")
    assert hidden("all-to-all hidden under 1F1B")
    assert hidden("DualPipeV")
    assert not hidden("DualPipe off")
    assert hidden("expert-parallel communication overlap")
    assert not hidden("no expert-parallel overlap")
    assert not hidden("faster than EP overlap")


@pytest.mark.parametrize(
    "notes",
    [
        "no EP overlap",
        "EP comm overlap disabled",
        "expert-parallel overlap is off",
        "a2a overlap not used",
        "all-to-all not overlapped",
        "overlap_moe_expert_parallel_comm=false",
    ],
)
def test_an_overlap_that_was_off_hides_nothing(shelf: Shelf, notes: str) -> None:
    # Recipes of July 2026 have it unless they are told otherwise.
    for framework, date in (("Megatron-LM", "2026-03"), ("Megatron-Bridge", "2026-07")):
        run = run_of(framework=framework, date=date, notes=f"MXFP8; {notes}")
        assert not setup(run, shelf).problem.framework.overlap.expert


def test_an_optimizer_that_scatters_in_each_pass_hides_it_by_several_queues(shelf: Shelf) -> None:
    def scatters(notes: str) -> tuple[int, str, bool]:
        row = {"framework": "Megatron-LLaMA", "date": "2023-09", "zero": "1", "notes": notes}
        found = setup(run_of(**row), shelf)
        framework = found.problem.framework
        return found.plan.zero, framework.gathers, framework.overlap.gradient_reduce

    own = "overlapped distributed optimizer"
    assert scatters(own) == (2, "micro_batch", False)
    assert scatters(f"{own}; CUDA_DEVICE_MAX_CONNECTIONS unset") == (2, "micro_batch", True)
    assert scatters(f"{own}; CUDA_DEVICE_MAX_CONNECTIONS=1") == (2, "micro_batch", False)
    assert scatters("")[0] == 1
