"""A calibration as tables of text. Formats, computes nothing."""

from autopar.calibrate import Calibration
from autopar.render.text import Table, plain

SHOWN = 20


def calibration_text(found: Calibration) -> str:
    """Returns what was fitted, what was refused, and how far off the chip is before and after."""
    fit = found.fit
    figures = Table(
        ("figure", "before", "after", "give or take %", ""),
        tuple(
            (
                figure.figure,
                f"{figure.before:.4g}",
                f"{figure.after:.4g}",
                _percent(figure.error),
                "at the end of what is plausible" if figure.at_bound else "",
            )
            for figure in fit.figures
        ),
        frozenset({0, 4}),
    )
    errors = Table(
        ("mean error %", "before", "after", "left out"),
        (
            (
                f"{len(fit.points)} measured",
                _percent(fit.before),
                _percent(fit.after),
                _percent(fit.left_out),
            ),
        ),
        frozenset({0}),
    )
    pairs = sorted(zip(found.names, fit.points, strict=True), key=lambda pair: -abs(pair[1].after))
    worst = Table(
        ("furthest off", "before %", "after %", "left out %"),
        tuple(
            (name, _percent(error.before), _percent(error.after), _percent(error.left_out))
            for name, error in pairs[:SHOWN]
        ),
        frozenset({0}),
    )
    parts = [plain(figures), ""]
    parts += [f"Not fitted: {one.figure}: {one.why}. {one.cure}." for one in fit.refused]
    if fit.refused:
        parts.append("")
    parts += [plain(errors), ""]
    if fit.left_out is None:
        parts.append("One measurement gives one level; nothing is left to test it on.")
    elif {fold.name for fold in fit.folds} == set(found.sources):
        parts.append("Left out: each source predicted by the fit to the others.")
    else:
        parts.append(f"Left out: each of {len(fit.folds)} parts predicted by the fit to the rest.")
    parts += [f"Skipped: {count} ({reason})." for reason, count in found.skipped.items()]
    return "\n".join([*parts, "", plain(worst)])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
