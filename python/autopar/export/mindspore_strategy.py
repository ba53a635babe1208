"""MindSpore's strategy and group files, written byte for byte as its compiler writes them.

JSON has sorted keys and no spaces. The protobuf form is proto2: lists are not packed, and each of a
layout's four lists is one message, empty or not. The compiler writes its records in the order of
its hash tables; here they stand in the order given.
"""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from autopar import graph, protobuf
from autopar.errors import SpecError
from autopar.frontends.mindspore_strategy import (
    GroupFile,
    OperatorStrategy,
    ParameterLayout,
    StrategyFile,
    operator_names,
)
from autopar.sharding import Cuts, ShardedOperator, ShardedTensor, Sharding


def strategy_file(found: Sharding) -> StrategyFile:
    """Returns the strategies of the operators that read a parameter, and the parameters' layouts.

    An operator is named after its first parameter, as MindSpore does it, and a layout has the
    arrangement of devices of the first operator that reads it. Optimizer state has no layout of its
    own here; MindSpore gives it that of its parameter.

    Raises:
        SpecError: Two operators of one type read a parameter in different ways.
    """
    net = found.problem.graph
    tensors = {tensor.name: tensor for tensor in net.tensors}
    held = {tensor.name: tensor for tensor in found.tensors}
    names = operator_names(net)
    strategies: dict[str, OperatorStrategy] = {}
    layouts: dict[str, ParameterLayout] = {}
    for operator, cut in zip(net.operators, found.operators, strict=True):
        if (name := names.get(operator.name)) is None:
            continue
        strategy = OperatorStrategy(name=name, inputs=cut.inputs)
        if strategies.setdefault(name, strategy) != strategy:
            what = f"two operators {name} are cut differently, the second is {operator.name}"
            raise SpecError("--output", what, "MindSpore names operators by type and parameter.")
        read = [name for name in operator.inputs if tensors[name].role == "parameter"]
        uneven = any(held[parameter].rows for parameter in read)
        sizes = _arrangement(operator, cut, math.prod(found.mesh), uneven)
        for parameter in read:
            layouts.setdefault(
                parameter, _layout(held[parameter], tensors[parameter].shape, found.mesh, sizes)
            )
    return StrategyFile(operators=tuple(strategies.values()), layouts=tuple(layouts.values()))


def _arrangement(
    operator: graph.Operator, cut: ShardedOperator, devices: int, uneven: bool
) -> list[int]:
    """Returns the arrangement of devices of an operator: its cuts, and last those that repeat."""
    match operator.form:
        case graph.MatMul(transpose_a=transposed, transpose_b=turned):
            left, right = cut.inputs[0], cut.inputs[1]
            m, k = left[-2:][::-1] if transposed else left[-2:]
            n = right[-2] if turned else right[-1]
            loops = [*cut.outputs[0][:-2], m, k, n]
        case graph.Gather() if uneven:
            # The parts of the table lie along the features.
            loops = list(cut.outputs[0])
        case graph.Gather(axis=axis):
            # Scattered sums cut an output once more over the axes of the rows.
            loops = [*cut.inputs[1], cut.inputs[0][axis]]
        case graph.Elementwise():
            loops = list(cut.outputs[0])
        case _:
            loops = list(cut.inputs[0])
    sizes = [size for size in loops if size > 1]
    rest = devices // math.prod(sizes)
    return [*sizes, rest] if rest > 1 or not sizes else sizes


def _layout(
    held: ShardedTensor, shape: tuple[int, ...], mesh: Sequence[int], sizes: Sequence[int]
) -> ParameterLayout:
    spans = _spans(held.name, tuple(cut for cut in held.axes if cut), mesh, sizes)
    rows = held.rows or ()
    if rows:
        # MindSpore gives every part the room of the largest.
        shape = (max(rows) * len(rows), *shape[1:])
    return ParameterLayout(
        name=held.name,
        dev_matrix=tuple(math.prod(mesh[axis] for axis in span) for span in spans),
        tensor_map=tuple(len(spans) - 1 - spans.index(cut) if cut else -1 for cut in held.axes),
        tensor_shape=shape,
        split_shape=rows,
        indices_offset=tuple(accumulate(rows[:-1], initial=0)) if rows else (),
    )


def _spans(name: str, used: Cuts, mesh: Sequence[int], sizes: Sequence[int]) -> Cuts:
    """Returns the prime axes of the mesh in each axis of an arrangement of these sizes.

    If a dimension is cut over axes that are not one of the arrangement's, each such group is one
    axis, and so is every other prime axis.
    """
    outside = list(accumulate(mesh, int.__mul__, initial=1))
    spans, before = [], 1
    for size in sizes:
        inside = (axis for axis in range(len(mesh)) if before <= outside[axis] < before * size)
        spans.append(tuple(inside))
        before *= size
    if all(cut in spans for cut in used):
        return tuple(spans)
    if any(cut != tuple(range(cut[0], cut[0] + len(cut))) for cut in used):
        what = f"{name} is cut over axes of the mesh that do not lie side by side"
        raise SpecError("--output", what, "MindSpore's form has one axis of devices a dimension.")
    taken = {axis for cut in used for axis in cut}
    alone = ((axis,) for axis in range(len(mesh)) if axis not in taken)
    return tuple(sorted([*used, *alone]))


def strategy_bytes(file: StrategyFile, name: str) -> bytes:
    """Returns a strategy file's content: JSON if `name` ends in `.json`, protobuf if not.

    Raises:
        SpecError: The form cannot say it.
    """
    return json_bytes(file) if name.endswith(".json") else protobuf_bytes(file)


