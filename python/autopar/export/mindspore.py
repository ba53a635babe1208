"""MindSpore 2.7 and later: the keywords of `set_auto_parallel_context`, and what cells are told.

The context says data and pipeline parallel and the sharded optimizer. Where a plan cuts operators
over tensor, context or expert ranks too, their cuts go into a strategy file, which the context
loads, and those of operators without a parameter into calls of `Primitive.shard`.
"""

import json
from pprint import pformat
from typing import Any

from autopar.export import mindspore_operators
from autopar.export.job import (
    File,
    Job,
    chunk_layers,
    commented,
    header,
    unsaid_everywhere,
    unsaid_host,
    unsaid_optimizer,
    when,
)
from autopar.export.mindformers import (
    STEP_LIMITS,
    parallel_context,
    unsaid_step,
)
from autopar.export.mindformers_recompute import whole_layers
from autopar.export.mindspore_strategy import json_bytes
from autopar.frontends.mindformers_recompute import NONE

# As many ranks as `global_rank` can name.
LARGEST = 4096

STRATEGIES = "strategies.json"

LIMITS: tuple[dict[str, Any], ...] = (STEP_LIMITS,)


def supports(job: Job) -> list[str]:
    """Returns what context and strategies cannot say of a plan; empty if they say it exactly."""
    devices = job.problem.cluster.devices
    return [
        *unsaid_everywhere(job),
        *unsaid_host(job.plan),
        *unsaid_optimizer(job),
        *unsaid_step(job),
        *when(
            (
                any(
                    stage.recompute.granularity == "selective"
                    or stage.recompute.operators not in (None, NONE)
                    for stage in job.plan.stages
                ),
                "recompute of single operators",
            )
        ),
        *(mindspore_operators.unsaid(job) if mindspore_operators.is_cut(job) else []),
        *when(
            (devices > LARGEST, f"more than {LARGEST} ranks"),
        ),
    ]


def files(job: Job) -> list[File]:
    """Returns a Python module, and a strategy file where not only the batch is cut.

    The module holds the context, stage, chunk and recompute of each layer, and cuts for
    `Primitive.shard`.
    """
    problem, plan = job.problem, job.plan
    context: dict[str, Any] = {
        "parallel_mode": "semi_auto_parallel",
        "device_num": problem.cluster.devices,
        **parallel_context(job),
    }
    del context["full_batch"]
    context["dataset_strategy"] = "full_batch"
    if plan.pp > 1:
        context["pipeline_stages"] = plan.pp
    lines = [
        *header(job),
        "Pass CONTEXT to mindspore.set_auto_parallel_context, MICRO_BATCHES to PipelineCell or to",
        "gradient accumulation, and each row of LAYERS to its cell: Cell.pipeline_stage,",
        "Cell.pipeline_segment, and Cell.recompute(**RECOMPUTE) where the last item is true.",
    ]
    rows, opening, cuts, more = _layers(job), "", "", []
    if mindspore_operators.is_cut(job):
        context["strategy_ckpt_config"] = {"load_file": STRATEGIES}
        found = mindspore_operators.sharding(job)
        stages = [stage for stage, *_ in rows]
        table = json.loads(json_bytes(mindspore_operators.file_of(found, stages)))
        more.append(File(STRATEGIES, _commented_json(job, table)))
        lines += [
            f"{STRATEGIES} holds the cuts of operators with a parameter, under the names that",
            "parameters have in the graph of `autopar shard MODEL`. Give each row of CUTS, inputs",
            "and outputs, to Primitive.shard of the operator of that name; a star is any layer.",
            "Products and look-ups take tokens as rows, batch and sequence in one dimension.",
        ]
        if plan.ep > 1:
            lines += [
                "Tokens go to experts and back by look-ups within their sequence, Gather with",
                "batch_dims 1, whose places lie in one dimension.",
            ]
        apart = mindspore_operators.set_apart(found)
        cuts = f"\nCUTS = {pformat(apart, width=100, sort_dicts=False)}\n"
        if axes := mindspore_operators.in_groups(found):
            opening = "from mindspore import Layout\n\n"
            cuts += _in_groups(job, axes)
    text = (
        f"{opening}CONTEXT = {pformat(context, sort_dicts=False)}\n\n"
        f"MICRO_BATCH_SIZE = {plan.mbs}\nMICRO_BATCHES = {job.micro_batches}\n\n"
        f"LAYERS = {pformat(rows, width=100)}\nRECOMPUTE = {_recompute(job)}\n{cuts}"
    )
    return [File("auto_parallel_context.py", commented(lines) + text), *more]


def _in_groups(job: Job, axes: dict[str, tuple[tuple[str, ...], ...]]) -> str:
    """Returns the lines that cut experts of which each group of replicas has all."""
    groups = (job.plan.dp // job.plan.ep, job.plan.ep)
    names = (mindspore_operators.GROUP, mindspore_operators.EXPERT)
    return (
        f"\n# Each of {groups[0]} groups of {groups[1]} replicas has all experts.\n"
        f"EXPERTS = Layout({groups}, {names})\n"
        f"AXES = {pformat(axes, width=100, sort_dicts=False)}\n"
        "CUTS |= {name: (tuple(EXPERTS(*a) for a in inputs), None)"
        " for name, inputs in AXES.items()}\n"
    )


def _commented_json(job: Job, table: dict[str, Any]) -> str:
    """Returns a strategy file in the compiler's form, with a key that its loader passes over."""
    said = {"_comment": header(job), **table}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _recompute(job: Job) -> dict[str, bool]:
    """Returns the keywords of `Cell.recompute` that are not at their default."""
    framework = job.problem.framework
    said = {
        "mp_comm_recompute": not framework.keeps_tensor_results,
        "recompute_slice_activation": framework.slices_kept_inputs,
    }
    usual = {"mp_comm_recompute": True, "recompute_slice_activation": False}
    return {key: value for key, value in said.items() if value != usual[key]}


def _layers(job: Job) -> list[tuple[int, int, bool]]:
    """Returns stage, chunk and recompute of each layer, in the order of the model."""
    plan = job.plan
    return [
        (stage, chunk, layer < whole_layers(plan, stage)[chunk])
        for chunk in range(plan.vpp)
        for stage in range(plan.pp)
        for layer in range(chunk_layers(plan, stage)[chunk])
    ]
