"""The flags that several commands share: each with its name, its text and its parser."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from autopar.errors import SpecError, shown
from autopar.frontends.atc import LOGS
from autopar.frontends.draft import input_shapes
from autopar.placement import ServersOptions
from autopar.report import Recompute
from autopar.sharding import CostModel, Method, Others, ShardingOptions
from autopar.spec import Attention, Granularity, Options, Precision, Schedule

# Known here so that the help of a command needs no exporter.
LAUNCHERS = (
    "megatron",
    "mindformers",
    "mindspore",
    "deepspeed",
    "torchtitan",
    "accelerate",
    "flagscale",
    "kubernetes",
)

READ_LAUNCHERS = ("megatron", "mindformers", "deepspeed", "torchtitan")

F = TypeVar("F", bound=Callable[..., Any])


def degrees(text: str) -> tuple[int, ...]:
    """Returns whole numbers separated by commas.

    Example:
        >>> degrees("1,2,4")
        (1, 2, 4)
    """
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is no list of whole numbers as 1,2,4.") from None


def degree_of_kinds(text: str) -> int | tuple[int, ...]:
    """Returns one whole number for all kinds of chip, or one for each.

    Example:
        >>> degree_of_kinds("8"), degree_of_kinds("4,8")
        (8, (4, 8))
    """
    listed = degrees(text)
    if min(listed) < 1:
        raise click.BadParameter(f"{min(listed)} is not a degree: give 1 or more.")
    return listed[0] if len(listed) == 1 else listed


def words(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """Returns a parser of words of a set, separated by commas.

    Example:
        >>> words("on", "off")("on,off")
        ('on', 'off')
    """

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(","))
        for item in items:
            if item not in allowed:
                raise click.BadParameter(f"{shown(item)} is none of {', '.join(allowed)}.")
        return items

    return parse


def _added(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """Adds options to a command, whose help lists them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def problem(command: F) -> F:
    """Adds the flags that describe what is trained, on what."""
    return _problem(command, required=True)


def optional_problem(command: F) -> F:
    """Adds the same flags to a command whose file may say all of it."""
    return _problem(command, required=False)


def _problem(command: F, *, required: bool) -> F:
    return _added(
        command,
        (
            click.option(
                "--model",
                required=required,
                help="Model: a name, a TOML file, or a Hugging Face config.json or its folder.",
            ),
            click.option(
                "--cluster",
                required=required,
                help="Chips with how many at most, as a800:128,h800:160, or a cluster's TOML file.",
            ),
            click.option(
                "--devices",
                type=int,
                help="Devices to use; all listed by default, and of one plan those of its degrees.",
            ),
            click.option(
                "--global-batch-size", type=int, required=required, help="Sequences in one step."
            ),
            click.option(
                "--sequence-length", type=int, required=required, help="Tokens a sequence."
            ),
            click.option("--precision", type=click.Choice(get_args(Precision)), default="bf16"),
            click.option("--attention", type=click.Choice(get_args(Attention)), default="flash"),
            click.option("--dropout/--no-dropout", default=False, help="Dropout as in GPT-3."),
            click.option(
                "--expert-load-variation",
                type=float,
                default=0.0,
                help="Standard deviation of the experts' loads over their mean; 0 if forced even.",
            ),
            click.option(
                "--framework",
                default="megatron-core",
                help="Framework: a name or a TOML file; a launcher's own where one is named.",
            ),
            click.option(
                "--memory-margin",
                type=float,
                default=Options().memory_margin,
                show_default=True,
                help="Share of memory that stays free.",
            ),
        ),
    )


def aims(command: F) -> F:
    """Adds the flags that say how many devices to use, and what is best."""
    options = [
        click.option(
            "--at-most",
            type=click.IntRange(min=1),
            metavar="N",
            help="Use up to N devices: the count with the best plan; others stay idle.",
        ),
        click.option(
            "--objective",
            type=click.Choice(["throughput", "cost"]),
            default="throughput",
            show_default=True,
            help="What is best; cost needs one price for every device-hour.",
        ),
        click.option(
            "--frontier",
            is_flag=True,
            help="List the device counts that no other beats in both time and money.",
        ),
    ]
    return _added(command, options)


