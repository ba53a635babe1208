"""A calibration as data: measurements of a chip, and the figures that were fitted to them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from autopar.cluster import Chip
from autopar.report import Plan
from autopar.spec import Precision, Problem

Figure = Literal[
    "gemm.efficiency",
    "gemm.fp8_efficiency",
    "gemm.fp4_efficiency",
    "memory_efficiency",
    "link",
    "network.efficiency",
    "attention",
    "launch_us",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One step of a training run.

    Attributes:
        problem: What was trained, on one kind of chip.
        plan: How.
    """

    kind: ClassVar = "run"
    problem: Problem
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGemm:
    """One product `[m, k] x [k, n]`.

    Attributes:
        m: Rows.
        n: Columns.
        k: Inner dimension.
        precision: Number format.
    """

    kind: ClassVar = "gemm"
    m: int
    n: int
    k: int
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAttention:
    """Causal fused attention.

    Attributes:
        kernel: As `fa2`.
        heads: Heads times sequences.
        head_dim: Width of a head.
        sequence: Length of a sequence.
        passes: What was timed.
    """

    kind: ClassVar = "attention"
    kernel: str
    heads: int
    head_dim: int
    sequence: int
    passes: Literal["forward", "backward", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """A collective of neighbouring ranks.

    Attributes:
        operation: Which; a reduce-scatter is priced as an all-gather.
        bytes: The whole gathered or summed tensor, or all that one rank exchanges.
        ranks: Devices.
    """

    kind: ClassVar = "collective"
    operation: Literal["all_reduce", "all_gather", "all_to_all"]
    bytes: float
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDispatch:
    """Tokens on their way to their experts or back, one copy for each node that holds some of them.

    Attributes:
        bytes: All copies that one rank's tokens have, one for each of their experts.
        ranks: Neighbouring devices over which the experts are spread.
        topk: Experts of a token.
        node_limit: Nodes over which a token's experts may lie; 0 for any.
    """

    kind: ClassVar = "dispatch"
    bytes: float
    ranks: int
    topk: int
    node_limit: int = 0


MeasuredOperator = MeasuredGemm | MeasuredAttention | MeasuredCollective | MeasuredDispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement.

    Attributes:
        group: Points that resemble each other, as those of one source; left out together.
        seconds: What it took.
        what: What took it.
    """

    group: str
    seconds: float
    what: MeasuredRun | MeasuredOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A figure that the points tell.

    Attributes:
        figure: Which.
        before: Its value before; 1 for a scale.
        after: Its value now.
        error: Standard error as a share of it, where points scatter as they do about the fit, by
            5 % at least.
        at_bound: Whether it stopped at the end of what is plausible.
    """

    figure: Figure
    before: float
    after: float
    error: float
    at_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A figure that the points do not tell.

    Attributes:
        figure: Which.
        why: Why.
        cure: What would tell it.
    """

    figure: Figure
    why: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointError:
    """A point's errors: predicted over measured time, less 1. They may be negative.

    Attributes:
        before: With the figures of before.
        after: With the fitted ones.
        left_out: With those fitted without its fold; None for a single point.
    """

    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The fit without one fold.

    Attributes:
        name: The group that was left out, or a number where folds are not groups.
        figures: What the other points tell, with its value.
    """

    name: str
    figures: dict[Figure, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a calibration found.

    Attributes:
        chip: The chip with the fitted figures.
        figures: Those that the points tell.
        refused: Those that they do not.
        points: Errors, a point each.
        folds: The fits without one fold each.
        before: Mean absolute error of the points before.
        after: The same after.
        left_out: The same where each point is predicted without its fold; None for a single point.
    """

    chip: Chip
    figures: tuple[Fitted, ...]
    refused: tuple[Refused, ...]
    points: tuple[PointError, ...]
    folds: tuple[Fold, ...]
    before: float
    after: float
    left_out: float | None
