"""What a row's words say of its optimizer beyond Adam, and of how gradients reach it."""

import pytest

from autopar.framework import Orthogonal
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
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
