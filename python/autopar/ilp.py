"""Integer programs of the operator level, solved by HiGHS: flat arrays in, chosen columns out."""

import math
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from autopar.errors import AutoparError, check_time_limit

FEASIBILITY = 1e-6
"""How far HiGHS may be off in a row; the retry after a limit missed by that much asks for more."""


INTEGERS = ("start", "index", "known")
"""Arrays of a program that the core gives as 32-bit integers."""


class _Solver(highspy.Highs):
    """HiGHS without a word: 1.16 prints its name as callbacks are enabled, which it does itself."""

    def enableCallbacks(self) -> None:  # noqa: N802 (HiGHS's name)
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class SolverError(AutoparError):
    """The solver gave no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Minimise `cost x` subject to `row_lower <= A x <= row_upper`, `0 <= x <= 1`.

    Attributes:
        cost: Cost of each column.
        row_lower: Lower bound of each row.
        row_upper: Upper bound of each row.
        start: Where each row of A begins in `index` and `value`, and their length.
        index: Columns of the entries.
        value: Entries.
        known: Whole columns that are 1 in a choice that is known; none if none is.
        whole: The first so many columns are 0 or 1.
        gap: Share of the cost by which a choice may be above the bound; with 1 any choice will do.
    """

    cost: NDArray[np.float64]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    start: NDArray[np.int32]
    index: NDArray[np.int32]
    value: NDArray[np.float64]
    known: NDArray[np.int32]
    whole: int
    gap: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A solver's answer.

    Attributes:
        columns: The whole columns that are 1, ascending.
        bound: No solution costs less.
    """

    columns: list[int]
    bound: float


def program(arrays: dict[str, bytes | int | float]) -> Program:
    """Returns the program whose arrays the core gives as bytes."""
    read: dict[str, Any] = {
        name: np.frombuffer(data, np.int32 if name in INTEGERS else np.float64)
        for name, data in arrays.items()
        if isinstance(data, bytes)
    }
    return Program(**read, whole=int(arrays["whole"]), gap=float(arrays["gap"]))


def solve(program: Program, *, time_limit_s: float | None = None, tighten: float = 0) -> Choice:
    """Returns the best choice but for the program's gap, or at the time limit the best so far.

    Args:
        program: What to minimise.
        time_limit_s: Seconds after which the best so far is returned.
        tighten: Share by which the last row's upper bound, if it is not a sum's, is lowered.

    Raises:
        SpecError: The limit is no time.
        SolverError: There is no solution, or none was found in time.
    """
    check_time_limit(time_limit_s)
    solver = _Solver()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", program.gap)
    if program.gap >= 1:
        # Any choice will do: the known one is checked, and no relaxation is solved.
        solver.setOptionValue("objective_target", math.inf)
    solver.setOptionValue("mip_abs_gap", 0.0)
    solver.setOptionValue("mip_feasibility_tolerance", FEASIBILITY)
    if time_limit_s is not None:
        solver.setOptionValue("time_limit", float(time_limit_s))
    solver.passModel(_model(program, tighten))
    if len(program.known):
        ones = np.zeros(program.whole)
        ones[program.known] = 1
        solver.setSolution(program.whole, np.arange(program.whole, dtype=np.int32), ones)
    solver.run()
    solution = solver.getSolution()
    if not solution.value_valid:
        status = solver.modelStatusToString(solver.getModelStatus())
        raise SolverError(f"HiGHS found no choice: {status.lower()}")
    values = np.asarray(solution.col_value)[: program.whole]
    info = solver.getInfo()
    return Choice(np.flatnonzero(values > 0.5).tolist(), float(info.mip_dual_bound))


def _model(program: Program, tighten: float) -> highspy.HighsLp:
    columns, rows = len(program.cost), len(program.row_lower)
    upper = program.row_upper.copy()
    if rows and not np.isfinite(program.row_lower[-1]):
        upper[-1] *= 1 - tighten
    model = highspy.HighsLp()
    model.num_col_ = columns
    model.num_row_ = rows
    model.col_cost_ = program.cost
    model.col_lower_ = np.zeros(columns)
    model.col_upper_ = np.ones(columns)
    model.row_lower_ = program.row_lower
    model.row_upper_ = upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = program.start
    model.a_matrix_.index_ = program.index
    model.a_matrix_.value_ = program.value
    whole = [highspy.HighsVarType.kInteger] * program.whole
    model.integrality_ = whole + [highspy.HighsVarType.kContinuous] * (columns - program.whole)
    return model
