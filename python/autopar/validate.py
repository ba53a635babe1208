"""Measured runs against their estimates: errors by source, ranks inside a series."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

from autopar import planner
from autopar.errors import SpecError, shown
from autopar.report import Estimate, StageEstimate
from autopar.runs import BadRow, Run
from autopar.runs.said import NO_OPTIMIZER
from autopar.runs.setups import DRIVER_ERROR, Setup, setup
from autopar.runs.shelf import Shelf

By = Literal["source", "chip", "model"]
GIB = 2**30
UNITS = {"gib": GIB, "gb": 10**9, "mib": 2**20, "mb": 10**6}
SMALLEST_SERIES = 5
# A row without an optimizer holds no state of one, and nothing updates its parameters; one whose
# time is of the passes counts no update either, though the state is there.
PASSES_ALONE = rf"{NO_OPTIMIZER}|\bthe update\b[^;]* hardly counts"
ALLOCATED_ERROR = 0.03  # stated for what the allocator hands out


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run beside its estimate.

    Attributes:
        run: The run.
        setup: The problem and plan that it was; None if it is skipped.
        estimate: What they should cost.
        measured_step_s: Seconds of a step.
        predicted_step_s: The same by the estimate.
        measured_mem_gib: Most memory of a device, in GiB.
        predicted_mem_gib: The same by the estimate.
        skipped: Why it is left out.
    """

    run: Run | BadRow
    setup: Setup | None = None
    estimate: Estimate | None = None
    measured_step_s: float | None = None
    predicted_step_s: float | None = None
    measured_mem_gib: float | None = None
    predicted_mem_gib: float | None = None
    skipped: str | None = None

    @property
    def suspect(self) -> bool:
        """Whether whoever recorded the run doubts it."""
        return isinstance(self.run, Run) and self.run.suspect

    @property
    def time_error(self) -> float | None:
        """Share by which the predicted step is longer than the measured one."""
        return _relative(self.predicted_step_s, self.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        """Share by which the predicted memory is more than the measured."""
        return _relative(self.predicted_mem_gib, self.measured_mem_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far predictions are off, as shares of the measured.

    Attributes:
        rows: Pairs compared.
        mean: Mean of the absolute error.
        median: Its median.
        bias: Mean of the error with its sign; above 0 where too much is predicted.
        p90: The error that nine of ten rows do not exceed.
    """

    rows: int
    mean: float
    median: float
    bias: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The scores of a group of rows.

    Attributes:
        name: What the rows have in common.
        rows: Rows of the file.
        skipped: Rows left out, by reason.
        suspect: Rows that their recorder doubts.
        time: Errors of the step time.
        memory: Errors of the memory.
        time_assumed: Of `time`, the rows with an assumed mbs, vpp or recompute.
        time_stated: Of `time`, the others.
        time_suspect: Errors of the doubted rows, which count nowhere else.
    """

    name: str
    rows: int
    skipped: dict[str, int]
    suspect: int
    time: Errors | None
    memory: Errors | None
    time_assumed: Errors | None
    time_stated: Errors | None
    time_suspect: Errors | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Plans of one model, chip, device count and batch that differ in their degrees.

    Attributes:
        name: What they have in common.
        plans: How many there are.
        tau: Kendall's rank correlation of predicted and measured time.
        regret: Share by which the plan predicted fastest was slower than the fastest.
    """

    name: str
    plans: int
    tau: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether runs fit in memory, measured and predicted, where their rows leave nothing open.

    Attributes:
        at_limit: Runs so near to a device's memory that the stated error forbids a verdict.
        ran_and_fits: Other runs that ran and were said to.
        ran_but_refused: Other runs that ran and were said not to.
        failed_and_refused: Other runs out of memory that were said to be.
        failed_but_fits: Other runs out of memory that were said to fit.
    """

    at_limit: tuple[str, ...]
    ran_and_fits: int
    ran_but_refused: tuple[str, ...]
    failed_and_refused: int
    failed_but_fits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All scores.

    Attributes:
        rows: Rows of the file.
        scored: Rows with a measured and a predicted time that count.
        mean_over_sources: Mean of the groups' mean errors in time.
        mean_memory_over_sources: The same in memory.
        time: Errors in time over all rows.
        memory: Errors in memory over all rows.
        groups: Scores by group.
        rankings: Scores inside each series.
        tau: Mean over the series.
        regret: Mean over the series.
        fit: What fits.
    """

    rows: int
    scored: int
    mean_over_sources: float | None
    mean_memory_over_sources: float | None
    time: Errors | None
    memory: Errors | None
    groups: tuple[Group, ...]
    rankings: tuple[Ranking, ...]
    tau: float | None
    regret: float | None
    fit: Fit


def check(runs: Iterable[Run | BadRow]) -> list[Checked]:
    """Returns each run beside its estimate.

    Example:
        >>> from autopar.runs import parse_runs
        >>> head = b"id,model,chip,gpus,tp,seq_len,gbs,mbs,recompute,zero,iter_time_s\\n"
        >>> table = head + b"mine-1,llama2-7b,a800,8,1,4096,8,1,none,1,1.5\\n"
        >>> [row] = check(parse_runs(table, "mine.csv"))
        >>> row.measured_step_s, row.skipped
        (1.5, None)
    """
    shelf = Shelf()
    return [check_one(run, shelf) for run in runs]


def check_one(run: Run | BadRow, shelf: Shelf) -> Checked:
    """Returns one run beside its estimate, or why it has none."""
    if isinstance(run, BadRow):
        return Checked(run=run, skipped=str(run.error).rstrip("."))
    try:
        known = setup(run, shelf)
        cost = planner.estimate(known.problem, known.plan)
        measured = None
        if known.rate:
            measured = planner.measured_seconds(known.problem, known.plan, known.rate)
        memory = _measured_memory(run)
    except SpecError as error:
        return Checked(run=run, skipped=str(error).rstrip("."))
    peak = max(_in_words_of(run, stage) for stage in _read(run, cost))
    predicted = cost.step_s
    if re.search(PASSES_ALONE, run.notes, re.I):
        predicted = (cost.step_ps - cost.time.optimizer_ps) / 1e12
    nothing = measured is None and memory is None and not run.ran_out_of_memory
    return Checked(
        run=run,
        setup=known,
        estimate=cost,
        measured_step_s=measured,
        predicted_step_s=predicted,
        measured_mem_gib=memory,
        predicted_mem_gib=peak / GIB,
        skipped="nothing was measured" if nothing else None,
    )


def misread(rows: Iterable[Checked]) -> list[str]:
    """Returns what is said of words that no estimate knows, and of what was taken in their place.

    Example:
        >>> from autopar.runs import parse_runs
        >>> head = b"id,model,chip,gpus,tp,pp,seq_len,gbs,framework,attention\\n"
        >>> table = head + b"mine-1,llama2-7b,a800,8,1,1,4096,8,megatron-core,flush\\n"
        >>> misread(check(parse_runs(table, "mine.csv")))
        ['attention "flush" is not known; taken as flash']
    """
    said: dict[str, None] = {}
    for row in rows:
        for setting in row.setup.assumed if row.setup else ():
            key, _, taken = setting.partition("=")
            if word := getattr(row.run, key, ""):
                said[f"{key} {shown(word)} is not known; taken as {taken}"] = None
    return list(said)


def _is_allocated(run: Run) -> bool:
    """Returns whether a run's memory is what the allocator handed out, as far as that is known."""
    return "alloc" in run.mem_kind.lower() and "method not stated" not in run.notes


def _is_inside(run: Run) -> bool:
    """Returns whether a run's memory is the allocator's, handed out or reserved: no context."""
    return _is_allocated(run) or "reserv" in run.mem_kind.lower()


def _read(run: Run, cost: Estimate) -> Sequence[StageEstimate]:
    """Returns the stages of which a run's memory was read: the first where it was rank 0's."""
    return cost.stages[:1] if re.search(r"memory of rank 0\b", run.notes) else cost.stages


def _in_words_of(run: Run, stage: StageEstimate) -> int:
    """Returns the predicted bytes of a stage that a run's memory is to be held against."""
    if _is_allocated(run):
        peak = stage.allocated_bytes
    else:
        peak = stage.reserved_bytes if _is_inside(run) else stage.memory_bytes
    # Who times passes without an optimizer holds no state of one.
    return peak - stage.memory.optimizer if re.search(NO_OPTIMIZER, run.notes, re.I) else peak


def _measured_memory(run: Run) -> float | None:
    """Returns the memory of a device in GiB."""
    if run.mem_gb_per_gpu is None:
        return None
    if (unit := run.mem_unit.lower() or "gib") not in UNITS:
        raise SpecError("mem_unit", f"must be GiB, GB, MiB or MB, found {shown(run.mem_unit)}")
    return run.mem_gb_per_gpu * UNITS[unit] / GIB


def summarise(rows: Sequence[Checked], by: By = "source") -> Summary:
    """Returns the scores of rows, grouped by source, chip or model."""
    groups: dict[str, list[Checked]] = {}
    for row in rows:
        groups.setdefault(_group_name(row, by), []).append(row)
    scores = tuple(_group(name, members) for name, members in groups.items())
    sound = [row for row in rows if not row.suspect and row.skipped is None]
    time = _errors(row.time_error for row in sound)
    rankings = tuple(_rankings(sound))
    return Summary(
        rows=len(rows),
        scored=time.rows if time else 0,
        mean_over_sources=_mean([g.time.mean for g in scores if g.time]),
        mean_memory_over_sources=_mean([g.memory.mean for g in scores if g.memory]),
        time=time,
        memory=_errors(row.memory_error for row in sound),
        groups=scores,
        rankings=rankings,
        tau=_mean([ranking.tau for ranking in rankings]),
        regret=_mean([ranking.regret for ranking in rankings]),
        fit=_fit(sound),
    )


def document(rows: Sequence[Checked], summary: Summary) -> dict[str, Any]:
    """Returns rows and scores as a table for JSON."""
    return {"rows": [_row(row) for row in rows], "summary": asdict(summary)}


def worst(rows: Sequence[Checked], count: int) -> list[Checked]:
    """Returns the rows whose time is furthest off, doubted ones apart."""
    scored = [
        row for row in rows if row.time_error is not None and not row.suspect and not row.skipped
    ]
    return sorted(scored, key=lambda row: -abs(math.log1p(row.time_error or 0.0)))[:count]


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns Kendall's tau-b of two rankings: 1 for the same order, -1 for the reverse.

    Example:
        >>> kendall_tau([1, 2, 3, 4], [1, 2, 4, 3])  # one of six pairs is swapped: (5 - 1) / 6
        0.6666666666666666
    """
    score, ties_a, ties_b, pairs = 0, 0, 0, 0
    for i, j in combinations(range(len(a)), 2):
        one, two = _sign(a[i] - a[j]), _sign(b[i] - b[j])
        score += one * two
        ties_a += one == 0
        ties_b += two == 0
        pairs += 1
    scale = math.sqrt((pairs - ties_a) * (pairs - ties_b))
    return score / scale if scale else 0.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _row(row: Checked) -> dict[str, Any]:
    run = row.run
    assumed = row.setup.assumed if row.setup else ()
    table: dict[str, Any] = {
        "id": run.id,
        "series": run.series,
        "measured_step_s": row.measured_step_s,
        "predicted_step_s": row.predicted_step_s,
        "measured_mem_gib": row.measured_mem_gib,
        "predicted_mem_gib": row.predicted_mem_gib,
        "assumed": list(assumed),
        "skipped": row.skipped,
        "suspect": row.suspect,
        "framework": row.setup.problem.framework.name if row.setup else None,
        "violations": list(row.estimate.violations) if row.estimate else [],
        "extra": run.extra if isinstance(run, Run) else {},
    }
    return table


def _group_name(row: Checked, by: By) -> str:
    if by == "source":
        return row.run.series
    if isinstance(row.run, BadRow):
        return "?"
    return getattr(row.run, by) or "?"


def _group(name: str, rows: list[Checked]) -> Group:
    skipped: dict[str, int] = {}
    for row in rows:
        if row.skipped is not None:
            skipped[row.skipped] = skipped.get(row.skipped, 0) + 1
    known = [row for row in rows if row.skipped is None]
    sound = [row for row in known if not row.suspect]

    def errors(keep: Callable[[Setup], bool]) -> Errors | None:
        return _errors(row.time_error for row in sound if row.setup and keep(row.setup))

    return Group(
        name=name,
        rows=len(rows),
        skipped=skipped,
        suspect=sum(row.suspect for row in rows),
        time=_errors(row.time_error for row in sound),
        memory=_errors(row.memory_error for row in sound),
        time_assumed=errors(lambda known: bool(known.open)),
        time_stated=errors(lambda known: not known.open),
        time_suspect=_errors(row.time_error for row in known if row.suspect),
    )


def _errors(found: Iterable[float | None]) -> Errors | None:
    """Returns the statistics of errors, or nothing of nothing."""
    signed = [error for error in found if error is not None]
    if not signed:
        return None
    sizes = sorted(abs(error) for error in signed)
    half = len(sizes) // 2
    median = sizes[half] if len(sizes) % 2 else (sizes[half - 1] + sizes[half]) / 2
    return Errors(
        rows=len(signed),
        mean=sum(sizes) / len(sizes),
        median=median,
        bias=sum(signed) / len(signed),
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
    )


def _rankings(rows: Iterable[Checked]) -> Iterable[Ranking]:
    """Yields the scores of each series with enough plans."""
    series: dict[tuple[Any, ...], dict[str, list[Checked]]] = {}
    for row in rows:
        run, known = row.run, row.setup
        if not isinstance(run, Run) or known is None or row.measured_step_s is None:
            continue
        alike = (run.series, known.problem.model, run.chip, known.problem.cluster.devices, run.gbs,
                 run.seq_len, known.problem.workload, known.problem.framework.name, run.recompute,
                 run.zero, run.offload_fraction, run.gpus_per_node, run.internode)  # fmt: skip
        series.setdefault(alike, {}).setdefault(repr(known.plan), []).append(row)
    for alike, plans in series.items():
        if len(plans) < SMALLEST_SERIES:
            continue
        measured = [
            sum(r.measured_step_s or 0.0 for r in rows) / len(rows) for rows in plans.values()
        ]
        predicted = [rows[0].predicted_step_s or 0.0 for rows in plans.values()]
        pick = measured[predicted.index(min(predicted))]
        source, model, chip, devices, batch, sequence = alike[:6]
        yield Ranking(
            name=f"{source}: {model.name}, {devices} x {chip}, batch {batch} x {sequence}",
            plans=len(plans),
            tau=kendall_tau(predicted, measured),
            regret=pick / min(measured) - 1,
        )


def _fit(rows: Iterable[Checked]) -> Fit:
    """Returns which runs are rightly and wrongly said to fit."""
    limit: list[str] = []
    named: dict[tuple[bool, bool], list[str]] = {}
    for row in rows:
        if row.estimate is None or row.setup is None or row.setup.open:
            continue
        assert isinstance(row.run, Run)
        if _at_limit(row.run, row.setup, row.estimate, row.measured_mem_gib):
            limit.append(row.run.id)
        else:
            lacks = any(s.allocated_bytes > s.capacity_bytes for s in row.estimate.stages)
            named.setdefault((row.run.ran_out_of_memory, lacks), []).append(row.run.id)
    return Fit(
        at_limit=tuple(limit),
        ran_and_fits=len(named.get((False, False), [])),
        ran_but_refused=tuple(named.get((False, True), [])),
        failed_and_refused=len(named.get((True, True), [])),
        failed_but_fits=tuple(named.get((True, False), [])),
    )


def _at_limit(run: Run, known: Setup, cost: Estimate, measured_gib: float | None) -> bool:
    """Returns whether a run needs as much as there is, give or take the stated memory error."""
    error = ALLOCATED_ERROR if _is_allocated(run) else DRIVER_ERROR
    shares = [max(s.allocated_bytes / max(s.capacity_bytes, 1) for s in cost.stages)]
    if measured_gib is not None:
        whole = known.problem.cluster.groups[0].chip.memory_gib
        offered = min(s.capacity_bytes for s in cost.stages) / GIB if _is_inside(run) else whole
        shares.append(measured_gib / offered)
    return any(abs(share - 1) <= error for share in shares)


def _relative(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None or measured <= 0:
        return None
    return predicted / measured - 1


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
