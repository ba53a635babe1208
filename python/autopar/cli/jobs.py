"""The commands on whole jobs: search, estimate, rerun, and AIAK's form of a search."""

from pathlib import Path
from typing import Any, Literal

import click

from autopar import files, flags, planner, texts, wire, writing
from autopar.cli.asking import QUESTION, answered, of_plan, reported, solve, with_devices
from autopar.cli.ends import DONE, NO_PLAN, print_notes, verdict
from autopar.cli.launchers import launched
from autopar.errors import SpecError, shown
from autopar.report import Plan, Report, Sizes
from autopar.spec import Problem

Format = Literal["table", "json", "apss"]
Objective = Literal["throughput", "cost"]


@click.command()
@click.argument("file", required=False)
@click.option(
    "--from",
    "launcher",
    type=click.Choice(flags.READ_LAUNCHERS),
    help="Estimate what a launcher's FILE starts.",
)
@flags.optional_problem
@click.option("--plan", "document", help="Plan as a JSON file; - reads standard input.")
@flags.plan
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
@flags.output
@flags.verbose
def estimate(
    file: str | None,
    launcher: str | None,
    document: str | None,
    form: Format,
    output: Path | None,
    force: bool,
    **arguments: Any,
) -> int:
    """Print the time and memory of one plan, item by item."""
    from autopar.render import text as render
    from autopar.report import Estimate

    writing.check_output(output, force)
    given = {key: value for key, value in arguments.items() if value is not None}
    spelled = {key: value for key, value in given.items() if key not in QUESTION}
    question: dict[str, Any] = {key: arguments[key] for key in QUESTION}
    said: texts.Text | None = None
    if (file is None) != (launcher is None):
        raise SpecError("--from", "needs a launcher and its FILE", "Write --from megatron run.sh.")
    if launcher is None:
        flags.check_question()
    if launcher is not None and file is not None:
        if document is not None:
            raise SpecError("--plan", "given beside --from", "Give one of them.")
        problem, plan = launched(launcher, file, spelled)
    elif document is None:
        problem = planner.problem(**with_devices(question, planner.devices_of(spelled)))
        plan = _spelled_plan(problem, spelled)
    elif spelled:
        raise SpecError("--plan", f"given beside --{min(spelled)}", "Give a file or flags.")
    else:
        said = texts.parse_json(files.read_bytes(document), files.printable(document))
        with said.placing():
            plan = wire.read(Plan, said.value, f"{said.file}: ")
        problem = planner.problem(**with_devices(question, plan.devices))
    with of_plan(said):
        cost = planner.estimate_json(problem, plan)
    verdict = wire.loads(Estimate, cost)
    if form == "json":
        writing.document(cost, output, force)
    else:
        writing.text(render.estimate_text(problem, plan, verdict), output, force)
    return NO_PLAN if verdict.violations else DONE


@click.command()
@click.argument("report")
@click.option("--threads", type=int, default=0, help="Threads of the search; all cores by default.")
@flags.output
@flags.verbose
def rerun(report: str, threads: int, output: Path | None, force: bool) -> int:
    """Answer the problem of a REPORT or a frontier again, to the same bytes.

    - reads standard input.
    """
    writing.check_output(output, force)
    cure = "Give the document as autopar wrote it."
    old = answered(texts.parse_json(files.read_bytes(report), report, cure))
    if old.problem.version != planner.__version__:
        written = f"the report was written by version {old.problem.version}"
        print_notes([f"{written}, this is {planner.__version__}"])
    if isinstance(old, Sizes):
        again = planner.rerun(old, threads=threads)
        writing.document(wire.dumps(again), output, force)
        return DONE if again.sizes else NO_PLAN
    text = solve(old.problem, threads, None)
    writing.document(text, output, force)
    return verdict(wire.loads(Report, text))


@click.command()
@click.option("--model-name", default="llama2-70b", show_default=True)
@click.option("--num-gpus", type=int, default=256, show_default=True)
@click.option("--gpu-infos", default="a800", show_default=True, help="type[:max][,type[:max]...]")
@click.option("--nproc-per-node", type=int, default=8, show_default=True)
@click.option("--global-batch-size", type=int, default=1024, show_default=True)
@click.option("--sequence-length", type=int, default=4096, show_default=True)
@click.option("--top", type=int, default=5, show_default=True)
@click.option("--mode", type=click.Choice(["fast", "analytic"]), default="fast", show_default=True)
def apss(mode: str, **arguments: Any) -> int:
    """Answer as Baidu AIAK's APSS does: its flags, its dicts, one a line.

    --mode analytic also writes a trace of each strategy to ./cache, for ui.perfetto.dev.
    """
    from autopar.frontends import apss as frontend

    folder = Path("cache")
    if mode == "analytic":
        writing.check_folder(folder, "--mode analytic")
    asked = frontend.question(version=planner.__version__, **arguments)
    report = frontend.proposable(reported(asked.problem, 0, None))
    print_notes((*asked.notes, *report.notes))
    strategies = [frontend.strategy(report.problem, r, asked.kinds) for r in report.ranked]
    if mode == "analytic":
        _write_traces(report, folder)
    if strategies:
        writing.text("\n".join(map(repr, strategies)), None, False)
    return verdict(report)


def _write_traces(report: Report, folder: Path) -> None:
    """Writes the time line of each plan as `strategy-1.json` and so on."""
    from autopar.render.trace import chrome_trace

    groups = report.problem.cluster.groups
    traces = {}
    for rank, ranked in enumerate(report.ranked, 1):
        stages = [groups[stage.chip].chip.name for stage in ranked.plan.stages]
        timeline = planner.timeline(report.problem, ranked.plan)
        trace = chrome_trace(timeline, report.problem, stages)
        traces[folder / f"strategy-{rank}.json"] = trace.encode()
    files.make_folder(folder)
    files.write_all(traces)


def _spelled_plan(problem: Problem, spelled: dict[str, Any]) -> Plan:
    """Returns the plan that flags spell out."""
    groups = [group.chip.name for group in problem.cluster.groups]
    if (names := spelled.pop("chips", None)) is not None:
        chips = []
        for name in names.split(","):
            if name.strip() not in groups:
                what = f"no chip named {shown(name)} in the cluster"
                raise SpecError("--chips", what, f"Known: {', '.join(groups)}.")
            chips.append(groups.index(name.strip()))
        spelled["chips"] = chips
    elif len(groups) > 1:
        raise SpecError("--chips", "missing", "Name the chip of each stage, as a800,h800,h800.")
    if (settings := spelled.pop("recompute", None)) is not None:
        kinds = [flags.recompute(setting) for setting in settings.split(",")]
        if len(kinds) not in (1, len(groups)):
            what = f"must have one setting for each of {len(groups)} kinds, found {len(kinds)}"
            raise SpecError("--recompute", what, "List them in the order of --cluster.")
        spelled["recompute"] = kinds[0] if len(kinds) == 1 else kinds
    return planner.plan(problem, **spelled)
