"""TensorFlow operators as forms of a graph, with the shapes of what they write.

Source: the operator definitions of tensorflow/core/ops. A type without a rule here, or one used in
a way that no form says, becomes an opaque operator and is counted as unknown.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from autopar import graph
from autopar.errors import SpecError, shown
from autopar.frontends.draft import Shape, elements
from autopar.frontends.graphdef_tensors import DTYPES, FIRST, Node, Tensors, strided
from autopar.graph import Dtype

# Adds an operator; says whether a form says it.
Rule: TypeAlias = Callable[[Tensors, Node], bool]


def lower(tensors: Tensors, node: Node, path: str) -> None:
    """Adds an operator, unless it comes to constants or to a tensor that is there.

    Raises:
        SpecError: Shapes do not match, or one is unknown.
    """
    try:
        if node.op in ALIASES:
            tensors.alias(node)
        elif not tensors.fold(node):
            rule = RULES.get(node.op)
            if rule is None or not rule(tensors, node):
                _add_unknown(tensors, node, path)
    except SpecError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        what = f"the shapes around {node.op} {shown(node.name)} do not match: {reason}"
        raise SpecError(path, what, "Check the graph and --input_shape.") from None


def _add_unknown(tensors: Tensors, node: Node, path: str) -> None:
    shapes = node.attributes.get("_output_shapes")
    if not shapes or any(shape is None or min(shape, default=1) < 1 for shape in shapes):
        what = f"the shape of what {node.op} {shown(node.name)} writes is unknown"
        hint = "Write the graph with _output_shapes: tf.Graph.as_graph_def(add_shapes=True)."
        raise SpecError(path, what, hint)
    tensors.draft.unknown[node.op] += 1
    read = [tensors.natural(name) for name in node.inputs]
    dtype = tensors.dtype(node) if node.inputs else "float32"
    outputs = [(tuple(shape), dtype) for shape in shapes]
    tensors.emit(node, graph.Opaque(), read, outputs)


def _elementwise(to: Dtype | None = None) -> Rule:
    def rule(low: Tensors, node: Node) -> bool:
        shape = np.broadcast_shapes(*(low.shapes[name] for name in node.inputs))
        dtype = to or low.dtype(node, -1)
        # A lone number in arithmetic is part of the operator.
        names = [name for name in node.inputs if elements(low.shapes[name]) > 1]
        names = names or list(node.inputs[:1])
        ranks = {name: len(low.shapes[name]) for name in names}
        turned = any(name in low.turned for name in names)
        if turned and set(ranks.values()) <= {1, 4}:
            read = [
                low.channels_first(name) if ranks[name] == 4 else _per_channel(low, name)
                for name in names
            ]
            return low.emit(node, graph.Elementwise(), read, [(shape, dtype)], turned=True)
        read = [low.natural(name) for name in names]
        return low.emit(node, graph.Elementwise(), read, [(shape, dtype)])

    return rule


def _per_channel(low: Tensors, name: str) -> str:
    """Returns a vector of channels in a shape that broadcasts to images with channels first."""
    tensor = low.draft.tensors[low.stored[name]]
    column, shape = f"{tensor.name}/column", (*tensor.shape, 1, 1)
    if column in low.draft.tensors:
        return column
    if tensor.role in ("parameter", "constant"):
        low.draft.add_tensor(column, shape, tensor.dtype, tensor.role)
    else:
        written = [(column, shape, tensor.dtype)]
        low.draft.add(column, "Reshape", graph.Reshape(), [tensor.name], written)
    return column


def _bias_add(low: Tensors, node: Node) -> bool:
    shape, dtype = low.dims(node, 0), low.dtype(node)
    first, bias = node.inputs
    if node.attributes.get("data_format") == "NCHW":
        read = [low.natural(first), _per_channel(low, bias)]
        return low.emit(node, graph.Elementwise(), read, [(shape, dtype)])
    return _elementwise()(low, node)


def _cast(low: Tensors, node: Node) -> bool:
    return _elementwise(DTYPES[node.attributes["DstT"]][0])(low, node)


def _matmul(low: Tensors, node: Node) -> bool:
    given = node.attributes
    a = bool(given.get("transpose_a") or given.get("adj_x"))
    b = bool(given.get("transpose_b") or given.get("adj_y"))
    x, y = low.dims(node, 0), low.dims(node, 1)
    (m, k), (inner, n) = (x[-2:][::-1] if a else x[-2:]), (y[-2:][::-1] if b else y[-2:])
    if k != inner:
        raise ValueError(f"{k} columns and {inner} rows")
    shape = (*np.broadcast_shapes(x[:-2], y[:-2]), m, n)
    read = [low.natural(name) for name in node.inputs]
    form = graph.MatMul(transpose_a=a, transpose_b=b)
    return low.emit(node, form, read, [(shape, low.dtype(node))])


def _is_last(node: Node) -> bool:
    return bool(node.attributes.get("data_format", "NHWC") != "NCHW")


def _window(
    low: Tensors, node: Node, window: Sequence[int], strides: Sequence[int], steps: Sequence[int]
) -> list[int]:
    """Returns the spatial sizes that windows give; lists are in the order of the data."""
    at = slice(1, 3) if _is_last(node) else slice(2, 4)
    sizes = low.dims(node, 0)[at]
    padding = node.attributes["padding"]
    margins = [0, 0]
    if padding == "EXPLICIT":
        listed = node.attributes["explicit_paddings"]
        first = 2 * at.start
        margins = [listed[first] + listed[first + 1], listed[first + 2] + listed[first + 3]]
    result = []
    for size, extent, stride, step, margin in zip(
        sizes, window, strides[at], steps[at], margins, strict=True
    ):
        seen = (extent - 1) * step + 1
        places = size if padding == "SAME" else size + margin - seen + 1
        if places < 1 or stride < 1:
            raise ValueError(f"a window of {seen} does not fit {size}")
        result.append(-(-places // stride))
    return result


def _convolution(depthwise: bool) -> Rule:
    def rule(low: Tensors, node: Node) -> bool:
        ones = [1, 1, 1, 1]
        strides = node.attributes["strides"]
        steps = node.attributes.get("dilations") or ones
        last = _is_last(node)
        x, (height, width, deep, wide) = low.dims(node, 0), low.dims(node, 1)
        channels = x[3] if last else x[1]
        out = deep * wide if depthwise else wide
        groups = channels if depthwise else channels // deep
        sizes = _window(low, node, (height, width), strides, steps)
        at = slice(1, 3) if last else slice(2, 4)
        form = graph.Convolution(
            strides=tuple(strides[at]), dilations=tuple(steps[at]), groups=groups
        )
        filter_ = _filter(low, node.inputs[1], (out, 1 if depthwise else deep, height, width))
        first = low.channels_first(node.inputs[0]) if last else low.natural(node.inputs[0])
        shape = (x[0], *sizes, out) if last else (x[0], out, *sizes)
        return low.emit(node, form, [first, filter_], [(shape, low.dtype(node))], turned=last)

    return rule


def _filter(low: Tensors, name: str, shape: Shape) -> str:
    """Returns a filter as `[out, in, height, width]`; a weight is stored like that at once."""
    tensor = low.draft.tensors[low.stored[name]]
    turned = f"{tensor.name}/filter"
    if turned in low.draft.tensors:
        return turned
    if tensor.role in ("parameter", "constant"):
        low.draft.add_tensor(turned, shape, tensor.dtype, tensor.role)
    else:
        form = graph.Transpose(permutation=(3, 2, 0, 1))
        if shape[:2] != (tensor.shape[3], tensor.shape[2]):
            raise ValueError("a filter that is computed, in groups")
        low.draft.add(turned, "Transpose", form, [tensor.name], [(turned, shape, tensor.dtype)])
    return turned


def _pool(low: Tensors, node: Node) -> bool:
    window, strides = node.attributes["ksize"], node.attributes["strides"]
    last = _is_last(node)
    at = slice(1, 3) if last else slice(2, 4)
    x = low.dims(node, 0)
    sizes = _window(low, node, window[at], strides, [1, 1, 1, 1])
    form = graph.Pool(window=tuple(window[at]), strides=tuple(strides[at]))
    first = low.channels_first(node.inputs[0]) if last else low.natural(node.inputs[0])
    shape = (x[0], *sizes, x[3]) if last else (*x[:2], *sizes)
    return low.emit(node, form, [first], [(shape, low.dtype(node))], turned=last)


def _batch_norm(low: Tensors, node: Node) -> bool:
    last = _is_last(node)
    for name in node.inputs[3:]:
        tensor = low.draft.tensors[low.stored[name]]
        if tensor.role == "parameter":
            # Statistics are kept, not trained.
            low.draft.add_tensor(tensor.name, tensor.shape, tensor.dtype, "constant")
    first = low.channels_first(node.inputs[0]) if last else low.natural(node.inputs[0])
    vectors = [low.natural(name) for name in node.inputs[1:] if elements(low.shapes[name]) > 0]
    outputs = [(low.dims(node, 0), low.dtype(node))]
    only = low.only_first(node)
    return only and low.emit(node, graph.BatchNorm(), [first, *vectors], outputs, turned=last)


def _reduce(places: bool) -> Rule:
    def rule(low: Tensors, node: Node) -> bool:
        shape = low.dims(node, 0)
        axes = sorted({axis % len(shape) for axis in low.integers(node, 1)})
        keep = bool(node.attributes.get("keep_dims"))
        out = tuple(
            1 if axis in axes else size
            for axis, size in enumerate(shape)
            if keep or axis not in axes
        )
        dtype: Dtype = "int64" if node.op.startswith("Arg") else low.dtype(node)
        name = node.inputs[0]
        if name in low.turned and (keep or set(axes) >= {1, 2}):
            # Over the spatial axes the channels stay where they are.
            turned = tuple(sorted(FIRST.index(axis) for axis in axes))
            form = graph.Reduce(axes=turned, places=places)
            return low.emit(node, form, [low.stored[name]], [(out, dtype)], turned=keep)
        form = graph.Reduce(axes=tuple(axes), places=places)
        return low.emit(node, form, [low.natural(name)], [(out, dtype)])

    return rule


def _softmax(low: Tensors, node: Node) -> bool:
    shape = low.dims(node, 0)
    form = graph.Softmax(axes=(len(shape) - 1,))
    return low.emit(node, form, [low.natural(node.inputs[0])], [(shape, low.dtype(node))])


def _cross_entropy(low: Tensors, node: Node) -> bool:
    shape = low.dims(node, 0)[:-1]
    read = [low.natural(name) for name in node.inputs]
    only = low.only_first(node)
    return only and low.emit(node, graph.CrossEntropy(), read, [(shape, low.dtype(node))])


def _gather(low: Tensors, node: Node) -> bool:
    table, indices = low.dims(node, 0), low.dims(node, 1)
    axis = low.integers(node, 2)[0] % len(table) if len(node.inputs) > 2 else 0
    if node.attributes.get("batch_dims", 0):
        return False
    shape = (*table[:axis], *indices, *table[axis + 1 :])
    read = [low.natural(name) for name in node.inputs[:2]]
    return low.emit(node, graph.Gather(axis=axis), read, [(shape, low.dtype(node))])


def _reshaped(low: Tensors, node: Node, shape: Shape) -> bool:
    if elements(shape) != elements(low.dims(node, 0)):
        raise ValueError(f"{list(low.dims(node, 0))} and {list(shape)}")
    read = [low.natural(node.inputs[0])]
    return low.emit(node, graph.Reshape(), read, [(shape, low.dtype(node))])


def _reshape(low: Tensors, node: Node) -> bool:
    wanted = low.integers(node, 1)
    rest = math.prod(size for size in wanted if size >= 0)
    whole = elements(low.dims(node, 0))
    return _reshaped(low, node, tuple(whole // rest if s < 0 else s for s in wanted))


def _squeeze(low: Tensors, node: Node) -> bool:
    shape = low.dims(node, 0)
    axes = {axis % len(shape) for axis in node.attributes.get("squeeze_dims") or ()}
    axes = axes or {axis for axis, size in enumerate(shape) if size == 1}
    return _reshaped(low, node, tuple(s for axis, s in enumerate(shape) if axis not in axes))


def _expand_dims(low: Tensors, node: Node) -> bool:
    shape = list(low.dims(node, 0))
    axis = low.integers(node, 1)[0]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
    return _reshaped(low, node, tuple(shape))


def _transpose(low: Tensors, node: Node) -> bool:
    shape, order = low.dims(node, 0), tuple(low.integers(node, 1))
    out = tuple(shape[axis] for axis in order)
    form = graph.Transpose(permutation=order)
    return low.emit(node, form, [low.natural(node.inputs[0])], [(out, low.dtype(node))])


def _concat(low: Tensors, node: Node) -> bool:
    names = node.inputs[:-1]
    shapes = [low.shapes[name] for name in names]
    axis = low.integers(node, -1)[0] % len(shapes[0])
    if any(s[:axis] + s[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :] for s in shapes):
        raise ValueError(", ".join(str(list(shape)) for shape in shapes))
    out = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    turned = all(name in low.turned for name in names)
    read = [low.stored[name] if turned else low.natural(name) for name in names]
    form = graph.Concat(axis=FIRST.index(axis) if turned else axis)
    return low.emit(node, form, read, [(out, low.dtype(node))], turned=turned)


def _split(low: Tensors, node: Node) -> bool:
    sized = node.op == "SplitV"
    place = 0 if sized else 1
    shape = low.dims(node, place)
    axis = low.integers(node, 2 if sized else 0)[0] % len(shape)
    count = int(node.attributes["num_split"])
    sizes = low.integers(node, 1) if sized else [shape[axis] // count] * count
    rest = shape[axis] - sum(size for size in sizes if size >= 0)
    sizes = [rest if size < 0 else size for size in sizes]
    if sum(sizes) != shape[axis]:
        raise ValueError(f"{sizes} of {shape[axis]}")
    dtype = low.dtype(node, place)
    outputs = [((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes]
    return low.emit(node, graph.Split(axis=axis), [low.natural(node.inputs[place])], outputs)


def _pack(low: Tensors, node: Node) -> bool:
    """Adds tensors side by side along a new axis: each gets the axis, then they are joined."""
    shape, dtype = low.dims(node, 0), low.dtype(node)
    axis = int(node.attributes.get("axis", 0)) % (len(shape) + 1)
    row = (*shape[:axis], 1, *shape[axis:])
    read = []
    for place, name in enumerate(node.inputs):
        if low.shapes[name] != shape:
            raise ValueError(f"{list(shape)} and {list(low.shapes[name])}")
        read.append(f"{node.name}/row{place}")
        low.draft.add(
            read[-1], "Reshape", graph.Reshape(), [low.natural(name)], [(read[-1], row, dtype)]
        )
    out = (*shape[:axis], len(read), *shape[axis:])
    return low.emit(node, graph.Concat(axis=axis), read, [(out, dtype)])


def _unpack(low: Tensors, node: Node) -> bool:
    """Takes a tensor apart along an axis: it is split, then each part loses the axis."""
    shape, dtype = low.dims(node, 0), low.dtype(node)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    row = (*shape[:axis], 1, *shape[axis + 1 :])
    rows = [f"{node.name}/row{place}" for place in range(shape[axis])]
    read = [low.natural(node.inputs[0])]
    written = [(name, row, dtype) for name in rows]
    low.draft.add(f"{node.name}/split", "Split", graph.Split(axis=axis), read, written)
    out = (*shape[:axis], *shape[axis + 1 :])
    for place, name in enumerate(rows):
        part = f"{node.name}:{place}" if place else node.name
        low.draft.add(part, node.op, graph.Reshape(), [name], [(part, out, dtype)])
        low.know(part, out, dtype)
    return True


def _strided_slice(low: Tensors, node: Node) -> bool:
    """Adds a slice and, if axes are added or dropped, a reshape."""
    shape = low.dims(node, 0)
    begins, ends, steps = (low.integers(node, place) for place in (1, 2, 3))
    index = strided(node, begins, ends, steps)
    if min(steps, default=1) < 0 and (None in index or Ellipsis in index):
        return False
    # NumPy applies the rules of slicing to a tensor that takes no memory.
    probe = np.broadcast_to(np.False_, shape)
    out = probe[index].shape
    kept = [slice(i, i + 1 or None) if isinstance(i, int) else i for i in index if i is not None]
    inner = probe[tuple(kept)].shape
    backwards = {axis for axis, step in enumerate(steps) if step < 0}
    axes = tuple(
        axis for axis, (a, b) in enumerate(zip(shape, inner, strict=True))
        if a != b or axis in backwards
    )  # fmt: skip
    form, read, dtype = graph.Slice(axes=axes), [low.natural(node.inputs[0])], low.dtype(node)
    if out == inner:
        return low.emit(node, form, read, [(out, dtype)])
    part = f"{node.name}/part"
    low.draft.add(part, node.op, form, read, [(part, inner, dtype)])
    return low.emit(node, graph.Reshape(), [part], [(out, dtype)])


def _sliced(low: Tensors, node: Node, out: Shape, axes: Sequence[int] | None = None) -> bool:
    shape = low.dims(node, 0)
    moved = [axis for axis, (a, b) in enumerate(zip(shape, out, strict=True)) if a != b]
    listed = moved if axes is None else axes
    turned = node.inputs[0] in low.turned
    form = graph.Slice(axes=tuple(sorted(FIRST.index(a) for a in listed) if turned else listed))
    read = [low.stored[node.inputs[0]]] if turned else [low.natural(node.inputs[0])]
    return low.emit(node, form, read, [(out, low.dtype(node))], turned=turned)


def _slice(low: Tensors, node: Node) -> bool:
    begins, sizes = low.integers(node, 1), low.integers(node, 2)
    shape = low.dims(node, 0)
    bounds = zip(shape, begins, sizes, strict=True)
    return _sliced(low, node, tuple(s - b if size < 0 else size for s, b, size in bounds))


def _pad(low: Tensors, node: Node) -> bool:
    margins = low.integers(node, 1)
    shape = low.dims(node, 0)
    out = [s + a + b for s, a, b in zip(shape, margins[::2], margins[1::2], strict=True)]
    return _sliced(low, node, tuple(out))


def _tile(low: Tensors, node: Node) -> bool:
    times = zip(low.dims(node, 0), low.integers(node, 1), strict=True)
    return _sliced(low, node, tuple(size * count for size, count in times))


def _along(low: Tensors, node: Node) -> bool:
    shape = low.dims(node, 0)
    return _sliced(low, node, shape, sorted({axis % len(shape) for axis in low.integers(node, 1)}))


def _broadcast_to(low: Tensors, node: Node) -> bool:
    out = tuple(low.integers(node, 1))
    read = [low.natural(node.inputs[0])]
    return low.emit(node, graph.Elementwise(), read, [(out, low.dtype(node))])


def _one_hot(low: Tensors, node: Node) -> bool:
    shape = list(low.dims(node, 0))
    axis = int(node.attributes.get("axis", -1))
    axis = len(shape) if axis == -1 else axis
    shape.insert(axis, low.integers(node, 1)[0])
    read = [low.natural(node.inputs[0])]
    return low.emit(node, graph.OneHot(axis=axis), read, [(tuple(shape), low.dtype(node, 2))])


def _top_k(low: Tensors, node: Node) -> bool:
    shape = (*low.dims(node, 0)[:-1], low.integers(node, 1)[0])
    outputs: list[tuple[Shape, Dtype]] = [(shape, low.dtype(node)), (shape, "int32")]
    form = graph.TopK(axis=len(shape) - 1)
    return low.emit(node, form, [low.natural(node.inputs[0])], outputs)


ALIASES = """
    Identity StopGradient PreventGradient Snapshot CheckNumerics PlaceholderWithDefault
