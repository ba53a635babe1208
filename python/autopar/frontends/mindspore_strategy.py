"""MindSpore's strategy and group files, read: JSON if the name ends in `.json`, protobuf if not.

The forms are those that the compiler of MindSpore 2.10 writes and loads; the messages of the
protobuf form are `mindspore/train/node_strategy.proto`. What is read can be written again to the
same bytes by `autopar.export.mindspore_strategy`.
"""

from dataclasses import dataclass
from os import PathLike
from typing import Any

from autopar import files, protobuf, texts, wire
from autopar.errors import SpecError, shown
from autopar.graph import BatchNorm, Convolution, Gather, Graph, MatMul, Norm, Operator
from autopar.sharding import Cuts, FixedStrategy
from autopar.wire import join

# What MindSpore calls an operator that other systems call otherwise.
PRIMITIVES = {"AddV2": "Add", "Gemm": "MatMul"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStrategy:
    """How one operator is cut.

    Attributes:
        name: Name of the primitive, `_`, and the parameter it consumes: `MatMul_w1`.
        inputs: For each input the parts of each of its axes; a scalar has none.
        outputs: The same of the outputs, where the user fixed them; only the JSON form has it.
        stage: Pipeline stage.
    """

    name: str
    inputs: Cuts
    outputs: Cuts | None = None
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLayout:
    """How one parameter lies on the devices of its stage.

    Attributes:
        name: Full name.
        dev_matrix: Devices along each axis of their arrangement, outermost first.
        tensor_map: For each axis of the parameter the axis of the arrangement that cuts it, counted
            from the last, which is 0; -1 where it is whole.
        tensor_shape: Shape of the whole parameter; only the JSON form has it.
        field: Size of a field of an embedding; 0 otherwise.
        opt_weight_shard_step: Distance of the ranks over which the optimizer is sharded; 0 without,
            1 where they are all that hold the same part.
        opt_weight_shard_size: Number of those ranks; 0 without, -1 where they are all.
        split_shape: Rows of each part where a `manual_split` cuts them unevenly.
        indices_offset: What is taken off the indices in each of those parts.
    """

    name: str
    dev_matrix: tuple[int, ...]
    tensor_map: tuple[int, ...]
    tensor_shape: tuple[int, ...] | None = None
    field: int = 0
    opt_weight_shard_step: int = 0
    opt_weight_shard_size: int = 0
    split_shape: tuple[int, ...] = ()
    indices_offset: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyFile:
    """What a strategy file holds.

    Attributes:
        current_stage: How often the compiler had saved, times two; 0 in operator strategy files.
        operators: The operators with a parameter, or all of an operator strategy file.
        layouts: The parameters.
    """

    current_stage: int = 2
    operators: tuple[OperatorStrategy, ...] = ()
    layouts: tuple[ParameterLayout, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFile:
    """The groups of devices that a compilation created.

    Attributes:
        groups: Name and ranks of each group, in the order of their creation.
        restore_ranks: Ranks that hold the same part of the weights.
    """

    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    restore_ranks: tuple[int, ...] = ()


def read(path: str | PathLike[str]) -> StrategyFile:
    """Returns the strategies of a file.

    Raises:
        SpecError: The file cannot be read, or it is no strategy file.
    """
    name = files.printable(path)
    data = files.read_bytes(path)
    return read_json(data, name) if name.endswith(".json") else read_protobuf(data, f"{name}: ")


def read_group(path: str | PathLike[str]) -> GroupFile:
    """Returns the groups of a file; it is protobuf, whatever its name ends in.

    Raises:
        SpecError: The file cannot be read, or it is no group file.
    """
    name = files.printable(path)
    message = protobuf.read(files.read_bytes(path), f"{name}: ")
    groups = []
    for item in message.messages(1, "parallel_group_item"):
        ranks = _one(item, 2, "parallel_group_ranks")
        groups.append((item.text(1, "group_name"), tuple(ranks.integers(1, "dim"))))
    restore = _one(message, 2, "ckpt_restore_rank_list")
    return GroupFile(groups=tuple(groups), restore_ranks=tuple(restore.integers(1, "dim")))


def operator_names(graph: Graph) -> dict[str, str]:
    """Returns what MindSpore calls the operators that read a parameter, by their own names.

    It names them by the type of the primitive and the first parameter: `MatMul_w1`.
    """
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    names = {}
    for operator in graph.operators:
        read = [tensors[name] for name in operator.inputs]
        if parameters := [tensor.name for tensor in read if tensor.role == "parameter"]:
            rank = max(len(tensor.shape) for tensor in read)
            names[operator.name] = f"{_primitive(operator, rank)}_{parameters[0]}"
    return names


def fixed_strategies(file: StrategyFile, graph: Graph, path: str) -> tuple[FixedStrategy, ...]:
    """Returns a file's strategies as those that are set for the operators of a graph.

    Raises:
        SpecError: The graph has no operator of that name.
    """
    operators = {operator.name: operator for operator in graph.operators}
    named: dict[str, list[Operator]] = {}
    for own, name in operator_names(graph).items():
        named.setdefault(name, []).append(operators[own])
    split = {layout.name: layout.split_shape for layout in file.layouts if layout.split_shape}
    fixed = []
    for strategy in file.operators:
        if strategy.name not in named:
            what = f"the graph has no operator {shown(strategy.name)}"
            hint = "Names are of the type and the first parameter, as MatMul_w1."
            raise SpecError(f"{path}: parallel_strategy_item", what, hint)
        for operator in named[strategy.name]:
            inputs = strategy.inputs
            if len(inputs) > len(operator.inputs):
                # A number beside the tensors is no input of a graph's operator.
                inputs = tuple(cuts for cuts in inputs if cuts)
            rows = split.get(operator.inputs[0]) if isinstance(operator.form, Gather) else None
            fixed.append(
                FixedStrategy(
                    operator=operator.name, inputs=inputs, outputs=strategy.outputs, rows=rows
                )
            )
    return tuple(fixed)


def _primitive(operator: Operator, rank: int) -> str:
    """Returns the name of the primitive that MindSpore has for an operator."""
    match operator.form:
        case MatMul():
            return "BatchMatMul" if rank > 2 else "MatMul"
        case Gather():
            return "Gather"
        case Norm():
            return "RmsNorm" if "rms" in operator.source.lower() else "LayerNorm"
        case Convolution():
            return "Conv2D"
        case BatchNorm():
            return "BatchNorm"
        case _:
            return PRIMITIVES.get(operator.source, operator.source or "Opaque")


def read_json(text: str | bytes, file: str = "") -> StrategyFile:
    """Returns the strategies of the JSON form; errors call the text `file`.

    Raises:
        SpecError: The text is not of that form.

    Example:
        >>> read_json('{"current_stage":2}')
        StrategyFile(current_stage=2, operators=(), layouts=())
    """
    said = texts.parse_json(text, file, _CURE)
    with said.placing():
        return _json_strategies(said.value, f"{file}: " if file else "")


def _json_strategies(value: Any, path: str) -> StrategyFile:
    table = _table(value, path)
    # MindSpore passes over a key that it does not know; only a comment says nothing.
    known = ("current_stage", *_STRATEGIES, "parallel_layout_item", "_comment")
    for key in table:
        if key not in known:
            hint = "Read are strategies of counts, not those given by Layout objects."
            raise SpecError(join(path, key), "unknown key", hint)
    fixed = {
        key: _cuts(item, join(path, f"{_STRATEGIES[1]}.{key}"))
        for key, item in _table(table.get(_STRATEGIES[1], {}), join(path, _STRATEGIES[1])).items()
    }
    operators = []
    for key, item in _table(table.get(_STRATEGIES[0], {}), join(path, _STRATEGIES[0])).items():
        here = join(path, f"{_STRATEGIES[0]}.{key}")
        inputs, stage = _cuts(item, here)
        outputs = fixed.pop(key)[0] if key in fixed else None
        operators.append(OperatorStrategy(name=key, inputs=inputs, outputs=outputs, stage=stage))
    if fixed:
        where = join(path, f"{_STRATEGIES[1]}.{min(fixed)}")
        raise SpecError(where, f"not in {_STRATEGIES[0]}", "Give its inputs too.")
    layouts = [
        _layout_of_table(key, item, join(path, f"parallel_layout_item.{key}"))
        for key, item in _table(
            table.get("parallel_layout_item", {}), join(path, "parallel_layout_item")
        ).items()
    ]
    return StrategyFile(
        current_stage=wire.whole(table, "current_stage", path, -(2**31)),
        operators=tuple(operators),
        layouts=tuple(layouts),
    )


def read_protobuf(data: bytes, path: str = "") -> StrategyFile:
    """Returns the strategies of the protobuf form.

    Raises:
        SpecError: The bytes are not of that form.

    Example:
        >>> read_protobuf(bytes.fromhex("0802")).current_stage
        2
    """
    message = protobuf.read(data, path)
    operators = []
    for item in message.messages(2, "parallel_strategy_item"):
        strategies = _one(item, 2, "parallel_strategys")
        cuts = [
            tuple(strategy.integers(1, "dim"))
            for strategy in strategies.messages(2, "parallel_strategy")
        ]
        name = item.text(1, "node_name")
        where = join(path, f"parallel_strategy_item.{name}")
        stage = strategies.integer(1, "stage")
        operators.append(
            OperatorStrategy(name=name, inputs=_checked_cuts(cuts, where), stage=stage)
        )
    layouts = []
    for item in message.messages(3, "parallel_layout_item"):
        name = item.text(1, "param_name")
        layout = _one(item, 2, "parallel_layouts")
        where = join(path, f"parallel_layout_item.{name}")
        if len(list(layout.messages(2, "tensor_map"))) > 1:
            hint = "Read are strategies of counts, not those given by Layout objects."
            raise SpecError(f"{where}.tensor_map", "one axis cut by several axes of devices", hint)
        layouts.append(
            _checked_layout(
                ParameterLayout(
                    name=name,
                    dev_matrix=_dims(layout, 1, "dev_matrix"),
                    tensor_map=_dims(layout, 2, "tensor_map"),
                    field=layout.integer(5, "field"),
                    opt_weight_shard_step=layout.integer(6, "opt_weight_shard_step"),
                    opt_weight_shard_size=layout.integer(7, "opt_weight_shard_size"),
                    split_shape=_dims(layout, 3, "param_split_shape"),
                    indices_offset=_dims(layout, 4, "indices_offset"),
                ),
                where,
            )
        )
    return StrategyFile(
        current_stage=message.integer(1, "current_stage"),
        operators=tuple(operators),
        layouts=tuple(layouts),
    )


_CURE = "Give a file that MindSpore wrote, or one like it."
_STRATEGIES = ("parallel_strategy_item", "parallel_out_strategy_item")


def _cuts(value: Any, path: str) -> tuple[Cuts, int]:
    """Returns the counts and the stage of an entry of the JSON form."""
    table = _table(value, path)
    rows = _list(table, "parallel_strategy", path)
    for index, row in enumerate(rows):
        if not isinstance(row, list):
            where = f"{path}.parallel_strategy[{index}]"
            raise SpecError(where, f"must be a list, found {shown(row)}", "Give a count an axis.")
    return _checked_cuts(rows, path), wire.whole(table, "stage", path, -(2**31))


def _checked_cuts(rows: list[Any], path: str) -> Cuts:
    for index, row in enumerate(rows):
        for count in row:
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                where = f"{path}.parallel_strategy[{index}]"
                raise SpecError(
                    where, f"must be counts from 1, found {shown(count)}", "1 is whole."
                )
    return tuple(tuple(row) for row in rows)


def _layout_of_table(name: str, value: Any, path: str) -> ParameterLayout:
    table = _table(value, path)
    return _checked_layout(
        ParameterLayout(
            name=name,
            dev_matrix=_wholes(table, "dev_matrix", path),
            tensor_map=_wholes(table, "tensor_map", path),
            tensor_shape=_wholes(table, "tensor_shape", path),
            field=wire.whole(table, "field", path, -(2**31)),
            opt_weight_shard_step=wire.whole(table, "opt_weight_shard_step", path, -(2**31)),
            opt_weight_shard_size=wire.whole(table, "opt_weight_shard_size", path, -(2**31)),
            split_shape=_wholes({"param_split_shape": []} | table, "param_split_shape", path),
            indices_offset=_wholes({"indices_offset": []} | table, "indices_offset", path),
        ),
        path,
    )


def _checked_layout(layout: ParameterLayout, path: str) -> ParameterLayout:
    """Refuses a layout whose parts contradict each other."""
    if any(size < 1 for size in layout.dev_matrix):
        what = f"must be counts from 1, found {shown(min(layout.dev_matrix))}"
        raise SpecError(f"{path}.dev_matrix", what, "Its product is the devices of a stage.")
    axes = len(layout.dev_matrix)
    for index, axis in enumerate(layout.tensor_map):
        if not -1 <= axis < axes:
            what = f"must be from -1 to {axes - 1}, found {axis}"
            hint = "It counts the axes of dev_matrix from the last, which is 0; -1 is whole."
            raise SpecError(f"{path}.tensor_map[{index}]", what, hint)
    if len(layout.split_shape) != len(layout.indices_offset):
        what = (
            f"has {len(layout.indices_offset)} parts, param_split_shape {len(layout.split_shape)}"
        )
        raise SpecError(f"{path}.indices_offset", what, "Give one offset a part.")
    if layout.tensor_shape is None:
        return layout
    if len(layout.tensor_shape) != len(layout.tensor_map):
        what = f"has {len(layout.tensor_map)} axes, tensor_shape {len(layout.tensor_shape)}"
        raise SpecError(f"{path}.tensor_map", what, "Give one axis of devices an axis.")
    for index, (size, axis) in enumerate(zip(layout.tensor_shape, layout.tensor_map, strict=True)):
        parts = 1 if axis < 0 else layout.dev_matrix[axes - 1 - axis]
        if size < 1 or (size % parts and not (index == 0 and layout.split_shape)):
            what = f"{size} is not divisible by the {parts} parts of tensor_map"
            raise SpecError(f"{path}.tensor_shape[{index}]", what, "Give the whole shape.")
    return layout


def _one(message: protobuf.Message, number: int, name: str) -> protobuf.Message:
    inner = message.message(number, name)
    if inner is None:
        hint = "The file is damaged or of another kind."
        raise SpecError(join(message.path, name), "missing", hint)
    return inner


def _dims(layout: protobuf.Message, number: int, name: str) -> tuple[int, ...]:
    inner = layout.message(number, name)
    return tuple(inner.integers(1, "dim")) if inner else ()


def _table(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(
            path.rstrip(": "), f"must be a table, found {shown(value)}", "Give keys and values."
        )
    return value


def _list(table: dict[str, Any], key: str, path: str) -> list[Any]:
    value = wire.given(table, key, path)
    if not isinstance(value, list):
        what = f"must be a list, found {shown(value)}"
        raise SpecError(join(path, key), what, "Write it in brackets.")
    return value


def _wholes(table: dict[str, Any], key: str, path: str) -> tuple[int, ...]:
    values = _list(table, key, path)
    for index, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 2**63:
            what = f"must be a whole number, found {shown(value)}"
            raise SpecError(f"{path}.{key}[{index}]", what)
    return tuple(values)
