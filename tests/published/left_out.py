"""The error on each source with every figure that was fitted with it fitted again without it.

Which figures were fitted to which sources the catalog says (`fitted`). They are fitted again to the
same sources but one, by the fit of `autopar calibrate`. What none of those tells falls back to what
was measured or published apart from training runs; the remarks name each such figure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from autopar import catalog, planner
from autopar.cluster import Chip, Peaks
from autopar.entries import ChipEntry
from autopar.errors import SpecError
from autopar.fit import Figure, MeasuredRun, Point
from autopar.runs import Run
from autopar.runs.hardware import OLD_PACE, chip_as_written
from autopar.runs.shelf import Shelf
from autopar.validate import Checked, check_one

Factors = dict[Figure, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A source as its rows are predicted without it.

    Attributes:
        rows: Its rows, estimated with figures that never saw it.
        refitted: Figures that other sources told, with their factor on the catalog's.
        fallen: Figures that no other source tells, with what stood in.
    """

    rows: list[Checked]
    refitted: tuple[str, ...]
    fallen: tuple[str, ...]


def source_of(row: Checked) -> str:
    """Returns whose row it is: the series up to its first hyphen."""
    return row.run.series.partition("-")[0]


def leave_out(
    source: str, rows: Sequence[Checked], known: Sequence[Checked], alone: Sequence[Checked]
) -> LeftOut:
    """Returns rows of a source, estimated with figures fitted to the others of all known rows.

    Runs of one node, `alone`, tell the host's time an operator beside those.
    """
    own = [row for row in rows if source_of(row) == source]
    factors: dict[str, Factors] = {}
    for name in sorted({root(chip_of(row).name) for row in own if row.setup}):
        if figures := _figures(source, name):
            factors[name] = _fit(source, name, figures, known)
    refitted: list[str] = []
    fallen: list[str] = []
    for name, found in factors.items():
        for figure in _figures(source, name):
            if figure in found:
                refitted.append(f"{figure} of {name} x {found[figure]:.3f}")
            else:
                found[figure], reason = _fallback(source, figure, _chip_entry(name))
                fallen.append(f"{figure} of {name} ({reason})")
    launch = _launch(source, own, [*known, *alone])
    pace = _pace(source, own, known)
    if source == OLD_HOSTS_SOURCE:
        fallen.append("host.pace of p3 (as of other hosts)")
    if not factors and launch is None and pace == 1.0:
        return LeftOut(rows=own, refitted=(), fallen=())
    shelf = replace(_shelf(), chips={})
    if launch is not None:
        refitted.append(f"launch_us x {launch:.3f}")
        shelf.frameworks = tuple(
            replace(
                entry,
                framework=replace(entry.framework, launch_us=entry.framework.launch_us * launch),
            )
            if source in entry.fitted.get("launch_us", ())
            else entry
            for entry in shelf.frameworks
        )
    if pace != 1.0 and source != OLD_HOSTS_SOURCE:
        refitted.append(f"host.pace x {pace:.3f}")
    for row in own:
        if isinstance(row.run, Run) and row.setup and not is_mixed(row):
            chip = changed(_chip_as_written(row.run.chip), factors.get(root(chip_of(row).name), {}))
            if source in (OLD_HOSTS_SOURCE, *_pace_sources(chip.name)):
                chip = replace(chip, host=replace(chip.host, pace=chip.host.pace * pace))
            shelf.chips[row.run.chip] = chip
    return LeftOut(
        rows=[check_one(row.run, shelf) for row in own],
        refitted=tuple(refitted),
        fallen=tuple(fallen),
    )


