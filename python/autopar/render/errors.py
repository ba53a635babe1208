"""Errors of estimates against measured runs, as tables of text. Formats, computes nothing."""

from collections.abc import Sequence

from autopar.render.text import Table, plain
from autopar.validate import Checked, Errors, Group, Summary


def validation_text(summary: Summary, worst: Sequence[Checked], by: str) -> str:
    """Returns the scores of measured runs: by group, by series, what fits, and the worst rows."""
    parts = [plain(groups_table(summary, by)), "", *_skipped(summary.groups), ""]
    if summary.rankings:
        parts += [plain(_rankings_table(summary)), ""]
    parts += _fit(summary)
    if worst:
        parts += ["", plain(_worst_table(worst))]
    return "\n".join(parts).rstrip()


def groups_table(summary: Summary, by: str) -> Table:
    """Returns the errors of each group, in per cent of the measured, and those of all."""
    headers = (by, "rows", "scored", "mean", "median", "bias", "p90", "as stated", "assumed",
               "suspect", "memory rows", "mean", "median", "bias", "p90")  # fmt: skip
    rows = [
        (
            group.name,
            str(group.rows),
            *_five(group.time),
            _mean(group.time_stated),
            _mean(group.time_assumed),
            _mean(group.time_suspect),
            *_five(group.memory),
        )
        for group in summary.groups
    ]
    none = ("",) * 3
    rows.append(
        ("all rows", str(summary.rows), *_five(summary.time), *none, *_five(summary.memory))
    )
    means = (_percent(summary.mean_over_sources), _percent(summary.mean_memory_over_sources))
    rows.append((f"mean over {by}s", "", "", means[0], *none, *none, "", means[1], *none))
    return Table(headers, tuple(rows), frozenset({0}))


def _skipped(groups: Sequence[Group]) -> list[str]:
    return [
        f"Skipped of {group.name}: {count} ({reason})."
        for group in groups
        for reason, count in group.skipped.items()
    ]


def _rankings_table(summary: Summary) -> Table:
    rows = [(r.name, str(r.plans), f"{r.tau:.2f}", _percent(r.regret)) for r in summary.rankings]
    if summary.tau is not None:
        rows.append(("mean", "", f"{summary.tau:.2f}", _percent(summary.regret)))
    return Table(("series of plans", "plans", "tau", "regret %"), tuple(rows), frozenset({0}))


def _fit(summary: Summary) -> list[str]:
    fit = summary.fit
    ran = fit.ran_and_fits + len(fit.ran_but_refused)
    lines = [f"Of {ran} runs that ran as stated, {fit.ran_and_fits} are said to fit in memory."]
    if fit.ran_but_refused:
        lines.append(f"Said not to fit: {', '.join(fit.ran_but_refused)}.")
    if failed := fit.failed_and_refused + len(fit.failed_but_fits):
        lines.append(f"Of {failed} out of memory, {fit.failed_and_refused} are said not to fit.")
    if fit.failed_but_fits:
        lines.append(f"Said to fit: {', '.join(fit.failed_but_fits)}.")
    if fit.at_limit:
        lines.append(f"At the limit, not judged: {', '.join(fit.at_limit)}.")
    return lines


def _worst_table(worst: Sequence[Checked]) -> Table:
    rows = [
        (
            row.run.id,
            f"{row.measured_step_s:.4g}",
            f"{row.predicted_step_s:.4g}",
            _percent(row.time_error),
            ", ".join(row.setup.assumed) if row.setup else "",
        )
        for row in worst
    ]
    headers = ("furthest off", "measured s", "predicted s", "error %", "assumed")
    return Table(headers, tuple(rows), frozenset({0, 4}))


def _five(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("",) * 5
    shares = (errors.mean, errors.median, errors.bias, errors.p90)
    return (str(errors.rows), *map(_percent, shares))


def _mean(errors: Errors | None) -> str:
    return "" if errors is None else f"{_percent(errors.mean)} ({errors.rows})"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
