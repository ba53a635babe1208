"""What operators compute: the forms that the operator level knows, as frozen dataclasses.

Axes count from 0: write `rank + axis` for a negative one.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class MatMul:
    """A product `[.., m, k] x [.., k, n]`; leading dimensions broadcast.

    Attributes:
        kind: Tag of this form.
        transpose_a: The first factor is stored `[.., k, m]`.
        transpose_b: The second factor is stored `[.., n, k]`.
    """

    kind: Literal["matmul"] = "matmul"
    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """`[n, c, spatial..]` with a filter `[o, c / groups, window..]` and a bias `[o]` or none.

    Attributes:
        kind: Tag of this form.
        strides: Step of the window along each spatial axis.
        dilations: Distance of the window's points along each spatial axis.
        groups: Blocks of channels that do not see each other.
    """

    kind: Literal["convolution"] = "convolution"
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A maximum or mean over windows of `[n, c, spatial..]`.

    Attributes:
        kind: Tag of this form.
        window: Size of the window along each spatial axis.
        strides: Step of the window along each spatial axis.
    """

    kind: Literal["pool"] = "pool"
    window: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of a table at the places that indices name; reads `table, indices`.

    Attributes:
        kind: Tag of this form.
        axis: The axis of the table that the dimensions of the indices replace.
    """

    kind: Literal["gather"] = "gather"
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Layer or RMS norm of the first input; a scale and a shift broadcast to it.

    Attributes:
        kind: Tag of this form.
        axes: Axes over which mean and variance are taken.
    """

    kind: Literal["norm"] = "norm"
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """Normalisation of each channel over all other axes; further inputs are vectors of channels.

    Attributes:
        kind: Tag of this form.
        axis: The axis of the channels.
    """

    kind: Literal["batch_norm"] = "batch_norm"
    axis: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Softmax or its logarithm.

    Attributes:
        kind: Tag of this form.
        axes: Axes over which the exponentials are summed.
    """

    kind: Literal["softmax"] = "softmax"
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as a whole: reads queries, keys, values and a mask or none.

    Queries are `[b, h, s, d]`, keys `[b, g, t, d]`, values `[b, g, t, e]`, where `g` divides `h`;
    the mask broadcasts to `[b, h, s, t]`. Writes `[b, h, s, e]`.

    Attributes:
        kind: Tag of this form.
        causal: A query sees only the keys up to its own place.
        window: Places that a query sees; all unless given.
    """

    kind: Literal["attention"] = "attention"
    causal: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Rows moved to other places within each entry of the leading axis, as further inputs say.

    Tokens `[b, s, h]` go to the experts `[b, e, c, h]` that they chose, and back; rows may be
    copied or left out.

    Attributes:
        kind: Tag of this form.
    """

    kind: Literal["route"] = "route"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Any function of equal places: arithmetic, activations, casts, dropout; inputs broadcast.

    Attributes:
        kind: Tag of this form.
    """

    kind: Literal["elementwise"] = "elementwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """A sum, mean, maximum or minimum over axes, which vanish or stay with size 1.

    Attributes:
        kind: Tag of this form.
        axes: The axes.
        places: The result is a place rather than a value (argmax).
    """

    kind: Literal["reduce"] = "reduce"
    axes: tuple[int, ...]
    places: bool = False


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in the same order under another shape.

    Attributes:
        kind: Tag of this form.
    """

    kind: Literal["reshape"] = "reshape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose:
    """Dimensions in another order.

    Attributes:
        kind: Tag of this form.
        permutation: The input's axis that each axis of the output is.
    """

    kind: Literal["transpose"] = "transpose"
    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Inputs side by side.

    Attributes:
        kind: Tag of this form.
        axis: Along this axis.
    """

    kind: Literal["concat"] = "concat"
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """One input taken apart into the outputs.

    Attributes:
        kind: Tag of this form.
        axis: Along this axis.
    """

    kind: Literal["split"] = "split"
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of the input, or the input with a margin: slices, pads, reversals, running sums.

    Attributes:
        kind: Tag of this form.
        axes: The axes along which places move; along the others each place stays.
    """

    kind: Literal["slice"] = "slice"
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Loss of scores `[.., c]` against classes `[..]` or shares `[.., c]`: a value a row, or one.

    Attributes:
        kind: Tag of this form.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"


@dataclass(frozen=True, slots=True)
class OneHot:
    """Indices as rows that are 1 at their place; further inputs are scalars.

    Attributes:
        kind: Tag of this form.
        axis: The axis of the output that is new.
    """

    kind: Literal["one_hot"] = "one_hot"
    axis: int = 0


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest values along an axis and, as a second output, their places.

    Attributes:
        kind: Tag of this form.
        axis: The axis that is searched.
    """

    kind: Literal["top_k"] = "top_k"
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Opaque:
    """An operator of unknown kind: replicated, or cut along a leading axis that all tensors share.

    Attributes:
        kind: Tag of this form.
    """

    kind: Literal["opaque"] = "opaque"


Form: TypeAlias = (
    MatMul
    | Convolution
    | Pool
    | Gather
    | Norm
    | BatchNorm
    | Softmax
    | Attention
    | Elementwise
    | Reduce
    | Reshape
    | Transpose
    | Concat
    | Split
    | Slice
    | CrossEntropy
    | OneHot
    | TopK
    | Route
    | Opaque
)
