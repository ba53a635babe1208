"""ONNX operators as forms of the graph document.

Source: https://onnx.ai/onnx/operators/, and the fused operators of ONNX Runtime's `com.microsoft`
domain that exporters write. A type without an entry here, or one used in a way that no form says,
becomes an opaque operator and is counted as unknown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar import graph
from autopar.frontends.draft import Draft, Shape, elements
from autopar.graph import Dtype, Form

Values = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An ONNX operator with what is known around it.

    Attributes:
        name: Name of its own.
        kind: Type, after its domain unless that is ONNX's own.
        inputs: Tensors it reads; an empty name is one left out.
        outputs: Tensors it writes; the same.
        shapes: Shape of each of them.
        dtypes: Number format of the outputs.
        values: Values of small constants.
        attributes: Attributes.
        opset: Version of its domain.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, Dtype]
    values: Mapping[str, Values]
    attributes: Mapping[str, Any]
    opset: int

    @property
    def rank(self) -> int:
        """Dimensions of the first input."""
        return len(self.shapes[self.inputs[0]])

    def axis(self, default: int, rank: int | None = None) -> int:
        """Returns the attribute `axis`, counted from 0."""
        rank = self.rank if rank is None else rank
        return int(self.attributes.get("axis", default)) % max(rank, 1)

    def list_of(self, name: str, place: int) -> list[int] | None:
        """Returns a list of whole numbers: an attribute, or in newer opsets an input."""
        if name in self.attributes:
            value = self.attributes[name]
            return [int(item) for item in value] if isinstance(value, list | tuple) else [value]
        if place < len(self.inputs) and self.inputs[place] in self.values:
            return [int(item) for item in self.values[self.inputs[place]].reshape(-1)]
        return None

    def moved(self) -> list[int]:
        """Returns the axes along which the first output differs from the first input in size."""
        pair = (self.shapes[self.inputs[0]], self.shapes[self.outputs[0]])
        return [axis for axis, (a, b) in enumerate(zip(*pair, strict=True)) if a != b]


# A form with the places of the inputs that it takes, in order; None if no form says it.
Found = tuple[Form, tuple[int, ...]] | None

# Forms with several outputs.
SEVERAL = (graph.Split, graph.TopK)


def lower(draft: Draft, node: Node) -> None:
    """Adds an operator to a draft: one form, or the few that its type is short for."""
    written = [name for name in node.outputs if name]
    if node.kind == "Gemm":
        _add_gemm(draft, node)
        return
    found = FORMS[node.kind](node) if node.kind in FORMS else None
    if found is None or (len(written) > 1 and not isinstance(found[0], SEVERAL)):
        draft.unknown[node.kind] += 1
        found = graph.Opaque(), tuple(range(len(node.inputs)))
    form, places = found
    read = [node.inputs[place] for place in places if place < len(node.inputs)]
    read = [name for name in read if name]
    if isinstance(form, graph.Elementwise):
        # A lone number in arithmetic is part of the operator.
        read = [name for name in read if elements(node.shapes[name]) > 1] or read[:1]
    outputs = ((name, node.shapes[name], node.dtypes[name]) for name in written)
    draft.add(node.name, node.kind, form, read, outputs)


def _add_gemm(draft: Draft, node: Node) -> None:
    """Adds a product and, with a third input, a sum."""
    form = _product(node)
    out = node.outputs[0]
    shape, dtype = node.shapes[out], node.dtypes[out]
    if len(node.inputs) < 3 or not node.inputs[2]:
        draft.add(node.name, node.kind, form, node.inputs[:2], [(out, shape, dtype)])
        return
    product = f"{out}/product"
    draft.add(node.name, node.kind, form, node.inputs[:2], [(product, shape, dtype)])
    read = (product, node.inputs[2])
    draft.add(f"{node.name}/bias", "Add", graph.Elementwise(), read, [(out, shape, dtype)])


def _product(node: Node) -> Form:
    return graph.MatMul(
        transpose_a=bool(node.attributes.get("transA")),
        transpose_b=bool(node.attributes.get("transB")),
    )


def _elementwise(node: Node) -> Found:
    return graph.Elementwise(), tuple(range(len(node.inputs)))


def _first_elementwise(node: Node) -> Found:
    """What works on the first input alone; the others are bounds, scales or shapes."""
    return graph.Elementwise(), (0,)


def _reshape(node: Node) -> Found:
    return graph.Reshape(), (0,)


def _matmul(node: Node) -> Found:
    if min(len(node.shapes[name]) for name in node.inputs) < 2:
        return None
    return _product(node), (0, 1)


def _convolution(node: Node) -> Found:
    spatial = node.rank - 2
    form = graph.Convolution(
        strides=tuple(node.attributes.get("strides", [1] * spatial)),
        dilations=tuple(node.attributes.get("dilations", [1] * spatial)),
        groups=int(node.attributes.get("group", 1)),
    )
    return form, (0, 1, 2)


def _pool(node: Node) -> Found:
    window = tuple(node.attributes["kernel_shape"])
    strides = tuple(node.attributes.get("strides", [1] * len(window)))
    return graph.Pool(window=window, strides=strides), (0,)


def _global_pool(node: Node) -> Found:
    return graph.Reduce(axes=tuple(range(2, node.rank))), (0,)


def _batch_norm(node: Node) -> Found:
    return graph.BatchNorm(), tuple(range(len(node.inputs)))


def _layer_norm(node: Node) -> Found:
    axes = tuple(range(node.axis(-1), node.rank))
    return graph.Norm(axes=axes), tuple(range(len(node.inputs)))


def _softmax(node: Node) -> Found:
    # Up to opset 12 the default axis is 1, and all axes from it on are taken together.
    if node.opset < 13:
        return graph.Softmax(axes=tuple(range(node.axis(1), node.rank))), (0,)
    return graph.Softmax(axes=(node.axis(-1),)), (0,)


def _gather(node: Node) -> Found:
    return graph.Gather(axis=node.axis(0)), (0, 1)


def _reduce(places: bool) -> Callable[[Node], Found]:
    def form(node: Node) -> Found:
        axes = node.list_of("axes", 1)
        if axes is None and len(node.inputs) > 1 and node.inputs[1]:
            return None
        if not axes:
            axes = [] if node.attributes.get("noop_with_empty_axes") else list(range(node.rank))
        listed = tuple(sorted(axis % node.rank for axis in axes))
        return graph.Reduce(axes=listed, places=places), (0,)

    return form


def _place(node: Node) -> Found:
    return graph.Reduce(axes=(node.axis(0),), places=True), (0,)


def _transpose(node: Node) -> Found:
    turned = tuple(node.attributes.get("perm", reversed(range(node.rank))))
    return graph.Transpose(permutation=turned), (0,)


def _concat(node: Node) -> Found:
    return graph.Concat(axis=node.axis(0)), tuple(range(len(node.inputs)))


def _split(node: Node) -> Found:
    return graph.Split(axis=node.axis(0)), (0,)


def _moved(node: Node) -> Found:
    """What takes places from elsewhere along the axes whose size it changes."""
    if len(node.shapes[node.outputs[0]]) != node.rank:
        return None
    return graph.Slice(axes=tuple(node.moved())), (0,)


def _slice(node: Node) -> Found:
    axes = node.list_of("axes", 3)
    if axes is None and len(node.inputs) > 3 and node.inputs[3]:
        return None
    listed = range(node.rank) if axes is None else (axis % node.rank for axis in axes)
    steps = node.list_of("steps", 4) or []
    # A slice of a whole axis leaves each place where it is, unless it goes backwards.
    backwards = any(step < 0 for step in steps)
    moved = set(node.moved())
    axes = sorted(axis for axis in listed if backwards or axis in moved)
    return graph.Slice(axes=tuple(axes)), (0,)


def _running(node: Node) -> Found:
    axis = node.list_of("axis", 1)
    return (graph.Slice(axes=(axis[0] % node.rank,)), (0,)) if axis else None


def _one_hot(node: Node) -> Found:
    rank = node.rank + 1
    return graph.OneHot(axis=node.axis(-1, rank)), (0,)


def _top_k(node: Node) -> Found:
    return graph.TopK(axis=node.axis(-1)), (0,)


def _cross_entropy(node: Node) -> Found:
    # The classes are axis 1 in ONNX; the form has them last.
    weighted = len(node.inputs) > 2 and node.inputs[2]
    return None if node.rank != 2 or weighted else (graph.CrossEntropy(), (0, 1))


def _attention(node: Node) -> Found:
    """Attention of opset 23 on tensors with an axis of heads, without a cache."""
    queries = (node.rank, *(len(node.shapes[name]) for name in node.inputs[1:3]))
    if queries != (4, 4, 4) or any(node.inputs[4:]):
        return None
    causal = bool(node.attributes.get("is_causal", 0))
    return graph.Attention(causal=causal), (0, 1, 2, 3)


ARITHMETIC = """
    Add Sub Mul Div Pow Mod Max Min Mean Sum And Or Xor Equal Greater GreaterOrEqual Less
    LessOrEqual BitShift BitwiseAnd BitwiseOr BitwiseXor Where PRelu
