"""What measurements are held against: the time of an operator and of a rate, and a chip's fit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autopar import _core, catalog, files, wire
from autopar.cluster import Chip
from autopar.planner.question import Name
from autopar.report import Plan, Rate
from autopar.spec import Problem

if TYPE_CHECKING:
    # No search needs it.
    from autopar.fit import Figure, Fit, MeasuredOperator, MeasuredRun, Point


def operator_seconds(chip: Name | Chip, operators: "Sequence[MeasuredOperator]") -> list[float]:
    """Returns the seconds of single operators on a chip, to hold against measured points.

    Args:
        chip: Name or alias in the catalog, path to a TOML file, or a `Chip`.
        operators: Products, causal attention, collectives of neighbouring ranks.

    Raises:
        SpecError: There is no such chip, or it cannot run an operator.

    Example:
        >>> from autopar.fit import MeasuredGemm
        >>> product = MeasuredGemm(m=8192, n=8192, k=8192, precision="bf16")
        >>> [seconds] = operator_seconds("a800", [product])
        >>> 200e12 < 2 * 8192**3 / seconds < 312e12
        True
    """
    spec = chip if isinstance(chip, Chip) else catalog.chip(files.named(chip, "chip")).chip
    asked = {"chip": wire.write(spec), "operators": [_tagged(what) for what in operators]}
    found: list[float] = json.loads(_core.operators(json.dumps(asked)))
    return found


def measured_seconds(problem: Problem, plan: Plan, rate: Rate) -> float:
    """Returns the seconds that one step of a plan took, by a published rate.

    Raises:
        SpecError: A document is wrong, or the rate is not positive.

    Example:
        >>> from autopar.planner import plan, problem
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> rate = Rate(unit="tokens_per_s_per_device", value=4096.0)
        >>> measured_seconds(question, plan(question), rate)
        8.0
    """
    return float(_core.measured_seconds(wire.dumps(problem), wire.dumps(plan), wire.dumps(rate)))


def calibrate(
    chip: Chip,
    points: "Sequence[Point]",
    *,
    figures: "Sequence[Figure]",
    link_line_gb_per_s: float | None = None,
    cross_validate: bool = True,
    threads: int = 0,
) -> "Fit":
    """Returns the figures of a chip that measurements tell, fitted to them.

    Args:
        chip: The chip with its present figures.
        points: What was measured.
        figures: What to fit, the one to tell first first.
        link_line_gb_per_s: What the link's wires carry in one direction, which its rates may not
            exceed; None if unknown.
        cross_validate: Whether to fit without each fold too, which takes longer.
        threads: Threads of the core; 0 takes every core. The answer does not depend on it.

    Raises:
        SpecError: A point is wrong, or the points tell no figure.
        KeyboardInterrupt: Ctrl-C ended the fit.

    Example:
        >>> from autopar import catalog
        >>> from autopar.fit import MeasuredGemm, Point
        >>> shape = MeasuredGemm(m=8192, n=8192, k=8192, precision="bf16")
        >>> point = Point(group="mine", seconds=5e-3, what=shape)
        >>> fit = calibrate(catalog.chip("a800").chip, [point], figures=["gemm.efficiency"])
        >>> fit.figures[0].figure, round(fit.after, 3)
        ('gemm.efficiency', 0.0)
    """
    from autopar.fit import Fit, PointError

    document = {
        "chip": wire.write(chip),
        "link_line_gb_per_s": link_line_gb_per_s,
        "figures": list(figures),
        "points": [
            {
                "group": point.group,
                "seconds": point.seconds,
                "what": _tagged(point.what),
            }
            for point in points
        ],
        "cross_validate": cross_validate,
    }
    found = json.loads(_core.calibrate(json.dumps(document), threads=threads))
    # Errors bear signs, which no figure of a document does.
    errors = tuple(PointError(**error) for error in found.pop("points"))
    return replace(wire.read(Fit, {**found, "points": []}), points=errors)


def _tagged(what: "MeasuredRun | MeasuredOperator") -> dict[str, Any]:
    """Returns what was measured under the name of its kind, as the core reads it."""
    return {what.kind: wire.write(what)}
