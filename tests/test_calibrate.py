"""Calibration: figures put into made-up measurements come out again, and what they lack is said."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autopar import _core, catalog, planner, wire
from autopar.calibrate import Calibration, calibrate, chip_toml
from autopar.cluster import Chip
from autopar.errors import SpecError
from autopar.fit import Figure, MeasuredGemm, Point
from autopar.points import parse_points
from autopar.runs import parse_runs, read_runs
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from autopar.validate import check
from conftest import Command

COLUMNS = "id,model,chip,gpus,dp,tp,pp,vpp,sp,cp,gbs,mbs,seq_len,recompute,zero,precision,attention"
A100 = catalog.chip("a100_80")


RANKS = "\n".join(f"#  Rank  {i} Group  0 Pid 1 on node device  {i} [0x07] A100" for i in range(8))
TABLE = "#       size         count      type   redop    root     time   algbw   busbw #wrong"


def nccl_row(size: int) -> str:
    """Returns a row at a bus bandwidth of 188 = 0.8 x 235 GB/s: 8 ranks carry 2 x 7/8 of it."""
    time = 2 * 7 / 8 * size / 188e9 * 1e6
    return f"  {size}  1  float  sum  -1  {time:.1f}  107.4  188.0  0  {time:.1f}  107.4  188.0  0"


def rows(source: str = "mine") -> list[str]:
    """Returns rows without their time: bound by products and by the network."""
    shapes = [
        ("llama2-7b", 1, 1, 1, 64, 1, 4096),
        ("llama2-7b", 8, 2, 4, 32, 1, 4096),
        ("llama2-13b", 8, 1, 8, 16, 1, 2048),
        ("llama2-13b", 64, 32, 2, 64, 2, 4096),
        ("llama2-7b", 256, 256, 1, 256, 1, 512),
        ("llama2-7b", 32, 32, 1, 64, 1, 4096),
        ("llama2-70b", 16, 1, 8, 16, 1, 4096),
        ("llama2-7b", 128, 128, 1, 128, 1, 1024),
        ("llama2-7b", 8, 1, 8, 8, 1, 2048),
        ("llama2-13b", 8, 1, 8, 8, 2, 4096),
        ("llama2-13b", 128, 128, 1, 128, 1, 512),
        ("llama2-7b", 64, 64, 1, 64, 1, 512),
    ]
    return [
        f"{source}-{i},{model},a100_80,{gpus},{dp},{tp},{gpus // dp // tp},1,1,1,"
        f"{gbs},{mbs},{length},none,1,bf16,flash"
        for i, (model, gpus, dp, tp, gbs, mbs, length) in enumerate(shapes)
    ]


def measured(chip: Chip, texts: Sequence[str], factor: float = 1.0) -> bytes:
    """Returns rows as a CSV table with the times that a chip would take, by a factor."""
    shelf = Shelf()
    shelf.chips["a100_80"] = chip
    lines = [f"{COLUMNS},iter_time_s"]
    for text in texts:
        [run] = parse_runs(f"{COLUMNS}\n{text}\n".encode(), "made up")
        known = setup(run, shelf)
        lines.append(f"{text},{factor * planner.estimate(known.problem, known.plan).step_s!r}")
    return "\n".join(lines).encode()


def fitted(path: Path, data: bytes) -> Calibration:
    path.write_bytes(data)
    return calibrate([path], A100)


def test_altered_figures_are_found_again(tmp_path: Path) -> None:
    """Sustained 0.7 of the peak, links at 0.8 of theirs, a network at 0.5 of its line rate."""
    chip = A100.chip
    link = chip.link
    other = replace(
        chip,
        gemm=replace(chip.gemm, efficiency=0.7),
        network=replace(chip.network, efficiency=0.5),
        link=replace(
            link,
            all_reduce_gb_per_s=0.8 * link.all_reduce_gb_per_s,
            all_gather_gb_per_s=0.8 * link.all_gather_gb_per_s,
            all_to_all_gb_per_s=0.8 * link.all_to_all_gb_per_s,
            p2p_gb_per_s=0.8 * link.p2p_gb_per_s,
        ),
    )
    path = tmp_path / "runs.csv"
    path.write_bytes(measured(other, rows()))
    nccl = tmp_path / "all_reduce_perf.txt"
    nccl.write_text(f"{RANKS}\n{TABLE}\n{nccl_row(8 * 2**30)}\n{nccl_row(4 * 2**30)}\n")
    figures: tuple[Figure, ...] = ("gemm.efficiency", "link", "network.efficiency")
    found = calibrate([path, nccl], A100, figures=figures)
    values = {figure.figure: figure.after for figure in found.fit.figures}
    assert values["gemm.efficiency"] == pytest.approx(0.7, rel=0.005)
    assert values["link"] == pytest.approx(0.8, rel=0.02)
    assert values["network.efficiency"] == pytest.approx(0.5, rel=0.02)
    assert found.fit.before > 0.1
    assert found.fit.after < 0.002
    assert found.fit.left_out is not None
    assert found.fit.left_out < 0.01


def test_a_single_run_gives_one_level_and_nothing_else(tmp_path: Path) -> None:
    found = fitted(tmp_path / "one.csv", measured(A100.chip, rows()[:1], 1.1))
    assert [figure.figure for figure in found.fit.figures] == ["gemm.efficiency"]
    assert found.fit.left_out is None
    assert found.fit.before == pytest.approx(0.1 / 1.1)  # it took 1.1 of the time foretold
    assert found.fit.after < 1e-3
    assert found.fit.folds == ()


def test_a_figure_that_no_run_depends_on_is_refused_with_its_cure(tmp_path: Path) -> None:
    inside = [row for row in rows() if int(row.split(",")[3]) <= 8]
    found = fitted(tmp_path / "inside.csv", measured(A100.chip, inside))
    [refused] = [one for one in found.fit.refused if one.figure == "network.efficiency"]
    assert refused.why == "no point depends on it"
    assert "over several nodes" in refused.cure


def test_an_efficiency_does_not_exceed_one(tmp_path: Path) -> None:
    found = fitted(tmp_path / "fast.csv", measured(A100.chip, rows()[:1], 0.5))
    [figure] = found.fit.figures
    assert figure.after == pytest.approx(1.0)
    assert figure.at_bound


def test_one_outlier_pulls_little(tmp_path: Path) -> None:
    lines = measured(A100.chip, rows(), 1.0).decode().splitlines()
    head, _, time = lines[3].rpartition(",")
    lines[3] = f"{head},{3 * float(time)}"
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    found = calibrate([path], A100, figures=["gemm.efficiency"])
    [figure] = found.fit.figures
    assert figure.after == pytest.approx(figure.before, rel=1e-3)


def test_a_product_tells_the_efficiency_worked_by_hand() -> None:
    """13824 x 8192 is 108 x 32 tiles of 128 x 256: 32 full waves of 108 processors.

    At an efficiency e they take 2 m n (k + 102) / (312e12 e) and 3 us for the kernel.
    """
    m, n, k = 13824, 8192, 4096
    seconds = 2 * m * n * (k + 102) / (312e12 * 0.6) + 3e-6
    points = parse_points(f"m,n,k,dtype,time_us\n{m},{n},{k},bf16,{seconds * 1e6!r}\n", "gemm.csv")
    assert points is not None
    fit = planner.calibrate(A100.chip, points, figures=["gemm.efficiency"])
    assert fit.figures[0].after == pytest.approx(0.6, rel=1e-4)
    assert fit.chip.gemm.efficiency == pytest.approx(0.6, rel=1e-4)


def test_nccl_tests_output_tells_the_link() -> None:
    """8 GiB at a bus bandwidth of 188 = 0.8 x 235 GB/s take 2 x 7/8 x 8 GiB / 188e9 = 80 ms."""
    name = "# Collective test starting: all_reduce_perf"
    points = parse_points(f"{name}\n{RANKS}\n{TABLE}\n{nccl_row(8 * 2**30)}\n", "log")
    assert points is not None
    assert points[0].seconds == pytest.approx(0.08, rel=0.001)
    fit = planner.calibrate(A100.chip, points, figures=["link"])
    assert fit.figures[0].after == pytest.approx(0.8, rel=0.01)


def test_links_do_not_exceed_their_wires() -> None:
    points = parse_points(
        f"# all_reduce_perf\n{RANKS}\n{TABLE}\n 8589934592 1 float sum -1 1000 1 1 0\n", "log"
    )
    assert points is not None
    fit = planner.calibrate(A100.chip, points, figures=["link"], link_line_gb_per_s=300.0)
    # A pair reaches 280 of 300 GB/s.
    assert fit.figures[0].after == pytest.approx(300 / 280)
    assert fit.figures[0].at_bound


def test_the_answer_does_not_depend_on_the_threads() -> None:
    shapes = [MeasuredGemm(m=4096, n=n, k=4096, precision="bf16") for n in (1024, 4096, 8192)]
    document = json.dumps(
        {
            "chip": wire.write(A100.chip),
            "link_line_gb_per_s": None,
            "figures": ["gemm.efficiency", "memory_efficiency"],
            "cross_validate": True,
            "points": [
                {"group": "a", "seconds": 1e-3, "what": {"gemm": wire.write(shape)}}
                for shape in shapes
            ],
        }
    )
    one, four = (_core.calibrate(document, threads=threads) for threads in (1, 4))
    assert one == four


def test_a_fitted_chip_works_where_a_name_does(tmp_path: Path) -> None:
    found = fitted(tmp_path / "one.csv", measured(A100.chip, rows()[:1], 1.1))
    path = tmp_path / "mine.toml"
    path.write_text(chip_toml(found), "utf-8")
    entry = catalog.chip(str(path))
    wanted = replace(found.fit.chip, name="mine")
    assert entry.chip.gemm.efficiency == pytest.approx(wanted.gemm.efficiency, rel=1e-5)
    assert replace(entry.chip, gemm=wanted.gemm) == wanted
    assert entry.fitted["gemm.efficiency"] == ("mine",)
    assert "give or take" in path.read_text("utf-8")


def test_the_command_writes_a_chip_and_never_over_another(command: Command, tmp_path: Path) -> None:
    runs, out = tmp_path / "runs.csv", tmp_path / "mine.toml"
    runs.write_bytes(measured(A100.chip, rows()[:1], 1.1))
    arguments = ["calibrate", str(runs), "--chip", "a100_80", "-o", str(out)]
    done = command(*arguments)
    assert done.code == 0, done.err
    assert "gemm.efficiency" in done.out
    before = out.read_bytes()
    again = command(*arguments)
    assert again.code == 2
    assert "--force" in again.err
    assert out.read_bytes() == before
    assert command(*arguments, "--force").code == 0


HEAD = f"{COLUMNS},iter_time_s\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + rows()[0].replace("a100_80", "h100") + ",1\n", "ran on h100"),
        (HEAD + rows()[0] + ",\n", "iter_time_s"),
        ("m,n,k,dtype,time_us\n1,2,x,bf16,3\n", "row 1.k: must be a positive whole number"),
        ("m,n,k,dtype,time_us\n1,2,3,int4,3\n", "no number format"),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,-3\n", "row 1.time_us: must be a positive number"),
        ("m,n,k\n1,2,3\n", "no column of a time"),
        ("m,n,k,time_us\n", "no row below the header"),
        (f"{TABLE}\n", "lines of a rank"),
        (f"# all_reduce_perf all_gather_perf\n{RANKS}\n{TABLE}\n", "Give a file for each"),
        (f"{RANKS}\n{TABLE}\n 1024 1 float none -1 10 1 1 0\n", "which collective"),
        ("m,n,k,dtype,time_us\n4096,4096,4096,fp8,300\n", "no peak in Fp8"),
        ("heads,head_dim,seq_len,pass,time_us\n8,128,4096,sideways,300\n", "forward, backward"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    command: Command, tmp_path: Path, text: str, words: str
) -> None:
    path, out = tmp_path / "bad.csv", tmp_path / "mine.toml"
    path.write_text(text)
    done = command("calibrate", str(path), "--chip", "a100_80", "-o", str(out))
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


def test_an_unknown_figure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"Known: gemm\.efficiency"):
        calibrate([tmp_path / "none.csv"], A100, figures=["launch_us"])


def test_points_that_tell_no_figure_are_refused() -> None:
    what = MeasuredGemm(m=4096, n=4096, k=4096, precision="bf16")
    point = Point(group="a", seconds=1e-3, what=what)
    with pytest.raises(SpecError, match=r"tell no figure; network.efficiency: no point depends"):
        planner.calibrate(A100.chip, [point], figures=["network.efficiency"])


# --- The left-out score of the published runs


def test_what_a_source_measured_does_not_change_its_left_out_prediction() -> None:
    folder = Path(__file__).parent / "published"
    sys.path.insert(0, str(folder))
    try:
        import left_out
    finally:
        sys.path.remove(str(folder))
    known = [
        row
        for name in ("korth", "sc21", "mlm2020")
        for row in check(read_runs(folder / f"{name}.csv"))
    ]
    slower = [
        replace(row, measured_step_s=2 * row.measured_step_s)
        if row.run.series == "sc21" and row.measured_step_s
        else row
        for row in known
    ]
    first, second = (left_out.leave_out("sc21", known, rows, ()) for rows in (known, slower))
    assert first.refitted
    assert [row.predicted_step_s for row in first.rows] == [
        row.predicted_step_s for row in second.rows
    ]


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_what_was_fitted_can_be_left_out(name: str) -> None:
    entry = catalog.chip(name)
    assert set(entry.fitted) <= {"gemm.efficiency", "gemm.fp8_efficiency", "link", "host.pace"}
    if entry.fitted_as:
        assert catalog.chip(entry.fitted_as).fitted
        assert set(entry.fitted) <= {"host.pace"}
