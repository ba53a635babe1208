"""The command that writes a launcher's files, and the parts of others that read or write them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar import files, flags, planner, texts, wire, writing
from autopar.cli.asking import MARGIN, QUESTION, answered, of_plan, reported, with_devices
from autopar.cli.ends import DONE, print_notes, verdict
from autopar.errors import SpecError
from autopar.report import Plan, Report, Sizes
from autopar.spec import Problem

if TYPE_CHECKING:
    from autopar.export.job import Job


@click.command()
@click.argument("document")
@click.option(
    "--to", "launcher", type=click.Choice(flags.LAUNCHERS), required=True, help="The launcher."
)
@click.option("--rank", type=click.IntRange(min=1), help="Plan of a report; the first by default.")
@click.option("--image", help="Container image, for --to kubernetes.")
@flags.optional_problem
@flags.folder
@flags.verbose
def export(
    document: str,
    launcher: str,
    rank: int | None,
    image: str | None,
    output: Path | None,
    force: bool,
    **asked: Any,
) -> int:
    """Write a plan as the files that a launcher starts from.

    DOCUMENT is a report or a frontier (`search --format json`), or a plan with the flags that say
    what it is for; - reads standard input. What the launcher cannot say exactly is refused. Time
    and memory are those in the framework that the launcher starts, unless --framework names one.
    """
    from autopar.export import launchers

    check_image(image, launcher, "--to")
    job, report = _job(document, rank, asked)
    told = job
    if is_given("framework"):
        job = job if report is None else _again(job, asked["framework"])
    elif launchers.is_foreign(launcher, job):
        job = _again(job, launchers.framework_of(launcher, job))
    said = launchers.export(launcher, replace(job, image=image), report)
    writing.folder(said, output, force)
    if report is not None:
        print_notes(_framework_notes(launcher, told, job))
    print_notes(f"not possible: {violation}" for violation in job.estimate.violations)
    return DONE


def _again(job: "Job", framework: str) -> "Job":
    """Returns a plan as it is estimated in a framework."""
    from autopar.export import launchers
    from autopar.report import Estimate

    problem = launchers.estimated_in(framework, job.problem)
    if problem == job.problem:
        return job
    cost = wire.loads(Estimate, planner.estimate_json(problem, job.plan))
    return replace(job, problem=problem, estimate=cost)


def _framework_notes(launcher: str, told: "Job", job: "Job") -> list[str]:
    """Returns what to say of the framework that a report's plan is estimated in."""
    from autopar.export.launchers import LAUNCHERS

    there, here = told.problem.framework.name, job.problem.framework.name
    other = "--framework names another"
    if there != here:
        times = f"{job.estimate.step_s:.6g} s a step, where the report has"
        return [f"estimated in {here}: {times} {told.estimate.step_s:.6g} s in {there}; {other}"]
    own = LAUNCHERS[launcher].frameworks
    return [f"estimated in {here}, as the report is; {other}"] if here not in (own or here) else []


def check_image(image: str | None, launcher: str | None, flag: str) -> None:
    """Refuses a container image where no files name one."""
    if image is not None and launcher != "kubernetes":
        raise SpecError("--image", f"given without {flag} kubernetes", "Leave it out.")


def search_like(
    file: str,
    given: dict[str, Any],
    threads: int,
    time_limit: float | None,
    output: Path | None,
    force: bool,
) -> int:
    """Searches the question of a launcher's file and sets its own plan against the best."""
    from autopar.render import text as render
    from autopar.report import Estimate
    from autopar.spec import Options

    problem, plan = launched(None, file, {})
    options = {key: value for key, value in given.items() if key not in QUESTION or key in MARGIN}
    mine = wire.loads(Estimate, planner.estimate_json(problem, plan))
    problem = replace(problem, options=wire.read(Options, options, "options"))
    report = reported(problem, threads, time_limit)
    if report.ranked:
        notes = "\n".join(render.report_notes(report)[1:])
        writing.text(f"{render.comparison_text(plan, mine, report)}\n\n{notes}", output, force)
    return verdict(report)


