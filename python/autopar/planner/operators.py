"""The operator level: the graph of a model or file, and how its tensors are best cut."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from autopar import _core, catalog, files, wire
from autopar.cluster import Cluster
from autopar.errors import check_time_limit
from autopar.framework import Framework
from autopar.graph import Graph
from autopar.placement import Servers, ServersOptions, ServersProblem
from autopar.planner.question import Name, __version__, cluster_of
from autopar.sharding import (
    CostModel,
    FixedInput,
    FixedStrategy,
    Fusion,
    Method,
    Others,
    Sharding,
    ShardingOptions,
    ShardingProblem,
)
from autopar.spec import Model, Precision

if TYPE_CHECKING:
    from autopar.frontends.draft import Reading


def model_graph(
    model: Name | Model,
    *,
    batch: int,
    sequence_length: int,
    precision: Precision = "bf16",
    layers: int | None = None,
    training: bool = True,
    framework: Name | Framework = "megatron-core",
) -> Graph:
    """Returns the operators of a model.

    Args:
        model: Name or alias in the catalog, path to a TOML file, or a `Model`.
        batch: Sequences that all devices work on together.
        sequence_length: Tokens in one sequence.
        precision: Number format of weights and activations.
        layers: The first so many layers; all unless given.
        training: With the loss, and gradients priced beside the operators.
        framework: To whose multiple the vocabulary is padded.

    Raises:
        SpecError: There is no such model, or it has no graph (attention sinks, for one).

    Example:
        >>> graph = model_graph("llama2-7b", batch=1, sequence_length=4096, layers=1)
        >>> len(graph.operators), graph.operators[-1].name
        (29, 'loss')
    """
    spec = model if isinstance(model, Model) else catalog.model(files.named(model, "model")).model
    if not isinstance(framework, Framework):
        framework = catalog.framework(files.named(framework, "framework")).framework
    asked = {
        "model": wire.write(spec),
        "batch": batch,
        "sequence_length": sequence_length,
        "precision": precision,
        "layers": layers,
        "training": training,
        "vocab_multiple": framework.vocab_multiple,
    }
    return wire.loads(Graph, _core.model_graph(json.dumps(asked)))


class Sharded(TypedDict, total=False):
    """What `shard` may choose, as keywords; `ShardingOptions` explains them."""

    method: Method
    cost_model: CostModel
    mesh: Sequence[int]
    strategies: Sequence[FixedStrategy]
    others: Others
    dataset: Sequence[FixedInput]
    prefetch_mb: int | None
    fusion: Fusion | None
    reuse_limit: int | None
    recompute: bool
    use_all_devices: bool
    refine: bool
    all_to_all: bool
    zero: int
    optimizer_bytes: int
    gradient_bytes: int
    memory_gib: float | None


def shard(
    graph: Graph,
    cluster: Name | Cluster,
    *,
    devices: int | None = None,
    time_limit_s: float | None = None,
    **options: Unpack[Sharded],
) -> Sharding:
    """Returns how the operators of a graph are best cut over devices.

    Args:
        graph: The operators.
        cluster: One kind of chip with its limit (`a800:8`), a cluster's name or path, or a
            `Cluster`.
        devices: Devices to use; all listed unless given.
        time_limit_s: Seconds after which integer programming returns the best so far.
        **options: The fields of `ShardingOptions`, as `method="dp", zero=1`.

    Raises:
        SpecError: An input is wrong; the error says where, what and how to cure it.
        SolverError: The solver found no choice in time.

    Example:
        >>> from autopar.graph import MatMul, Operator, Tensor
        >>> x = Tensor("x", (64, 256), role="input")
        >>> w = Tensor("w", (256, 512), role="parameter")
        >>> mm = Operator(name="mm", form=MatMul(), inputs=("x", "w"), outputs=("y",))
        >>> net = Graph(name="net", tensors=(x, w, Tensor("y", (64, 512))), operators=(mm,))
        >>> shard(net, "a800", devices=8, use_all_devices=True).proof.exact
        True
    """
    cluster, version = placed(cluster, devices)
    asked = replace(ShardingOptions(), **{k: _frozen(v) for k, v in options.items()})
    problem = ShardingProblem(
        version=__version__,
        catalog=version,
        graph=graph,
        cluster=cluster,
        options=wire.read(ShardingOptions, wire.write(asked), "options"),
    )
    return solve_sharding(problem, time_limit_s=time_limit_s)


class Recovered(TypedDict, total=False):
    """What a job with servers has and how it recovers, as in `ServersOptions`."""

    server_memory_gib: float | None
    memory_gib: float | None
    optimizer_bytes: int
    gradient_bytes: int
    dynamic_workers: bool
    restart_s: float
    checkpoint_s: float
    storage_gb_per_s: float


def servers(
    graph: Graph,
    cluster: Name | Cluster,
    *,
    workers: int | None = None,
    servers: int = 1,
    **options: Unpack[Recovered],
) -> Servers:
    """Returns what parameter servers cost beside all-reduce: time, memory, and a lost process.

    Args:
        graph: The operators of one worker's mini-batch, in training.
        cluster: The workers' chip with its limit (`a800:8`), a cluster's name or path, or a
            `Cluster`.
        workers: Workers, one a device; all that are listed unless given.
        servers: Servers, each on a node of its own.
        **options: The further fields of `ServersOptions`, as `dynamic_workers=True`.

    Raises:
        SpecError: An input is wrong; the error says where, what and how to cure it.

    Example:
        >>> from autopar.graph import Gather, Operator, Tensor
        >>> ids = Tensor("ids", (4096, 26), "int32", role="input")
        >>> table = Tensor("table", (10_000_000, 64), "float32", role="parameter")
        >>> look = Operator(name="look", form=Gather(), inputs=("table", "ids"), outputs=("y",))
        >>> y = Tensor("y", (4096, 26, 64), "float32")
        >>> net = Graph(
        ...     name="net", gradients="implied", tensors=(ids, table, y), operators=(look,)
        ... )
        >>> found = servers(net, "a800", workers=8, servers=2)
        >>> found.tables, [place.parameters for place in found.placements]
        (('table',), ['all_reduce', 'servers', 'mixed'])
    """
    cluster, version = placed(cluster, workers)
    asked = ServersOptions(servers=servers, **options)
    problem = ServersProblem(
        version=__version__,
        catalog=version,
        graph=graph,
        cluster=cluster,
        options=wire.read(ServersOptions, wire.write(asked), "options"),
    )
    return wire.loads(Servers, _core.servers(wire.dumps(problem)))


def placed(cluster: Name | Cluster, devices: int | None) -> tuple[Cluster, str]:
    """Returns so many devices of a cluster, and the version of the catalog that it came from.

    Raises:
        SpecError: There is no such cluster, or no such number of devices.
    """
    digests: tuple[str, ...] = ()
    if not isinstance(cluster, Cluster):
        entry = catalog.cluster(files.named(cluster, "cluster"))
        cluster, digests = cluster_of(entry, devices), entry.digests
    elif devices is not None:
        cluster = replace(cluster, devices=devices)
    # Arguments come from callers without a type checker too.
    cluster = wire.read(Cluster, wire.write(cluster), "cluster")
    return cluster, catalog.version(list(digests))


def solve_sharding(problem: ShardingProblem, *, time_limit_s: float | None = None) -> Sharding:
    """Returns the answer to a sharding problem; `shard` gathers one from names.

    Raises:
        SpecError: The problem is wrong.
        SolverError: The solver found no choice in time.
    """
    check_time_limit(time_limit_s)
    return wire.loads(Sharding, _answer(problem, time_limit_s))


def best_sharding(problems: Iterable[ShardingProblem]) -> Sharding:
    """Returns the fastest of the answers that fit in memory; if none does, one of least memory.

    Raises:
        SpecError: A problem is wrong.
        SolverError: The solver found no choice.
    """

    def rank(answer: str) -> tuple[bool, int]:
        found = json.loads(answer)
        fits, cost = found["fits"], found["cost"]
        return not fits, cost["total_ps" if fits else "memory_bytes"]

    return wire.loads(Sharding, min((_answer(each, None) for each in problems), key=rank))


def _answer(problem: ShardingProblem, time_limit_s: float | None) -> str:
    text = wire.dumps(problem)
    if problem.options.method != "ilp" or (asked := _core.sharding_program(text)) is None:
        return _core.shard(text)
    from autopar import ilp

    program = ilp.program(asked.arrays())
    choice = ilp.solve(program, time_limit_s=time_limit_s)
    answer = asked.chosen(choice.columns, choice.bound)
    if not json.loads(answer)["fits"]:
        # The limit was missed by the solver's tolerance; the bound of the first run still holds.
        again = ilp.solve(program, time_limit_s=time_limit_s, tighten=10 * ilp.FEASIBILITY)
        answer = asked.chosen(again.columns, choice.bound)
    return answer


def slices(found: Sharding) -> list[dict[str, list[list[int]]]]:
    """Returns the part of each parameter, input and constant that each device holds.

    Returns:
        For each rank the tensors by name: for each dimension the first element and the one after
        the last.
    """
    names = [tensor.name for tensor in found.tensors]
    ranks = json.loads(_core.sharding_slices(wire.dumps(found)))
    return [dict(zip(names, tensors, strict=True)) for tensors in ranks]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_graph(
    path: Name,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    inference: bool = False,
) -> "Reading":
    """Returns the graph of a file, and notes on what in it is not known.

    Args:
        path: An ONNX file (`.onnx`), a frozen TensorFlow graph (`.pb`), or a graph document
            (`.json`).
        input_shapes: Shapes of inputs with open dimensions.
        inference: No gradients are computed.

    Raises:
        SpecError: The file cannot be read as a graph, or a dimension is unknown.
    """
    from autopar.frontends import graph_file

    return graph_file.read(files.named(path, "path"), input_shapes, inference=inference)


def check_graph(graph: Graph) -> list[str]:
    """Returns the names of a graph's operators in an order in which they can run.

    Raises:
        SpecError: A tensor is missing, shapes do not match, or operators wait for each other.

    Example:
        >>> from autopar.graph import Elementwise, Operator, Tensor
        >>> relu = Operator(name="relu", form=Elementwise(), inputs=("x",), outputs=("y",))
        >>> tensors = (Tensor("x", (4, 8), role="input"), Tensor("y", (4, 8)))
        >>> check_graph(Graph(name="net", tensors=tensors, operators=(relu,)))
        ['relu']
    """
    names: list[str] = json.loads(_core.check_graph(wire.dumps(graph)))
    return names