def limits(command: F) -> F:
    """Adds the flags that limit what the search may choose; each is a field of `Options`."""
    counts = {
        "tp": "tensor-parallel degrees",
        "pp": "pipeline depths",
        "vpp": "model chunks a stage",
        "cp": "context-parallel degrees",
        "ep": "expert-parallel degrees",
        "dp": "data-parallel degrees",
        "mbs": "micro-batch sizes",
        "zero": "ZeRO stages, 0 to 3",
        "shard-group": "sizes of the shard group",
    }
    switches = {
        "partial-shard-groups": "ZeRO may shard over a part of the data-parallel group.",
        "activation-offload": "Activations may wait in host memory.",
        "optimizer-offload": "Optimizer state may live in host memory.",
        "uneven-layers": "Stages of one kind may hold different numbers of layers.",
        "recompute-per-stage": "Stages of one kind may recompute differently.",
        "mixed-tp": "Kinds of chip may have tensor-parallel degrees of their own, with sp.",
        "expert-tensor-parallel": "Experts are cut over the tensor-parallel group.",
    }
    options = [
        click.option(f"--{name}", type=degrees, metavar="N,N...", help=f"Allowed {text}.")
        for name, text in counts.items()
    ]
    options += [
        click.option(
            "--sp",
            type=words("on", "off"),
            metavar="on|off",
            help="Allowed settings of sequence parallel.",
        ),
        click.option(
            "--schedule",
            "schedules",
            type=words(*get_args(Schedule)),
            metavar="NAME,...",
            help=f"Allowed schedules: {', '.join(get_args(Schedule))}.",
        ),
        click.option(
            "--recompute",
            type=words(*get_args(Granularity)),
            metavar="NAME,...",
            help=f"Allowed recompute: {', '.join(get_args(Granularity))}.",
        ),
    ]
    options += [
        click.option(f"--{name}/--no-{name}", default=None, help=text)
        for name, text in switches.items()
    ]
    return _added(command, options)


def plan(command: F) -> F:
    """Adds the flags that spell a plan."""
    counts = {
        "dp": "Data-parallel replicas; what the other degrees leave by default.",
        "cp": "Context-parallel degree.",
        "ep": "Expert-parallel degree.",
        "etp": "Tensor-parallel degree inside an expert.",
        "pp": "Pipeline stages.",
        "vpp": "Model chunks a stage.",
        "mbs": "Sequences in a micro-batch.",
        "zero": "ZeRO stage, 0 to 3.",
        "shard-group": "Ranks over which ZeRO shards; dp x cp by default.",
        "offload": "Layers of each stage whose activations wait on the host.",
    }
    options = [
        click.option(f"--{name}", type=click.IntRange(min=0 if name in ("zero", "offload") else 1),
                     help=text)
        for name, text in counts.items()
    ]  # fmt: skip
    options += [
        click.option(
            "--tp",
            type=degree_of_kinds,
            metavar="N[,N...]",
            help="Tensor-parallel degree, or that of each kind of chip in the cluster's order.",
        ),
        click.option("--sp/--no-sp", default=None, help="Sequence parallel; on with tp > 1."),
        click.option("--schedule", type=click.Choice(get_args(Schedule)), help="Order of passes."),
        click.option(
            "--optimizer-offload/--no-optimizer-offload",
            default=None,
            help="Optimizer state and step on the host.",
        ),
        click.option(
            "--layers", type=degrees, metavar="N,N...", help="Layers of each stage, as 3,11,11."
        ),
        click.option("--chips", help="Chip of each stage, as a800,h800,h800."),
        click.option(
            "--recompute",
            help="A setting for each kind of chip: none, selective, block/N or uniform/N.",
        ),
    ]
    return _added(command, options)


def mesh(text: str) -> tuple[int, ...]:
    """Returns the sizes of a mesh.

    Example:
        >>> mesh("4x16")
        (4, 16)
    """
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is no mesh as 8 or 4x16.") from None


def graph(command: F) -> F:
    """Adds the flags that say in what sizes a model or file becomes a graph."""
    return _added(
        command,
        (
            click.option("--batch", type=int, default=8, show_default=True, help="Sequences."),
            click.option("--sequence-length", type=int, help="Tokens; the model's longest."),
            click.option("--layers", type=int, help="The model's first so many; all by default."),
            click.option("--precision", type=click.Choice(get_args(Precision)), default="bf16"),
            click.option(
                "--input-shape",
                "--input_shape",
                type=shapes,
                metavar="NAME:N,N;...",
                help="Shapes of a file's inputs, as ids:8,512;mask:8,1,512,512.",
            ),
        ),
    )


