"""Reports, estimates and catalogs as plain text of ASCII characters."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby

from autopar import wire
from autopar.entries import ChipEntry, FrameworkEntry, ModelEntry
from autopar.report import (
    Cut,
    DeviceShortage,
    Estimate,
    Infeasible,
    MemoryShortage,
    ModelFacts,
    Money,
    NoFactorisation,
    Plan,
    Ranked,
    Recompute,
    Report,
    Sizes,
)
from autopar.spec import Problem

GIB = 2**30
PS_PER_S = 10**12

CUTS: dict[Cut, str] = {
    "options": "not allowed by the options",
    "model-shape": "not dividing the model",
    "sequence": "not dividing the sequence",
    "batch": "not dividing the batch",
    "layers": "not dividing the layers",
    "micro-batches": "not ordering the micro-batches",
    "placement": "leaving a node with tensor parallel",
    "limits": "beyond the limits of the chips",
    "memory": "out of memory",
    "bound": "proved slower",
    "unreached": "not reached",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Attributes:
        headers: One text a column.
        rows: One text a column, in each row.
        left: Columns aligned to the left; the others hold numbers.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset()


def plain(table: Table) -> str:
    """Returns a table in columns of spaces.

    Example:
        >>> print(plain(Table(("chip", "GiB"), (("a800", "80.0"), ("b", "192.0")), frozenset({0}))))
        chip    GiB
        a800   80.0
        b     192.0
    """
    lines = [table.headers, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.headers))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i in table.left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def report_table(
    problem: Problem, ranked: tuple[Ranked, ...], launchers: Sequence[Sequence[str]]
) -> Table:
    """Returns ranked plans, one a row; degrees that are 1 in every row have no column.

    Args:
        problem: What was asked.
        ranked: The plans.
        launchers: For each plan the launchers that can say it.
    """
    table = _plans_table(problem, ranked, {})
    rows = zip(table.rows, launchers, strict=True)
    return Table(
        (*table.headers, "launchers"),
        tuple((*row, " ".join(names) or "none") for row, names in rows),
        table.left | {len(table.headers)},
    )


def frontier_table(found: Sizes) -> Table:
    """Returns the sizes that no other beats in both time and money, one a row."""
    devices = {"devices": tuple(f"{size.devices:,}" for size in found.sizes)}
    return _plans_table(found.problem, tuple(size.best for size in found.sizes), devices)


def sizes_note(found: Sizes) -> str:
    """Returns in one line which device counts were searched, and for what."""
    proved = "Proved" if found.proved else "Not proved, as the search was stopped"
    most = found.problem.cluster.devices
    counts = f"of {found.considered:,} device counts up to {most:,} to which degrees multiply"
    if not found.sizes:
        return f"{proved}: {counts}, a plan was found at none."
    listed = f"{len(found.sizes):,}"
    unbeaten = f"{listed} {'is' if len(found.sizes) == 1 else 'are'} beaten by none"
    best = f"{found.sizes[0].devices:,}"
    what = {
        "every": f"a plan fits at {listed}",
        "frontier": f"{unbeaten} in both time and money",
        "fastest": f"{best} is the fastest",
        "cheapest": f"{best} is the cheapest",
    }
    return f"{proved}: {counts}, {what[found.wanted]}."


def _plans_table(
    problem: Problem, listed: tuple[Ranked, ...], more: dict[str, tuple[str, ...]]
) -> Table:
    """Returns plans, one a row, with columns of text after the rank; money if all have a price."""
    plans = [ranked.plan for ranked in listed]
    priced = all(ranked.estimate.money is not None for ranked in listed)
    degrees = ["dp", "tp", "pp"]
    degrees += [name for name in ("cp", "ep", "vpp") if any(getattr(p, name) > 1 for p in plans)]
    degrees.append("mbs")
    headers = ("#", *more, "step s", "tokens/s", "MFU %")
    headers += ("money/step", "money/1e12 tokens") if priced else ()
    headers += ("GiB used/usable", *degrees)
    memory = headers.index("GiB used/usable")
    headers += ("sp", "shards", "schedule", "layers", "recompute")
    rows = []
    for rank, ranked in enumerate(listed, 1):
        plan, cost = ranked.plan, ranked.estimate
        money = () if cost.money is None or not priced else _money(cost.money)
        rows.append(
            (
                str(rank),
                *(column[rank - 1] for column in more.values()),
                f"{cost.step_s:.4g}" if cost.step_s < 1000 else f"{cost.step_s:.0f}",
                f"{cost.tokens_per_s:,.0f}",
                f"{100 * cost.mfu:.1f}",
                *money,
                _memory(problem, ranked),
                *(_degree(plan, name) for name in degrees),
                "yes" if plan.sp else "no",
                _shards(plan),
                plan.schedule,
                _layers(problem, plan),
                _recompute(problem, plan),
            )
        )
    first = memory + 1 + len(degrees)
    return Table(headers, tuple(rows), frozenset({memory, *range(first, first + 5)}))


def _money(money: Money) -> tuple[str, str]:
    return f"{money.step:,.4g}", f"{money.trillion_tokens:,.0f}"


def report_notes(report: Report) -> list[str]:
    """Returns what to know beside the table: what was searched, what was cut, what bears on it."""
    counters = report.counters
    cuts = sorted(counters.cut.items(), key=lambda cut: -cut[1])
    reasons = [f"{count:,} {CUTS[cut]}" for cut, count in cuts if count]
    lines = [
        f"{_title(report.problem)}.",
        f"Considered {counters.considered:,} classes of plans: {counters.estimated:,} estimated"
        f" ({counters.estimates:,} plans){''.join(f', {reason}' for reason in reasons)}.",
    ]
    if report.proved and report.ranked:
        best = "the best" if len(report.ranked) == 1 else f"the {len(report.ranked)} best"
        lines.append(f"Proved {best} of {counters.considered:,} classes.")
    elif report.proved:
        lines.append(f"Proved: none of {counters.considered:,} classes is possible.")
    else:
        why = {"complete": "", "time": "by the time limit", "interrupted": "by the caller"}
        gap = f"; the best may be beaten by {100 * report.gap:.1f} %" if report.gap else ""
        lines.append(f"Not proved: stopped {why[report.stop]}{gap}.")
    return lines + [f"Note: {note}" for note in report.notes]


def infeasible_text(report: Report) -> str:
    """Returns in one line why a report lists no plan."""
    if report.infeasible is None:
        return "no plan was found before the search was stopped; give it more time"
    return _reason(report.problem, report.infeasible)


def estimate_summary(problem: Problem, plan: Plan) -> str:
    """Returns in one line what is trained on what, and how."""
    return (
        f"{_title(problem)}: {_degrees(plan)}; layers {_layers(problem, plan)};"
        f" recompute {_recompute(problem, plan)}."
    )


def estimate_text(problem: Problem, plan: Plan, estimate: Estimate) -> str:
    """Returns the time and memory of a plan, item by item."""
    parts = [
        f"{_title(problem)}.",
        f"{_degrees(plan)}; layers {_layers(problem, plan)};"
        f" recompute {_recompute(problem, plan)}.",
        "",
        f"step {estimate.step_s:.6g} s, {estimate.tokens_per_s:,.0f} tokens/s,"
        f" MFU {100 * estimate.mfu:.1f} %",
        *(
            [f"money {' a step, '.join(_money(estimate.money))} a trillion tokens"]
            if estimate.money
            else []
        ),
        "",
        plain(_time_table(estimate)),
        "",
        plain(_memory_table(problem, plan, estimate)),
    ]
    if estimate.violations:
        parts += ["", *(f"Not possible: {violation}" for violation in estimate.violations)]
    return "\n".join(parts)


def comparison_text(plan: Plan, estimate: Estimate, report: Report) -> str:
    """Returns how a plan compares with the best of a report: its time, and what differs."""
    problem = report.problem
    best = report.ranked[0]
    gain = estimate.step_ps / best.estimate.step_ps
    verdict = f"The best is {gain:.2f} times as fast."
    if estimate.violations:
        verdict = "Yours does not fit in memory."
    elif plan == best.plan:
        verdict = "Yours is the best."
    elif gain <= 1:
        verdict = "No plan of the search is faster than yours."
    differ = [
        (name, mine, its)
        for (name, mine), (_, its) in zip(
            _settings(problem, plan), _settings(problem, best.plan), strict=True
        )
        if mine != its
    ]
    times = ("step s", f"{estimate.step_s:.4g}", f"{best.estimate.step_s:.4g}")
    rows = (times, *differ)
    table = Table(("", "yours", "best"), rows, frozenset({0, 1, 2}))
    notes = [f"Not possible: {violation}" for violation in estimate.violations]
    return "\n".join([f"{_title(problem)}.", "", plain(table), "", verdict, *notes])


def models_table(rows: list[tuple[ModelEntry, ModelFacts]]) -> Table:
    """Returns the catalog of models with size and provenance."""
    return Table(
        ("model", "parameters", "active", "layers", "hidden", "sequence", "status", "source"),
        tuple(
            (
                entry.model.name,
                f"{facts.parameters / 1e9:,.2f}e9",
                f"{facts.active_parameters / 1e9:,.2f}e9",
                str(entry.model.layers),
                str(entry.model.hidden),
                str(entry.model.max_positions),
                entry.status,
                entry.source,
            )
            for entry, facts in rows
        ),
        frozenset({0, 6, 7}),
    )


def frameworks_table(entries: list[FrameworkEntry]) -> Table:
    """Returns the catalog of frameworks: whose choices each shares, and what it is."""
    return Table(
        ("framework", "follows", "what"),
        tuple(
            (
                entry.framework.name,
                entry.follows or "",
                entry.text.text.partition("\n")[0].removeprefix("# "),
            )
            for entry in entries
        ),
        frozenset({0, 1, 2}),
    )


def chips_table(entries: list[ChipEntry]) -> Table:
    """Returns the catalog of chips with peak, memory, links and confidence."""
    return Table(
        (
            "chip",
            "TFLOP/s",
            "GiB",
            "GB/s",
            "link GB/s",
            "NIC Gbit/s",
            "node",
            "vendor",
            "known",
            "source",
        ),
        tuple(
            (
                entry.chip.name,
                f"{entry.chip.peak_tflops.bf16 or entry.chip.peak_tflops.fp16 or 0:g}",
                f"{entry.chip.memory_gib:.1f}",
                f"{entry.chip.memory_bandwidth_gb_per_s:g}",
                f"{entry.chip.link.all_reduce_gb_per_s:g}",
                f"{entry.chip.network.nics_per_node}x{entry.chip.network.nic_gbit_per_s:g}",
                str(entry.chip.devices_per_node),
                entry.vendor,
                " ".join(f"{key}:{value}" for key, value in entry.confidence.items()),
                entry.source.get("compute", ""),
            )
            for entry in entries
        ),
        frozenset({0, 7, 8, 9}),
    )


def _reason(problem: Problem, infeasible: Infeasible) -> str:
    match infeasible:
        case MemoryShortage(nearest=nearest, stage=stage, lacks_gib=lacks):
            chip = _chip_name(problem, nearest.plan.stages[stage].chip)
            return (
                f"no plan fits in memory: the nearest ({_degrees(nearest.plan)}) lacks"
                f" {lacks:.2f} GiB on stage {stage} ({chip}); use more devices or a larger memory"
            )
        case DeviceShortage(asked=asked, available=available, cure=cure):
            return f"the limits give {available:,} devices, not the {asked:,} asked for: {cure}"
        case NoFactorisation(nearest_devices=devices, nearest_batch=batch):
            workload = problem.workload
            cures = []
            if devices is not None:
                cures.append(f"{devices:,} devices")
            if batch is not None:
                cures.append(f"a global batch of {batch:,}")
            possible = f"possible with {' or '.join(cures)}"
            cure = possible if cures else "the limits on degrees leave none"
            return (
                f"no degrees suit {problem.cluster.devices:,} devices and a global batch of"
                f" {workload.global_batch_size:,}; {cure}"
            )


def _settings(problem: Problem, plan: Plan) -> list[tuple[str, str]]:
    """Returns the name and the value of everything that a plan chooses."""
    names = ("dp", "tp", "cp", "ep", "etp", "pp", "vpp", "mbs")
    return [
        *((name, _degree(plan, name)) for name in names),
        ("sp", "yes" if plan.sp else "no"),
        ("shards", _shards(plan)),
        ("schedule", plan.schedule),
        ("layers", _layers(problem, plan)),
        ("recompute", _recompute(problem, plan)),
    ]


def _title(problem: Problem) -> str:
    work = problem.workload
    chips = " and ".join(group.chip.name for group in problem.cluster.groups)
    return (
        f"{problem.model.name} on {problem.cluster.devices:,} x {chips},"
        f" global batch {work.global_batch_size:,}, sequence {work.sequence_length:,},"
        f" {work.precision}, {problem.framework.name}"
    )


def _degrees(plan: Plan) -> str:
    names = ("dp", "tp", "cp", "ep", "pp", "vpp")
    degrees = [f"{name} {_degree(plan, name)}" for name in names if getattr(plan, name) > 1]
    extras = ["sp"] if plan.sp else []
    return ", ".join([*degrees, *extras, f"mbs {plan.mbs}", _shards(plan), plan.schedule])


def _degree(plan: Plan, name: str) -> str:
    """Returns a degree; of each kind of chip in the cluster's order where they differ."""
    own = {"tp": plan.tp_of, "etp": plan.etp_of}.get(name)
    if own is None or not plan.tp_of_kind or getattr(plan, name) == 1:
        return str(getattr(plan, name))
    kinds = enumerate(plan.tp_of_kind)
    return ",".join(str(own(kind)) if degree else "-" for kind, degree in kinds)


