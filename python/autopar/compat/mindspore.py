"""A drop-in for the parallel context of MindSpore: the same calls, exceptions and state.

`set_auto_parallel_context`, `get_auto_parallel_context` and `reset_auto_parallel_context` take the
keywords of `autopar.compat.keys.KEYS` and behave as those of MindSpore 2.10 do, in this package's
words. A key that does not apply in the parallel mode is stored all the same.

The context is the only global state of this package, as it is one of the process in MindSpore: set
it from one thread. `version`, which may be assigned, selects the release whose ranges hold: "2.10",
or "2.3" with at most 4,096 devices and the two schedulers that its documentation names.

Example:
    >>> from autopar.compat import mindspore as ms
    >>> ms.set_auto_parallel_context(parallel_mode="auto_parallel", device_num=64)
    >>> ms.get_auto_parallel_context("device_num")
    64
    >>> ms.set_auto_parallel_context(device_num=0)
    Traceback (most recent call last):
    ValueError: device_num: must be an integer from 1, found 0
    >>> ms.reset_auto_parallel_context()
    >>> ms.get_auto_parallel_context("device_num")
    1
"""

from typing import Any

from autopar.compat.context import Context
from autopar.compat.keys import RANGES, Ranges
from autopar.compat.settings import apply
from autopar.errors import SpecError, shown

version = "2.10"

_context = Context()


def set_auto_parallel_context(**keywords: Any) -> None:
    """Sets keys of the context, one after another; `autopar.compat.keys.KEYS` explains each.

    Raises:
        TypeError: A value has the wrong type. Types are looked at before anything is set.
        ValueError: A key is unknown, or a value out of its range. What stood before it is set.
        KeyError: A nested setting lacks a key, or has an unknown one.
        AttributeError: comm_fusion is null.

    Example:
        >>> set_auto_parallel_context(pipeline_stages=4, comm_fusion={"openstate": False})
        >>> get_auto_parallel_context("comm_fusion")["openstate"]
        False
        >>> reset_auto_parallel_context()
    """
    apply(_context, keywords, _ranges())


def get_auto_parallel_context(attr_key: str) -> Any:
    """Returns the value of a key.

    Some keys cannot be read: pipeline_config is read as pipeline_interleave and pipeline_scheduler,
    and parallel_optimizer_config, pipeline_segments and group_ckpt_save_file not at all.

    Raises:
        ValueError: There is no such key to read.

    Example:
        >>> get_auto_parallel_context("pipeline_scheduler")
        '1f1b'
    """
    return _context.get(attr_key)


def reset_auto_parallel_context() -> None:
    """Puts every key back to its default.

    One thing outlives it, as in MindSpore: that `dataset_strategy` was a tuple. It then reads as an
    empty list until a word is given.

    Example:
        >>> set_auto_parallel_context(global_rank=3)
        >>> reset_auto_parallel_context()
        >>> get_auto_parallel_context("global_rank")
        0
    """
    _context.reset()


def _ranges() -> Ranges:
    """Returns the ranges of the selected release."""
    if version not in RANGES:
        hint = f"Give one of {', '.join(RANGES)}."
        raise SpecError("autopar.compat.mindspore.version", f"unknown: {shown(version)}", hint)
    return RANGES[version]
