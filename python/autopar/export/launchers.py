"""The launchers by name: what each can say, and a plan in its words."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autopar import catalog
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
        frameworks: Profiles of the frameworks that it starts: one for each part of that space, or
            one for all. None where it starts what another launcher's file does.
    """

    supports: Callable[[Job], list[str]]
    files: Callable[[Job], list[File]]
    limits: tuple[dict[str, Any], ...]
    frameworks: tuple[str, ...]


LAUNCHERS = MappingProxyType(
    {
        name: Launcher(module.supports, module.files, module.LIMITS, frameworks)
        for name, module, frameworks in (
            ("megatron", megatron, ("megatron-core",)),
            ("mindformers", mindformers, ("mindformers",)),
            ("mindspore", mindspore, ("mindformers",)),
            ("deepspeed", deepspeed, ("deepspeed",)),
            ("torchtitan", torchtitan, ("torchtitan",)),
            ("accelerate", accelerate, accelerate.FRAMEWORKS),
            ("flagscale", flagscale, ("megatron-core",)),
            ("kubernetes", kubernetes, ()),
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


def framework_of(name: str, job: Job) -> str:
    """Returns the profile of the framework that a launcher starts for a plan.

    Example:
        >>> [LAUNCHERS[name].frameworks for name in ("megatron", "mindspore")]
        [('megatron-core',), ('mindformers',)]
    """
    frameworks = LAUNCHERS[name].frameworks or (job.problem.framework.name,)
    return frameworks[0] if len(frameworks) == 1 else accelerate.framework(job)


def is_foreign(name: str, job: Job) -> bool:
    """Returns whether a plan was estimated for a framework that the launcher does not start.

    A profile that follows its framework says how that is set up; one that is not in the catalog
    says what its author measured. Neither is foreign.
    """
    own, asked = framework_of(name, job), job.problem.framework.name
    while asked in catalog.names("frameworks"):
        if asked == own:
            return False
        leader = catalog.framework(asked).follows
        if leader is None:
            return True
        asked = leader
    return False


def able(job: Job) -> list[str]:
    """Returns the launchers that can say a plan exactly, in the order of `LAUNCHERS`.

    Kubernetes is left out: what runs in its pods is the script of another launcher.
    """
    return [
        name
        for name, launcher in LAUNCHERS.items()
        if name != "kubernetes" and not launcher.supports(job)
    ]


def questions(name: str, problem: Problem) -> list[Problem]:
    """Returns the parts of a question that a launcher can say, in the framework that is asked for.

    Raises:
        SpecError: Nothing that the options allow can be said.
    """
    return [replace(problem, options=part) for _, part in _parts(problem.options, name)]


def own_questions(name: str, problem: Problem) -> list[Problem]:
    """Returns the same parts, each in the framework that the launcher starts for it.

    Raises:
        SpecError: Nothing that the options allow can be said.
    """
    frameworks = LAUNCHERS[name].frameworks or (problem.framework.name,)
    return [
        estimated_in(frameworks[index % len(frameworks)], replace(problem, options=part))
        for index, part in _parts(problem.options, name)
    ]


def estimated_in(framework: str, problem: Problem) -> Problem:
    """Returns a problem in another framework of the catalog."""
    if framework == problem.framework.name:
        return problem
    entry = catalog.framework(framework)
    digests = [problem.catalog, entry.digest]
    spec = entry.at(problem.workload.precision)
    return replace(problem, framework=spec, catalog=catalog.version(digests))


def fastest(
    name: str, asked: list[Problem], solve: Callable[[Problem], Report], count: int = 1
) -> tuple[list[Job], list[Report]]:
    """Returns the fastest plans that a launcher can say, and the reports that they were found in.

    Args:
        name: The launcher.
        asked: What is trained, on what: `questions` or `own_questions`.
        solve: Returns the report on a problem.
        count: Plans to return at most; fewer where a look at the 4,096 best finds no more.

    Raises:
        SpecError: The launcher can say nothing that the options allow, or none of the best plans.
    """
    launcher = LAUNCHERS[name]
    for top in (top for top in TOPS if top >= min(count, TOPS[-1])):
        tops = (replace(part, options=replace(part.options, top=top)) for part in asked)
        reports = [solve(part) for part in tops]
        # Parts of the space may share plans, of which some run in the framework of one part alone.
        every = [Job(r.problem, each.plan, each.estimate) for r in reports for each in r.ranked]
        jobs = list({job.plan: job for job in every if not _of_another_part(name, job)}.values())
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


def _of_another_part(name: str, job: Job) -> bool:
    """Returns whether a launcher starts another of its frameworks for a plan."""
    asked = job.problem.framework.name
    return asked in LAUNCHERS[name].frameworks and asked != framework_of(name, job)


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
    return [part for _, part in _parts(options, name)]


def _parts(options: Options, name: str) -> list[tuple[int, Options]]:
    """Returns the parts with their places among the launcher's limits."""
    parts = []
    for index, limits in enumerate(LAUNCHERS[name].limits):
        changes: dict[str, Any] = {}
        for field, allowed in limits.items():
            asked = getattr(options, field)
            if isinstance(allowed, bool):
                changes[field] = allowed and asked
            else:
                changes[field] = tuple(value for value in asked or allowed if value in allowed)
        if () not in changes.values():
            parts.append((index, replace(options, **changes)))
    if not parts:
        hint = "Allow " + ", or ".join(map(_spelled, LAUNCHERS[name].limits)) + "."
        raise SpecError("launcher", f"{name} can say nothing that the flags allow", hint)
    return parts


def _spelled(limits: dict[str, Any]) -> str:
    lists = {field: value for field, value in limits.items() if not isinstance(value, bool)}
    return " and ".join(f"{key} {','.join(map(str, value))}" for key, value in lists.items())
