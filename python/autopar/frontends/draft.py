"""A graph in the making: what the readers of graph files fill in, tensor by tensor.

A reader adds tensors and operators in the order of its file. `graph` then leaves out what no
output needs, as a compiler would: shapes computed at run time, parameters nobody reads.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from autopar.errors import SpecError, shown
from autopar.graph import Dtype, Form, Gradients, Graph, Operator, Role, Tensor

Shape: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Draft:
    """Tensors by name, operators in order, and the types of operator that are not known.

    Attributes:
        name: Name of the network.
        tensors: Tensors by name.
        operators: Operators.
        unknown: How often each unknown type occurs.
    """

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    _names: set[str] = field(default_factory=set)

    def add_tensor(self, name: str, shape: Sequence[int], dtype: Dtype, role: Role) -> None:
        """Adds a tensor that no operator writes."""
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role)

    def add(
        self,
        name: str,
        source: str,
        form: Form,
        inputs: Iterable[str],
        outputs: Iterable[tuple[str, Shape, Dtype]],
    ) -> None:
        """Adds an operator with the tensors that it writes: name, shape, number format."""
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}:{count}"
        self._names.add(unique)
        written = [Tensor(*output) for output in outputs]
        self.tensors |= {tensor.name: tensor for tensor in written}
        self.operators.append(
            Operator(
                name=unique,
                source=source,
                form=form,
                inputs=tuple(inputs),
                outputs=tuple(tensor.name for tensor in written),
            )
        )

    def graph(self, outputs: Iterable[str], gradients: Gradients) -> Graph:
        """Returns the graph of what `outputs` need.

        Raises:
            SpecError: Nothing is left.
        """
        writers = {out: operator for operator in self.operators for out in operator.outputs}
        waiting = [name for name in outputs if name in writers]
        needed: set[str] = set()
        kept: set[str] = set()
        while waiting:
            operator = writers[waiting.pop()]
            if operator.name not in kept:
                kept.add(operator.name)
                needed.update(operator.inputs, operator.outputs)
                waiting += [name for name in operator.inputs if name in writers]
        if not kept:
            hint = "Give a graph whose outputs depend on its inputs."
            raise SpecError(self.name, "no operator computes an output", hint)
        return Graph(
            name=self.name,
            gradients=gradients,
            tensors=tuple(tensor for tensor in self.tensors.values() if tensor.name in needed),
            operators=tuple(operator for operator in self.operators if operator.name in kept),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A graph that was read.

    Attributes:
        graph: The graph.
        notes: What the reader does not know.
    """

    graph: Graph
    notes: tuple[str, ...]

    @classmethod
    def of(cls, draft: Draft, outputs: Iterable[str], gradients: Gradients) -> "Reading":
        """Returns what a draft comes to."""
        notes = [
            f"{count} x {kind}: not known; replicated, or cut along the leading axis"
            for kind, count in sorted(draft.unknown.items())
        ]
        return cls(draft.graph(outputs, gradients), tuple(notes))


def in_order(
    operators: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    known: Container[str],
    path: str,
) -> list[int]:
    """Returns operators in an order in which each finds its inputs written.

    Args:
        operators: Name, tensors read, tensors written; an empty tensor is one left out.
        known: Tensors that are there before.
        path: Where errors stand.

    Raises:
        SpecError: A tensor is missing or written twice, or operators wait for each other.

    Example:
        >>> in_order([("b", ["x"], ["y"]), ("a", ["w"], ["x"])], {"w"}, "graph")
        [1, 0]
    """
    writer: dict[str, int] = {}
    for index, (name, _, written) in enumerate(operators):
        for tensor in filter(None, written):
            if tensor in writer or tensor in known:
                what = f"{shown(tensor)} is written twice, at last by {shown(name)}"
                raise SpecError(path, what, "Give each result a name of its own.")
            writer[tensor] = index
    waits: list[set[int]] = []
    for name, read, _ in operators:
        for tensor in filter(None, read):
            if tensor not in known and tensor not in writer:
                what = f"{shown(name)} reads {shown(tensor)}, which nothing writes"
                raise SpecError(path, what, "Give the whole graph.")
        waits.append({writer[tensor] for tensor in read if tensor in writer})
    readers: dict[int, list[int]] = {}
    for index, before in enumerate(waits):
        for other in before:
            readers.setdefault(other, []).append(index)
    ready = [index for index, before in enumerate(waits) if not before]
    heapify(ready)
    order = []
    while ready:
        order.append(index := heappop(ready))
        for reader in readers.get(index, ()):
            waits[reader].discard(index)
            if not waits[reader]:
                heappush(ready, reader)
    if len(order) < len(operators):
        stuck = [name for (name, _, _), before in zip(operators, waits, strict=True) if before]
        what = f"operators wait for each other in a cycle, {', '.join(map(shown, stuck[:4]))}"
        raise SpecError(path, what, "Export the graph without loops.")
    return order


