"""The commands on operators: cuts of a graph, and Huawei ATC's form of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from autopar import catalog, files, flags, planner, wire, writing
from autopar.cli.ends import DONE, NO_PLAN, fail, print_notes
from autopar.errors import SpecError, shown
from autopar.graph import Graph, recomputed
from autopar.sharding import FixedInput, Fusion, Grouping

if TYPE_CHECKING:
    from autopar.compat.functional import Function


@click.command()
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

    writing.check_output(save, force, "--save")
    writing.check_output(save_mindspore, force, "--save-mindspore")
    writing.check_output(output, force)
    graph = _graph(subject, asked, inference=asked.pop("inference"))
    graph = recomputed(graph, asked.pop("recompute"))
    function = _function(graph, asked)
    if function is None:
        with _placed_in(asked["strategies"]):
            found = planner.shard(
                graph,
                asked.pop("chip"),
                time_limit_s=time_limit,
                **_sharding_options(graph, asked),
            )
    else:
        found = function.network
        print_notes([render.function_text(function)])
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
    return fail(render.shortage(found), NO_PLAN)


@click.command()
@click.argument("subject", metavar="MODEL|FILE")
@flags.servers
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--image", help="Write an MSJob of MindSpore's ms-operator with this image instead.")
@flags.output
@flags.verbose
def servers(
    subject: str,
    form: Literal["table", "json"],
    image: str | None,
    output: Path | None,
    force: bool,
    **asked: Any,
) -> int:
    """Estimate parameter servers beside all-reduce for MODEL, or for the graph in FILE.

    The sizes are those of one worker's mini-batch. A parameter that only look-ups read is a table,
    of which the rows that are named travel. Printed are the step of workers that wait for one
    another, the throughput of workers that do not, memory, and what a lost process costs.
    """
    from autopar.render import placement as render

    writing.check_output(output, force)
    graph = _graph(subject, asked, inference=False)
    found = planner.servers(graph, asked.pop("chip"), **asked)
    if image is not None:
        from autopar.export import kubernetes

        writing.text(kubernetes.servers_job(found, image).text.rstrip(), output, force)
    elif form == "json":
        writing.document(wire.dumps(found), output, force)
    else:
        writing.text(render.text(found), output, force)
    return DONE if found.fastest is not None else fail(render.shortage(found), NO_PLAN)


@click.command()
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
    print_notes((*asked.notes, *notes))
    if not found.fits:
        return fail(render.shortage(found), NO_PLAN)
    files.write_all(partition.results(asked, found))
    writing.text(render.text(found), None, False)
    return DONE


def _graph(subject: str, asked: dict[str, Any], *, inference: bool) -> Graph:
    """Returns the graph of a document, or of a model in the sizes asked for, here taken out."""
    from autopar.frontends import graph_file

    names = ("batch", "sequence_length", "layers", "precision")
    sizes = {name: asked.pop(name) for name in names}
    shapes = asked.pop("input_shape")
    if graph_file.is_graph(subject):
        reading = graph_file.read(subject, shapes, inference=inference)
        print_notes(reading.notes)
        return reading.graph
    if shapes:
        raise SpecError("--input-shape", "given for a model", "Give --batch and --sequence-length.")
    model = catalog.model(subject).model
    if sizes["sequence_length"] is None:
        sizes["sequence_length"] = model.max_positions
    return planner.model_graph(model, training=not inference, **sizes)


def _function(graph: Graph, asked: dict[str, Any]) -> "Function | None":
    """Returns the function that flags, here taken out, cut alone; null where they name none."""
    names, enters, leaves = (asked.pop(f) for f in ("function", "in_strategy", "out_strategy"))
    if not names:
        if enters is not None or leaves is not None:
            what = "given without a function"
            raise SpecError("--in-strategy", what, "Name its operators by --function.")
        return None
    if enters is None:
        raise SpecError("--in-strategy", "missing", "Give the cuts of each input, as 2x1x4;-.")
    context = click.get_current_context()
    command_line = click.core.ParameterSource.COMMANDLINE
    others = ("method", "mesh", "strategies", "others", "zero", "use_all_devices", "refine")
    for flag in (*others, "all_to_all", "memory_gib"):
        if context.get_parameter_source(flag) is command_line:
            name = flag.replace("_", "-")
            raise SpecError(f"--{name}", "given beside --function", "Leave it out.")
    from autopar.compat import functional

    return functional.shard(
        graph, names, enters, leaves, cluster=asked["chip"], devices=asked["devices"]
    )


@contextmanager
def _placed_in(file: str | None) -> Iterator[None]:
    """Says of an error of the strategies that were set that it stands in their file."""
    try:
        yield
    except SpecError as error:
        field = error.path.removeprefix("options.")
        if file is None or not field.startswith("strategies["):
            raise
        place = f"{files.printable(file)}: {field}"
        raise SpecError(place, error.what, error.hint, error.about) from None


def _sharding_options(graph: Graph, asked: dict[str, Any]) -> Any:
    """Returns the fields of `ShardingOptions` that flags give."""
    from autopar.frontends import graph_file

    name = asked.pop("strategies")
    fixed = graph_file.read_strategies(name, graph) if name is not None else ()
    others = asked.pop("others").replace("-", "_")
    cuts = asked.pop("dataset") or {}
    dataset = tuple(FixedInput(tensor=tensor, cuts=each) for tensor, each in cuts.items())
    fusion = _fusion(asked.pop("fusion"))
    asked["recompute"] = asked.pop("choose_recompute")
    # MindSpore's MS_COMM_COMPILER_OPT writes no limit as -1.
    asked["reuse_limit"] = 0 if asked["reuse_limit"] == -1 else asked["reuse_limit"]
    given = {key: value for key, value in asked.items() if value is not None}
    return given | {
        "strategies": fixed,
        "others": others,
        "dataset": dataset,
        "fusion": fusion,
    }


def _fusion(text: str | None) -> Fusion | None:
    """Returns the grouping that `--fusion` names: the same for every kind of exchange."""
    if text is None:
        return None
    if text in ("auto", "best"):
        grouping = Grouping(mode="auto" if text == "auto" else "best")
    elif text.isdecimal() and int(text) > 0:
        grouping = Grouping(mode="size", mb=int(text))
    else:
        what = f"must be auto, best or megabytes, found {shown(text)}"
        raise SpecError("--fusion", what, "Write --fusion best.")
    return Fusion(all_reduce=grouping, all_gather=grouping, reduce_scatter=grouping)
