"""Measured runs: how errors are scored, the command, and the published runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar import catalog, validate
from autopar.runs import Run, parse_runs, read_runs
from autopar.validate import Checked, kendall_tau, summarise
from conftest import Command
from stated import STATED, checked, table

PUBLISHED = Path(__file__).parent / "published"


# --- Scores


def with_errors(*shares: float, **cells: str) -> list[Checked]:
    """Returns rows whose predicted time is off by given shares of the measured."""
    rows = []
    for number, share in enumerate(shares):
        [row] = checked({"id": f"mine-{number}", **cells})
        rows.append(replace(row, measured_step_s=1.0, predicted_step_s=1.0 + share))
    return rows


def test_errors_are_shares_of_the_measured_time() -> None:
    # |e|: 0.1 0.2 0.3 0.4 -> mean 0.25, median 0.25; sum 0.1 - 0.2 + 0.3 - 0.4 = -0.2, over 4.
    # Nine of ten of four rows is all of them.
    errors = summarise(with_errors(0.1, -0.2, 0.3, -0.4)).time
    assert errors is not None
    assert errors.rows == 4
    assert errors.mean == pytest.approx(0.25)
    assert errors.median == pytest.approx(0.25)
    assert errors.bias == pytest.approx(-0.05)
    assert errors.p90 == pytest.approx(0.4)


@pytest.mark.parametrize(
    "notes",
    [
        "fwd + loss + bwd timed, optimizer step left out",
        "Micro-benchmark of forward, loss and backward; there's no optimizer.step",
        "excludes the optimizer step",
    ],
)
def test_passes_alone_are_told_in_any_words(notes: str) -> None:
    [told, known] = checked({"id": "a-1", "notes": notes}, {"id": "a-2", "notes": "no optimizer"})
    assert told.predicted_step_s == known.predicted_step_s
    assert told.predicted_mem_gib == known.predicted_mem_gib


def test_passes_that_were_timed_alone_are_held_against_passes_alone() -> None:
    [whole, alone] = checked({"id": "a-1"}, {"id": "a-2", "notes": "no optimizer"})
    assert whole.estimate is not None
    assert whole.predicted_step_s is not None
    assert whole.predicted_step_s - (alone.predicted_step_s or 0.0) == pytest.approx(
        whole.estimate.time.optimizer_ps / 1e12
    )
    state = whole.estimate.stages[0].memory.optimizer / 2**30
    assert whole.predicted_mem_gib is not None
    assert whole.predicted_mem_gib - (alone.predicted_mem_gib or 0.0) == pytest.approx(state)


@pytest.mark.parametrize("notes", ["no optimizer sharding", "without optimizer offload"])
def test_an_optimizer_that_is_not_sharded_is_there(notes: str) -> None:
    [told, silent] = checked({"id": "a-1", "notes": notes}, {"id": "a-2"})
    assert told.predicted_step_s == silent.predicted_step_s


def test_nine_of_ten_rows_do_not_exceed_the_ninetieth_percentile() -> None:
    errors = summarise(with_errors(*(number / 100 for number in range(1, 11)))).time
    assert errors is not None
    assert errors.p90 == pytest.approx(0.09)
    assert errors.median == pytest.approx(0.055)


def test_the_mean_over_sources_weighs_each_source_once() -> None:
    # One source with one row of 0.3, one with three of 0.1: 0.2, where the rows' mean is 0.15.
    summary = summarise(
        [*with_errors(0.3, series="one"), *with_errors(0.1, 0.1, -0.1, series="three")]
    )
    assert summary.mean_over_sources == pytest.approx(0.2)
    assert summary.time is not None
    assert summary.time.mean == pytest.approx(0.15)


def test_doubted_and_assumed_rows_are_scored_apart() -> None:
    doubted = with_errors(0.5, notes="SUSPECT: the clock was wrong")
    assumed = with_errors(0.3, recompute="")
    [group] = summarise([*with_errors(0.1), *doubted, *assumed]).groups
    assert group.rows == 3
    assert group.suspect == 1
    found = [group.time, group.time_stated, group.time_assumed, group.time_suspect]
    assert [errors and round(errors.mean, 9) for errors in found] == [0.2, 0.1, 0.3, 0.5]


def test_skipped_rows_are_counted_by_reason() -> None:
    [group] = summarise(checked({}, {"gbs": ""}, {"gbs": ""}, {"seq_len": ""})).groups
    assert group.skipped == {"gbs: missing": 2, "seq_len: missing": 1}


def test_rows_may_be_grouped_by_chip_or_model() -> None:
    rows = checked({}, {"chip": "H800-80GB"}, {"model": "LLaMA2-7B"})
    assert [g.name for g in summarise(rows, "chip").groups] == ["A100-80GB", "H800-80GB"]
    assert [g.name for g in summarise(rows, "model").groups] == ["llama2-7b", "LLaMA2-7B"]


def test_kendall_s_tau_counts_pairs() -> None:
    # Predicted 1 2 3 4 5, measured 2 1 3 5 4: of ten pairs two are swapped: (8 - 2) / 10.
    assert kendall_tau([1, 2, 3, 4, 5], [2, 1, 3, 5, 4]) == pytest.approx(0.6)
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    # Of three pairs one is tied on one side: 2 / sqrt(3 x 2).
    assert kendall_tau([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / 6**0.5)
    assert kendall_tau([1, 1], [1, 2]) == 0


def test_plans_that_differ_in_degrees_alone_are_a_series() -> None:
    plans = [("8", "1"), ("4", "2"), ("2", "4"), ("1", "8")]
    cells = [{"dp": dp, "tp": tp, "sp": str(int(tp != "1")), "zero": "0"} for dp, tp in plans]
    rows = checked(*cells, {**cells[1], "mbs": "2"}, {**cells[0], "seq_len": "2048"})
    # Predicted fastest is the third; the second was.
    predicted = (5.0, 3.0, 2.0, 4.0, 6.0, 1.0)
    measured = (5.0, 2.0, 3.0, 4.0, 6.0, 1.0)
    rows = [
        replace(row, predicted_step_s=p, measured_step_s=m)
        for row, p, m in zip(rows, predicted, measured, strict=True)
    ]
    [ranking] = summarise(rows).rankings
    assert ranking.plans == 5
    assert ranking.tau == pytest.approx(0.8)  # one of ten pairs is swapped
    assert ranking.regret == pytest.approx(0.5)
    assert summarise(rows[:4]).rankings == ()
    # A plan that was measured twice is still one plan.
    assert summarise([*rows, rows[0]]).rankings[0].plans == 5


def test_runs_out_of_memory_are_held_against_what_fits() -> None:
    # Llama2-7B without sharding needs 18 bytes a parameter, 113 GiB on one device of 80.
    alone = {"dp": "8", "tp": "1", "sp": "0", "zero": "0", "iter_time_s": ""}
    rows = checked(
        {"id": "a-ran"},
        {"id": "a-refused", **alone, "iter_time_s": "9"},
        {"id": "a-out", **alone, "notes": "OOM"},
        {"id": "a-wrong", "notes": "OOM", "iter_time_s": ""},
        {"id": "a-told", "notes": "with a micro-batch of 2 OOM"},
    )
    fit = summarise(rows).fit
    assert (fit.ran_and_fits, fit.failed_and_refused) == (2, 1)
    assert fit.ran_but_refused == ("a-refused",)
    assert fit.failed_but_fits == ("a-wrong",)


def test_a_run_at_the_limit_of_memory_is_not_judged() -> None:
    whole = catalog.chip("a100").chip.memory_gib
    [row] = checked({"mem_gb_per_gpu": str(0.96 * whole), "mem_kind": "smi"})
    fit = summarise([row]).fit
    assert fit.at_limit == ("mine-1",)
    assert fit.ran_and_fits == 0


# --- The command


def test_the_command_prints_a_table_and_writes_every_row(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(table(STATED | {"colour": "red"}, STATED | {"gbs": ""}))
    done = command("validate", "runs.csv", "--json", "out.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].split()[:3] == ["mine", "2", "1"]
    assert "Skipped of mine: 1 (gbs: missing)." in done.out
    written: dict[str, Any] = json.loads((tmp_path / "out.json").read_text("utf-8"))
    first, second = written["rows"]
    assert (first["id"], first["measured_step_s"], first["skipped"]) == ("mine-1", 10, None)
    assert first["predicted_step_s"] > 0
    assert first["assumed"] == []
    assert first["extra"] == {"colour": "red"}
    assert second["skipped"] == "gbs: missing"
    assert written["summary"]["groups"][0]["time"]["rows"] == 1


def test_the_command_overwrites_only_when_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(table(STATED))
    (tmp_path / "out.json").write_text("mine")
    refused = command("validate", "runs.csv", "--json", "out.json")
    assert refused.code == 2
    assert (tmp_path / "out.json").read_text() == "mine"
    assert command("validate", "runs.csv", "--json", "out.json", "--force").code == 0


def test_experts_that_are_wanted_unevenly_cost_what_they_were_measured_to() -> None:
    # Qwen3-235B-A22B on 256 H100, experts over 8 ranks: rates with tokens forced to be even and
    # without, by sequence (yanring/Megatron-MoE-ModelZoo, best_practice/Qwen3). One spread tells
    # all four, where both compute as much again: their rows leave it open, and what fits differs.
    even_over_own = {16384: 295 / 237, 32768: 335 / 277, 65536: 368 / 320, 131072: 389 / 357}
    rows = [row for row in read_runs(PUBLISHED / "moezoo.csv") if isinstance(row, Run)]
    long = [row for row in rows if row.id.startswith("moezoo-long-")]
    even = [replace(row, recompute="full") for row in long]
    own = [replace(row, expert_load_variation=1.25) for row in even]
    assert len(even) == len(even_over_own)
    for slow, fast in zip(validate.check(own), validate.check(even), strict=True):
        assert slow.estimate is not None
        assert fast.estimate is not None
        measured = even_over_own[fast.run.seq_len or 0]
        assert slow.estimate.step_s / fast.estimate.step_s == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("arguments", [[], ["none.csv"], ["runs.csv", "--by", "colour"]])
def test_wrong_arguments_are_one_line(
    arguments: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_bytes(table(STATED))
    refused = command("validate", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1


def test_a_file_without_a_row_to_score_says_so(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(table(STATED | {"gbs": ""}))
    done = command("validate", "runs.csv")
    assert "Skipped of mine: 1 (gbs: missing)." in done.out
    said = "error: no row could be estimated; the reasons stand above\n"
    assert (done.code, done.err) == (2, said)
    (tmp_path / "runs.csv").write_bytes(table(STATED).splitlines(keepends=True)[0])
    done = command("validate", "runs.csv")
    said = "error: runs.csv: no row below its first line. Write one run a line.\n"
    assert (done.code, done.out, done.err) == (2, "", said)


def test_columns_and_words_that_nobody_reads_are_told(command: Command, tmp_path: Path) -> None:
    odd = STATED | {"iter_times": "3", "framework": "megatrom", "attention": "flush"}
    (tmp_path / "runs.csv").write_bytes(table(odd))
    done = command("validate", "runs.csv")
    assert (done.code, done.err.splitlines()) == (
        0,
        [
            'note: column "iter_times" is not read; the nearest is iter_time_s',
            'note: framework "megatrom" is not known; taken as megatron-core',
            'note: attention "flush" is not known; taken as flash',
        ],
    )


@pytest.mark.parametrize("cell", ["-1", "nan", "inf", "1e-320", "1e15", "ten"])
def test_a_cell_out_of_range_is_told(cell: str) -> None:
    [row] = validate.check(parse_runs(table(STATED | {"iter_time_s": cell}), "runs.csv"))
    what = f'iter_time_s: must be a number from 0 to 10^15, found "{cell}"'
    assert row.skipped == f"{what}. Leave it empty if unknown"


# --- The published runs


@pytest.mark.parametrize("file", sorted(PUBLISHED.rglob("*.csv")), ids=lambda file: file.stem)
def test_published_runs_are_estimated_or_skipped_for_a_known_reason(file: Path) -> None:
    text = file.read_text("utf-8")
    assert text.startswith("# ")
    rows = validate.check(read_runs(file))
    assert file.parent.name == "reworded" or {row.run.series for row in rows} == {file.stem}
    assert len({row.run.id for row in rows}) == len(rows)
    known = (
        "notes: part of a model",
        "gbs: missing",
        "seq_len: missing",
        "dp, tp, pp: missing",
        "dp: missing, and tp x pp x cp = 32 does not divide",
        "layers_per_stage: 26",
        "vpp: missing",
        "chip: a stage of",
        'chip: no chip named "RTX 3090-24GB"',
        'cluster.groups[0].chip.peak_tflops: chip "tpu_v4" has no fp32',
        "layers_per_stage: a stage between the ends without a layer",
        "plan: stage 32 holds no layer",
        "plan: stage 5: vpp 4 does not divide its 7 layers",
        "plan: stage 1: vpp 8 does not divide its 15 layers",
        "plan: stage 1: vpp 2 does not divide its 3 layers",
        "plan: ep x etp = 64 does not divide tp x cp x dp",
        'recompute: no estimate for "',
    )
    assert [row.skipped for row in rows if row.skipped and not row.skipped.startswith(known)] == []
    assert sum(row.skipped is None for row in rows) >= 0.5 * len(rows)