def _shards(plan: Plan) -> str:
    """Returns what is sharded, over how many ranks if not all, and what lives on the host."""
    text = f"zero {plan.zero}"
    if plan.zero and plan.shard_group != plan.dp * plan.cp:
        text += f" over {plan.shard_group}"
    return text + (", host optimizer" if plan.optimizer_offload else "")


def _layers(problem: Problem, plan: Plan) -> str:
    """Returns the layers of the stages in runs: `a800 1x3 h800 7x11`."""
    several = len(problem.cluster.groups) > 1
    runs = []
    shown_chip = None
    for (chip, layers), run in groupby((stage.chip, stage.layers) for stage in plan.stages):
        if several and chip != shown_chip:
            runs.append(_chip_name(problem, chip))
            shown_chip = chip
        runs.append(f"{len(list(run))}x{layers}")
    return " ".join(runs)


def _recompute(problem: Problem, plan: Plan) -> str:
    """Returns what each kind of chip recomputes, and how many layers wait on the host."""
    texts = []
    several = len({stage.chip for stage in plan.stages}) > 1
    for chip in range(len(problem.cluster.groups)):
        stages = [stage for stage in plan.stages if stage.chip == chip]
        runs = [
            _recompute_name(recompute) + (f" +{offload} on host" if offload else "")
            for (recompute, offload), _ in groupby((s.recompute, s.offload) for s in stages)
        ]
        if runs:
            prefix = f"{_chip_name(problem, chip)} " if several else ""
            texts.append(prefix + ", ".join(runs))
    return "; ".join(texts)


