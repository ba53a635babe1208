"""Tables of plans as NumPy structured arrays, laid out for the core. NumPy is imported on use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from autopar.errors import SpecError, shown
from autopar.spec import Granularity, Problem, Schedule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS = (
    "dp", "tp", "sp", "cp", "ep", "etp", "pp", "vpp", "mbs", "zero", "shard_group", "schedule",
    "recompute", "recompute_layers", "offload", "optimizer_offload", "chip",
)  # fmt: skip

# What a number in the column of that name means, counted from 0.
SCHEDULES: tuple[str, ...] = get_args(Schedule)
RECOMPUTE: tuple[str, ...] = get_args(Granularity)

# Codes of `violation`: the rule that a plan breaks first.
VIOLATIONS: dict[int, str] = {
    0: "",
    1: "degrees",
    2: "devices",
    3: "heads",
    4: "ffn",
    5: "sequence-parallel",
    6: "sequence",
    7: "batch",
    8: "experts",
    9: "zero",
    10: "schedule",
    11: "layers",
    12: "offload",
    13: "recompute",
    14: "limit",
    15: "node",
    16: "order",
    32: "memory",
    33: "too-long",
}

# The answer: 56 bytes a plan.
ANSWER = [
    ("step_ps", "u8"),
    ("step_s", "f8"),
    ("tokens_per_s", "f8"),
    ("mfu", "f8"),
    ("allocated_bytes", "u8"),
    ("capacity_bytes", "u8"),
    ("fits", "?"),
    ("violation", "u1"),
    ("", "V2"),
    ("stage", "i4"),
]


def rows(problem: Problem, plans: NDArray[Any]) -> NDArray[np.int32]:
    """Returns plans as an array of 32-bit numbers, one column for each of `COLUMNS`.

    Columns that are not there are filled in as `autopar.plan` does.

    Raises:
        SpecError: The array is not structured, has an unknown column, or one that is not whole.
    """
    import numpy as np

    if not isinstance(plans, np.ndarray):
        what = f"must be a structured array, found {shown(plans)}"
        raise SpecError("plans", what, "Give it columns as tp, pp and mbs.")
    names = plans.dtype.names
    if names is None or plans.ndim != 1:
        what = f"must be a structured array of one dimension, found {plans.dtype}, {plans.ndim}-d"
        raise SpecError("plans", what, "Give it columns as tp, pp and mbs.")
    for name in names:
        if name not in COLUMNS:
            hint = f"The columns are {', '.join(COLUMNS)}."
            raise SpecError("plans", f'has an unknown column "{name}"', hint)
        if plans.dtype[name].shape:
            what = f"must be one number a plan, found {plans.dtype[name]}"
            raise SpecError(f"plans.{name}", what, "Give layers of stages as layers.")

    filled = np.empty((len(plans), len(COLUMNS)), np.int32)

    def column(name: str, default: Any = 1) -> NDArray[Any]:
        """Returns a column after it was filled; out of range stays so in 32 bits."""
        if name in names:
            values = whole(plans[name], f"plans.{name}")
        else:
            values = np.broadcast_to(np.asarray(default), len(plans))
        filled[:, COLUMNS.index(name)] = values
        return values

    tp, cp, pp, vpp = (column(name) for name in ("tp", "cp", "pp", "vpp"))
    for name in ("ep", "mbs"):
        column(name)
    for name in ("recompute", "recompute_layers", "offload", "optimizer_offload", "chip"):
        column(name, 0)
    # Beyond 2^20 a degree leaves no devices over, and three of them still multiply in 64 bits.
    one, two, three = (np.clip(degree, 1, 1 << 20).astype(np.int64) for degree in (tp, cp, pp))
    dp = column("dp", problem.cluster.devices // (one * two * three))
    zero = column("zero", 0)
    column("sp", tp > 1)
    column("etp", tp if problem.options.expert_tensor_parallel else 1)
    column("shard_group", np.where(zero > 0, whole(dp.astype(np.int64) * cp, "shard_group"), 1))
    column("schedule", np.where(vpp > 1, SCHEDULES.index("interleaved"), 0))
    return filled


# One beyond it is as illegal as any larger number.
MOST = 2**31 - 1


def whole(values: Any, path: str) -> NDArray[Any]:
    """Returns whole numbers or booleans in the range of 32 bits.

    Raises:
        SpecError: The numbers are not whole.
    """
    import numpy as np

    found = np.asarray(values)
    if found.dtype.kind not in "iub":
        raise SpecError(path, f"must hold whole numbers, found {found.dtype}", "Use an int dtype.")
    if np.can_cast(found.dtype, np.int32):
        return found
    clipped: NDArray[Any] = (
        np.minimum(found, MOST) if found.dtype.kind == "u" else np.clip(found, -1, MOST)
    )
    return clipped


def lines(values: Any, path: str) -> NDArray[np.int32]:
    """Returns whole numbers, one line a plan and one entry a stage.

    Raises:
        SpecError: The array has another shape, or the numbers are not whole.
    """
    import numpy as np

    found = whole(values, path)
    if found.ndim != 2:
        what = f"must have two dimensions, plans by stages, found {found.ndim}"
        raise SpecError(path, what, "Pad short pipelines with 0.")
    return np.ascontiguousarray(found, np.int32)


def answer(words: NDArray[np.uint64]) -> NDArray[Any]:
    """Returns the core's words as a structured array of `ANSWER`."""
    import numpy as np

    fields = [field for field in ANSWER if field[0]]
    sizes = [np.dtype(kind).itemsize for _, kind in ANSWER]
    starts = [sum(sizes[:n]) for n in range(len(ANSWER))]
    layout = np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [kind for _, kind in fields],
            "offsets": [start for start, (name, _) in zip(starts, ANSWER, strict=True) if name],
            "itemsize": sum(sizes),
        }
    )
    costs: NDArray[Any] = words.view(layout).reshape(len(words))
    return costs
