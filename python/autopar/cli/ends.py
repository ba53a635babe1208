"""How a command ends: its exit code, its notes, one line for what went wrong."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from autopar.report import Report

DONE, NO_PLAN, WRONG_INPUT, DEFECT, STOPPED = 0, 1, 2, 70, 130


def fail(message: str, code: int) -> int:
    _tell(f"error: {' '.join(message.split())}")
    return code


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        _tell(f"note: {note}")


def verdict(report: Report) -> int:
    """Returns the exit code of a report; one without a plan says why on standard error."""
    if report.ranked:
        return DONE
    from autopar.render.text import infeasible_text

    return fail(infeasible_text(report), NO_PLAN)


def forget(stream: TextIO | None) -> None:
    """Lets what a stream still holds go nowhere, so that it does not fail again at exit."""
    if stream is not None:
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def _tell(line: str) -> None:
    """Writes a line to standard error; nobody listening there changes nothing else."""
    if sys.stderr is not None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:
            forget(sys.stderr)