""".split()
ARITHMETIC = """
    Add AddV2 Sub Mul Div RealDiv DivNoNan TruncateDiv FloorDiv FloorMod Mod Pow Maximum Minimum
    SquaredDifference Atan2 Select SelectV2 AddN
    Abs Acos Asin Atan Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv LeakyRelu Log Log1p Neg
    OnesLike Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign
    Sqrt Square Tan Tanh ZerosLike
""".split()
COMPARISONS = """
    Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot IsNan IsInf
""".split()

RULES: dict[str, Rule] = {
    **dict.fromkeys(ARITHMETIC, _elementwise()),
    **dict.fromkeys(COMPARISONS, _elementwise("bool")),
    "Cast": _cast,
    "BiasAdd": _bias_add,
    **dict.fromkeys(["MatMul", "BatchMatMul", "BatchMatMulV2"], _matmul),
    "Conv2D": _convolution(False),
    "DepthwiseConv2dNative": _convolution(True),
    **dict.fromkeys(["MaxPool", "AvgPool"], _pool),
    **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"], _batch_norm),
    **dict.fromkeys(["Sum", "Mean", "Max", "Min"], _reduce(False)),
    **dict.fromkeys(["Prod", "All", "Any", "ArgMax", "ArgMin"], _reduce(True)),
    **dict.fromkeys(["Softmax", "LogSoftmax"], _softmax),
    **dict.fromkeys(
        ["SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"], _cross_entropy
    ),
    **dict.fromkeys(["Gather", "GatherV2"], _gather),
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "ExpandDims": _expand_dims,
    "Transpose": _transpose,
    "ConcatV2": _concat,
    **dict.fromkeys(["Split", "SplitV"], _split),
    "Pack": _pack,
    "Unpack": _unpack,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    **dict.fromkeys(["Pad", "PadV2", "MirrorPad"], _pad),
    "Tile": _tile,
    **dict.fromkeys(["Cumsum", "ReverseV2"], _along),
    "BroadcastTo": _broadcast_to,
    "OneHot": _one_hot,
    "TopKV2": _top_k,
}
