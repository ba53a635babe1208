"""The tensors of a GraphDef while it becomes a graph: what is known of each, where it is stored.

Images are `[n, h, w, c]` in TensorFlow and `[n, c, h, w]` in a graph. What a convolution writes is
kept in the latter order as long as only operators follow that do not care, and turned back before
the first that does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from autopar import graph
from autopar.errors import SpecError, shown
from autopar.frontends.draft import Draft, Shape, elements
from autopar.graph import Dtype, Form

Array: TypeAlias = np.ndarray[Any, Any]

# Constants of more elements are not computed; nothing that shapes depend on is as large.
COMPUTED = 4096
# The order of axes that puts channels first, and the one that puts them last.
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
# DataType -> number format, its name in NumPy, the field of TensorProto that lists values.
DTYPES: dict[int, tuple[Dtype, str, int]] = {
    1: ("float32", "<f4", 5),
    2: ("float64", "<f8", 6),
    3: ("int32", "<i4", 7),
    4: ("uint8", "<u1", 7),
    5: ("int16", "<i2", 7),
    6: ("int8", "<i1", 7),
    9: ("int64", "<i8", 10),
    10: ("bool", "<?", 11),
    14: ("bfloat16", "<u2", 13),
    17: ("int16", "<u2", 7),
    19: ("float16", "<f2", 13),
    22: ("int32", "<u4", 16),
    23: ("int64", "<u8", 17),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A NodeDef.

    Attributes:
        name: Unique name.
        op: Type.
        inputs: Tensors it reads: a node's name, with `:1` and so on for its further outputs.
        attributes: Attributes.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class Tensors:
    """The tensors of a file as far as they are known, and the graph so far.

    Shapes, values and formats are kept as TensorFlow has them, by TensorFlow's names.
    """

    def __init__(self, name: str, path: str, used: set[str]) -> None:
        self.draft = Draft(name)
        self.path = path
        self.used = used
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, Dtype] = {}
        self.values: dict[str, Array] = {}
        # The tensor of the graph that a name stands for, and names stored with channels first.
        self.stored: dict[str, str] = {}
        self.turned: set[str] = set()

    def add_input(self, name: str, shape: Shape, dtype: Dtype) -> None:
        """Adds a placeholder."""
        self.know(name, shape, dtype)
        self.draft.add_tensor(name, shape, dtype, "input")

    def add_constant(self, name: str, shape: Shape, dtype: Dtype, value: Array | None) -> None:
        """Adds a constant; one of floating point with several values is a trained weight."""
        self.know(name, shape, dtype)
        trained = "float" in dtype and elements(shape) > 1
        self.draft.add_tensor(name, shape, dtype, "parameter" if trained else "constant")
        if value is not None:
            self.values[name] = value

    def natural(self, name: str) -> str:
        """Returns the graph's tensor of a name, its dimensions in TensorFlow's order."""
        if name not in self.turned:
            return self.stored[name]
        return self._transposed(name, LAST, "channels_last")

    def channels_first(self, name: str) -> str:
        """Returns the graph's tensor of images, channels before the spatial axes."""
        if name in self.turned:
            return self.stored[name]
        return self._transposed(name, FIRST, "channels_first")

    def emit(
        self,
        node: Node,
        form: Form,
        inputs: Sequence[str],
        outputs: Sequence[tuple[Shape, Dtype]],
        *,
        turned: bool = False,
    ) -> bool:
        """Adds an operator on tensors of the graph; `turned` outputs are stored channels first."""
        written = []
        for place, (shape, dtype) in enumerate(outputs):
            name = f"{node.name}:{place}" if place else node.name
            self.know(name, shape, dtype)
            if turned:
                self.turned.add(name)
            kept = tuple(shape[axis] for axis in FIRST) if turned else shape
            written.append((name, kept, dtype))
        self.draft.add(node.name, node.op, form, inputs, written)
        return True

    def dims(self, node: Node, place: int) -> Shape:
        """Returns the shape of an input."""
        return self.shapes[node.inputs[place]]

    def dtype(self, node: Node, place: int = 0) -> Dtype:
        """Returns the number format of an input."""
        return self.dtypes[node.inputs[place]]

    def integers(self, node: Node, place: int) -> list[int]:
        """Returns the values of an input that must be known."""
        name = node.inputs[place]
        if name not in self.values:
            what = f"{node.op} {shown(node.name)} takes {shown(name)}, whose values are unknown"
            hint = "Sizes and axes must not depend on data; freeze them into the graph."
            raise SpecError(self.path, what, hint)
        return [int(value) for value in self.values[name].reshape(-1)]

    def only_first(self, node: Node) -> bool:
        """Returns whether nobody reads a further output."""
        return not any(name.startswith(f"{node.name}:") for name in self.used)

    def outputs(self, node: str) -> list[str]:
        """Returns the tensors of the graph that a node writes."""
        names = [name for name in self.shapes if name == node or name.startswith(f"{node}:")]
        return [self.natural(name) for name in names]

    def know(self, name: str, shape: Shape, dtype: Dtype) -> None:
        """Notes what a tensor of the graph is."""
        self.shapes[name], self.dtypes[name], self.stored[name] = tuple(shape), dtype, name

    def alias(self, node: Node) -> None:
        """Notes that a node writes what it reads."""
        name, source = node.name, node.inputs[0]
        self.know(name, self.shapes[source], self.dtypes[source])
        self.stored[name] = self.stored[source]
        if source in self.values:
            self.values[name] = self.values[source]
        if source in self.turned:
            self.turned.add(name)

    def _transposed(self, name: str, order: tuple[int, ...], suffix: str) -> str:
        turned = f"{self.stored[name]}/{suffix}"
        if turned not in self.draft.tensors:
            tensor = self.draft.tensors[self.stored[name]]
            shape = tuple(tensor.shape[axis] for axis in order)
            form = graph.Transpose(permutation=order)
            written = [(turned, shape, tensor.dtype)]
            self.draft.add(turned, "Transpose", form, [tensor.name], written)
        return turned

    def fold(self, node: Node) -> bool:
        """Computes what depends on small constants alone; returns whether it did."""
        if node.op in ("Shape", "Size", "Rank"):
            shape = self.dims(node, 0)
            found: Any = {"Shape": shape, "Size": elements(shape), "Rank": len(shape)}[node.op]
            self._add_value(node, np.array(found, np.int32))
            return True
        known = all(name in self.values for name in node.inputs)
        if node.op not in FOLDS or not known or not node.inputs:
            return False
        if any(self.draft.tensors[self.stored[name]].role != "constant" for name in node.inputs):
            return False
        if node.op == "Fill" and math.prod(self.integers(node, 0)) > COMPUTED:
            self.add_constant(node.name, tuple(self.integers(node, 0)), self.dtype(node, 1), None)
            return True
        result = FOLDS[node.op](node, *(self.values[name] for name in node.inputs))
        self._add_value(node, result)
        return True

    def _add_value(self, node: Node, value: Array) -> None:
        kinds: dict[str, Dtype] = {"b": "bool", "f": "float32", "i": "int32", "u": "int32"}
        dtype = kinds[value.dtype.kind]
        self.know(node.name, value.shape, dtype)
        self.draft.add_tensor(node.name, value.shape, dtype, "constant")
        if value.size <= COMPUTED:
            self.values[node.name] = value


