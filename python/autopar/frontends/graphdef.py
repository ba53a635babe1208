"""Frozen TensorFlow graphs (`GraphDef`, a `.pb` file) read without TensorFlow.

Source: the public `graph.proto`, `node_def.proto`, `attr_value.proto`, `tensor.proto` and
`types.proto` of tensorflow/core/framework. Weights are skipped over, not read: of a tensor only its
format and shape count, and the values of small ones, on which shapes depend.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from autopar import files, protobuf
from autopar.errors import SpecError, shown
from autopar.frontends.draft import Reading, Shape, check_names, in_order, settled
from autopar.frontends.graphdef_forms import lower
from autopar.frontends.graphdef_tensors import COMPUTED, DTYPES, Array, Node, Tensors
from autopar.graph import Dtype, Gradients

# Protobuf allows no larger message.
LARGEST_BYTES = 2**31

INPUTS = ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
# Operators that write nothing: they order others or stop them.
ORDERS = ("NoOp", "Assert")
VARIABLES = ("Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "AutoReloadVariable")


@dataclass(frozen=True, slots=True)
class TensorValue:
    """What is read of a `TensorProto`.

    Attributes:
        dtype: Number format.
        shape: Shape.
        value: Values, if they are few.
    """

    dtype: Dtype
    shape: Shape
    value: Array | None


def read(
    path: str | PathLike[str],
    input_shapes: Mapping[str, Shape] | None = None,
    gradients: Gradients = "none",
) -> Reading:
    """Returns the graph of a frozen GraphDef.

    What no other operator reads is an output.

    Args:
        path: The file.
        input_shapes: Shapes of placeholders with open dimensions.
        gradients: Whether the graph is trained, its gradients implied.

    Raises:
        SpecError: The file is no GraphDef, is not frozen, or a dimension is unknown.
    """
    name = files.printable(path)
    place = f"{name}: "
    message = protobuf.read(files.read_bytes(path, LARGEST_BYTES), place)
    nodes = [_node(item) for item in message.messages(1, "node")]
    nodes = [node for node in nodes if node.op not in ORDERS]
    if not nodes:
        raise SpecError(name, "no GraphDef: it has no nodes", "Give a frozen graph.")
    for node in nodes:
        if node.op in VARIABLES:
            what = f"{shown(node.name)} is a variable"
            raise SpecError(name, what, "Freeze the graph, so that variables become constants.")
    given = dict(input_shapes or {})
    check_names(given, [node.name for node in nodes if node.op in INPUTS])
    used = {tensor for node in nodes for tensor in node.inputs}
    tensors = Tensors(Path(name).stem, name, used)
    named = [(n.name, [tensor.partition(":")[0] for tensor in n.inputs], [n.name]) for n in nodes]
    for index in in_order(named, (), name):
        node = nodes[index]
        if node.op in INPUTS:
            shape = _input_shape(node, given)
            tensors.add_input(node.name, shape, _dtype(node, name))
        elif node.op == "Const":
            tensor = node.attributes.get("value")
            if not isinstance(tensor, TensorValue):
                what = f"constant {shown(node.name)} holds no numbers"
                raise SpecError(name, what, "Cut the graph behind the operators on texts.")
            tensors.add_constant(node.name, tensor.shape, tensor.dtype, tensor.value)
        else:
            lower(tensors, node, name)
    heard = {tensor.partition(":")[0] for tensor in used}
    ends = [node.name for node in nodes if node.name not in heard]
    outputs = [tensor for end in ends for tensor in tensors.outputs(end)]
    return Reading.of(tensors.draft, outputs, gradients)


def _input_shape(node: Node, given: Mapping[str, Shape]) -> Shape:
    dims = node.attributes.get("shape")
    if dims is None:
        if node.name in given:
            return given[node.name]
        what = "the shape of this input is unknown"
        hint = f"Give it, as --input_shape {node.name}:1,128."
        raise SpecError(f"--input_shape {node.name}", what, hint)
    return settled(node.name, [None if size < 0 else size for size in dims], given)


def _node(item: protobuf.Message) -> Node:
    """Returns a NodeDef; inputs that only order operators are left out."""
    attributes = {}
    for entry in item.messages(5, "attr"):
        value = entry.message(2, "value")
        if value is not None:
            attributes[entry.text(1, "key")] = _attribute(value)
    inputs = [
        name.removesuffix(":0") for name in item.texts(3, "input") if not name.startswith("^")
    ]
    return Node(
        name=item.text(1, "name"),
        op=item.text(2, "op"),
        inputs=tuple(inputs),
        attributes=attributes,
    )


def _attribute(value: protobuf.Message) -> Any:
    """Returns an AttrValue; None for one of a kind that no shape depends on."""
    if 2 in value:
        return bytes(next(value.chunks(2, "s"))).decode("utf-8", "replace")
    if 3 in value:
        return value.integer(3, "i")
    if 4 in value:
        return next(value.floats(4, "f"))
    if 5 in value:
        return bool(value.integer(5, "b"))
    if 6 in value:
        return value.integer(6, "type")
    if (shape := value.message(7, "shape")) is not None:
        return _shape(shape)
    if (tensor := value.message(8, "tensor")) is not None:
        return _tensor(tensor)
    if (listed := value.message(1, "list")) is not None:
        if 7 in listed:
            return [_shape(item) for item in listed.messages(7, "shape")]
        return list(listed.integers(3, "i"))
    return None


def _shape(message: protobuf.Message) -> list[int] | None:
    """Returns the sizes of a TensorShapeProto, -1 for an open one; None if even the rank is."""
    if message.integer(3, "unknown_rank", 0):
        return None
    return [dim.integer(1, "size", 0) for dim in message.messages(2, "dim")]


def _tensor(message: protobuf.Message) -> TensorValue | None:
    """Returns a TensorProto; None for texts and other formats that no operator here computes on."""
    kind = message.integer(1, "dtype", 0)
    if kind not in DTYPES:
        return None
    dtype, stored, field = DTYPES[kind]
    dims = message.message(2, "tensor_shape")
    shape = tuple(_shape(dims) or ()) if dims is not None else ()
    if any(size < 0 for size in shape):
        what = f"a constant of shape {list(shape)}"
        raise SpecError(message.path, what, "The file is damaged or of another kind.")
    count = int(np.prod(shape, dtype=np.float64))
    if count > COMPUTED or dtype == "bfloat16":
        return TensorValue(dtype, shape, None)
    content = next(message.chunks(4, "tensor_content"), None)
    if content is not None:
        if len(content) != count * np.dtype(stored).itemsize:
            what = f"{len(content)} bytes are no {count} values of {dtype}"
            raise SpecError(f"{message.path}.tensor_content", what, "Copy the whole file.")
        return TensorValue(dtype, shape, np.frombuffer(content, stored).reshape(shape))
    values = list(_values(message, field))
    if len(values) > count:
        what = f"{len(values)} values for {count} places"
        raise SpecError(message.path, what, "The file is damaged or of another kind.")
    # The last value stands for all that follow it, and none at all for zeros.
    values += (values[-1:] or [0]) * (count - len(values))
    wide = np.array(values, np.uint16).view(stored) if field == 13 else np.array(values)
    return TensorValue(dtype, shape, wide.astype(stored).reshape(shape))


def _values(message: protobuf.Message, field: int) -> Iterator[float]:
    if field == 5:
        return message.floats(5, "float_val")
    if field == 6:
        return message.doubles(6, "double_val")
    return message.integers(field, "values")


def _dtype(node: Node, path: str) -> Dtype:
    kind = node.attributes.get("dtype")
    if kind not in DTYPES:
        what = f"input {shown(node.name)} has a type that autopar does not know: {shown(kind)}"
        raise SpecError(path, what, "Cut the graph behind the operators that read files and texts.")
    return DTYPES[kind][0]
