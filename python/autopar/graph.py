"""The operator level's question: a graph of operators and shaped tensors, as frozen dataclasses.

The core checks a graph: names, shapes, that there is no cycle. A frontend writes one in this form:

- Tensors are listed once, by name, in any order; what an operator writes has the role `activation`.
- Axes count from 0: write `rank + axis` for a negative one. Every dimension is a positive number.
- Biases are elementwise operators of their own, except a convolution's. Squeeze, unsqueeze and
  flatten are `Reshape`, expand is `Elementwise`, pad is `Slice`, what has no form is `Opaque`.
- Leave out what only computes shapes: fold it, and give the shapes to the tensors.
- A shape, slice bound or split size that is an input of the source's operator need not be listed.

Example:
    >>> x = Tensor("x", (64, 256), role="input")
    >>> w = Tensor("w", (256, 512), role="parameter")
    >>> product = Operator(name="mm", form=MatMul(), inputs=("x", "w"), outputs=("y",))
    >>> graph = Graph(name="net", tensors=(x, w, Tensor("y", (64, 512))), operators=(product,))
    >>> graph.operators[0].form.kind
    'matmul'
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from autopar.errors import SpecError, shown
from autopar.forms import (
    Attention,
    BatchNorm,
    Concat,
    Convolution,
    CrossEntropy,
    Elementwise,
    Form,
    Gather,
    MatMul,
    Norm,
    OneHot,
    Opaque,
    Pool,
    Reduce,
    Reshape,
    Route,
    Slice,
    Softmax,
    Split,
    TopK,
    Transpose,
)

__all__ = [
    "Attention",
    "BatchNorm",
    "Concat",
    "Convolution",
    "CrossEntropy",
    "Dtype",
    "Elementwise",
    "Form",
    "Gather",
    "Gradients",
    "Graph",
    "MatMul",
    "Norm",
    "OneHot",
    "Opaque",
    "Operator",
    "Pool",
    "Reduce",
    "Reshape",
    "Role",
    "Route",
    "Slice",
    "Softmax",
    "Split",
    "Tensor",
    "TopK",
    "Transpose",
    "operators_named",
    "recomputed",
]

Dtype: TypeAlias = Literal[
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float8",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
Role: TypeAlias = Literal["input", "parameter", "constant", "activation"]
Gradients: TypeAlias = Literal["none", "implied", "explicit"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor.

    Attributes:
        name: Unique name.
        shape: Elements along each dimension; empty for a scalar.
        dtype: Number format.
        role: Where its values come from: the dataset, training, a fixed value, or an operator.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = "float16"
    role: Role = "activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator.

    Attributes:
        name: Unique name.
        source: Its type where the graph came from, as `MatMul` or `Gelu`.
        form: What it computes.
        inputs: Names of the tensors it reads.
        outputs: Names of the tensors it writes.
        host: It runs on the host beside each device.
        recompute: It runs again before the backward pass: what it reads is kept, not what it
            writes.
    """

    name: str
    source: str = ""
    form: Form
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    host: bool = False
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operators and the tensors between them.

    Attributes:
        schema: Kind and version of the document.
        name: Name of the network.
        gradients: Not computed, computed beside the graph's forward operators, or by operators of
            the graph itself.
        tensors: Every tensor, in any order.
        operators: Every operator, in any order.
    """

    schema: Literal["autopar.graph/1"] = "autopar.graph/1"
    name: str
    gradients: Gradients = "none"
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


def operators_named(graph: Graph, patterns: Iterable[str], path: str) -> frozenset[str]:
    """Returns the names of operators that some patterns match; a star stands for any letters.

    Args:
        graph: The graph.
        patterns: Names, perhaps with stars.
        path: What an error names.

    Raises:
        SpecError: A pattern matches no operator.
    """
    names: set[str] = set()
    for pattern in patterns:
        found = {each.name for each in graph.operators if fnmatchcase(each.name, pattern)}
        if not found:
            what = f"the graph has no operator {shown(pattern)}"
            raise SpecError(path, what, "Name operators as the graph does.")
        names |= found
    return frozenset(names)


def recomputed(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Returns a graph some of whose operators run again before the backward pass.

    This is `Primitive.recompute` of MindSpore, and `Cell.recompute` of the operators of a cell.

    Args:
        graph: The graph.
        patterns: Names of operators; a star stands for any letters.

    Raises:
        SpecError: A pattern matches no operator.

    Example:
        >>> from autopar import model_graph
        >>> graph = model_graph("gpt3-6.7b", batch=1, sequence_length=128, layers=2)
        >>> sum(each.recompute for each in recomputed(graph, ["*.mlp.act"]).operators)
        2
    """
    names = operators_named(graph, patterns, "--recompute")
    operators = (
        replace(each, recompute=True) if each.name in names else each for each in graph.operators
    )
    return replace(graph, operators=tuple(operators))
