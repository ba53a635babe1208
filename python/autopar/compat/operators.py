"""What settings of single operators do to a plan, which has none: priced at the operator level.

`Primitive.recompute` acts on operators of a layer, and is priced for one layer. Groups of gradients
by their places (`all_reduce_fusion_config`) and shared communication subgraphs
(`MS_COMM_COMPILER_OPT`) act on the compiled graph of a rank. The plan is cut into operators as the
`mindspore` exporter cuts it, and the graph of its whole model is priced with the setting and
without it, recompute apart. What a plan does is not changed by either.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from autopar.compat.effects import Effect
from autopar.errors import SpecError
from autopar.export import mindspore_operators
from autopar.export.job import Job
from autopar.sharding import Fusion, Grouping

PS_PER_MS = 10**9


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What it brings and costs a device to compute operators of a layer again.

    Attributes:
        operators: The operators.
        time_ps: Time that a micro-batch takes longer in one layer.
        memory_bytes: Bytes that a micro-batch keeps less in one layer until its backward pass.
    """

    operators: tuple[str, ...]
    time_ps: int
    memory_bytes: int


def recomputed(job: Job, names: Iterable[str]) -> Recomputed:
    """Returns what `Primitive.recompute` of operators does to one layer of a plan.

    Args:
        job: The plan.
        names: Operators of the graph of `autopar shard MODEL`; a star stands for any letters.

    Raises:
        SpecError: The plan's operators have no cuts, or a name is that of none.

    Example:
        >>> from autopar import planner
        >>> asked = planner.problem("llama2-7b", "ascend_910b", devices=8, global_batch_size=64,
        ...                         sequence_length=4096, framework="mindformers")
        >>> plan = planner.plan(asked, tp=2)
        >>> job = Job(asked, plan, planner.estimate(asked, plan))
        >>> again = recomputed(job, ["*.mlp.act"])
        >>> again.operators, again.memory_bytes == 4096 * 11008 // 2 * 2
        (('layers.0.mlp.act',), True)
    """
    if reasons := mindspore_operators.unsaid(job):
        raise SpecError("recompute", f"no cuts of single operators: {', '.join(reasons)}")
    kept = mindspore_operators.sharding(job)
    again = mindspore_operators.sharding(job, again=names)
    return Recomputed(
        tuple(each.name for each in again.problem.graph.operators if each.recompute),
        again.cost.recompute_ps,
        kept.cost.memory_bytes - again.cost.memory_bytes,
    )


def grouped(job: Job, places: list[int]) -> Effect:
    """Returns what groups of gradients that begin at given places do to a plan.

    Args:
        job: The plan.
        places: Places of gradients at which a group begins, ascending, in the order of the graph.

    Example:
        >>> from autopar import planner
        >>> asked = planner.problem("llama2-7b", "ascend_910b", devices=8, global_batch_size=64,
        ...                         sequence_length=4096, framework="mindformers")
        >>> plan = planner.plan(asked, pp=2)
        >>> job = Job(asked, plan, planner.estimate(asked, plan))
        >>> print(grouped(job, [20, 35]))  # doctest: +NORMALIZE_WHITESPACE
        all_reduce_fusion_config=[20, 35]: nothing: the fastest plan has pipeline stages, each of
        which numbers gradients of its own
    """
    key = "all_reduce_fusion_config"
    if because := _unpriced(job, "numbers gradients of its own"):
        return Effect(key, places, {}, because)
    if job.plan.zero:
        because = "the fastest plan scatters gradients, which are grouped by comm_fusion's sizes"
        return Effect(key, places, {}, because)
    layers = job.problem.model.layers
    grouping = Grouping(mode="index", places=tuple(places))
    by_place, by_size = (
        mindspore_operators.sharding(job, layers, fusion=fusion).overlap
        for fusion in (Fusion(all_reduce=grouping), Fusion())
    )
    if by_place is None or by_size is None:
        return Effect(key, places, {}, "no gradients of the fastest plan are exchanged")
    gradients = sum(len(bucket.tensors) for bucket in by_place.buckets)
    because = (
        f"{gradients} gradients of the fastest plan are summed in {len(by_place.buckets)} groups,"
        f" {by_place.gradients_exposed_ps / PS_PER_MS:.1f} ms of it after the backward pass"
        f" (in groups of 64 MB {by_size.gradients_exposed_ps / PS_PER_MS:.1f} ms)"
    )
    return Effect(key, places, {"fusion.all_reduce.places": places}, because)


def reused(job: Job, limit: int) -> Effect:
    """Returns what shared communication subgraphs do to a plan.

    Args:
        job: The plan.
        limit: Communication operators that may be replaced at most; -1 for as many as there are.

    Example:
        >>> from autopar import planner
        >>> asked = planner.problem("llama2-7b", "ascend_910b", devices=8, global_batch_size=64,
        ...                         sequence_length=4096, framework="mindformers")
        >>> plan = planner.plan(asked, tp=2)
        >>> job = Job(asked, plan, planner.estimate(asked, plan))
        >>> print(reused(job, -1).because)  # doctest: +NORMALIZE_WHITESPACE
        of the fastest plan's 524 communication operators 523 are calls of 9 shared subgraphs,
        10 are compiled; saves compilation and streams, not a step
    """
    key = "MS_COMM_COMPILER_OPT"
    if because := _unpriced(job, "is compiled by itself"):
        return Effect(key, limit, {}, because)
    allowed = max(limit, 0)
    found = mindspore_operators.sharding(job, job.problem.model.layers, reuse_limit=allowed)
    counts = found.communications
    because = (
        f"of the fastest plan's {counts.operators} communication operators {counts.replaced} are"
        f" calls of {counts.subgraphs} shared subgraphs, {counts.compiled} are compiled;"
        " saves compilation and streams, not a step"
    )
    return Effect(key, limit, {"reuse_limit": allowed}, because)


def _unpriced(job: Job, stage_does: str) -> str:
    """Returns why the operators of a plan have no price; empty if they have one."""
    if job.plan.pp > 1:
        return f"the fastest plan has pipeline stages, each of which {stage_does}"
    if reasons := mindspore_operators.unsaid(job):
        return f"the fastest plan has no cuts of single operators: {', '.join(reasons)}"
    return ""
