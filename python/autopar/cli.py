"""The command line: flags in, documents or text out.

Exit codes: 0 done, 1 no plan exists, 2 wrong input, 70 a defect, 130 stopped.
"""

import json
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from autopar import catalog, files, flags, planner, wire, writing
from autopar.errors import AutoparError, SpecError, shown
from autopar.graph import Graph
from autopar.report import Plan, Report
from autopar.spec import Problem

if TYPE_CHECKING:
    from autopar.export.job import Job

Format = Literal["table", "json", "apss"]
By = Literal["source", "chip", "model"]
DOCUMENTS = (
    "problem",
    "plan",
    "report",
    "estimate",
    "sizes",
    "graph",
    "sharding-problem",
    "sharding",
    "strategies",
)
Objective = Literal["throughput", "cost"]

# The flags that describe what is trained, on what.
QUESTION = ("model", "cluster", "devices", "global_batch_size", "sequence_length", "precision",
            "attention", "dropout", "framework", "memory_margin")  # fmt: skip
MARGIN = ("memory_margin",)

DONE, NO_PLAN, WRONG_INPUT, DEFECT, STOPPED = 0, 1, 2, 70, 130


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; whatever goes wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal without UTF-8 shows what it cannot as an escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has what it wanted. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped", STOPPED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "autopar"
        return _fail(f'{error.format_message()} See "{command} --help".', WRONG_INPUT)
    except click.ClickException as error:
        return _fail(error.format_message(), WRONG_INPUT)
    except AutoparError as error:
        return _fail(str(error), WRONG_INPUT)
    except OSError as error:
        place = f"{files.printable(error.filename)}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}", WRONG_INPUT)
    except Exception as error:
        logging.getLogger("autopar").info("defect", exc_info=True)
        return _fail(f"{error} (a defect of autopar; -v shows where)", DEFECT)


def _run(arguments: list[str]) -> int:
    """Runs a command without click's own handling of errors, which takes several lines."""
    try:
        with autopar.make_context("autopar", arguments) as context:
            return autopar.invoke(context) or DONE
    except click.exceptions.Exit as end:
        return end.exit_code


def _fail(message: str, code: int) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        package = version("autopar")
        print(f"autopar {package}, catalog {catalog.CATALOG_DATE}, core {planner.__version__}")
        ctx.exit()


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the versions of the package, the catalog and the core.",
)
def autopar() -> None:
    """Find the fastest way to train a large language model on a cluster."""


