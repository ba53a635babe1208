"""Shardings as plain text: what is alike stands on one row."""

import re
from typing import TYPE_CHECKING

from autopar.render.text import GIB, PS_PER_S, Table, plain
from autopar.sharding import Cuts, Overlap, ShardedOperator, Sharding

if TYPE_CHECKING:
    from autopar.compat.functional import Function

ITEMS = (
    "compute",
    "communication",
    "recompute",
    "reshard",
    "gradient",
    "optimizer",
    "hidden",
    "total",
)


def text(found: Sharding) -> str:
    """Returns the strategies, the cost by item, and what is proved."""
    tables = [plain(_operators(found)), plain(_cost(found)), _verdict(found)]
    if found.overlap is not None:
        tables.insert(2, _overlap(found.overlap))
    if found.problem.options.reuse_limit is not None:
        count = found.communications
        tables.insert(
            2,
            f"Communication operators: {count.operators:,}, of which {count.replaced:,} are calls "
            f"of {count.subgraphs:,} subgraphs; {count.compiled:,} to compile.",
        )
    notes = "\n".join(f"Note: {note}" for note in found.notes)
    return "\n\n".join([*tables, notes] if notes else tables)


def function_text(function: "Function") -> str:
    """Returns what goes into a function and comes out, with the cuts at the border."""
    cuts = {each.name: each.inputs[0] for each in function.network.operators}
    borders = [
        f"{word} {', '.join(_border(f'{word} {name}', name, cuts) for name in names)}"
        for word, names in (("enter", function.inputs), ("leave", function.outputs))
    ]
    return f"function of {len(function.operators)} operators: {'; '.join(borders)}"


def _border(operator: str, tensor: str, cuts: dict[str, tuple[int, ...]]) -> str:
    return f"{tensor} {_cuts(cuts[operator])}" if operator in cuts else f"{tensor} as it comes"


def shortage(found: Sharding) -> str:
    """Returns why nothing fits."""
    least, limit = found.cost.memory_bytes / GIB, found.cost.limit_bytes / GIB
    return (
        f"no strategies fit in memory: the least is {least:.2f} GiB a device of {limit:.2f}. "
        "Use more devices, a higher --zero or a smaller --batch."
    )


def _operators(found: Sharding) -> Table:
    """Returns a row for each group of operators whose names differ in numbers alone, cut alike."""
    alike: dict[tuple[str, Cuts, Cuts, str, bool], list[ShardedOperator]] = {}
    for operator in found.operators:
        name = re.sub(r"\d+", "*", operator.name)
        key = (name, operator.inputs, operator.outputs, operator.summands, operator.recompute)
        alike.setdefault(key, []).append(operator)
    rows = []
    for (name, inputs, outputs, summands, recompute), group in alike.items():
        times = sum(
            each.compute_ps + each.communication_ps + each.recompute_ps + each.gradient_ps
            for each in group
        )
        rows.append(
            (
                group[0].name if len(group) == 1 else name,
                str(len(group)),
                " ".join(map(_cuts, inputs)),
                " ".join(map(_cuts, outputs)),
                "" if summands == "none" else summands.replace("_", "-"),
                "again" if recompute else "",
                f"{times / PS_PER_S * 1e3:.3f}",
                f"{sum(each.memory_bytes for each in group) / GIB:.2f}",
            )
        )
    headers = (
        "operator",
        "times",
        "inputs cut",
        "outputs cut",
        "summands",
        "backward",
        "ms",
        "GiB",
    )
    return Table(headers, tuple(rows), frozenset({0, 2, 3, 4, 5}))


def _cuts(cuts: tuple[int, ...]) -> str:
    return "x".join(map(str, cuts)) or "-"


def _cost(found: Sharding) -> Table:
    rows = []
    for item in ITEMS:
        time = getattr(found.cost, f"{item}_ps")
        time = -time if item == "hidden" else time
        if item in ("recompute", "hidden") and not time:
            continue
        share = 100 * time / found.cost.total_ps if found.cost.total_ps else 0.0
        rows.append((item, f"{time / PS_PER_S * 1e3:.3f}", f"{share:.1f}"))
    return Table(("time", "ms", "%"), tuple(rows), frozenset({0}))


def _overlap(overlap: Overlap) -> str:
    """Returns what runs beside computation."""
    gradients, gathers = overlap.gradients_exposed_ps, overlap.gathers_exposed_ps
    size = f" of {overlap.bucket_mb} MB" if overlap.bucket_mb is not None else ""
    lines = []
    if overlap.buckets:
        lines.append(f"{len(overlap.buckets)} exchanges, in buckets{size}.")
    lines.append(
        f"Exposed: {gradients / PS_PER_S * 1e3:.3f} ms of gradients, "
        f"{gathers / PS_PER_S * 1e3:.3f} ms of gathers of weights."
    )
    if overlap.buffer_bytes:
        lines.append(f"Gathered ahead: at most {overlap.buffer_bytes / 1e6:.1f} MB.")
    return "\n".join(lines)


def _verdict(found: Sharding) -> str:
    cost, group = found.cost, found.problem.cluster.groups[0]
    mesh = " x ".join(map(str, found.problem.options.mesh or (found.problem.cluster.devices,)))
    count = f"{found.strategies:,} strategies of {len(found.operators):,} operators"
    if found.proof.exact:
        proof = f"Proved the best of {count}."
    elif found.proof.gap is not None:
        proof = f"At most {100 * found.proof.gap:.4f} % from the best of {count}."
    else:
        proof = f"Chosen from {count}; not proved."
    memory = f"{cost.memory_bytes / GIB:.2f} GiB of {cost.limit_bytes / GIB:.2f} on each device"
    title = f"{found.problem.graph.name} on {mesh} x {group.chip.name}: {memory}."
    return f"{title}\n{proof}"