def _recompute_name(recompute: Recompute) -> str:
    if recompute.layers is None:
        return recompute.granularity
    text = f"{recompute.granularity} {recompute.layers}"
    if recompute.operators is not None:
        counts = wire.write(recompute.operators).items()
        text += "".join(f" {name} {count}" for name, count in counts if count)
    return text + (" gathered again" if recompute.regathers else "")


def _memory(problem: Problem, ranked: Ranked) -> str:
    """Returns what the allocator needs at the peak on each kind of chip, and may have, in GiB."""
    texts = []
    used = sorted({stage.chip for stage in ranked.plan.stages})
    for chip in used:
        cost = max(
            (
                cost
                for stage, cost in zip(ranked.plan.stages, ranked.estimate.stages, strict=True)
                if stage.chip == chip
            ),
            key=lambda cost: cost.allocated_bytes,
        )
        prefix = f"{_chip_name(problem, chip)} " if len(problem.cluster.groups) > 1 else ""
        texts.append(f"{prefix}{cost.allocated_bytes / GIB:.1f}/{cost.capacity_bytes / GIB:.1f}")
    return " ".join(texts)


def _time_table(estimate: Estimate) -> Table:
    rows = []
    for field in fields(estimate.time):
        time = getattr(estimate.time, field.name)
        share = 100 * time / estimate.step_ps if estimate.step_ps else 0.0
        rows.append((field.name.removesuffix("_ps"), f"{time / PS_PER_S:.6f}", f"{share:.1f}"))
    rows.append(("step", f"{estimate.step_ps / PS_PER_S:.6f}", "100.0"))
    return Table(("time", "s", "%"), tuple(rows), frozenset({0}))


def _memory_table(problem: Problem, plan: Plan, estimate: Estimate) -> Table:
    """Returns a row for each run of equal stages, a column for each item, in GiB."""
    costs = estimate.stages
    items = [field.name for field in fields(costs[0].memory)] if costs else []
    rows = []
    first = 0
    for (chip, cost), run in groupby(zip((s.chip for s in plan.stages), costs, strict=False)):
        count = len(list(run))
        stages = str(first) if count == 1 else f"{first}-{first + count - 1}"
        first += count
        amounts = [getattr(cost.memory, item) for item in items]
        amounts += [cost.memory_bytes, cost.allocated_bytes, cost.capacity_bytes]
        texts = (f"{amount / GIB:.2f}" for amount in amounts)
        rows.append((stages, _chip_name(problem, chip), *texts))
    headers = (
        "GiB of stage",
        "chip",
        *(item.replace("_", " ") for item in items),
        "peak",
        "allocated",
        "usable",
    )
    return Table(headers, tuple(rows), frozenset({0, 1}))


def _chip_name(problem: Problem, chip: int) -> str:
    """Returns the name of a kind; an illegal plan may count past the last."""
    groups = problem.cluster.groups
    return groups[chip].chip.name if chip < len(groups) else f"chip {chip}"