@autopar.command()
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
@click.option("--image", help="Container image, for --export kubernetes.")
@click.option("--like", help="What runs today, a launcher's file: how much faster is the best?")
@flags.output
@click.option("--time-limit", type=float, help="Seconds after which the search stops, unproved.")
@click.option("--threads", type=int, default=0, help="Threads of the search; all cores by default.")
@flags.verbose
def search(
    form: Format,
    launcher: str | None,
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

    A degree's flag takes the values that are allowed, as --tp 2,4,8. With --at-most the plans are
    those of the device count whose first plan is the fastest of all counts (--objective cost: the
    cheapest). At one count and one price the fastest plan is the cheapest.
    """
    if launcher is None:
        flags.check_output(output, force)
    given = {key: value for key, value in arguments.items() if value is not None}
    if sp is not None:
        given["sp"] = [word == "on" for word in sp]
    if like is not None:
        if at_most is not None or frontier or objective == "cost":
            what = "given beside --at-most, --frontier or --objective cost"
            raise SpecError("--like", what, "Leave these out: the file says its devices.")
        return _search_like(like, given, threads, time_limit, output, force)
    if at_most is not None:
        if "devices" in given:
            raise SpecError("--at-most", "given beside --devices", "Give one of the two.")
        given["devices"] = at_most
    flags.check_question()
    problem = planner.problem(**given)
    if objective == "cost" or frontier:
        planner.check_one_price(problem)
    if frontier:
        return _frontier(problem, form, output, force, threads, time_limit)
    if at_most is not None:
        problem = _sized(problem, objective, threads, time_limit)
    if launcher is not None:
        return _search_for(launcher, image, problem, threads, time_limit, output, force)
    text = _solve(problem, threads, time_limit)
    report = wire.loads(Report, text)
    if form == "json":
        writing.document(text, output, force)
    elif form == "apss":
        writing.text("\n".join(map(repr, _strategies(report))), output, force)
    else:
        _print_report(report, output, force)
    return _verdict(report)


@autopar.command()
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

    DOCUMENT is a report (`search --format json`), or a plan with the flags that say what it is for;
    - reads standard input. What the launcher cannot say exactly is refused.
    """
    from autopar.export import launchers

    job = replace(_job(document, rank, asked), image=image)
    writing.folder(launchers.export(launcher, job), output, force)
    return DONE


@autopar.command()
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

    flags.check_output(output, force)
    given = {key: value for key, value in arguments.items() if value is not None}
    spelled = {key: value for key, value in given.items() if key not in QUESTION}
    question: dict[str, Any] = {key: arguments[key] for key in QUESTION}
    if (file is None) != (launcher is None):
        raise SpecError("--from", "needs a launcher and its FILE", "Write --from megatron run.sh.")
    if launcher is None:
        flags.check_question()
    if launcher is not None and file is not None:
        if document is not None:
            raise SpecError("--plan", "given beside --from", "Give one of them.")
        problem, plan = _launched(launcher, file, spelled)
    elif document is None:
        problem = planner.problem(**_with_devices(question, spelled))
        plan = _spelled_plan(problem, spelled)
    elif spelled:
        raise SpecError("--plan", f"given beside --{min(spelled)}", "Give a file or flags.")
    else:
        plan = wire.loads(Plan, files.read_bytes(document), f"{document}: ")
        degrees = {"dp": plan.dp, "tp": plan.tp, "cp": plan.cp, "pp": plan.pp}
        problem = planner.problem(**_with_devices(question, degrees))
    cost = planner.estimate_json(problem, plan)
    verdict = wire.loads(Estimate, cost)
    if form == "json":
        writing.document(cost, output, force)
    else:
        writing.text(render.estimate_text(problem, plan, verdict), output, force)
    return NO_PLAN if verdict.violations else DONE


@autopar.command()
@click.argument("report")
@click.option("--threads", type=int, default=0, help="Threads of the search; all cores by default.")
@flags.output
@flags.verbose
def rerun(report: str, threads: int, output: Path | None, force: bool) -> int:
    """Answer the problem of a REPORT again, to the same bytes; - reads standard input."""
    flags.check_output(output, force)
    old = wire.loads(Report, files.read_bytes(report), f"{report}: ")
    if old.problem.version != planner.__version__:
        print(
            f"note: the report was written by version {old.problem.version},"
            f" this is {planner.__version__}",
            file=sys.stderr,
        )
    text = _solve(old.problem, threads, None)
    writing.document(text, output, force)
    return _verdict(wire.loads(Report, text))


@autopar.command()
@click.argument("runs", nargs=-1, required=True)
@click.option(
    "--json",
    "document",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every row and score to a JSON file.",
)
@click.option(
    "--by",
    type=click.Choice(["source", "chip", "model"]),
    default="source",
    show_default=True,
    help="What to group the rows by.",
)
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Rows furthest off to list.",
)
@click.option("--force", is_flag=True, help="Overwrite the file of --json.")
@flags.verbose
def validate(runs: tuple[str, ...], document: Path | None, by: By, worst: int, force: bool) -> int:
    """Estimate measured RUNS (CSV files; - reads standard input) and print how far off it is.

    The columns are those of a run: layers, hidden, heads, seq_len, gbs, chip, gpus, dp, tp, pp,
    mbs, recompute, zero, iter_time_s, mem_gb_per_gpu and so on; an empty cell is unknown.
    """
    from autopar import validate as validation
    from autopar.render import errors as render
    from autopar.runs import read_runs

    flags.check_output(document, force)
    rows = validation.check([run for file in runs for run in read_runs(file)])
    summary = validation.summarise(rows, by)
    if document is not None:
        text = json.dumps(validation.document(rows, summary), ensure_ascii=False, indent=1)
        writing.save(f"{text}\n".encode(), document, force)
    writing.text(render.validation_text(summary, validation.worst(rows, worst), by), None, False)
    return DONE


@autopar.command()
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

    asked = frontend.question(version=planner.__version__, **arguments)
    report = wire.loads(Report, _solve(asked.problem, 0, None))
    _print_notes((*asked.notes, *report.notes))
    strategies = [frontend.strategy(report.problem, r, asked.kinds) for r in report.ranked]
    if mode == "analytic":
        _write_traces(report, Path("cache"))
    if strategies:
        writing.text("\n".join(map(repr, strategies)), None, False)
    return _verdict(report)


