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
        framework: Profile of the framework that it starts.
    """

    supports: Callable[[Job], list[str]]
    files: Callable[[Job], list[File]]
    limits: tuple[dict[str, Any], ...]
    framework: str


LAUNCHERS = MappingProxyType(
    {
        name: Launcher(module.supports, module.files, module.LIMITS, framework)
        for name, module, framework in (
            ("megatron", megatron, "megatron-core"),
            ("mindformers", mindformers, "mindformers"),
            ("mindspore", mindspore, "mindformers"),
            ("deepspeed", deepspeed, "deepspeed"),
            ("torchtitan", torchtitan, "torchtitan"),
            ("accelerate", accelerate, "fsdp"),
            ("flagscale", flagscale, "megatron-core"),
            ("kubernetes", kubernetes, "megatron-core"),
        )
    }
)

# The limits of a search are coarser than a launcher: it looks further down the list step by step.
TOPS = (1, 8, 64, 512, 4096)


def export(name: str, job: Job, report: Report | None = None) -> list[File]:
    """Returns the files of a plan for a launcher.

    Args:
        name: The launcher.
        job: The plan.
        report: The report that it stands in, if in any.

    Raises:
        SpecError: The launcher cannot say the plan; the error names what it lacks, and the first
            plan of the report that it can say.
    """
    launcher = LAUNCHERS[name]
    if reasons := launcher.supports(job):
        what = f"{name} cannot say {', '.join(reasons)}"
        ranked = report.ranked if report else ()
        jobs = (Job(job.problem, each.plan, each.estimate) for each in ranked)
        rank = next((n for n, each in enumerate(jobs, 1) if not launcher.supports(each)), None)
        hint = f"Search with --export {name}."
        if rank is not None:
            hint = f"Give --rank {rank}, the first that it can say, or search with --export {name}."
        raise SpecError("--to", what, hint)
    return launcher.files(job)


def able(job: Job) -> list[str]:
    """Returns the launchers that can say a plan exactly, in the order of `LAUNCHERS`.

    Kubernetes is left out: what runs in its pods is the script of another launcher.
    """
    return [
        name
        for name, launcher in LAUNCHERS.items()
        if name != "kubernetes" and not launcher.supports(job)
    ]


def fastest(
    name: str, problem: Problem, solve: Callable[[Problem], Report], count: int = 1
) -> tuple[list[Job], list[Report]]:
    """Returns the fastest plans that a launcher can say, and the reports that they were found in.

    Args:
        name: The launcher.
        problem: What is trained, on what; its options are restricted further.
        solve: Returns the report on a problem.
        count: Plans to return at most; fewer where a look at the 4,096 best finds no more.

    Raises:
        SpecError: The launcher can say nothing that the options allow, or none of the best plans.
    """
    launcher = LAUNCHERS[name]
    parts = restrict(problem.options, name)
    for top in (top for top in TOPS if top >= min(count, TOPS[-1])):
        asked = [replace(problem, options=replace(part, top=top)) for part in parts]
        reports = [solve(part) for part in asked]
        # Parts of the space may share plans.
        jobs = list(
            {
                ranked.plan: Job(report.problem, ranked.plan, ranked.estimate)
                for report in reports
                for ranked in report.ranked
            }.values()
        )
        jobs.sort(key=lambda job: job.estimate.step_ps)
        said = [job for job in jobs if not launcher.supports(job)]
        # What a part of the space did not list is slower than the last that it did.
        cut = [r.ranked[-1].estimate.step_ps for r in reports if len(r.ranked) == top]
        said = [job for job in said if not cut or job.estimate.step_ps <= min(cut)]
        if len(said) >= count or not cut:
            break
    if jobs and not said:
        reasons = ", ".join(launcher.supports(jobs[0]))
        what = f"none of the {len(jobs):,} fastest plans can be said by {name}: {reasons}"
        raise SpecError("launcher", what, "Limit the search by the degrees' flags.")
    return said[:count], reports


def stopped_listing(reports: list[Report]) -> bool:
    """Tells whether a part of the space has plans below the last that its report lists."""
    return any(len(report.ranked) == report.problem.options.top for report in reports)


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
        raise SpecError("launcher", f"{name} can say nothing that the flags allow", hint)
    return parts


def _spelled(limits: dict[str, Any]) -> str:
    lists = {field: value for field, value in limits.items() if not isinstance(value, bool)}
    return " and ".join(f"{key} {','.join(map(str, value))}" for key, value in lists.items())