def json_bytes(file: StrategyFile) -> bytes:
    """Returns the JSON form; a table without entries is left out.

    Example:
        >>> cut = OperatorStrategy(name="MatMul_w1", inputs=((2, 1), (1, 4)))
        >>> print(json_bytes(StrategyFile(operators=(cut,))).decode())  # doctest: +ELLIPSIS
        {"current_stage":2,"parallel_strategy_item":{"MatMul_w1":{"parallel_strategy":[[2,1],[1,...
    """
    table: dict[str, object] = {"current_stage": file.current_stage}
    tables = {
        "parallel_strategy_item": {
            operator.name: _cuts_table(operator.inputs, operator.stage)
            for operator in file.operators
        },
        "parallel_out_strategy_item": {
            operator.name: _cuts_table(operator.outputs, operator.stage)
            for operator in file.operators
            if operator.outputs is not None
        },
        "parallel_layout_item": {layout.name: _layout_table(layout) for layout in file.layouts},
    }
    table |= {key: entries for key, entries in tables.items() if entries}
    return json.dumps(table, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def protobuf_bytes(file: StrategyFile) -> bytes:
    """Returns the protobuf form, a `ParallelStrategyMap`.

    Raises:
        SpecError: An operator has fixed outputs, which this form cannot say.

    Example:
        >>> cut = OperatorStrategy(name="MatMul_w1", inputs=((2, 1), (1, 4)))
        >>> protobuf_bytes(StrategyFile(operators=(cut,))).hex()
        '0802121b0a094d61744d756c5f7731120e0800120408020801120408010804'
    """
    return b"".join(
        (
            protobuf.integer(1, file.current_stage),
            *(protobuf.chunk(2, _operator_bytes(operator)) for operator in file.operators),
            *(protobuf.chunk(3, _layout_bytes(layout)) for layout in file.layouts),
        )
    )


def group_bytes(file: GroupFile) -> bytes:
    """Returns a group file's content, a `ParallelGroupMap`.

    Example:
        >>> group_bytes(GroupFile(restore_ranks=(0, 4))).hex()
        '120408000804'
    """
    items = (
        protobuf.chunk(1, name.encode()) + protobuf.chunk(2, protobuf.integers(1, ranks))
        for name, ranks in file.groups
    )
    return b"".join(
        (
            *(protobuf.chunk(1, item) for item in items),
            protobuf.chunk(2, protobuf.integers(1, file.restore_ranks)),
        )
    )


def group_name(ranks: Iterable[int]) -> str:
    """Returns the name of a group: its size and the hash of its ranks joined by `-`.

    Example:
        >>> group_name(range(4))
        '4-6301172352641561019'
    """
    listed = list(ranks)
    return f"{len(listed)}-{_hash('-'.join(map(str, listed)).encode())}"


def _hash(data: bytes) -> int:
    """Returns what `std::hash<std::string>` of libstdc++ gives: MurmurHash64A of a fixed seed.

    Source: Austin Appleby's MurmurHash2, 64-bit version A, which is in the public domain.
    """
    mask, factor = 2**64 - 1, 0xC6A4A7935BD1E995
    value = 0xC70F6907 ^ len(data) * factor & mask
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        word = int.from_bytes(data[at : at + 8], "little") * factor & mask
        word = (word ^ word >> 47) * factor & mask
        value = (value ^ word) * factor & mask
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 47) * factor & mask
    return value ^ value >> 47


def _cuts_table(cuts: Cuts | None, stage: int) -> dict[str, object]:
    return {"parallel_strategy": cuts, "stage": stage}


def _layout_table(layout: ParameterLayout) -> dict[str, object]:
    if layout.tensor_shape is None:
        hint = "The protobuf form has none; give a name that does not end in .json."
        raise SpecError(f"parallel_layout_item.{layout.name}", "without its tensor_shape", hint)
    table: dict[str, object] = {
        "dev_matrix": layout.dev_matrix,
        "field": layout.field,
        "opt_weight_shard_size": layout.opt_weight_shard_size,
        "opt_weight_shard_step": layout.opt_weight_shard_step,
        "tensor_map": layout.tensor_map,
        "tensor_shape": layout.tensor_shape,
    }
    if layout.split_shape:
        table |= {
            "param_split_shape": layout.split_shape,
            "indices_offset": layout.indices_offset,
        }
    return table


def _operator_bytes(operator: OperatorStrategy) -> bytes:
    if operator.outputs is not None:
        hint = "Give a name that ends in .json."
        what = "the protobuf form cannot say the cuts of its outputs"
        raise SpecError(f"parallel_strategy_item.{operator.name}", what, hint)
    rows = (protobuf.chunk(2, protobuf.integers(1, row)) for row in operator.inputs)
    cuts = protobuf.integer(1, operator.stage) + b"".join(rows)
    return protobuf.chunk(1, operator.name.encode()) + protobuf.chunk(2, cuts)


def _layout_bytes(layout: ParameterLayout) -> bytes:
    lists = (layout.dev_matrix, layout.tensor_map, layout.split_shape, layout.indices_offset)
    numbers = (layout.field, layout.opt_weight_shard_step, layout.opt_weight_shard_size)
    body = b"".join(
        (
            *(protobuf.chunk(1 + i, protobuf.integers(1, dims)) for i, dims in enumerate(lists)),
            *(protobuf.integer(5 + i, value) for i, value in enumerate(numbers)),
        )
    )
    return protobuf.chunk(1, layout.name.encode()) + protobuf.chunk(2, body)
