"""What settings of single operators do to a plan, which has none: priced at the operator level.

`Primitive.recompute` acts on operators of a layer, and is priced for one layer. Groups of gradients
by their places (`all_reduce_fusion_config`) act on the compiled graph of a rank. The plan is cut
into operators as the `mindspore` exporter cuts it, and the graph of its whole model is priced with
the setting and without it. Shared communication subgraphs (`MS_COMM_COMPILER_OPT`) are counted in
the graph of each stage; they change no step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from autopar import planner
from autopar.compat.effects import Effect
from autopar.errors import SpecError
from autopar.export import mindspore_operators
from autopar.export.job import Job
from autopar.sharding import Fusion, Grouping

PS_PER_MS = 10**9
# Communication operators that are replaced at most where MS_COMM_COMPILER_OPT is -1 (MindSpore's
# tutorial on communication subgraphs, r2.4).
DEFAULT_REUSE = 1000


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
    """Returns what shared communication subgraphs do to each stage of a plan.

    Args:
        job: The plan.
        limit: Communication operators of a stage that may be replaced at most; -1 for the default.

    Example:
        >>> from autopar import planner
        >>> asked = planner.problem("llama2-7b", "ascend_910b", devices=8, global_batch_size=64,
        ...                         sequence_length=4096, framework="mindformers")
        >>> plan = planner.plan(asked, tp=2, pp=2)
        >>> job = Job(asked, plan, planner.estimate(asked, plan))
        >>> print(reused(job, 5000).because)  # doctest: +NORMALIZE_WHITESPACE
        stages of the fastest plan compile 2 and 4 communication operators in place of 4160 and
        4288: 4160 and 4288 are calls of 2 and 4 shared subgraphs; saves compilation and streams,
        not a step
    """
    key = "MS_COMM_COMPILER_OPT"
    if job.plan.vpp > 1:
        because = (
            "MindSpore refuses it where cells are reused, as the fastest plan's chunks of a stage"
            " have it"
        )
        return Effect(key, limit, {}, because)
    allowed = DEFAULT_REUSE if limit == -1 else limit
    counts = planner.stage_communications(job.problem, job.plan, reuse_limit=allowed)
    changes = {"compiled": [each.compiled for each in counts]}
    if not any(each.replaced for each in counts):
        because = "the limit leaves no kind of the fastest plan's communication operators to share"
        return Effect(key, limit, {}, because)
    whose = "stages of the fastest plan compile" if len(counts) > 1 else "the fastest plan compiles"
    because = (
        f"{whose} {_each(each.compiled for each in counts)} communication operators in place of"
        f" {_each(each.operators for each in counts)}: {_each(each.replaced for each in counts)}"
        f" are calls of {_each(each.subgraphs for each in counts)} shared subgraphs;"
        " saves compilation and streams, not a step"
    )
    return Effect(key, limit, changes, because)


def _each(counts: Iterable[int]) -> str:
    """Returns what each stage has; once where all have the same.

    Example:
        >>> _each([4, 8, 8]), _each([8, 8])
        ('4, 8 and 8', '8')
    """
    said = [str(count) for count in counts]
    if len(set(said)) == 1:
        return said[0]
    return f"{', '.join(said[:-1])} and {said[-1]}"


def _unpriced(job: Job, stage_does: str) -> str:
    """Returns why the operators of a plan have no price; empty if they have one."""
    if job.plan.pp > 1:
        return f"the fastest plan has pipeline stages, each of which {stage_does}"
    if reasons := mindspore_operators.unsaid(job):
        return f"the fastest plan has no cuts of single operators: {', '.join(reasons)}"
    return ""
