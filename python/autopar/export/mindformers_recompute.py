"""What a plan computes again as MindFormers' recompute settings have it."""

from dataclasses import fields, replace
from typing import Any

from autopar.export.job import chunk_layers
from autopar.framework import Framework
from autopar.frontends import mindformers_operators as operators
from autopar.frontends.mindformers_recompute import NONE, Setting, Settings
from autopar.report import NamedLayers, Plan, dealt
from autopar.spec import Problem

# Operators that patterns can mark, as fields of `autopar.framework.Named`.
MARKED = tuple(field.name for field in fields(NamedLayers) if field.name != "gather")


def whole_layers(plan: Plan, index: int) -> list[int]:
    """Returns the layers of each chunk of a stage that are recomputed from their own input.

    Example:
        >>> from autopar.report import Recompute, Stage
        >>> whole_layers(Plan(stages=(Stage(layers=4, recompute=Recompute("block", 3)),)), 0)
        [3]
    """
    recompute, chunks = plan.stages[index].recompute, chunk_layers(plan, index)
    match recompute.granularity:
        case "none" | "selective":
            return [0 for _ in chunks]
        case "block":
            return [min(recompute.layers or 0, chunk) for chunk in chunks]
        case "parts":
            return _of_chunks(recompute.layers or 0, chunks)
        case "uniform":
            return chunks


def settings(problem: Problem, plan: Plan) -> Settings:
    """Returns the settings that have stages computed again as a plan says.

    Example:
        >>> from autopar import planner
        >>> from autopar.report import Recompute
        >>> asked = planner.problem(
        ...     "llama2-7b", "ascend_910b:16", global_batch_size=64, sequence_length=4096
        ... )
        >>> again = Recompute("parts", 2, regathers=False, operators=NamedLayers(activation=10))
        >>> plan = planner.plan(asked, pp=2, recompute=again)
        >>> settings(asked, plan).select_recompute[r"feed_forward\\.mul"]
        [10, 10]
    """
    chunks = [chunk_layers(plan, stage) for stage in range(plan.pp)]
    if all(stage.recompute.granularity == "uniform" for stage in plan.stages):
        return Settings(recompute=True)
    whole = [whole_layers(plan, stage) for stage in range(plan.pp)]
    rows = [_named(problem.framework, plan, stage) for stage in range(plan.pp)]
    select: dict[str, Setting] = {}
    for name in MARKED:
        counts = [
            _of_chunks(getattr(row, name), each) for row, each in zip(rows, chunks, strict=True)
        ]
        if any(map(any, counts)):
            value = True if counts == chunks else by_chunk(counts)
            select |= dict.fromkeys(operators.patterns(name), value)
    gathers = [_of_chunks(row.gather, each) for row, each in zip(rows, chunks, strict=True)]
    return Settings(
        recompute=by_chunk(whole) if any(map(any, whole)) else False,
        select_recompute=_shortest(select),
        select_comm_recompute=(
            gathers == chunks or by_chunk(gathers) if any(map(any, gathers)) else False
        ),
        regathers=any(stage.recompute.regathers for stage in plan.stages),
    )


def _of_chunks(count: int, chunks: list[int]) -> list[int]:
    """Returns how many layers of each chunk so many of a stage are."""
    found = zip(dealt(count, len(chunks)), chunks, strict=True)
    return [min(own, layers) for own, layers in found]


def _named(framework: Framework, plan: Plan, stage: int) -> NamedLayers:
    """Returns the operators that a stage computes again by themselves."""
    recompute = plan.stages[stage].recompute
    if recompute.granularity == "parts":
        return recompute.operators or NONE
    if recompute.granularity != "selective":
        return NONE
    layers = plan.vpp * max(chunk_layers(plan, stage))
    again = framework.named
    row = NamedLayers(**{name: layers * getattr(again, name) for name in MARKED})
    gathers = plan.sp and again.norm and not framework.keeps_tensor_results
    return replace(row, gather=layers) if gathers else row


def _shortest(select: dict[str, Setting]) -> Setting:
    """Returns patterns as a list where each acts in every layer; a truth value for none."""
    if all(value is True for value in select.values()):
        return list(select) or False
    # MindFormers takes a truth value or counts of any pattern.
    return select


def by_chunk(stages: list[list[int]]) -> list[Any]:
    """Returns a list for each chunk of what each stage has for it; the list alone for one chunk.

    Example:
        >>> by_chunk([[1, 2], [3, 4]]), by_chunk([[1], [3]])
        ([[1, 3], [2, 4]], [1, 3])
    """
    rounds = [list(chunk) for chunk in zip(*stages, strict=True)]
    return rounds if len(rounds) > 1 else rounds[0]
