"""DeepSpeed 0.19: its JSON configuration.

ZeRO, micro-batches, accumulation and offload of the optimizer are the file's own; pipeline stages
and checkpoints are read by the pipeline engine, tensor parallel by AutoTP. JSON has no comments:
the header is the key `_comment`, which DeepSpeed passes over.
"""

import json
from typing import Any

from autopar.export.job import (
    File,
    Job,
    header,
    unsaid_everywhere,
    unsaid_framework,
    unsaid_host,
    unsaid_optimizer,
    when,
)
from autopar.report import Plan

_COMMON: dict[str, Any] = {
    "schedules": ("1f1b",),
    "vpp": (1,),
    "ep": (1,),
    "sp": (False,),
    "recompute": ("none", "uniform"),
    "partial_shard_groups": False,
    "activation_offload": False,
    "uneven_layers": False,
    "recompute_per_stage": False,
}
_WHOLE_SEQUENCES: dict[str, Any] = {**_COMMON, "cp": (1,)}
LIMITS: tuple[dict[str, Any], ...] = (
    {**_WHOLE_SEQUENCES, "tp": (1,), "zero": (0, 1)},
    {**_WHOLE_SEQUENCES, "pp": (1,), "zero": (0, 1, 2)},
    {**_COMMON, "tp": (1,), "pp": (1,)},
)


def supports(job: Job) -> list[str]:
    """Returns what DeepSpeed's file cannot say of a plan; empty if it says it exactly."""
    plan = job.plan
    partial = plan.zero > 0 and plan.shard_group != plan.dp * plan.cp
    # Its bf16 optimizer shards them in stage 0 too (runtime/bf16_optimizer.py).
    whole = plan.zero == 0 and plan.dp * plan.cp > 1 and job.problem.workload.precision == "bf16"
    return [
        *unsaid_everywhere(job),
        *unsaid_host(plan),
        *unsaid_optimizer(job),
        *unsaid_framework(job),
        *when(
            (plan.schedule != "1f1b", f"schedule {plan.schedule}"),
            (plan.cp > 1 and not _by_heads(job), f"context parallel {plan.cp}"),
            (plan.ep > 1, f"expert parallel {plan.ep}, an argument of the model's layers"),
            (plan.sp, "sequence parallel"),
            (plan.tp > 1 and plan.pp > 1, "tensor parallel with pipeline stages"),
            (plan.tp > 1 and plan.zero > 2, "tensor parallel with ZeRO stage 3"),
            (plan.pp > 1 and plan.zero > 1, f"ZeRO stage {plan.zero} with pipeline stages"),
            (len({stage.layers for stage in plan.stages}) > 1, "uneven layers"),
            (whole, "states of bf16 that are not sharded"),
            (partial, f"shard groups of {plan.shard_group}"),
            (plan.optimizer_offload and plan.zero == 0, "optimizer offload without ZeRO"),
            (_interval(job) is None, "recompute of only some layers or operators"),
            (job.problem.workload.precision in ("fp8", "fp4", "tf32"),
             f"precision {job.problem.workload.precision}"),
        ),
    ]  # fmt: skip


def files(job: Job) -> list[File]:
    """Returns the JSON file for `deepspeed --deepspeed_config`."""
    problem, plan = job.problem, job.plan
    table: dict[str, Any] = {
        "_comment": header(job),
        "train_batch_size": problem.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.mbs,
        "gradient_accumulation_steps": job.micro_batches,
        "zero_optimization": _zero(job),
    }
    if problem.workload.precision in ("bf16", "fp16"):
        table[problem.workload.precision] = {"enabled": True}
    if plan.cp > 1:
        table["sequence_parallel_size"] = plan.cp
    if plan.tp > 1:
        table["tensor_parallel"] = {"autotp_size": plan.tp}
    interval = _interval(job)
    if plan.pp > 1:
        table["pipeline"] = {
            "stages": plan.pp,
            # Every transformer block weighs one, whatever else the first and last stage hold.
            "partition": "type:transformer|decoder|block",
            "activation_checkpoint_interval": interval,
        }
    if interval:
        table["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "number_checkpoints": -(-problem.model.layers // interval),
        }
    return [File("deepspeed.json", json.dumps(table, indent=2, ensure_ascii=False) + "\n")]


def _zero(job: Job) -> dict[str, Any]:
    plan, overlap = job.plan, job.problem.framework.overlap
    zero: dict[str, Any] = {"stage": plan.zero}
    if plan.zero > 0:
        zero["overlap_comm"] = overlap.gradient_reduce
    if plan.optimizer_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return zero


def _by_heads(job: Job) -> bool:
    """Returns whether context parallel is DeepSpeed-Ulysses, alone but for ZeRO."""
    plan = job.plan
    heads = job.problem.framework.context_exchange == "heads"
    return heads and plan.tp == plan.pp == 1


def _interval(job: Job) -> int | None:
    """Returns the layers between two checkpoints, 0 without any; None for what it cannot say."""
    plan: Plan = job.plan
    settings = {stage.recompute for stage in plan.stages}
    if job.whole_recompute:
        return 1
    [setting, *others] = settings
    if others:
        return None
    if setting.granularity == "none":
        return 0
    # Only the pipeline engine groups layers; elsewhere the model checkpoints each.
    groups = setting.granularity == "uniform" and plan.pp > 1
    return setting.layers if groups else None
