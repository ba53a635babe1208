"""What follows from a row's chip: its cores, what runs on it, its products of 32-bit numbers."""

import pytest

from autopar.errors import SpecError
from autopar.runs.hardware import chip_as_written
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of

ALONE = {"tp": "1", "dp": "8", "zero": "0", "attention": ""}


@pytest.mark.parametrize(
    ("chip", "framework", "notes", "precision"),
    [
        # docs.jax.dev, matmul precision: bfloat16 on TPU, TF32 on recent GPUs.
        ("TPU v4", "MaxText", "", "tf32"),
        ("A100-80GB", "Levanter (JAX)", "", "tf32"),
        ("A100-80GB", "PyTorch DDP", "", "fp32"),
        ("A100-80GB", "PyTorch DDP", "allow_tf32", "tf32"),
        ("A100-80GB", "PyTorch DDP", "TF32 off", "fp32"),
        ("A100-80GB", "Levanter (JAX)", "no TF32", "fp32"),
        # Volta's units know no such format.
        ("V100-32GB", "Levanter (JAX)", "", "fp32"),
    ],
)
def test_products_of_32_bit_numbers_are_rounded_by_xla_or_where_told(
    shelf: Shelf, chip: str, framework: str, notes: str, precision: str
) -> None:
    row = {"chip": chip, "framework": framework, "notes": notes, "precision": "fp32", **ALONE}
    assert setup(run_of(**row), shelf).problem.workload.precision == precision


def test_a_format_that_is_named_is_taken(shelf: Shelf) -> None:
    row = {"framework": "PyTorch DDP", **ALONE}
    for name in ("tf32", "fp32"):
        assert setup(run_of(precision=name, **row), shelf).problem.workload.precision == name


def test_pytorch_runs_by_what_compiles_for_the_chip(shelf: Shelf) -> None:
    def profile(chip: str, framework: str, **row: str) -> str:
        run = run_of(chip=chip, framework=framework, **{**ALONE, **row})
        return setup(run, shelf).problem.framework.name

    assert profile("TPU v5e", "nanochat, torch.compile") == "torch-xla"
    assert profile("TPU v5e", "EasyLM (JAX)") == "maxtext"
    assert profile("Trainium1", "Megatron-LM for Neuron", date="2023-05") == "neuronx-2023"
    assert profile("H100", "nanochat, torch.compile") == "ddp-compiled"


def test_a_core_is_half_a_chip_but_for_its_wires(shelf: Shelf) -> None:
    def node(chip: str, node: int) -> tuple[float, float, float, int]:
        row = {**ALONE, "gpus": "32", "dp": "32", "gpus_per_node": str(node), "chip": chip}
        used = setup(run_of(framework="NeuronX Distributed", **row), shelf).problem.cluster
        device = used.groups[0].chip
        peak, link = device.peak_tflops.bf16 or 0.0, device.link.all_reduce_gb_per_s
        return peak, device.memory_gib, link, device.devices_per_node

    # AWS: 190 TFLOP/s and 32 GiB a chip, of which trn1.32xlarge has sixteen.
    whole, core = node("Trainium1", 16), node("Trainium1", 32)
    assert whole[:2] == (190.0, 32.0)
    assert core[:2] == (95.0, 16.0)
    assert core[2] == whole[2]
    assert node("Trainium1-core-16GB", 32) == core


def test_marin_stored_scores_on_gpus_until_it_had_a_kernel(shelf: Shelf) -> None:
    def attention(framework: str, date: str, notes: str = "") -> str:
        row = {"framework": framework, "date": date, "notes": notes, "chip": "H100", **ALONE}
        return setup(run_of(**{**row, "dp": "8", "gpus": "8"}), shelf).problem.workload.attention

    # marin-community/marin, issues 5610 (closed in June 2026) and 7013, pull request 7140 (July).
    assert attention("Levanter Grug (JAX)", "2026-05") == "unfused"
    assert attention("Levanter Grug (JAX)", "2026-06") == "flash"
    assert attention("Levanter (JAX)", "2026-06") == "unfused"
    assert attention("Levanter (JAX)", "2026-07") == "flash"
    assert attention("Levanter (JAX)", "2026-07", "vanilla (reference) attention") == "unfused"
    assert attention("Levanter Grug (JAX)", "2026-05", "FA4 kernels") == "flash"


def test_more_memory_in_use_than_the_first_h20_has_tells_the_second(shelf: Shelf) -> None:
    def memory(**cells: str) -> float:
        return setup(run_of(chip="H20", **cells), shelf).problem.cluster.groups[0].chip.memory_gib

    assert memory() == memory(mem_gb_per_gpu="90") == 95.58
    assert memory(mem_gb_per_gpu="122.4") == memory(notes="the part of 141 GB") == 140.4


def test_the_kind_of_a_chip_names_none_beside_a_number_that_nobody_knows() -> None:
    assert chip_as_written("Hygon DCU").name == "hygon_k100_ai"
    assert chip_as_written("Hygon BW1000 DCU").name == "hygon_bw1000"
    with pytest.raises(SpecError, match="no chip named"):
        chip_as_written("Hygon BW1100 DCU")
