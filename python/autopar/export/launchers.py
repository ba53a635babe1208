"""The launchers by name: what each can say, and a plan in its words."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autopar.errors import SpecError
from autopar.export import (
    accelerate,
    deepspeed,
    flagscale,
    kubernetes,
    megatron,
    mindformers,
    mindspore,
    torchtitan,
)
from autopar.export.job import File, Job
from autopar.report import Report
from autopar.spec import Options, Problem


@dataclass(frozen=True, slots=True)
class Launcher:
    """A system that plans are written for.

    Attributes:
        supports: Returns what it cannot say of a plan; empty if it says the plan exactly.
        files: Returns the files that start a plan that it can say.
        limits: Fields of `Options` that hold a search to what it can say, as far as they reach;
            each table is a part of that space.
    """

    supports: Callable[[Job], list[str]]
    files: Callable[[Job], list[File]]
    limits: tuple[dict[str, Any], ...]


LAUNCHERS = MappingProxyType(
    {
        name: Launcher(module.supports, module.files, module.LIMITS)
        for name, module in (
            ("megatron", megatron),
            ("mindformers", mindformers),
            ("mindspore", mindspore),
            ("deepspeed", deepspeed),
            ("torchtitan", torchtitan),
            ("accelerate", accelerate),
            ("flagscale", flagscale),
            ("kubernetes", kubernetes),
        )
    }
)

# The limits of a search are coarser than a launcher: it looks further down the list step by step.
TOPS = (1, 8, 64, 512, 4096)


def export(name: str, job: Job) -> list[File]:
    """Returns the files of a plan for a launcher.

    Raises:
        SpecError: The launcher cannot say the plan; the error names what it lacks.
    """
    launcher = LAUNCHERS[name]
    if reasons := launcher.supports(job):
        what = f"{name} cannot say {', '.join(reasons)}"
        hint = f"Choose another --rank, or search with --export {name}."
        raise SpecError("--to", what, hint)
    return launcher.files(job)


def fastest(
    name: str, problem: Problem, solve: Callable[[Problem], Report], image: str | None = None
) -> tuple[Job | None, list[Report]]:
    """Returns the fastest plan that a launcher can say, and the reports that it was found in.

    Args:
        name: The launcher.
        problem: What is trained, on what; its options are restricted further.
        solve: Returns the report on a problem.
        image: Container image, for launchers of containers.

    Raises:
        SpecError: The launcher can say nothing that the options allow, or none of the best plans.
    """
    launcher = LAUNCHERS[name]
    parts = restrict(problem.options, name)
    for top in TOPS:
        asked = [replace(problem, options=replace(part, top=top)) for part in parts]
        reports = [solve(part) for part in asked]
        jobs = [
            Job(r.problem, ranked.plan, ranked.estimate) for r in reports for ranked in r.ranked
        ]
        jobs.sort(key=lambda job: job.estimate.step_ps)
        if said := next((job for job in jobs if not launcher.supports(job)), None):
            return said, reports
        if all(len(report.ranked) < top for report in reports):
            break
    if jobs:
        reasons = ", ".join(launcher.supports(jobs[0]))
        what = f"none of the {len(jobs):,} fastest plans can be said by {name}: {reasons}"
        raise SpecError("--export", what, "Limit the search by the degrees' flags.")
    return None, reports


def restrict(options: Options, name: str) -> list[Options]:
    """Returns options that hold a search to the parts of the space that a launcher can say.

    Raises:
        SpecError: Nothing that the options allow can be said.

    Example:
        >>> [options] = restrict(Options(schedules=("1f1b", "gpipe")), "mindformers")
        >>> options.schedules
        ('1f1b',)
    """
    parts = []
    for limits in LAUNCHERS[name].limits:
        changes: dict[str, Any] = {}
        for field, allowed in limits.items():
            asked = getattr(options, field)
            if isinstance(allowed, bool):
                changes[field] = allowed and asked
            else:
                changes[field] = tuple(value for value in asked or allowed if value in allowed)
        if () not in changes.values():
            parts.append(replace(options, **changes))
    if not parts:
        hint = "Allow " + ", or ".join(map(_spelled, LAUNCHERS[name].limits)) + "."
        raise SpecError("--export", f"{name} can say nothing that the flags allow", hint)
    return parts


def _spelled(limits: dict[str, Any]) -> str:
    lists = {field: value for field, value in limits.items() if not isinstance(value, bool)}
    return " and ".join(f"{key} {','.join(map(str, value))}" for key, value in lists.items())