def _sliced(node: Node, value: Array, begin: Array, end: Array, step: Array) -> Array:
    return np.asarray(value[strided(node, begin.tolist(), end.tolist(), step.tolist())])


def strided(
    node: Node, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]
) -> tuple[Any, ...]:
    """Returns the index that a StridedSlice takes of a NumPy array."""
    mask = {
        name: int(node.attributes.get(f"{name}_mask", 0))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for place, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        bit = 1 << place
        if mask["ellipsis"] & bit:
            index.append(Ellipsis)
        elif mask["new_axis"] & bit:
            index.append(None)
        elif mask["shrink_axis"] & bit:
            index.append(int(begin))
        else:
            first = None if mask["begin"] & bit else int(begin)
            last = None if mask["end"] & bit else int(end)
            index.append(slice(first, last, int(step)))
    return tuple(index)


FOLDS: dict[str, Callable[..., Array]] = {
    "Add": lambda node, a, b: a + b,
    "AddV2": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "RealDiv": lambda node, a, b: a / b,
    "FloorDiv": lambda node, a, b: a // b,
    "FloorMod": lambda node, a, b: a % b,
    "Maximum": lambda node, a, b: np.maximum(a, b),
    "Minimum": lambda node, a, b: np.minimum(a, b),
    "Neg": lambda node, a: -a,
    "Sqrt": lambda node, a: np.sqrt(a),
    "Rsqrt": lambda node, a: np.asarray(1 / np.sqrt(a)),
    "Cast": lambda node, a: a.astype(DTYPES[node.attributes["DstT"]][1]),
    "Prod": lambda node, a, axes: np.prod(
        a, tuple(axes.reshape(-1)), keepdims=bool(node.attributes.get("keep_dims")), dtype=a.dtype
    ),
    "Pack": lambda node, *rows: np.stack(rows, int(node.attributes.get("axis", 0))),
    "ConcatV2": lambda node, *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "Reshape": lambda node, a, shape: a.reshape(shape),
    "Squeeze": lambda node, a: a.squeeze(tuple(node.attributes.get("squeeze_dims") or ()) or None),
    "ExpandDims": lambda node, a, axis: np.expand_dims(a, int(axis.reshape(()))),
    "Gather": lambda node, a, at: np.take(a, at, 0),
    "GatherV2": lambda node, a, at, axis: np.take(a, at, int(axis)),
    "Range": lambda node, start, end, step: np.arange(start, end, step, dtype=start.dtype),
    "Fill": lambda node, shape, value: np.full(shape, value),
    "StridedSlice": _sliced,
}