""".split()
FUNCTIONS = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh
    DequantizeLinear Dropout Elu Erf Exp Expand Floor Gelu HardSigmoid HardSwish IsInf IsNaN
    LeakyRelu Log Mish Neg Not QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    com.microsoft.Gelu com.microsoft.FastGelu com.microsoft.QuickGelu
""".split()

FORMS: dict[str, Callable[[Node], Found]] = {
    **dict.fromkeys(ARITHMETIC, _elementwise),
    **dict.fromkeys(FUNCTIONS, _first_elementwise),
    **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], _reshape),
    **dict.fromkeys(["MatMul", "com.microsoft.FusedMatMul"], _matmul),
    "Conv": _convolution,
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], _pool),
    **dict.fromkeys(["GlobalAveragePool", "GlobalMaxPool"], _global_pool),
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(
        ["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"], _layer_norm
    ),
    **dict.fromkeys(["Softmax", "LogSoftmax"], _softmax),
    "Gather": _gather,
    **dict.fromkeys(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"], _reduce(False)),
    **dict.fromkeys(
        ["ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
         "ReduceSumSquare"],
        _reduce(True),
    ),
    **dict.fromkeys(["ArgMax", "ArgMin"], _place),
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    **dict.fromkeys(["Pad", "Tile", "Resize", "Upsample"], _moved),
    "CumSum": _running,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "Attention": _attention,
}  # fmt: skip
