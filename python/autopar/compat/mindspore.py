"""A drop-in for the parallel context of MindSpore: the same calls, exceptions and state.

`set_auto_parallel_context`, `get_auto_parallel_context` and `reset_auto_parallel_context` take the
keywords of `autopar.compat.keys.KEYS` and behave as those of MindSpore 2.10 do, in this package's
words. A key that does not apply in the parallel mode is stored all the same.

The context is the only global state of this package, as it is one of the process in MindSpore: set
it from one thread. `version`, which may be assigned, selects the release whose ranges hold: "2.10",
or "2.3" with at most 4,096 devices and the two schedulers that its documentation names; another
text is a ValueError, another type a TypeError, and the release stays as it was.

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

import os
import sys
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Required, Unpack

from autopar import planner
from autopar.cluster import Cluster
from autopar.compat import effects, operators
from autopar.compat.context import Context
from autopar.compat.effects import Effect
from autopar.compat.keys import RANGES, Ranges
from autopar.compat.settings import apply
from autopar.errors import SpecError, shown
from autopar.export.job import Job
from autopar.framework import Framework
from autopar.planner import Limits, Name
from autopar.report import Report
from autopar.spec import Attention, Model, Precision, Problem

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


def context() -> Context:
    """Returns the context of this process, with the settings that have no getter too.

    Example:
        >>> context().parallel_optimizer_threshold
        -1
    """
    return _context


class Asked(Limits, total=False):
    """What is trained, and how far the search may go; the arguments of `autopar.search`."""

    global_batch_size: Required[int]
    sequence_length: Required[int]
    precision: Precision
    framework: Name | Framework
    attention: Attention
    dropout: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the search.

    Attributes:
        problem: The problem with the limits and options that the context asks for.
        effects: What each key did, or that it changes nothing, and why.
        advice: What MindSpore's documentation advises against.
    """

    problem: Problem
    effects: tuple[Effect, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it.

    Attributes:
        report: The fastest plans.
        effects: What each key did, or that it changes nothing, and why.
        advice: What MindSpore's documentation advises against.
    """

    report: Report
    effects: tuple[Effect, ...]
    advice: tuple[str, ...]


def question(
    model: Name | Model,
    cluster: Name | Cluster,
    *,
    copies: int = 1,
    **asked: Unpack[Asked],
) -> Question:
    """Returns the problem that the context makes of a model and chips.

    The context gives the devices (`device_num`) and every key that acts on placement, time or
    memory its limit or option. Nothing is kept in host memory, for which the context has no key.

    Args:
        model: As in `autopar.search`.
        cluster: As in `autopar.search`; a chip's name will do.
        copies: Copies of the model on a device, between which the batch is split (multi-copy
            parallel); recursive_programming wants as many sequences a device.
        **asked: The workload, the framework and further limits, as in `autopar.search`; the
            framework is mindformers unless given.

    Raises:
        SpecError: An input is wrong, or keys contradict each other.

    Example:
        >>> set_auto_parallel_context(parallel_mode="data_parallel", device_num=8)
        >>> asked = question(
        ...     "llama2-7b", "ascend_910b", global_batch_size=64, sequence_length=4096
        ... )
        >>> asked.problem.options.tp, asked.problem.cluster.devices
        ((1,), 8)
        >>> print(asked.effects[0])
        device_num=8: cluster.devices=8: the devices of the job
        >>> reset_auto_parallel_context()
    """
    asked.setdefault("framework", "mindformers")
    given = planner.problem(model, cluster, devices=_context.get("device_num"), **asked)
    on_device = replace(given.options, activation_offload=False, optimizer_offload=False)
    limited, found = effects.applied(_context, replace(given, options=on_device))
    found += _reused_subgraphs()
    # MindSpore's documentation advises it for recursive_programming, which acts in auto_parallel
    # alone; the release itself is silent.
    advice = []
    wanted = limited.cluster.devices * copies
    recursive = _context.get("search_mode") == "recursive_programming"
    if (
        _context.get("parallel_mode") == "auto_parallel"
        and recursive
        and asked["global_batch_size"] < wanted
    ):
        advice.append(
            f"recursive_programming: give a batch of at least devices times copies, {wanted}, "
            f"for its best strategies; found {asked['global_batch_size']}"
        )
    return Question(limited, found, tuple(advice))


def search(
    model: Name | Model,
    cluster: Name | Cluster,
    *,
    copies: int = 1,
    threads: int = 0,
    time_limit_s: float | None = None,
    **asked: Unpack[Asked],
) -> Answer:
    """Returns the fastest plans that the context allows, and what each of its keys did.

    The arguments are those of `question`, and `threads` and `time_limit_s` of `autopar.search`.
    Keys about single operators say what they do to the fastest plan.

    Raises:
        SpecError: An input is wrong, or keys contradict each other.
        KeyboardInterrupt: Ctrl-C ended the search.

    Example:
        >>> set_auto_parallel_context(
        ...     parallel_mode="semi_auto_parallel", device_num=16, pipeline_stages=2,
        ...     enable_parallel_optimizer=True,
        ... )
        >>> answer = search("llama2-7b", "ascend_910b", global_batch_size=64, sequence_length=4096)
        >>> plan = answer.report.ranked[0].plan
        >>> plan.pp, plan.zero
        (2, 1)
        >>> reset_auto_parallel_context()
    """
    found = question(model, cluster, copies=copies, **asked)
    report = planner.solve(found.problem, threads=threads, time_limit_s=time_limit_s)
    return Answer(
        report, tuple(_on_operators(report, each) for each in found.effects), found.advice
    )


def _on_operators(report: Report, effect: Effect) -> Effect:
    """Returns what a key did, that of one about single operators at the fastest plan."""
    if not report.ranked or effect.value == []:
        return effect
    best = report.ranked[0]
    job = Job(report.problem, best.plan, best.estimate)
    match effect.key:
        case "MS_COMM_COMPILER_OPT":
            return operators.reused(job, effect.value)
        case _:
            return effect


def _reused_subgraphs() -> tuple[Effect, ...]:
    """Returns the effect of the environment's limit on reused subgraphs, if it is set.

    Raises:
        SpecError: It is neither -1 nor a positive number.
    """
    name = "MS_COMM_COMPILER_OPT"
    limit = os.environ.get(name)
    if limit is None:
        return ()
    if limit != "-1" and not (limit.isascii() and limit.isdecimal() and int(limit) > 0):
        what = f"must be -1 or a positive number, found {shown(limit)}"
        raise SpecError(name, what, "Give the most operators to replace, or -1 for the default.")
    return (Effect(name, int(limit), {}, "shortens compilation and saves streams, not a step"),)


def _ranges() -> Ranges:
    """Returns the ranges of the selected release."""
    return RANGES[version]


class _Front(ModuleType):
    """This module, whose `version` is checked when it is assigned."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "version" and not isinstance(value, str):
            raise TypeError(f"version: must be a text, one of {RELEASES}, found {shown(value)}")
        if name == "version" and value not in RANGES:
            raise ValueError(f"version: must be one of {RELEASES}, found {shown(value)}")
        super().__setattr__(name, value)


RELEASES = ", ".join(map(shown, RANGES))
sys.modules[__name__].__class__ = _Front
