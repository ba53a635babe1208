"""Functional operator splitting: a function of a network cut by layouts of what goes in and out.

MindSpore's `shard(fn, in_strategy, out_strategy, parameter_plan)` runs one function of a network in
dynamic graph mode as a graph that is cut over the devices; around it every device works on its part
of the batch. Here the function is a region of a graph: some of its operators. Inside, cuts spread
from the inputs; the region and its borders are then priced in the whole network.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from autopar import planner
from autopar.cluster import Cluster
from autopar.errors import SpecError, shown
from autopar.graph import Graph, Operator, Reshape, Tensor, operators_named
from autopar.planner import Name
from autopar.sharding import Cuts, FixedStrategy, Sharding

Cut = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A region of a network, cut.

    Attributes:
        operators: Its operators, as they are named in the graph.
        inputs: What goes in, in the order of `in_strategy`.
        outputs: What comes out, in the order of `out_strategy`.
        network: The whole network: the region's operators with their strategies, all others cut
            along their leading axis, and `enter` and `leave` operators without cost at the borders,
            where the layouts are those asked for.
    """

    operators: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    network: Sharding


def shard(
    graph: Graph,
    function: Sequence[str],
    in_strategy: Sequence[Cut | None],
    out_strategy: Sequence[Cut | None] | None = None,
    parameter_plan: Mapping[str, Cut] | None = None,
    *,
    cluster: Name | Cluster,
    devices: int | None = None,
) -> Function:
    """Returns a function of a network cut over devices, priced in the whole network.

    Args:
        graph: The network.
        function: Names of the function's operators; a star stands for any letters.
        in_strategy: Cuts of each dimension of each input; None cuts the batch.
        out_strategy: The same of each output; without it outputs leave as they come.
        parameter_plan: Cuts of each dimension of parameters, by name; others follow their readers.
        cluster: As in `autopar.shard`.
        devices: As in `autopar.shard`.

    Raises:
        SpecError: An operator or parameter is unknown, strategies are too few or too many, or cuts
            do not divide what they cut.

    Example:
        >>> graph = planner.model_graph("gpt3-6.7b", batch=8, sequence_length=512, layers=1)
        >>> found = shard(graph, ["layers.0.mlp.*"], [(2, 1, 1)], cluster="a800", devices=8)
        >>> found.inputs[0], len(found.operators)
        ('layers.0.attention.residual.out', 7)
    """
    names = operators_named(graph, function, "function")
    region = [each for each in graph.operators if each.name in names]
    inputs, outputs = _borders(graph, region)
    _count("in_strategy", in_strategy, inputs)
    if out_strategy is not None:
        _count("out_strategy", out_strategy, outputs)
    cluster, _ = planner.placed(cluster, devices)
    count = cluster.devices
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    for name in parameter_plan or {}:
        if not any(each.name == name and each.role == "parameter" for each in graph.tensors):
            raise SpecError("parameter_plan", f"the graph has no parameter {shown(name)}")
    entered = {
        name: cut if cut is not None else _batch(shapes[name], count)
        for name, cut in zip(inputs, in_strategy, strict=True)
    } | dict(parameter_plan or {})
    left = {
        name: cut if cut is not None else _batch(shapes[name], count)
        for name, cut in zip(outputs, out_strategy or (), strict=False)
    }
    network, borders = _bordered(graph, names, entered, left)
    alone = _region(network, {*names, *(cut.operator for cut in borders)})
    spread = planner.shard(alone, cluster, method="propagate", strategies=borders)
    fixed = [each for each in spread.chosen().strategies if each.operator in names]
    priced = planner.shard(
        network,
        cluster,
        method="dp",
        strategies=[*borders, *fixed],
        others="data_parallel",
    )
    return Function(tuple(each.name for each in region), inputs, outputs, priced)


def _borders(graph: Graph, region: Sequence[Operator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the tensors that go into a region and those that come out of it."""
    inside = {each.name for each in region}
    written = {name for each in region for name in each.outputs}
    given = {each.name for each in graph.tensors if each.role in ("parameter", "constant")}
    read = [name for each in region for name in each.inputs]
    outside = {name for each in graph.operators if each.name not in inside for name in each.inputs}
    within = set(read)
    return (
        tuple(dict.fromkeys(name for name in read if name not in written | given)),
        tuple(
            name
            for each in region
            for name in each.outputs
            if name in outside or name not in within
        ),
    )


def _count(key: str, strategy: Sequence[Cut | None], tensors: tuple[str, ...]) -> None:
    if len(strategy) != len(tensors):
        what = f"has {len(strategy)} entries for {len(tensors)} tensors: {', '.join(tensors)}"
        raise SpecError(key, what, "Give one entry each, None for the batch.")


def _batch(shape: tuple[int, ...], devices: int) -> Cut:
    """Returns cuts of the leading dimension into as many parts as there are devices."""
    return (devices, *(1 for _ in shape[1:])) if shape else ()


def _bordered(
    graph: Graph, names: Set[str], entered: Mapping[str, Cut], left: Mapping[str, Cut]
) -> tuple[Graph, list[FixedStrategy]]:
    """Returns the network with an operator at each border, which changes nothing but the layout."""
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    added: list[Tensor] = []
    operators: list[Operator] = []
    borders: list[FixedStrategy] = []

    def border(kind: str, name: str, cut: Cut) -> None:
        inner = f"{kind} {name}"
        added.append(replace(tensors[name], name=inner, role="activation"))
        operators.append(
            Operator(name=inner, source="Reshape", form=Reshape(), inputs=(name,), outputs=(inner,))
        )
        cuts: Cuts = (cut,)
        borders.append(FixedStrategy(operator=inner, inputs=cuts))

    for name, cut in entered.items():
        border("enter", name, cut)
    for name, cut in left.items():
        border("leave", name, cut)
    for each in graph.operators:
        kind, renamed = ("enter", entered) if each.name in names else ("leave", left)
        read = tuple(f"{kind} {name}" if name in renamed else name for name in each.inputs)
        operators.append(replace(each, inputs=read))
    bordered = replace(graph, tensors=(*graph.tensors, *added), operators=tuple(operators))
    return bordered, borders


def _region(network: Graph, names: Set[str]) -> Graph:
    """Returns some operators alone: what others write is given to them."""
    operators = tuple(each for each in network.operators if each.name in names)
    written = {name for each in operators for name in each.outputs}
    read = {name for each in operators for name in each.inputs}
    tensors = (
        replace(each, role="input")
        if each.role == "activation" and each.name not in written
        else each
        for each in network.tensors
        if each.name in written | read
    )
    return replace(network, tensors=tuple(tensors), operators=operators)