def search_for(
    name: str,
    image: str | None,
    problem: Problem,
    threads: int,
    time_limit: float | None,
    output: Path | None,
    force: bool,
) -> int:
    """Searches what a launcher can say and writes the fastest plan that it says exactly."""
    from autopar.export import launchers

    jobs, reports = sayable(name, problem, 1, threads, time_limit)
    if not all(report.proved for report in reports):
        print_notes(["not proved, the search was stopped"])
    if not jobs:
        return verdict(reports[0])
    job = replace(jobs[0], image=image)
    writing.folder(launchers.export(name, job), output, force)
    return DONE


def sayable(
    name: str, problem: Problem, top: int, threads: int, time_limit: float | None
) -> tuple[list["Job"], list[Report]]:
    """Returns the fastest plans that a launcher can say exactly, and the reports they stand in."""
    from autopar.export import launchers

    def found(part: Problem) -> Report:
        return reported(part, threads, time_limit)

    questions = launchers.questions if is_given("framework") else launchers.own_questions
    return launchers.fastest(name, questions(name, problem), found, top)


def launched(launcher: str | None, file: str, spelled: dict[str, Any]) -> tuple[Problem, Plan]:
    """Returns the problem and plan of a launcher's file and the flags that were given beside it."""
    from autopar.frontends import launches

    job = launches.read(launcher, file)
    context = click.get_current_context()
    question = {key: context.params[key] for key in QUESTION if is_given(key)}
    if (text := spelled.pop("recompute", None)) is not None:
        kinds = [flags.recompute(setting) for setting in text.split(",")]
        spelled["recompute"] = kinds[0] if len(kinds) == 1 else kinds
    found = planner.launched(job, question, spelled)
    print_notes(f"{job.file}: {note}" for note in job.notes)
    return found


def _job(document: str, rank: int | None, asked: dict[str, Any]) -> tuple["Job", Report | None]:
    """Returns the plan of a report, with it, or of a file with the question that flags spell."""
    from autopar.export.job import Job
    from autopar.report import Estimate

    place = "standard input" if document == "-" else document
    said = texts.parse_json(files.read_bytes(document), place)
    table = said.value
    given = [key for key in asked if is_given(key)]
    if isinstance(table, dict) and table.keys() & {"ranked", "sizes"}:
        given = [key for key in given if key != "framework"]
        if given:
            what = f"given beside a report, --{given[0].replace('_', '-')}"
            raise SpecError(place, what, "A report holds its question; leave the flag out.")
        report = answered(said)
        jobs = _listed(report)
        rank = rank or 1
        if rank > len(jobs):
            what = f"no plan {rank} in a report of {len(jobs)}"
            top = isinstance(report, Report)
            cure = "Search with a larger --top." if top else "Give the row of a count."
            raise SpecError("--rank", what, cure)
        return jobs[rank - 1], report if isinstance(report, Report) else None
    if rank is not None:
        raise SpecError("--rank", "given beside a plan", "Leave it out, or give a report.")
    with said.placing():
        plan = wire.read(Plan, table, f"{place}: ")
    for key in ("model", "cluster", "global_batch_size", "sequence_length"):
        if key not in given:
            flag = key.replace("_", "-")
            raise SpecError(f"--{flag}", "missing", "A plan alone does not say what it is for.")
    problem = planner.problem(**with_devices(asked, plan.devices))
    with of_plan(said):
        cost = wire.loads(Estimate, planner.estimate_json(problem, plan))
    return Job(problem, plan, cost), None


def _listed(report: Report | Sizes) -> list["Job"]:
    """Returns the plans of an answer, each with its problem; those of device counts use no more."""
    from autopar.export.job import Job

    problem = report.problem
    if isinstance(report, Report):
        return [Job(problem, each.plan, each.estimate) for each in report.ranked]
    cluster = problem.cluster
    return [
        Job(
            replace(problem, cluster=replace(cluster, devices=size.devices)),
            size.best.plan,
            size.best.estimate,
        )
        for size in report.sizes
    ]


def is_given(name: str) -> bool:
    """Returns whether a flag of the command stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE
