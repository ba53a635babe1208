"""Operators of a transformer layer that MindFormers computes again by their names.

A pattern of `select_recompute` is regular expressions with `\\.` between them, one for each cell
down to an operator (`LayerSetting.set_pattern_recompute`); one that ends at a cell means all of it.
The names are those of a layer of its LLaMA.
"""

import re
from collections.abc import Mapping, Sequence

from autopar.errors import SpecError, shown

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


COMMUNICATION = (r".*\.norm",)
"""What `select_comm_recompute` means where it names nothing: gathering what the norms made."""


def counted(asked: Mapping[str, Sequence[int]], key: str) -> dict[str, tuple[int, ...]]:
    """Returns in how many layers of each stage's chunks operators are computed again.

    Args:
        asked: For each pattern the layers of each stage's chunks.
        key: What an error calls the setting.

    Raises:
        SpecError: A pattern matches nothing, or says of some only of operators that the estimate
            computes again together, or other layers of them.

    Example:
        >>> counted({pattern: (10, 0) for pattern in DEFAULT}, "select_recompute")
        {'activation': (10, 0)}
    """
    found: dict[str, tuple[int, ...]] = {}
    for pattern, counts in asked.items():
        matched = [name for name in _all() if _is(name, pattern)]
        if not matched:
            hint = f"Name some of {', '.join(_escaped(name) for name in _all())}."
            raise SpecError(key, f"no operator of a layer is called {shown(pattern)}", hint)
        for name in matched:
            found[name] = tuple(map(max, found.get(name, counts), counts))
    again = {}
    for field, names in _OPERATORS.items():
        there = [name for name in names if any(found.get(name, ()))]
        if not field or not there:
            continue
        other = next((name for name in names if found.get(name) != found[there[0]]), None)
        if other is not None:
            what = f"names {_escaped(there[0])} without {_escaped(other)}, which run as one"
            hint = f"Name all of {', '.join(map(_escaped, names))} for as many layers, or none."
            raise SpecError(key, what, hint)
        again[field] = found[there[0]]
    return again


def gathered(asked: Mapping[str, Sequence[int]], key: str) -> tuple[int, ...] | None:
    """Returns in how many layers of each stage's chunks what norms made is gathered again.

    Null where patterns speak of no layer.

    Raises:
        SpecError: Patterns name other communication, or not that after both norms alike.

    Example:
        >>> gathered({r".*\\.norm": (3, 1)}, "select_comm_recompute")
        (3, 1)
    """
    said = counted(asked, key)
    if said.keys() - {"norm"}:
        what = "names communication beside that of norms, which the estimate never keeps"
        raise SpecError(key, what, r"Name .*\.norm alone.")
    return said.get("norm")


def patterns(field: str) -> tuple[str, ...]:
    """Returns the patterns of the operators that a field of `autopar.framework.Named` stands for.

    Example:
        >>> patterns("norm")
        ('attention_norm\\\\.norm', 'ffn_norm\\\\.norm')
    """
    return tuple(map(_escaped, _OPERATORS[field]))


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
