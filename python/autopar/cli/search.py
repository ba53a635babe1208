"""The search command: one answer of several kinds, each with the flags that it has room for."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from autopar import flags, planner, wire, writing
from autopar.cli.asking import solve
from autopar.cli.ends import DONE, NO_PLAN, fail, print_notes, verdict
from autopar.cli.launchers import check_image, is_given, sayable, search_for, search_like
from autopar.errors import SpecError
from autopar.report import Ranked, Report, Wanted
from autopar.spec import Problem

if TYPE_CHECKING:
    from autopar.export.job import Job

Format = Literal["table", "json", "apss"]
Objective = Literal["throughput", "cost"]

# A flag that asks for an answer of its own, the flags that this answer has no room for, and why.
ALONE = (
    ("--launcher", ("--export", "--like", "--frontier", "--format json", "--format apss"),
     "It lists plans as a table; leave one out."),
    ("--like", ("--export", "--frontier", "--at-most", "--objective cost", "--format json",
                "--format apss"),
     "It sets the plan of a file, on that file's devices, against the best; leave one out."),
    ("--frontier", ("--export", "--objective cost", "--top", "--format apss"),
     "It lists device counts, each with its best plan; leave one out."),
    ("--export", ("--format json", "--format apss"),
     "It writes a launcher's files; leave one out."),
    ("--at-most", ("--devices",), "Give one of the two."),
)  # fmt: skip


@click.command()
@flags.optional_problem
@click.option("--top", type=int, default=5, show_default=True, help="Plans to return.")
@flags.aims
@flags.limits
@click.option("--format", "form", type=click.Choice(["table", "json", "apss"]), default="table")
@click.option(
    "--export",
    "launcher",
    type=click.Choice(flags.LAUNCHERS),
    help="Search only what a launcher can say and write its files, -o being a folder.",
)
@click.option(
    "--launcher",
    "within",
    type=click.Choice(flags.LAUNCHERS),
    help="List only plans that a launcher can say exactly.",
)
@click.option("--image", help="Container image, for --export kubernetes.")
@click.option("--like", help="What runs today, a launcher's file: how much faster is the best?")
@flags.output
@click.option("--time-limit", type=float, help="Seconds after which the search stops, unproved.")
@click.option("--threads", type=int, default=0, help="Threads of the search; all cores by default.")
@flags.verbose
def search(
    form: Format,
    launcher: str | None,
    within: str | None,
    image: str | None,
    like: str | None,
    output: Path | None,
    force: bool,
    time_limit: float | None,
    threads: int,
    sp: tuple[str, ...] | None,
    at_most: int | None,
    objective: Objective,
    frontier: bool,
    **arguments: Any,
) -> int:
    """Find the fastest plans that fit, and prove it.

    The last column of the table names the launchers that can say a plan exactly.

    A degree's flag takes the values that are allowed, as --tp 2,4,8. With --at-most the plans are
    those of the device count whose first plan is the fastest of all counts (--objective cost: the
    cheapest). At one count and one price the fastest plan is the cheapest.
    """
    check_image(image, launcher, "--export")
    _check_alone(form, objective)
    if launcher is None:
        writing.check_output(output, force)
    else:
        writing.check_folder(output)
    given = {key: value for key, value in arguments.items() if value is not None}
    if sp is not None:
        given["sp"] = [word == "on" for word in sp]
    if like is not None:
        return search_like(like, given, threads, time_limit, output, force)
    if at_most is not None:
        given["devices"] = at_most
    flags.check_question()
    if (name := launcher or within) is not None and not is_given("framework"):
        from autopar.export.launchers import LAUNCHERS

        if frameworks := LAUNCHERS[name].frameworks:
            given["framework"] = frameworks[0]
    problem = planner.problem(**given)
    if objective == "cost" or frontier:
        planner.check_one_price(problem)
    if frontier:
        return _frontier(problem, form, output, force, threads, time_limit)
    notes = []
    if at_most is not None:
        problem, note = _sized(problem, objective, threads, time_limit)
        notes.append(note)
    if launcher is not None:
        code = search_for(launcher, image, problem, threads, time_limit, output, force)
    elif within is not None:
        code = _list_within(within, problem, threads, time_limit, output, force)
    else:
        code = _list(problem, form, threads, time_limit, output, force)
    print_notes(notes)
    return code


def _check_alone(form: Format, objective: Objective) -> None:
    """Refuses flags that ask for two answers, of which one would be passed over.

    Raises:
        SpecError: Two are given.
    """
    command = click.get_current_context().command
    asked = {each.opts[0] for each in command.params if is_given(each.name or "")}
    asked |= {f"--format {form}", f"--objective {objective}"}
    for flag, others, cure in ALONE:
        for other in others:
            if {flag, other} <= asked:
                raise SpecError(flag, f"given beside {other}", cure)


def _sized(
    problem: Problem, objective: Objective, threads: int, time_limit: float | None
) -> tuple[Problem, str]:
    """Returns the problem at its best device count, as it is where nothing fits, and a note."""
    from autopar.render import text as render

    wanted: Wanted = "cheapest" if objective == "cost" else "fastest"
    found = planner.sizes(problem, wanted, threads=threads, time_limit_s=time_limit)
    if found.sizes:
        cluster = replace(problem.cluster, devices=found.sizes[0].devices)
        problem = replace(problem, cluster=cluster)
    return problem, render.sizes_note(found)


def _frontier(
    problem: Problem,
    form: Format,
    output: Path | None,
    force: bool,
    threads: int,
    time_limit: float | None,
) -> int:
    """Prints the device counts that no other beats in both time and money."""
    from autopar.render import text as render

    found = planner.sizes(problem, "frontier", threads=threads, time_limit_s=time_limit)
    if not found.sizes:
        return fail(render.sizes_note(found), NO_PLAN)
    if form == "json":
        writing.document(wire.dumps(found), output, force)
    else:
        table = render.plain(render.frontier_table(found))
        writing.text(f"{table}\n\n{render.sizes_note(found)}", output, force)
    return DONE


def _list(
    problem: Problem,
    form: Format,
    threads: int,
    time_limit: float | None,
    output: Path | None,
    force: bool,
) -> int:
    """Prints the fastest plans."""
    text = solve(problem, threads, time_limit)
    report = wire.loads(Report, text)
    if form == "json":
        writing.document(text, output, force)
    elif form == "apss":
        from autopar.frontends import apss

        listed = [repr(apss.strategy(report.problem, ranked)) for ranked in report.ranked]
        writing.text("\n".join(listed), output, force)
    else:
        from autopar.export.job import Job

        jobs = [Job(report.problem, ranked.plan, ranked.estimate) for ranked in report.ranked]
        _print_plans(jobs, [report], output, force)
    return verdict(report)


def _list_within(
    name: str,
    problem: Problem,
    threads: int,
    time_limit: float | None,
    output: Path | None,
    force: bool,
) -> int:
    """Prints the fastest plans that a launcher can say exactly."""
    from autopar.export import launchers

    jobs, reports = sayable(name, problem, problem.options.top, threads, time_limit)
    if len(jobs) < problem.options.top and launchers.stopped_listing(reports):
        looked = sum(len(report.ranked) for report in reports)
        print_notes([f"{name} can say {len(jobs):,} of the {looked:,} plans that were looked at"])
    _print_plans(jobs, reports, output, force)
    return DONE if jobs else verdict(reports[0])


def _print_plans(
    jobs: list["Job"], reports: list[Report], output: Path | None, force: bool
) -> None:
    """Writes plans as a table, and their reports' notes; drawn on a terminal, plain elsewhere."""
    from autopar.export import launchers
    from autopar.render import text as render

    lines = [*_frameworks(jobs, reports)]
    lines += (line for report in reports for line in render.report_notes(report))
    notes = "\n".join(dict.fromkeys(lines))
    if not jobs:
        writing.text(notes, output, force)
        return
    ranked = tuple(Ranked(plan=job.plan, estimate=job.estimate) for job in jobs)
    table = render.report_table(jobs[0].problem, ranked, [launchers.able(job) for job in jobs])
    if output is None and sys.stdout is not None and sys.stdout.isatty():
        from autopar.render.terminal import draw

        draw(table)
        writing.text(notes, None, False)
    else:
        writing.text(f"{render.plain(table)}\n\n{notes}", output, force)


def _frameworks(jobs: list["Job"], reports: list[Report]) -> Iterator[str]:
    """Yields which plans of a table run in which framework, where its parts differ in it."""
    if len({report.problem.framework.name for report in reports}) > 1:
        ranks: dict[str, list[str]] = {}
        for rank, job in enumerate(jobs, 1):
            ranks.setdefault(job.problem.framework.name, []).append(str(rank))
        for name, listed in ranks.items():
            yield f"Estimated in {name}: {', '.join(listed)}."