def changed(chip: Chip, factors: Factors) -> Chip:
    """Returns a chip with some of its figures multiplied, shares to 1 at most."""
    gemm, link = chip.gemm, chip.link
    for figure, factor in factors.items():
        if figure == "gemm.efficiency":
            gemm = replace(gemm, efficiency=min(1.0, gemm.efficiency * factor))
        elif figure == "gemm.fp8_efficiency":
            gemm = replace(gemm, fp8_efficiency=min(1.0, gemm.fp8_efficiency * factor))
        elif figure == "link":
            link = replace(
                link,
                all_reduce_gb_per_s=link.all_reduce_gb_per_s * factor,
                all_gather_gb_per_s=link.all_gather_gb_per_s * factor,
                all_to_all_gb_per_s=link.all_to_all_gb_per_s * factor,
                p2p_gb_per_s=link.p2p_gb_per_s * factor,
            )
        else:
            raise SystemExit(f"{chip.name}.toml: fitted: {figure} cannot be left out.")
    return replace(chip, gemm=gemm, link=link)


def chip_of(row: Checked) -> Chip:
    """Returns the chip that a row ran on."""
    assert row.setup is not None
    return row.setup.problem.cluster.groups[0].chip


def is_mixed(row: Checked) -> bool:
    """Returns whether a row ran on several kinds of chip."""
    return row.setup is not None and len(row.setup.problem.cluster.groups) > 1


# Whose runs alone tell the pace of the hosts of AWS's p3.
OLD_HOSTS_SOURCE = "lightv100"
_shelf = cache(Shelf)
_chip_entry = cache(catalog.chip)
_framework_entry = cache(catalog.framework)
_chip_as_written = cache(chip_as_written)


@cache
def root(name: str) -> str:
    """Returns the chip whose fitted figures a chip's follow: itself unless the catalog says."""
    try:
        return _chip_entry(name).fitted_as or name
    except SpecError:
        return name  # Kinds mixed in one row have no one name.


def _figures(source: str, name: str) -> tuple[Figure, ...]:
    """Returns the figures of a chip that were fitted with a source, its host's pace apart."""
    fitted = _chip_entry(name).fitted
    return tuple(
        figure
        for figure in sorted(fitted, key=len)
        if source in fitted[figure] and figure != "host.pace"  # type: ignore[misc]
    )


def _launch(source: str, own: Sequence[Checked], known: Sequence[Checked]) -> float | None:
    """Returns the factor on the host's time an operator that its other sources tell.

    None where it was not fitted with this source. It belongs to no chip: runs on all of them tell
    it, by a fit that leaves their chips alone.
    """
    profiles = {row.setup.problem.framework.name for row in own if row.setup}
    others = {
        other
        for profile in profiles
        for sources in [_framework_entry(profile).fitted.get("launch_us", ())]
        if source in sources
        for other in sources
        if other != source
    }
    if not others:
        return None
    points = _points(row for row in known if source_of(row) in others)
    entry = _chip_entry(root(chip_of(own[0]).name))
    fit = planner.calibrate(entry.chip, points, figures=("launch_us",), cross_validate=False)
    [figure] = fit.figures
    return figure.after / figure.before


def _pace_sources(name: str) -> tuple[str, ...]:
    """Returns the sources to whose runs the pace of a chip's host was fitted."""
    return _chip_entry(name).fitted.get("host.pace", ())


def _pace(source: str, own: Sequence[Checked], known: Sequence[Checked]) -> float:
    """Returns the factor on a host's pace that its other sources tell, 1 where this one did not.

    A step depends on the pace times the time an operator, so the fit of that one finds it.
    """
    if source == OLD_HOSTS_SOURCE:
        return 1 / OLD_PACE
    names = {chip_of(row).name for row in own if row.setup and not is_mixed(row)}
    told = next((s for name in sorted(names) if source in (s := _pace_sources(name))), ())
    if not told:
        return 1.0
    points = _points(
        row
        for row in known
        if row.setup and not is_mixed(row) and source_of(row) in told and source_of(row) != source
        if _pace_sources(chip_of(row).name) == told
    )
    entry = _chip_entry(root(chip_of(own[0]).name))
    fit = planner.calibrate(entry.chip, points, figures=("launch_us",), cross_validate=False)
    [figure] = fit.figures
    return figure.after / figure.before


_FITS: dict[tuple[str, tuple[Figure, ...]], dict[str, Factors]] = {}


def _fit(source: str, name: str, figures: tuple[Figure, ...], known: Sequence[Checked]) -> Factors:
    """Returns the factors on a chip's figures that other sources tell; one fit serves all folds."""
    entry = _chip_entry(name)
    seen = {one for sources in entry.fitted.values() for one in sources}
    points = _points(
        row
        for row in known
        if row.setup and source_of(row) in seen and root(chip_of(row).name) == name
    )
    if len({point.group for point in points}) < 2:
        return {}
    before = {figure: _efficiency(entry, figure) for figure in figures if "efficiency" in figure}
    key = (name, figures)
    if key not in _FITS:
        fit = planner.calibrate(
            entry.chip, points, figures=figures, link_line_gb_per_s=entry.link_line_gb_per_s
        )
        _FITS[key] = {
            fold.name: {one: value / before.get(one, 1.0) for one, value in fold.figures.items()}
            for fold in fit.folds
        }
    return dict(_FITS[key].get(source, {}))


def _points(rows: Iterable[Checked]) -> list[Point]:
    """Returns rows that count as points of a fit, each in the group of its source."""
    return [
        Point(
            group=source_of(row),
            seconds=row.measured_step_s,
            what=MeasuredRun(problem=row.setup.problem, plan=row.setup.plan),
        )
        for row in rows
        if row.setup and row.measured_step_s and not row.suspect and row.skipped is None
        if not is_mixed(row)
    ]


def _fallback(source: str, figure: Figure, entry: ChipEntry) -> tuple[float, str]:
    """Returns the factor on a figure that no other source tells, and where it comes from."""
    others = [
        other
        for other in map(_chip_entry, catalog.names("chips"))
        if other.chip.name != entry.chip.name
        if not any(source in sources for sources in other.fitted.values())
    ]
    if figure == "link":
        shares = [
            other.chip.link.all_gather_gb_per_s / other.link_line_gb_per_s
            for other in others
            if other.link_line_gb_per_s
        ]
        if not entry.link_line_gb_per_s:
            return 1.0, "as it is"
        rate = median(shares) * entry.link_line_gb_per_s
        return rate / entry.chip.link.all_gather_gb_per_s, "the usual share of its line rate"
    own = _efficiency(entry, figure)
    fitted = [other for other in others if figure in other.fitted]
    shares = [
        _efficiency(other, figure) / burst for other in fitted if (burst := _burst(other, figure))
    ]
    if steady := _share(entry, figure, entry.steady_tflops):
        return steady / own, "its large products, timed one after another"
    if shares and (burst := _burst(entry, figure)):
        return median(shares) * burst / own, "its fastest product, and the usual share of that"
    kin = [other for other in fitted if other.architecture == entry.architecture]
    usual = median([_efficiency(other, figure) for other in kin or fitted])
    whose = "its architecture's share of the peak" if kin else "the usual share of the peak"
    return usual / own, whose


def _efficiency(entry: ChipEntry, figure: Figure) -> float:
    gemm = entry.chip.gemm
    return gemm.efficiency if figure == "gemm.efficiency" else gemm.fp8_efficiency


def _burst(entry: ChipEntry, figure: Figure) -> float:
    """Returns the share of the peak that a chip's fastest measured product reached, or 0."""
    return _share(entry, figure, entry.best_tflops)


def _share(entry: ChipEntry, figure: Figure, rates: Peaks) -> float:
    """Returns the share of the peak that measured rates are, or 0 where none was measured."""
    peaks = entry.chip.peak_tflops
    if figure == "gemm.efficiency":
        return (rates.bf16 or rates.fp16 or 0.0) / (peaks.bf16 or peaks.fp16 or 1.0)
    return (rates.fp8 or 0.0) / (peaks.fp8 or 1.0)