def servers(command: F) -> F:
    """Adds the flags of workers and servers; most are fields of `ServersOptions`."""
    default = ServersOptions()
    defaulted = {
        "servers": "Servers, each on a node of its own.",
        "optimizer-bytes": "Optimizer state a parameter, its copy in 32 bits included.",
        "gradient-bytes": "A gradient as it travels and is summed.",
        "restart-s": "Until a lost process runs again.",
        "checkpoint-s": "Between two checkpoints.",
        "storage-gb-per-s": "What one process reads of a checkpoint.",
    }
    options = [
        click.option("--chip", required=True, help="Chip: a name or a path to a TOML file."),
        click.option("--workers", type=int, required=True, help="Workers, one a device."),
        click.option("--server-memory-gib", type=float, help="Memory of a server."),
        click.option("--memory-gib", type=float, help="Memory of a worker; the chip's."),
        click.option(
            "--dynamic-workers",
            is_flag=True,
            help="The job goes on while a lost worker is replaced.",
        ),
    ]
    # The type is that of the default.
    options += [
        click.option(
            f"--{name}",
            default=getattr(default, name.replace("-", "_")),
            show_default=True,
            help=text,
        )
        for name, text in defaulted.items()
    ]
    command = _added(command, options)
    return graph(command)


def border_cuts(text: str) -> tuple[tuple[int, ...] | None, ...]:
    """Returns the cuts of a function's inputs or outputs; null for one of which the batch is cut.

    Example:
        >>> border_cuts("2x1x4;-")
        ((2, 1, 4), None)
    """
    return tuple(None if cut == "-" else mesh(cut) for cut in text.split(";"))


