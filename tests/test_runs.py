"""Measured runs: how a row is read, in which units."""

import json
from typing import get_args

import pytest

from autopar import _core, wire
from autopar.errors import SpecError
from autopar.report import Convention, Counted, Rate, Work
from autopar.runs import BadRow, Run, parse_runs
from autopar.runs.rows import PRESENT
from stated import STATED, checked, run_of, table

# --- Reading


def test_an_empty_cell_is_unknown_and_an_unknown_column_is_kept() -> None:
    run = run_of(vpp="", colour="red", offload_fraction="0.5", sp="true")
    assert run.vpp is None
    assert run.sp is True
    assert run.offload_fraction == 0.5
    assert run.extra == {"colour": "red"}


def test_a_series_is_the_id_up_to_its_first_hyphen_unless_a_column_says_otherwise() -> None:
    assert run_of().series == "mine"
    assert run_of(series="ours").series == "ours"
    assert run_of(id="").id == "row-1"


def test_lines_above_the_header_may_be_comments() -> None:
    [run] = parse_runs(b"# measured at home\n# twice\n" + table(STATED), "runs.csv")
    assert isinstance(run, Run)
    assert run.layers == 32


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("tp", "two"),
        ("tp", "2.5"),
        ("tp", "-2"),
        ("iter_time_s", "nan"),
        ("iter_time_s", "inf"),
        ("sp", "maybe"),
        ("gpus", "1e99"),
    ],
)
def test_a_row_with_a_cell_that_cannot_be_read_is_skipped_alone(key: str, cell: str) -> None:
    bad, good = checked({key: cell}, {})
    assert isinstance(bad.run, BadRow)
    assert bad.skipped is not None
    assert bad.skipped.startswith(f"{key}: must be")
    assert cell in bad.skipped
    assert good.skipped is None


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"# only a comment", "without a header"),
        (b"a,b\n1,2", "no column of a run"),
        (b"tp,tp\n1,2", 'two columns named "tp"'),
        (b"id,tp\nx,1,2", "3 cells in a table of 2 columns"),
        (b'id,tp\n"x,1', "not CSV"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(SpecError, match=r"^runs\.csv") as refused:
        parse_runs(data, "runs.csv")
    assert what in refused.value.what


@pytest.mark.parametrize(
    ("cells", "month"),
    [
        ({"date": "2023-04-01"}, "2023-04"),
        # What was run is older than when: NeMo's container of April, reported in June.
        ({"date": "2026-06", "framework": "Megatron-Bridge (nemo 26.04.01)"}, "2026-04"),
        ({"date": "2023-06", "framework": "NeMo 25.04"}, "2023-06"),
        ({"date": "2023-06", "framework": "transformers 4.21.03"}, "2023-06"),
        ({"source": "a table (arXiv:2104.04473)"}, "2021-04"),
        ({"source": "README, Sep 2020, table 2"}, "2020-09"),
        ({"source": "a talk of 2022"}, "2022-01"),
        ({"framework": "DeepSpeed, ZeRO-3 (mid-2023)"}, "2023-07"),
        ({"framework": "Megatron-LM (core 0.8), --use-legacy-models"}, "2024-08"),
        ({"framework": "NeMo", "source": "v25.02:llama3.1/README.md"}, "2025-02"),
        ({"framework": "NeMo 24.07", "source": "v25.02:llama3.1/README.md"}, "2024-07"),
        ({"source": "benchmarks/llama3_h100_202412_torchtitan.md"}, "2024-12"),
        ({"source": "results of 20250317"}, "2025-03"),
        ({"source": "commit b202412f"}, PRESENT),
        ({"source": "asyncTP_llama3_2025-06_torchtitan.md"}, "2025-06"),
        ({"source": "pull request 701 (Nov'24)"}, "2024-11"),
        ({"source": "a table, 07/2026"}, "2026-07"),
        ({"framework": "Megatron-Bridge main '26"}, "2026-01"),
        ({"source": "artifact of a paper (SOSP25, commit cf2c8e3)"}, "2025-01"),
        ({"source": "NSDI '24, table 3"}, "2024-01"),
        ({"source": "an 8-node table, SCALE22"}, PRESENT),
        ({"framework": "llm-foundry (torch 1.13)"}, "2022-10"),
        ({"framework": "PyTorch 2.4.0 FSDP"}, "2024-07"),
        ({"framework": "NeMo 1.20", "source": "a talk of 2022"}, "2022-01"),
        ({"framework": "Megatron-LM core_r0.7.0 (TE)"}, "2024-06"),
        ({"framework": "Megatron-Core v0.12.1"}, "2025-05"),
        ({"framework": "Megatron-LM v2.4"}, "2021-01"),
        ({"framework": "Megatron-LM (mcore 0.9)"}, "2024-10"),
        ({"framework": "NxD", "source": "Neuron 2.17 benchmarks"}, "2024-02"),
        ({"source": "a README (PyTorch 2.9.0)"}, "2025-10"),
        # The newest of all that is named; a paper's software is older than the paper.
        ({"framework": "transformers 4.49, torch==2.5.1"}, "2025-02"),
        ({"framework": "DeepSpeed 0.14.2 + HF transformers (torch 2.2.0)"}, "2024-03"),
        ({"framework": "PyTorch 2.5.1 FSDP", "source": "arXiv:2504.09983"}, "2024-10"),
        ({"framework": "MaxText on JAX 0.4.30"}, "2024-06"),
        ({"framework": "Megatron-LM", "notes": "TE 2.9"}, "2025-11"),
        ({"framework": "DeepSpeed/Megatron-LM v1.1.5"}, PRESENT),
        ({"framework": "Megatron-DeepSpeed 0.8"}, PRESENT),
        ({"source": "somewhere"}, PRESENT),
    ],
)
def test_the_month_of_a_run_is_its_date_or_that_of_its_paper(
    cells: dict[str, str], month: str
) -> None:
    assert run_of(**cells).month == month


# --- Units


def test_a_chip_of_both_devices_memory_is_two_devices() -> None:
    cells = {"gpus": "128", "dp": "128", "mbs": "16", "gbs": "2048", "tokens_per_s_per_gpu": "300"}
    run = run_of(**cells, chip="TPU v7x-192GB")
    assert (run.chip, run.gpus, run.dp, run.mbs) == ("TPU v7x-96GB", 256, 256, 8)
    assert run.tokens_per_s_per_gpu == 150
    # One sequence of a chip is none of a device.
    assert run_of(**cells | {"mbs": "1", "gbs": "128"}, chip="TPU v7x-192GB").mbs == 1
    run = run_of(**cells, chip="TPU v7")
    assert (run.chip, run.gpus, run.dp, run.mbs) == ("TPU v7", 128, 128, 16)


def test_memory_in_gb_and_in_gib_are_told_apart() -> None:
    # 64.42450944e9 bytes are 60 x 2^30.
    kept = {"mem_kind": "allocated"}
    decimal, binary = checked(
        {"mem_gb_per_gpu": "64.42450944", "mem_unit": "GB", **kept},
        {"mem_gb_per_gpu": "60", "mem_unit": "GiB", **kept},
    )
    assert decimal.measured_mem_gib == pytest.approx(60, abs=1e-12)
    assert binary.measured_mem_gib == 60


def test_memory_of_the_allocator_is_held_against_what_it_hands_out() -> None:
    inside, reserved, outside, unsure = checked(
        {"mem_gb_per_gpu": "60", "mem_kind": "allocated"},
        {"mem_gb_per_gpu": "60", "mem_kind": "reserved"},
        {"mem_gb_per_gpu": "60", "mem_kind": "smi"},
        {"mem_gb_per_gpu": "60", "mem_kind": "allocated", "notes": "max_mem (method not stated)"},
    )
    cost = inside.estimate
    assert cost is not None
    [stage] = cost.stages
    assert inside.predicted_mem_gib == stage.allocated_bytes / 2**30
    assert reserved.predicted_mem_gib == stage.reserved_bytes / 2**30
    assert outside.predicted_mem_gib == stage.memory_bytes / 2**30
    assert unsure.predicted_mem_gib == outside.predicted_mem_gib


def test_memory_of_rank_0_is_held_against_the_first_stage() -> None:
    kept = {"mem_gb_per_gpu": "60", "mem_kind": "allocated", "pp": "2", "vpp": "1"}
    kept |= {"model": "llama3.1-8b", "tp": "1", "dp": "4"}  # its head needs more than its table
    most, first = checked(kept, kept | {"notes": "memory of rank 0"})
    assert most.estimate is not None
    assert most.estimate == first.estimate
    stages = [stage.allocated_bytes / 2**30 for stage in most.estimate.stages]
    assert first.predicted_mem_gib == stages[0]
    assert most.predicted_mem_gib == max(stages)


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        # 64 sequences of 4096 tokens over 8 devices.
        ({"tokens_per_s_per_gpu": "4096"}, 64 * 4096 / (8 * 4096)),
        # 6 x (6,738,415,616 parameters - 32000 x 4096 of the embedding) a token.
        (
            {"model_tflops_per_gpu": "100", "flops_convention": "6n"},
            6 * (6_738_415_616 - 32_000 * 4096) * 64 * 4096 / (8 * 100e12),
        ),
    ],
)
def test_a_rate_gives_the_time_of_a_step(cells: dict[str, str], seconds: float) -> None:
    [row] = checked({"iter_time_s": "", **cells})
    assert row.measured_step_s == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    "rate",
    [
        Rate(unit="step_s", value=1.0),
        Rate(unit="tokens_per_s_per_device", value=1.0),
        *(
            Rate(unit=unit, value=1.0, convention=Convention(work=work, attention=attention))
            for unit in ("tflops_per_device", "mfu")
            for work in get_args(Work)
            for attention in get_args(Counted)
        ),
    ],
)
def test_a_rate_is_spelled_alike_on_both_sides(rate: Rate) -> None:
    assert json.loads(_core.canonical("rate", wire.dumps(rate))) == wire.write(rate)


def test_a_share_of_the_peak_counts_by_its_convention() -> None:
    # A100: 312 TFLOP/s. 45 and 0.45 are the same share; full recompute is one pass of four more.
    rate = {"iter_time_s": "", "flops_convention": "model_full_attention"}
    share, percent, rate_of_it, hardware = checked(
        {"mfu": "0.45", **rate},
        {"mfu": "45", **rate},
        {"model_tflops_per_gpu": str(0.45 * 312), **rate},
        {"mfu": "0.45", **rate, "flops_convention": "hardware_full_attention", "recompute": "full"},
    )
    assert share.measured_step_s is not None
    assert percent.measured_step_s == share.measured_step_s
    assert rate_of_it.measured_step_s == pytest.approx(share.measured_step_s)
    assert hardware.measured_step_s is not None
    # The head's three passes are not run again: a little less than 4/3.
    assert 1.31 < hardware.measured_step_s / share.measured_step_s < 4 / 3
