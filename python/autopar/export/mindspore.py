"""MindSpore 2.7 and later: the keywords of `set_auto_parallel_context`, and what cells are told.

The context says data and pipeline parallel and the sharded optimizer. How operators are cut over
tensor, context and expert parallel is in their strategies, which a plan of whole layers has not.
"""

from pprint import pformat
from typing import Any

from autopar.export.job import (
    File,
    Job,
    chunk_layers,
    commented,
    header,
    unsaid_everywhere,
    unsaid_host,
    when,
)
from autopar.export.mindformers import is_ignored, parallel_context, recomputed_layers

# As many ranks as `global_rank` can name.
LARGEST = 4096

SCHEDULES = ("1f1b", "interleaved", "gpipe")

LIMITS: tuple[dict[str, Any], ...] = (
    {
        "tp": (1,),
        "cp": (1,),
        "ep": (1,),
        "schedules": SCHEDULES[:2],
        "recompute": ("none", "block", "uniform"),
        "activation_offload": False,
        "optimizer_offload": False,
    },
)


def supports(job: Job) -> list[str]:
    """Returns what the context cannot say of a plan; empty if it says it exactly."""
    problem, plan = job.problem, job.plan
    recompute = [stage.recompute for stage in plan.stages]
    return [
        *unsaid_everywhere(job),
        *unsaid_host(plan),
        *when(
            (problem.cluster.devices > LARGEST, f"more than {LARGEST} ranks"),
            (plan.tp > 1, "tensor parallel without the operators' strategies"),
            (plan.cp > 1, "context parallel without the operators' strategies"),
            (plan.ep > 1, "expert parallel without the operators' strategies"),
            (plan.schedule not in SCHEDULES[:2], f"schedule {plan.schedule}"),
            (is_ignored(plan), "optimizer shards of one rank"),
            (plan.optimizer_offload, "optimizer offload"),
            (any(r.granularity == "selective" for r in recompute), "selective recompute"),
            (any(r.granularity == "uniform" and r.layers != 1 for r in recompute),
             "recompute in groups of layers"),
        ),
    ]  # fmt: skip


def files(job: Job) -> list[File]:
    """Returns a Python module: the context, and stage, chunk and recompute of each layer."""
    problem, plan = job.problem, job.plan
    context: dict[str, Any] = {
        "parallel_mode": "semi_auto_parallel",
        "device_num": problem.cluster.devices,
        **parallel_context(plan),
    }
    del context["full_batch"]
    context["dataset_strategy"] = "full_batch"
    if plan.pp > 1:
        context["pipeline_stages"] = plan.pp
    lines = [
        *header(job),
        "Pass CONTEXT to mindspore.set_auto_parallel_context, MICRO_BATCHES to PipelineCell or to",
        "gradient accumulation, and each row of LAYERS to its cell: Cell.pipeline_stage,",
        "Cell.pipeline_segment, and Cell.recompute() where the last item is true.",
    ]
    rows = _layers(job)
    text = (
        f"CONTEXT = {pformat(context, sort_dicts=False)}\n\n"
        f"MICRO_BATCH_SIZE = {plan.mbs}\nMICRO_BATCHES = {job.micro_batches}\n\n"
        f"LAYERS = {pformat(rows, width=100)}\n"
    )
    return [File("auto_parallel_context.py", commented(lines) + text)]


def _layers(job: Job) -> list[tuple[int, int, bool]]:
    """Returns stage, chunk and recompute of each layer, in the order of the model."""
    plan = job.plan
    return [
        (stage, chunk, layer < recomputed_layers(plan, stage)[chunk])
        for chunk in range(plan.vpp)
        for stage in range(plan.pp)
        for layer in range(chunk_layers(plan, stage)[chunk])
    ]
