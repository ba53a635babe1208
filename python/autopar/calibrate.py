"""A chip's few physical figures from one's own measurements: files in, a chip's TOML file out.

A file is a table of runs as `validate` reads it, a table of single products or of attention, or the
output of nccl-tests. Runs on other chips, doubted ones, and those without a time are left out, and
it is said why. The fit itself is the core's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, get_args

from autopar import entry_files, planner, wire
from autopar.cluster import Chip
from autopar.entries import ChipEntry
from autopar.errors import SpecError, shown
from autopar.files import printable
from autopar.fit import Figure, Fit, MeasuredRun, Point
from autopar.points import read_points
from autopar.runs import BadRow, Run, read_runs
from autopar.runs.hardware import chip_as_written
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf, plain

# Those of the chip itself; the host time of a framework's kernels is no figure of a chip.
FIGURES: tuple[Figure, ...] = tuple(name for name in get_args(Figure) if name != "launch_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A chip fitted to measurements.

    Attributes:
        entry: The chip of before with its sources.
        fit: What was found.
        names: The measurements that were used.
        skipped: Measurements left out, by reason.
        sources: Where they come from.
    """

    entry: ChipEntry
    fit: Fit
    names: tuple[str, ...]
    skipped: dict[str, int]
    sources: tuple[str, ...]


def calibrate(
    paths: Sequence[str | PathLike[str]],
    entry: ChipEntry,
    *,
    figures: Sequence[Figure] = FIGURES,
) -> Calibration:
    """Returns a chip fitted to the measurements of files.

    Raises:
        SpecError: A file is wrong, holds nothing of this chip, or tells no figure.
    """
    for figure in figures:
        if figure not in FIGURES:
            raise SpecError(
                "figures", f"no figure {shown(figure)}", f"Known: {', '.join(FIGURES)}."
            )
    points: list[Point] = []
    names: list[str] = []
    skipped: dict[str, int] = {}
    shelf = Shelf()
    kernels = [rate.kernel for rate in entry.chip.attention]
    for path in paths:
        operators = read_points(path, kernels[0] if kernels else "")
        if operators is not None:
            points += operators
            names += [f"{printable(path)}: row {i}" for i in range(1, len(operators) + 1)]
            continue
        for run in read_runs(path):
            try:
                points.append(run_point(run, entry.chip, shelf))
                names.append(run.id)
            except SpecError as error:
                reason = str(error).rstrip(".")
                skipped[reason] = skipped.get(reason, 0) + 1
    if not points:
        reason = max(skipped, key=lambda text: skipped[text], default="no row")
        what = f"nothing measured on {entry.chip.name} that can be used; most often: {reason}"
        raise SpecError(", ".join(map(printable, paths)), what, "Give runs of this chip.")
    fit = planner.calibrate(
        entry.chip, points, figures=figures, link_line_gb_per_s=entry.link_line_gb_per_s
    )
    return Calibration(
        entry=entry,
        fit=fit,
        names=tuple(names),
        skipped=skipped,
        sources=tuple(dict.fromkeys(point.group for point in points)),
    )


def run_point(run: Run | BadRow, device: Chip, shelf: Shelf) -> Point:
    """Returns a run on a chip as a measurement.

    A row that leaves mbs, vpp or recompute open is set up with the chip's present figures.

    Raises:
        SpecError: It cannot be expressed, has no time, is doubted, or ran on another chip.
    """
    if isinstance(run, BadRow):
        raise run.error
    if run.suspect:
        raise SpecError("notes", "its recorder doubts the run")
    other = device.name
    if run.chip and plain(run.chip) != plain(device.name):
        other = chip_as_written(run.chip).name
    if other != device.name:
        raise SpecError("chip", f"ran on {other}")
    shelf.chips[device.name] = device
    known = setup(replace(run, chip=device.name), shelf)
    if known.rate is None:
        raise SpecError("iter_time_s", "missing")
    seconds = planner.measured_seconds(known.problem, known.plan, known.rate)
    if planner.estimate(known.problem, known.plan).step_s <= 0:
        raise SpecError("run", "takes no time")
    what = MeasuredRun(problem=known.problem, plan=known.plan)
    return Point(group=run.series, seconds=seconds, what=what)


# --- The chip's file

KEYS: dict[str, tuple[str, ...]] = {
    "gemm.efficiency": ("gemm.efficiency",),
    "gemm.fp8_efficiency": ("gemm.fp8_efficiency",),
    "gemm.fp4_efficiency": ("gemm.fp4_efficiency",),
    "memory_efficiency": ("memory_efficiency",),
    "network.efficiency": ("network.efficiency",),
    "link": tuple(
        f"link.{rate}_gb_per_s" for rate in ("all_reduce", "all_gather", "all_to_all", "p2p")
    ),
    "attention": (),
}
GROUPS = {"memory_efficiency": "memory"}  # whose source a figure has; else its first word


def chip_toml(found: Calibration) -> str:
    """Returns the file of a fitted chip: the catalog's form, complete without another chip's."""
    entry, fit = found.entry, found.fit
    measured = f"{len(fit.points)} measurement{'s' if len(fit.points) > 1 else ''}"
    origin = ", ".join(found.sources)
    lines = [
        f"# {entry.chip.name}, of which {_and(f.figure for f in fit.figures)}"
        f" {'were' if len(fit.figures) > 1 else 'was'} fitted to {measured} ({_plain(origin)}).",
        f"# Mean error {_percent(fit.before)} before, {_percent(fit.after)} after"
        + (f", {_percent(fit.left_out)} on what each fit had not seen." if fit.left_out else "."),
        "",
    ]
    notes: dict[str, str] = {}
    for figure in fit.figures:
        was = f"was {figure.before:.4g}"
        if figure.figure in ("link", "attention"):
            was = f"{figure.after:.4g} of what it was"
        bound = "; the most that is plausible" if figure.at_bound and figure.after >= 1 else ""
        for key in KEYS[figure.figure]:
            notes[key] = f"fitted, give or take {_percent(figure.error)}; {was}{bound}"
    table = wire.write(fit.chip)
    table.pop("name")
    rates = table.pop("attention")
    told = {figure.figure: list(found.sources) for figure in fit.figures}
    kept = {name: list(sources) for name, sources in entry.fitted.items() if name not in told}
    source = dict(entry.source)
    for figure in fit.figures:
        group = GROUPS.get(figure.figure, figure.figure.partition(".")[0])
        source[group] = "; ".join(
            filter(None, (f"{figure.figure} fitted to {measured} ({origin})", source.get(group)))
        )
    table |= {
        "vendor": entry.vendor,
        "architecture": entry.architecture,
        "checked": entry.checked,
        "note": entry.note,
        "link_line_gb_per_s": entry.link_line_gb_per_s,
        "best_tflops": wire.write(entry.best_tflops),
        "fitted": kept | told,
        "confidence": entry.confidence,
        "source": source,
    }
    for rate in rates:
        rate["tflops"] = [round(value, 2) for value in rate["tflops"]]
    said = {key: _short(value) for key, value in table.items() if value not in ("", {})}
    lines += entry_files.lines(said | {"attention": rates}, notes)
    return "\n".join(lines) + "\n"


def _short(value: Any) -> Any:
    """Returns a value of a table with six digits of each number, as many as a fit tells at most."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _plain(text: str) -> str:
    """Returns a text that a comment can hold."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