@autopar.command()
@click.argument("subject", metavar="MODEL|FILE")
@flags.sharding
@click.option("--save", type=click.Path(path_type=Path), help="Write the strategies to this file.")
@click.option(
    "--save-mindspore",
    type=click.Path(path_type=Path),
    help="Write MindSpore's strategy file: JSON if it ends in .json, protobuf if not.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
@flags.output
@click.option("--time-limit", type=float, help="Seconds after which ilp returns the best so far.")
@flags.verbose
def shard(
    subject: str,
    form: Literal["table", "json"],
    save: Path | None,
    save_mindspore: Path | None,
    output: Path | None,
    force: bool,
    time_limit: float | None,
    **asked: Any,
) -> int:
    """Cut the tensors of each operator of MODEL, or of the graph in FILE, over devices.

    FILE is ONNX (.onnx), a frozen TensorFlow graph (.pb) or a graph document (.json). The
    strategies chosen cost the least of all; the answer says how far that is proved.
    """
    from autopar.render import sharding as render

    for path in (save, save_mindspore, output):
        flags.check_output(path, force)
    graph = _graph(subject, asked)
    found = planner.shard(
        graph,
        asked.pop("chip"),
        time_limit_s=time_limit,
        **_sharding_options(graph, asked),
    )
    if save_mindspore is not None and found.fits:
        from autopar.export import mindspore_strategy as export

        strategies = export.strategy_file(found)
        writing.save(export.strategy_bytes(strategies, save_mindspore.name), save_mindspore, force)
    if save is not None and found.fits:
        writing.save(f"{wire.dumps(found.chosen())}\n".encode(), save, force)
    if form == "json":
        writing.document(wire.dumps(found), output, force)
    else:
        writing.text(render.text(found), output, force)
    if found.fits:
        return DONE
    return _fail(render.shortage(found), NO_PLAN)


@autopar.command()
@flags.atc
def atc(log: str, input_shape: dict[str, tuple[int, ...]] | None, **arguments: Any) -> int:
    """Answer Huawei ATC's graph-parallel options: its flags, its option files.

    Writes OUTPUT.json, the part of each tensor that each device holds, and OUTPUT.strategy.json,
    the strategies in MindSpore's form. It compiles nothing: there is no .om.
    """
    from autopar import partition
    from autopar.frontends import atc as frontend
    from autopar.render import sharding as render

    if log != "null":
        logging.basicConfig(level=log.upper())
    asked = frontend.question(**arguments)
    found, notes = partition.solve(asked, input_shape)
    _print_notes((*asked.notes, *notes))
    if not found.fits:
        return _fail(render.shortage(found), NO_PLAN)
    files.write_all(partition.results(asked, found))
    writing.text(render.text(found), None, False)
    return DONE


@autopar.command()
@click.argument("name", required=False)
@click.option("--example", is_flag=True, help="Print an annotated TOML file to start from.")
def models(name: str | None, example: bool) -> int:
    """List the models, or show the one of a NAME."""
    from autopar.render import text as render

    if example:
        return _print_example("model")
    if name is not None:
        entry = planner.model_of(name)
        return _print_entry(wire.write(entry.model), wire.write(entry), "model")
    entries = [catalog.model(name) for name in catalog.names("models")]
    rows = [(entry, planner.model_facts(entry.model)) for entry in entries]
    writing.text(render.plain(render.models_table(rows)), None, False)
    return DONE


@autopar.command()
@click.argument("name", required=False)
@click.option(
    "--example",
    type=click.Choice(["chip", "cluster", "framework"]),
    help="Print an annotated TOML file to start from.",
)
def chips(name: str | None, example: str | None) -> int:
    """List the chips, or show the one of a NAME."""
    from autopar.render import text as render

    if example:
        return _print_example(example)
    if name is not None:
        entry = catalog.chip(name)
        return _print_entry(wire.write(entry.chip), wire.write(entry), "chip")
    entries = [catalog.chip(name) for name in catalog.names("chips")]
    writing.text(render.plain(render.chips_table(entries)), None, False)
    return DONE


@autopar.command()
@click.argument("document", type=click.Choice(DOCUMENTS))
def schema(document: str) -> int:
    """Print the JSON Schema of a DOCUMENT."""
    from autopar import schema as schemas

    writing.document(schemas.text(schemas.DOCUMENTS[document]).rstrip(), None, False)
    return DONE


def _graph(subject: str, asked: dict[str, Any]) -> Graph:
    """Returns the graph of a document, or of a model in the sizes asked for, here taken out."""
    from autopar.frontends import graph_file

    names = ("batch", "sequence_length", "layers", "precision", "inference")
    sizes = {name: asked.pop(name) for name in names}
    shapes = asked.pop("input_shape")
    if graph_file.is_graph(subject):
        reading = graph_file.read(subject, shapes, inference=sizes["inference"])
        _print_notes(reading.notes)
        return reading.graph
    if shapes:
        raise SpecError("--input-shape", "given for a model", "Give --batch and --sequence-length.")
    model = catalog.model(subject).model
    if sizes["sequence_length"] is None:
        sizes["sequence_length"] = model.max_positions
    training = not sizes.pop("inference")
    return planner.model_graph(model, training=training, **sizes)


def _sharding_options(graph: Graph, asked: dict[str, Any]) -> Any:
    """Returns the fields of `ShardingOptions` that flags give."""
    from autopar.frontends import graph_file

    name = asked.pop("strategies")
    fixed = graph_file.read_strategies(name, graph) if name is not None else ()
    others = asked.pop("others").replace("-", "_")
    given = {key: value for key, value in asked.items() if value is not None}
    return given | {"strategies": fixed, "others": others}


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print("note:", note, file=sys.stderr)


def _solve(problem: Problem, threads: int, time_limit: float | None) -> str:
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


def _search_like(
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

    problem, plan = _launched(None, file, {})
    options = {key: value for key, value in given.items() if key not in QUESTION or key in MARGIN}
    mine = wire.loads(Estimate, planner.estimate_json(problem, plan))
    problem = replace(problem, options=wire.read(Options, options, "options"))
    report = wire.loads(Report, _solve(problem, threads, time_limit))
    if report.ranked:
        notes = "\n".join(render.report_notes(report)[1:])
        writing.text(f"{render.comparison_text(plan, mine, report)}\n\n{notes}", output, force)
    return _verdict(report)


def _launched(launcher: str | None, file: str, spelled: dict[str, Any]) -> tuple[Problem, Plan]:
    """Returns the problem and plan of a launcher's file and the flags that were given beside it."""
    from autopar.frontends import launches

    job = launches.read(launcher, file)
    context = click.get_current_context()
    question = {key: context.params[key] for key in QUESTION if _is_given(key)}
    if (text := spelled.pop("recompute", None)) is not None:
        kinds = [flags.recompute(setting) for setting in text.split(",")]
        spelled["recompute"] = kinds[0] if len(kinds) == 1 else kinds
    found = planner.launched(job, question, spelled)
    for note in job.notes:
        print(f"note: {job.file}: {note}", file=sys.stderr)
    return found


def _search_for(
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

    def solve(part: Problem) -> Report:
        return wire.loads(Report, _solve(part, threads, time_limit))

    job, reports = launchers.fastest(name, problem, solve, image)
    if not all(report.proved for report in reports):
        print("note: not proved, the search was stopped", file=sys.stderr)
    if job is None:
        return _verdict(reports[0])
    writing.folder(launchers.export(name, job), output, force)
    return DONE


def _job(document: str, rank: int | None, asked: dict[str, Any]) -> "Job":
    """Returns the plan of a report, or the plan of a file with the question that flags spell."""
    from autopar.export.job import Job
    from autopar.report import Estimate

    place = "standard input" if document == "-" else document
    table = wire.parse_json(files.read_bytes(document), f"{place}: ")
    given = [key for key in asked if _is_given(key)]
    if isinstance(table, dict) and "ranked" in table:
        if given:
            what = f"given beside a report, --{given[0].replace('_', '-')}"
            raise SpecError(place, what, "A report holds its question; leave the flag out.")
        report = wire.read(Report, table, f"{place}: ")
        rank = rank or 1
        if rank > len(report.ranked):
            what = f"no plan {rank} in a report of {len(report.ranked)}"
            raise SpecError("--rank", what, "Search with a larger --top.")
        ranked = report.ranked[rank - 1]
        return Job(report.problem, ranked.plan, ranked.estimate)
    if rank is not None:
        raise SpecError("--rank", "given beside a plan", "Leave it out, or give a report.")
    plan = wire.read(Plan, table, f"{place}: ")
    for key in ("model", "cluster", "global_batch_size", "sequence_length"):
        if key not in given:
            flag = key.replace("_", "-")
            raise SpecError(f"--{flag}", "missing", "A plan alone does not say what it is for.")
    degrees = {"dp": plan.dp, "tp": plan.tp, "cp": plan.cp, "pp": plan.pp}
    problem = planner.problem(**_with_devices(asked, degrees))
    cost = wire.loads(Estimate, planner.estimate_json(problem, plan))
    return Job(problem, plan, cost)


def _is_given(name: str) -> bool:
    """Returns whether a flag of the command stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _sized(
    problem: Problem, objective: Objective, threads: int, time_limit: float | None
) -> Problem:
    """Returns the problem at its best device count; as it is where nothing fits at any."""
    from autopar.render import text as render

    found = planner.sizes(problem, threads=threads, time_limit_s=time_limit)
    place = found.cheapest if objective == "cost" else found.fastest
    print("note:", render.sizes_note(found), file=sys.stderr)
    if place is None:
        return problem
    return replace(problem, cluster=replace(problem.cluster, devices=found.sizes[place].devices))


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

    if form == "apss":
        raise SpecError("--format", "apss has no form for a frontier", "Use table or json.")
    found = planner.sizes(problem, threads=threads, time_limit_s=time_limit)
    if not found.sizes:
        return _fail(f"no plan fits. {render.sizes_note(found)}", NO_PLAN)
    if form == "json":
        writing.document(wire.dumps(found), output, force)
    else:
        table = render.plain(render.frontier_table(found))
        writing.text(f"{table}\n\n{render.sizes_note(found)}", output, force)
    return DONE


def _strategies(report: Report) -> list[dict[str, Any]]:
    from autopar.frontends import apss as frontend

    return [frontend.strategy(report.problem, ranked) for ranked in report.ranked]


def _print_report(report: Report, output: Path | None, force: bool) -> None:
    """Writes a report as a table and notes, drawn on a terminal and plain elsewhere."""
    from autopar.render import text as render

    table = render.report_table(report)
    notes = "\n".join(render.report_notes(report))
    if not report.ranked:
        writing.text(notes, output, force)
    elif output is None and sys.stdout is not None and sys.stdout.isatty():
        from autopar.render.terminal import draw

        draw(table)
        writing.text(notes, None, False)
    else:
        writing.text(f"{render.plain(table)}\n\n{notes}", output, force)


def _verdict(report: Report) -> int:
    """Returns the exit code of a report; one without a plan says why on standard error."""
    if report.ranked:
        return DONE
    from autopar.render.text import infeasible_text

    return _fail(infeasible_text(report), NO_PLAN)


def _write_traces(report: Report, folder: Path) -> None:
    """Writes the time line of each plan as `strategy-1.json` and so on."""
    from autopar.render.trace import chrome_trace

    groups = report.problem.cluster.groups
    traces = []
    for ranked in report.ranked:
        stages = [groups[stage.chip].chip.name for stage in ranked.plan.stages]
        timeline = planner.timeline(report.problem, ranked.plan)
        traces.append(chrome_trace(timeline, report.problem, stages))
    folder.mkdir(exist_ok=True)
    for rank, trace in enumerate(traces, 1):
        (folder / f"strategy-{rank}.json").write_text(trace, encoding="utf-8")


def _with_devices(question: dict[str, Any], degrees: dict[str, Any]) -> dict[str, Any]:
    """Returns a question about as many devices as a plan with given degrees takes."""
    if question["devices"] is None and degrees.get("dp") is not None:
        devices = 1
        for name in ("dp", "tp", "cp", "pp"):
            devices *= degrees.get(name, 1)
        return {**question, "devices": devices}
    return question


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


def _print_example(kind: str) -> int:
    text = (catalog.ROOT / "examples" / f"{kind}.toml").read_text(encoding="utf-8")
    writing.text(text.rstrip(), None, False)
    return DONE


def _print_entry(spec: dict[str, Any], entry: dict[str, Any], kind: str) -> int:
    """Writes an entry of a catalog, a key a line."""
    provenance = {key: value for key, value in entry.items() if key != kind}
    for key, value in (spec | provenance).items():
        writing.text(f"{key}: {value}", None, False)
    return DONE
