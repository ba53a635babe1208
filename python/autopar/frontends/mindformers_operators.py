"""Operators of a transformer layer that MindFormers computes again by their names.

A pattern of `select_recompute` is regular expressions with `\\.` between them, one for each cell
down to an operator (`LayerSetting.set_pattern_recompute`); one that ends at a cell means all of it.
The names are those of a layer of its LLaMA.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from autopar.errors import SpecError, shown
from autopar.spec import Named

# What the framework's `named` computes again together; of the last the backward pass reads nothing.
_OPERATORS: dict[str, tuple[str, ...]] = {
    "norm": ("attention_norm.norm", "ffn_norm.norm"),
    "projections": (
        "attention.wq.matmul",
        "attention.wk.matmul",
        "attention.wv.matmul",
        "attention.apply_rotary_emb.mul",
    ),
    "attention": ("attention.flash_attention.flash_attention",),
    "expansion": ("feed_forward.w1.matmul", "feed_forward.w3.matmul"),
    "activation": ("feed_forward.w1.activation.silu", "feed_forward.mul"),
    "": ("attention.wo.matmul", "feed_forward.w2.matmul", "add"),
}
DEFAULT = (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu")
"""What `select_recompute` means where it names nothing: the activation."""


def named(patterns: Iterable[str], path: str) -> Named:
    """Returns the operators that patterns name.

    Args:
        patterns: Patterns as MindFormers takes them.
        path: What an error calls them.

    Raises:
        SpecError: A pattern matches nothing, or names some only of operators that the estimate
            computes again together.

    Example:
        >>> named(DEFAULT, "select_recompute").activation
        True
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for names in _OPERATORS.values() for name in names if _is(name, pattern)}
        if not matched:
            hint = f"Name some of {', '.join(_escaped(name) for name in _all())}."
            raise SpecError(path, f"no operator of a layer is called {shown(pattern)}", hint)
        found |= matched
    again = {}
    for field, names in _OPERATORS.items():
        there = [name for name in names if name in found]
        if not field or not there:
            continue
        if there != list(names):
            missing = next(name for name in names if name not in found)
            what = f"names {_escaped(there[0])} without {_escaped(missing)}, which run as one"
            hint = f"Name all of {', '.join(map(_escaped, names))}, or none."
            raise SpecError(path, what, hint)
        again[field] = True
    return Named(**again)


def selected(asked: Any, layers: Sequence[int], path: str) -> tuple[Named, tuple[bool, ...]]:
    """Returns the operators that `select_recompute` computes again, and on which stages.

    Args:
        asked: Its value: a truth value, counts of layers, patterns, or such for each pattern.
        layers: Layers of each stage.
        path: What an error calls it.

    Raises:
        SpecError: The value is none of these, names other operators, or some layers of a stage.

    Example:
        >>> selected([16, 0], (16, 16), "select_recompute")[1]
        (True, False)
    """
    if isinstance(asked, dict):
        rows = {_by_stage(value, layers, path) for value in asked.values()}
        if len(rows) > 1:
            what = "operators differ in their stages, which no plan says"
            raise SpecError(path, what, "Give each as many layers.")
        by_stage = rows.pop() if rows else (False,) * len(layers)
        patterns = tuple(asked)
    elif isinstance(asked, list) and asked and all(isinstance(item, str) for item in asked):
        by_stage, patterns = (True,) * len(layers), tuple(asked)
    else:
        by_stage, patterns = _by_stage(asked, layers, path), DEFAULT
    if not any(by_stage):
        return Named(), by_stage
    return named(patterns, path), by_stage


def _by_stage(asked: Any, layers: Sequence[int], path: str) -> tuple[bool, ...]:
    """Returns on which stages something is computed again: in all layers or none of each."""
    if isinstance(asked, bool):
        return (asked,) * len(layers)
    sound = isinstance(asked, list) and len(asked) == len(layers)
    if not sound or not all(isinstance(count, int) and count >= 0 for count in asked):
        what = f"must be a truth value, names, or {len(layers)} counts of layers, found {asked!r}"
        raise SpecError(path, what, "Give one count for each stage.")
    for count, held in zip(asked, layers, strict=True):
        if not isinstance(count, bool) and 0 < count < held:
            what = f"names {count} of a stage's {held} layers, of which a plan takes all or none"
            raise SpecError(path, what, "Give each stage all of its layers or 0.")
    return tuple(bool(count) for count in asked)


def patterns(again: Named) -> tuple[str, ...]:
    """Returns the patterns of operators, in the order of a layer.

    Example:
        >>> patterns(Named(norm=True))
        ('attention_norm\\\\.norm', 'ffn_norm\\\\.norm')
    """
    return tuple(
        _escaped(name)
        for field, names in _OPERATORS.items()
        if field and getattr(again, field)
        for name in names
    )


def _all() -> list[str]:
    return [name for names in _OPERATORS.values() for name in names]


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")


def _is(name: str, pattern: str) -> bool:
    """Returns whether a pattern names an operator, or a cell around it."""
    parts, cells = pattern.split(r"\."), name.split(".")
    if len(parts) > len(cells):
        return False
    try:
        return all(re.fullmatch(part, cell) for part, cell in zip(parts, cells, strict=False))
    except re.error:
        return False
