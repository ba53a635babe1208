"""The README's table of errors on the published runs: writes it, or checks that it is up to date.

python tests/published/errors.py           # writes
python tests/published/errors.py --check   # fails, and prints the cure, where it is not
"""

import sys
from pathlib import Path

from left_out import LeftOut, leave_out, source_of

from autopar.runs import read_runs
from autopar.validate import Checked, Errors, Group, Summary, check, summarise

FOLDER = Path(__file__).parent
README = FOLDER.parents[1] / "README.md"
BEGIN, END = "<!-- errors:begin -->\n", "<!-- errors:end -->"
SUMS = "docs/errors.md#times-that-are-sums"
COLUMNS = ("runs", "on", "step time: rows", "mean", "left out", "median", "bias", "90 %", "doubted",
           "memory: rows", "mean", "bias")  # fmt: skip


def main(arguments: list[str]) -> int:
    """Writes or checks the table; returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    old = README.read_text("utf-8")
    new = replaced(old, table())
    if new == old:
        return 0
    if arguments:
        print(f"{README.name} shows other errors than the estimate has now. Write them with\n"
              f"python {Path(__file__).relative_to(README.parent)}", file=sys.stderr)  # fmt: skip
        return 1
    README.write_text(new, "utf-8")
    return 0


def replaced(text: str, block: str) -> str:
    """Returns a text with the lines between the two markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README.name} lacks the line {BEGIN.strip()} or {END}.")
    return before + begin + block + end + after


def table() -> str:
    """Returns the errors on every published run as Markdown."""
    rows = _rows(FOLDER)
    chips: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.setup is not None:
            kinds = (group.chip.name for group in row.setup.problem.cluster.groups)
            chips.setdefault(row.run.series, {})[" with ".join(kinds)] = None
    summary = summarise(rows)
    lines = [COLUMNS, ("---", "---", *["---:"] * (len(COLUMNS) - 2))]
    alone = _rows(FOLDER / "single_node")
    sources = dict.fromkeys(map(source_of, rows))
    apart = {source: leave_out(source, rows, rows, alone) for source in sources}
    lines += [
        _line(group, ", ".join(chips[group.name]), _mean(apart[group.name]))
        for group in summary.groups
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    unseen = leave_out(source_of(alone[0]), alone, rows, alone)
    return (
        f"{text}\n\n{_notes(summary)}\n\n{_left_out(apart)}\n\n"
        f"{_alone(summarise(alone), _mean(unseen))}\n\n{_reworded(rows)}\n"
    )


def _rows(folder: Path) -> list[Checked]:
    return check(run for file in sorted(folder.glob("*.csv")) for run in read_runs(file))


def _line(group: Group, chips: str, left_out: float | None) -> tuple[str, ...]:
    link = f"[{group.name}](tests/published/{group.name}.csv)"
    time, memory = _shares(group.time), _shares(group.memory)
    doubted = _shares(group.time_suspect)
    apart = f"{doubted[0]}: {doubted[1]}" if doubted[0] else ""
    time = (*time[:2], _percent(left_out), *time[2:])
    return (link, chips, *time, apart, memory[0], memory[1], memory[3])


def _shares(errors: Errors | None) -> tuple[str, str, str, str, str]:
    if errors is None:
        return ("",) * 5
    shares = (errors.mean, errors.median, errors.bias, errors.p90)
    mean, median, bias, p90 = (f"{100 * share:.1f}" for share in shares)
    return str(errors.rows), mean, median, bias, p90


def _notes(summary: Summary) -> str:
    time, memory = _shares(summary.time), _shares(summary.memory)
    return (
        "Errors in per cent of the measured; as stated and assumed settings together, doubted rows"
        " apart.\n"
        f"Mean over the sources: {_percent(summary.mean_over_sources)} in step time,"
        f" {_percent(summary.mean_memory_over_sources)} in memory. Over all rows: {time[1]}"
        f" ({time[0]} rows) and {memory[1]} ({memory[0]} rows).\n{_ranks(summary)}"
    )


def _mean(left_out: LeftOut) -> float | None:
    time = summarise(left_out.rows).time
    return time.mean if time else None


def _left_out(apart: dict[str, LeftOut]) -> str:
    """Returns the mean of the left-out errors and what no other source told."""
    means = [mean for found in apart.values() if (mean := _mean(found)) is not None]
    told = [
        f"{source}: {', '.join(found.fallen)}" for source, found in apart.items() if found.fallen
    ]
    free = sum(not found.fallen and not found.refitted for found in apart.values())
    return (
        "Left out: every figure that was fitted with a source is fitted again to the same sources"
        " without it, and the\nsource is predicted with that. Mean over the sources:"
        f" {_percent(sum(means) / len(means))}. Where none of these tells a figure, it falls"
        " back to\nwhat was measured or published apart from training runs:\n"
        + "\n".join(f"- {line}" for line in told)
        + (f"\n\nNothing was fitted with {free} of the {len(apart)}." if free else "")
    )


def _alone(summary: Summary, left_out: float | None) -> str:
    time = _shares(summary.time)
    return (
        f"On {time[0]} runs of one node ([vtrain](tests/published/single_node/vtrain-single.csv)),"
        f" whose times are [sums]({SUMS}):\nmean {time[1]}, left out {_percent(left_out)},"
        f" median {time[2]}, bias {time[3]}. {_ranks(summary)}"
    )


def _reworded(rows: list[Checked]) -> str:
    """Returns how far off the same runs are that others wrote down, who knew no phrase of ours."""
    lines = [
        "The same runs in the words of people who had not seen how rows are read, in the columns of"
        " their tables\n([reworded](tests/published/README.md)), means over the sources:"
    ]
    for file in sorted((FOLDER / "reworded").glob("*.csv")):
        others = check(read_runs(file))
        told = {row.run.id for row in others}
        ours = summarise([row for row in rows if row.run.id in told])
        theirs = summarise(others)
        lost = sum(row.predicted_step_s is None for row in others)
        lines.append(
            f"- `{file.stem}`, {len(others)} runs, {lost} of them not read:"
            f" {_percent(theirs.mean_over_sources)} in time ({_percent(ours.mean_over_sources)} in"
            f" our words), {_percent(theirs.mean_memory_over_sources)} in memory"
            f" ({_percent(ours.mean_memory_over_sources)})"
        )
    return "\n".join(lines)


def _ranks(summary: Summary) -> str:
    if summary.tau is None:
        return ""
    return (
        f"In {len(summary.rankings)} series of plans that differ in their degrees alone, Kendall's"
        f" rank correlation is {summary.tau:.2f}\non average; the plan predicted fastest was"
        f" {_percent(summary.regret)} % slower than the fastest."
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
