"""How a command ends: its exit code, its notes, one line for what went wrong."""

import sys
from collections.abc import Iterable

from autopar.report import Report

DONE, NO_PLAN, WRONG_INPUT, DEFECT, STOPPED = 0, 1, 2, 70, 130


def fail(message: str, code: int) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print("note:", note, file=sys.stderr)


def verdict(report: Report) -> int:
    """Returns the exit code of a report; one without a plan says why on standard error."""
    if report.ranked:
        return DONE
    from autopar.render.text import infeasible_text

    return fail(infeasible_text(report), NO_PLAN)
