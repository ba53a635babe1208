"""Placements of parameters on workers and servers as plain text."""

from autopar.placement import Placement, Servers
from autopar.render.text import GIB, PS_PER_S, Table, plain

NAMES = {"all_reduce": "all-reduce", "servers": "servers", "mixed": "tables on servers"}
PARTS = ("compute", "reduce", "push", "update", "pull")


def text(found: Servers) -> str:
    """Returns time, throughput, memory and losses of each placement, and what they rest on."""
    notes = [f"Note: {note}" for note in found.notes]
    tables = [_title(found), plain(_time(found)), plain(_cost(found)), _verdict(found)]
    return "\n\n".join([*tables, "\n".join(notes)])


def shortage(found: Servers) -> str:
    """Returns why no placement fits."""
    reasons = (f"{NAMES[p.parameters]}: {', '.join(p.violations)}" for p in found.placements)
    hint = "Use more servers, a smaller mini-batch or devices with more memory."
    return f"no placement fits in memory: {'; '.join(reasons)}. {hint}"


def _title(found: Servers) -> str:
    group, count = found.problem.cluster.groups[0], found.problem.options.servers
    tables = f"{len(found.tables)} table{'' if len(found.tables) == 1 else 's'}"
    return (
        f"{found.problem.graph.name} with {tables} on {found.problem.cluster.devices} workers"
        f" ({group.chip.name}) and {count} server{'' if count == 1 else 's'}"
    )


def _time(found: Servers) -> Table:
    """Returns a row for each placement: the parts of a synchronous step, then throughput."""
    rows = []
    for place in found.placements:
        step, free = place.synchronous, place.asynchronous
        rows.append(
            (
                NAMES[place.parameters],
                *(_ms(getattr(step, f"{part}_ps")) for part in PARTS),
                _ms(step.step_ps),
                f"{step.batches_per_s:.4g}",
                f"{free.batches_per_s:.4g}" if free else "",
                free.limit if free else "",
                str(free.staleness) if free else "",
            )
        )
    headers = ("parameters", *(f"{part} ms" for part in PARTS), "step ms", "batches/s",
               "async batches/s", "bound by", "stale by")  # fmt: skip
    return Table(headers, tuple(rows), frozenset({0, 9}))


def _cost(found: Servers) -> Table:
    headers = ("parameters", "worker GiB", "server GiB", "lost worker s", "lost server s", "lacks")
    return Table(headers, tuple(map(_cost_row, found.placements)), frozenset({0, 5}))


def _cost_row(place: Placement) -> tuple[str, ...]:
    lost = place.lost_server_s
    return (
        NAMES[place.parameters],
        f"{place.worker_bytes / GIB:.2f}",
        "" if lost is None else f"{place.server_bytes / GIB:.2f}",
        f"{place.lost_worker_s:.4g}",
        "" if lost is None else f"{lost:.4g}",
        ", ".join(place.violations),
    )


def _verdict(found: Servers) -> str:
    if found.fastest is None:
        return shortage(found)
    best = found.placements[found.fastest]
    return f"Fastest synchronous step that fits: {NAMES[best.parameters]}."


def _ms(time_ps: int) -> str:
    return f"{time_ps / PS_PER_S * 1e3:.3f}"