def sharding(command: F) -> F:
    """Adds the flags that say how a graph is cut; most are fields of `ShardingOptions`."""
    default = ShardingOptions()
    command = graph(command)
    return _added(
        command,
        (
            click.option("--chip", required=True, help="Chip: a name or a path to a TOML file."),
            click.option("--devices", type=int, required=True, help="Devices to cut over."),
            click.option("--mesh", type=mesh, metavar="NxN", help="Axes of the devices, as 4x16."),
            click.option(
                "--method",
                type=click.Choice(get_args(Method)),
                default=default.method,
                show_default=True,
                help="ilp is integer programming, dp dynamic programming.",
            ),
            click.option(
                "--cost-model",
                type=click.Choice(get_args(CostModel)),
                default=default.cost_model,
                show_default=True,
                help="mindspore: the relative costs of its recursive search, with recursive.",
            ),
            click.option("--inference", is_flag=True, help="Forward only, without the loss."),
            click.option(
                "--function",
                multiple=True,
                metavar="NAME",
                help="Operators of a function that alone is cut; * stands for any letters.",
            ),
            click.option(
                "--in-strategy",
                type=border_cuts,
                metavar="NxN;...",
                help="Cuts of each input of the function, as 2x1x4;-, where - cuts the batch.",
            ),
            click.option(
                "--out-strategy",
                type=border_cuts,
                metavar="NxN;...",
                help="The same of its outputs; they leave as they come by default.",
            ),
            click.option(
                "--recompute",
                multiple=True,
                metavar="NAME",
                help="Operators that run again before the backward pass; * stands for any letters.",
            ),
            click.option(
                "--strategies",
                metavar="FILE",
                help="Strategies that are set, in the form of --save or of MindSpore.",
            ),
            click.option(
                "--others",
                type=click.Choice([name.replace("_", "-") for name in get_args(Others)]),
                default="search",
                show_default=True,
                help="What happens to operators that are not set.",
            ),
            click.option("--zero", type=int, default=0, show_default=True, help="ZeRO stage."),
            click.option("--memory-gib", type=float, help="Memory of a device; the chip's."),
            click.option(
                "--dataset",
                type=shapes,
                metavar="NAME:N,N;...",
                help="How inputs are cut, as x:8,1,1,1; by default as their readers want them.",
            ),
            click.option(
                "--choose-recompute",
                is_flag=True,
                help="Choose with its cuts whether an operator runs again before its gradient.",
            ),
            click.option(
                "--prefetch-mb", type=int, help="Buffer for weights gathered ahead; 0 is no limit."
            ),
            click.option(
                "--reuse-limit",
                type=int,
                help="Identical communication operators that may share subgraphs; -1 is no limit.",
            ),
            click.option(
                "--fusion",
                metavar="auto|best|MB",
                help="Exchange gradients in buckets behind the backward pass: of 64 MB, of the "
                "best size, or of a given one.",
            ),
            click.option("--use-all-devices", is_flag=True, help="No operator is repeated."),
            click.option(
                "--refine/--no-refine",
                default=default.refine,
                help="An axis of the mesh may cut several axes of an operator.",
            ),
            click.option(
                "--all-to-all/--no-all-to-all",
                default=default.all_to_all,
                help="Reshards may use all-to-all.",
            ),
        ),
    )


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of inputs.

    Example:
        >>> shapes("ids:8,512")
        {'ids': (8, 512)}
    """
    try:
        return input_shapes(text)
    except SpecError as error:  # click names the flag.
        raise click.BadParameter(f"{error.what}. {error.hint}") from None


def atc(command: F) -> F:
    """Adds the flags of Huawei's ATC, under its names."""
    return _added(
        command,
        (
            click.option("--model", required=True, metavar="PATH", help="Graph to partition."),
            click.option(
                "--framework", type=int, required=True, help="3 TensorFlow (.pb), 5 ONNX (.onnx)."
            ),
            click.option(
                "--output", required=True, metavar="PATH", help="What results are named after."
            ),
            click.option("--soc_version", required=True, help="Chip, as Ascend910B3."),
            click.option(
                "--distributed_cluster_build",
                type=int,
                default=0,
                show_default=True,
                help="1 builds for a cluster.",
            ),
            click.option(
                "--enable_graph_parallel",
                type=int,
                default=0,
                show_default=True,
                help="1 partitions the graph.",
            ),
            click.option(
                "--cluster_config", metavar="PATH", help="JSON file of the cluster's topology."
            ),
            click.option(
                "--graph_parallel_option_path",
                metavar="PATH",
                help="JSON file of partitioning options.",
            ),
            click.option(
                "--input_shape", type=shapes, metavar="NAME:N,N;...", help="Shapes of inputs."
            ),
            click.option(
                "--log",
                type=click.Choice(LOGS),
                default="null",
                show_default=True,
                help="Log level.",
            ),
        ),
    )


def output(command: F) -> F:
    """Adds `-o` and `--force`."""
    file = click.Path(path_type=Path)
    command = click.option("--force", is_flag=True, help="Overwrite the file of -o.")(command)
    return click.option("-o", "--output", type=file, help="Write to a file.")(command)


def folder(command: F) -> F:
    """Adds `-o` and `--force` to a command that writes several files."""
    path = click.Path(path_type=Path, file_okay=False)
    command = click.option("--force", is_flag=True, help="Overwrite files in the folder.")(command)
    return click.option("-o", "--output", type=path, help="Write into a folder.")(command)


def verbose(command: F) -> F:
    """Adds `-v`, which logs to standard error."""

    def configure(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d ms %(message)s")

    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=configure,
        help="Log what is done to standard error.",
    )(command)


def check_question() -> None:
    """Refuses a command line that does not say what is trained, on what.

    Raises:
        click.MissingParameter: A flag of the question is missing.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name
        needed = ("model", "cluster", "global_batch_size", "sequence_length")
        if name in needed and context.params[name] is None:
            raise click.MissingParameter(ctx=context, param=parameter)


def recompute(text: str) -> Recompute:
    """Returns a setting as `none`, `selective`, `block/3` or `full/block/3` spell it."""
    match text.strip().removeprefix("full/").split("/"):
        case ["none" | "selective" as granularity]:
            return Recompute(granularity)
        case ["block" | "uniform" as granularity, layers] if layers.isdecimal() and int(layers):
            return Recompute(granularity, int(layers))
        case _:
            hint = "Write none, selective, block/N or uniform/N."
            raise SpecError("--recompute", f"no setting {shown(text)}", hint)