def input_shapes(text: str, flag: str = "--input_shape") -> dict[str, Shape]:
    """Returns the shapes of a text as ATC takes it: `ids:1,128;mask:1,1,128,128`.

    Raises:
        SpecError: The text is not of that form.

    Example:
        >>> input_shapes("ids:1,128;scale:")
        {'ids': (1, 128), 'scale': ()}
    """
    shapes: dict[str, Shape] = {}
    for part in filter(None, text.split(";")):
        name, colon, sizes = part.strip().rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(",") if sizes)
        except ValueError:
            shape = (0,)
        if not colon or not name or any(size < 1 for size in shape):
            what = f"{shown(part)} is no name with sizes from 1"
            raise SpecError(flag, what, "Write name:1,128, several separated by semicolons.")
        if name in shapes:
            raise SpecError(flag, f"{shown(name)} is given twice", "Give each input once.")
        shapes[name] = shape
    return shapes


def settled(name: str, shape: Sequence[int | str | None], given: Mapping[str, Shape]) -> Shape:
    """Returns an input's shape with its open dimensions settled by `given`.

    Args:
        name: The input.
        shape: Its dimensions; a text is an open one's name, None one without.
        given: Shapes of inputs.

    Raises:
        SpecError: A dimension stays open, or one that is fixed is given otherwise.

    Example:
        >>> settled("ids", ["batch", 128], {"ids": (2, 128)})
        (2, 128)
    """
    flag = f"--input_shape {name}"
    if name not in given:
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                called = f' "{size}"' if size else ""
                what = f"dimension {axis}{called} of this input is unknown"
                example = ",".join(str(s) if isinstance(s, int) else "1" for s in shape)
                raise SpecError(flag, what, f"Give its shape, as --input_shape {name}:{example}.")
        return tuple(size for size in shape if isinstance(size, int))
    wanted = given[name]
    if len(wanted) != len(shape):
        what = f"must have {len(shape)} dimensions, found {len(wanted)}"
        raise SpecError(flag, what, "Give a size for each.")
    for axis, (size, found) in enumerate(zip(shape, wanted, strict=True)):
        if isinstance(size, int) and size != found:
            what = f"dimension {axis} is {size} in the graph, found {found}"
            raise SpecError(flag, what, "Settle open dimensions only.")
    return wanted


def check_names(given: Mapping[str, Shape], inputs: Iterable[str]) -> None:
    """Refuses shapes for inputs that the graph does not have.

    Raises:
        SpecError: There is no such input.
    """
    known = list(inputs)
    for name in given:
        if name not in known:
            hint = f"Its inputs: {', '.join(known) or 'none'}."
            raise SpecError("--input_shape", f"the graph has no input {shown(name)}", hint)


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """Returns the shape that shapes broadcast to, or the longest where they do not.

    Example:
        >>> broadcast([(8, 1, 3), (5, 3), ()])
        (8, 5, 3)
    """
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for place in range(1, len(shape) + 1):
            result[-place] = max(result[-place], shape[-place])
    return tuple(result)


def elements(shape: Sequence[int]) -> int:
    """Returns how many elements a tensor has."""
    return math.prod(shape)
