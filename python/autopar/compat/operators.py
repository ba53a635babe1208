"""What settings of single operators do to a plan where its own estimate has no place for them.

`Primitive.recompute` of any operator is priced at the operator level, for one layer of a plan that
the `mindspore` exporter can cut; `autopar.compat.plans` has those that a plan says. Shared
communication subgraphs (`MS_COMM_COMPILER_OPT`) are counted in the graph of each stage; they change
no step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from autopar import planner
from autopar.compat.effects import Effect
from autopar.errors import SpecError
from autopar.export import mindspore_operators
from autopar.export.job import Job

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
