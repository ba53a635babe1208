"""What several commands ask alike: the flags of a question, and a search with its bar."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from autopar import planner, wire
from autopar.errors import SpecError
from autopar.report import Report, Sizes
from autopar.spec import Problem
from autopar.texts import Text

# The flags that describe what is trained, on what.
QUESTION = ("model", "cluster", "devices", "global_batch_size", "sequence_length", "precision",
            "attention", "dropout", "expert_load_variation", "framework",
            "memory_margin")  # fmt: skip
MARGIN = ("memory_margin",)


@contextmanager
def of_plan(text: Text | None) -> Iterator[None]:
    """Tells a rule that a plan breaks at the line of the plan's file, if there is one."""
    try:
        yield
    except SpecError as error:
        key = error.about[0]
        if text is None or not key.startswith("plan."):
            raise
        raise text.error(key.removeprefix("plan."), error.what, error.hint) from None


def solve(problem: Problem, threads: int, time_limit: float | None) -> str:
    """Returns the report's JSON; a bar shows on a terminal if it takes long."""
    if sys.stderr is not None and sys.stderr.isatty():
        from autopar.render.terminal import Bar

        bar: Any = Bar()
    else:
        bar = nullcontext()
    with bar as progress:
        return planner.solve_json(
            problem, threads=threads, time_limit_s=time_limit, progress=progress
        )


def reported(problem: Problem, threads: int, time_limit: float | None) -> Report:
    """Returns the report as data, asked for likewise."""
    return wire.loads(Report, solve(problem, threads, time_limit))


def answered(said: Text) -> Report | Sizes:
    """Returns the answer of a search that a document holds.

    Raises:
        SpecError: It holds none.
    """
    place = f"{said.file}: "
    with said.placing():
        if isinstance(said.value, dict) and "sizes" in said.value:
            return wire.read(Sizes, said.value, place)
        return wire.read(Report, said.value, place)


def with_devices(question: dict[str, Any], devices: int | None) -> dict[str, Any]:
    """Returns a question about as many devices as a plan takes, unless it says how many."""
    if question["devices"] is None and devices is not None:
        return {**question, "devices": devices}
    return question
