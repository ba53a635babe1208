"""What a row's words say of its optimizer beyond Adam, and of how gradients reach it."""

import pytest

from autopar.framework import Orthogonal
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from autopar.validate import check
from stated import run_of


@pytest.mark.parametrize(
    ("row", "how"),
    [
        ({"notes": "Muon for matrices, AdamW else"}, Orthogonal(iterations=5, shared=True)),
        ({"notes": "dist_muon, ns_steps=7"}, Orthogonal(iterations=7, shared=True)),
        ({"notes": "MuonH, 6 steps of Newton-Schulz"}, Orthogonal(iterations=6, shared=True)),
        ({"notes": "NorMuon", "zero": "0"}, Orthogonal(iterations=5)),
        ({"notes": "Muon sharded over ranks", "zero": "0"}, Orthogonal(iterations=5, shared=True)),
        (
            {"framework": "MaxText", "notes": "Muon", "tp": "1", "dp": "8", "zero": "fsdp"},
            Orthogonal(iterations=5, shared=True, batched=True),
        ),
        ({"framework": "MindSpeed", "notes": "Muon"}, Orthogonal(iterations=5)),
        ({"notes": "AdamW instead of Muon"}, Orthogonal()),
        ({"notes": "without Muon"}, Orthogonal()),
        ({"notes": "simultaneous"}, Orthogonal()),
    ],
)
def test_muon_is_read_with_who_takes_the_matrices(
    shelf: Shelf, row: dict[str, str], how: Orthogonal
) -> None:
    assert setup(run_of(**row), shelf).problem.framework.orthogonal == how


def test_a_compiled_step_has_a_compiled_adam(shelf: Shelf) -> None:
    def kernel(notes: str) -> str:
        row = {"framework": "PyTorch DDP", "zero": "0", "notes": notes}
        return setup(run_of(**row), shelf).problem.framework.fused.optimizer

    assert kernel("torch.compile of the whole training step") == "compiled"
    assert kernel("entire step jitted") == "compiled"
    assert kernel("torch.compile of the model, step times of rank 0") != "compiled"


def test_zero_of_deepspeed_reduces_behind_the_pass_from_stage_2_on(shelf: Shelf) -> None:
    def beside(zero: str, notes: str = "") -> bool:
        row = {"framework": "DeepSpeed", "tp": "1", "dp": "8", "zero": zero, "notes": notes}
        used = setup(run_of(**row), shelf).problem.framework.overlap
        return used.gradient_reduce and int(zero) >= used.reduce_from_stage

    assert [beside(zero) for zero in "0123"] == [False, False, True, True]
    assert not beside("2", "overlap_comm: false")


def test_copies_of_shards_are_summed_in_each_pass_but_by_who_waits(shelf: Shelf) -> None:
    def each(framework: str) -> bool:
        row = {"framework": framework, "tp": "1", "dp": "8", "zero": "fsdp"}
        return setup(run_of(**row), shelf).problem.framework.sums_copies_each_pass

    assert each("PyTorch FSDP2")
    assert each("torchtitan")
    assert not each("OLMo-core, FSDP2")
    assert not each("megatron-core, Megatron-FSDP")


def test_weights_under_blocks_of_scales_stay_in_16_bits_by_megatron_bridge(shelf: Shelf) -> None:
    def narrow(notes: str, framework: str = "Megatron-Bridge", **row: str) -> tuple[bool, bool]:
        row |= {"framework": framework, "precision": "fp8", "chip": "H100-80GB", "notes": notes}
        used = setup(run_of(**row), shelf).problem.framework
        return used.held.narrow_weights, used.eight_bit_gathers.parameters

    assert narrow("fp8 current scaling") == (True, True)
    assert narrow("fp8 blockwise recipe") == (False, False)
    assert narrow("fp8 blockwise recipe", "NeMo", date="2024-12") == (True, True)


def test_gradients_are_clipped_unless_a_row_says_that_they_are_not(shelf: Shelf) -> None:
    def clips(notes: str) -> bool:
        return setup(run_of(notes=notes), shelf).problem.framework.clips_gradients

    assert all(map(clips, ("", "gradient clipping 1.0", "AdamW with clipping at 1.0")))
    none = ("no gradient clipping", "gradient clipping off", "clip_grad_norm=0.0", "clip grad: 0")
    assert not any(map(clips, none))


def test_clipping_reads_gradients_twice_and_writes_them_once() -> None:
    row = {"framework": "PyTorch DDP", "zero": "0", "tp": "1", "dp": "1", "gpus": "1"}
    row |= {"gbs": "1", "mbs": "1", "chip": "H100-80GB", "precision": "bf16"}
    (clipped,), (bare,) = (
        list(check([run_of(**row, notes=notes)])) for notes in ("", "no gradient clipping")
    )
    assert clipped.estimate
    assert bare.estimate
    assert clipped.setup
    problem = clipped.setup.problem
    chip = problem.cluster.groups[0].chip
    rate = chip.memory_bandwidth_gb_per_s * chip.memory_efficiency * 1e9
    # Llama-2-7B, whose gradients are as wide as the framework has them.
    passed = 3 * 6_738_415_616 * problem.framework.bytes.gradient
    less = (clipped.estimate.step_s or 0) - (bare.estimate.step_s or 0)
    assert less == pytest.approx(passed / rate, rel=0.01)


def test_adam_is_called_fused_or_not_in_more_ways_than_one(shelf: Shelf) -> None:
    def kernel(notes: str, framework: str = "PyTorch DDP") -> str:
        row = {"framework": framework, "zero": "0", "notes": notes}
        return setup(run_of(**row), shelf).problem.framework.fused.optimizer

    assert kernel("fused torch AdamW") == kernel("fused AdamW") == "native"
    assert kernel("unfused AdamW", "PyTorch DDP, torch.compile") == "separate"
