"""Hugging Face Accelerate 1.15: its YAML, and the command that starts a Trainer with it.

Parameters that are sharded are FSDP2's, with tensor and context parallel; plain replicas are DDP's;
whatever else it can say goes to Megatron-LM. The size of a micro-batch and the accumulation are
arguments of the training script, as transformers' `TrainingArguments` name them.
"""

from typing import Any, Literal

from autopar.export.job import (
    File,
    Job,
    commented,
    header,
    unsaid_everywhere,
    unsaid_framework,
    unsaid_host,
    unsaid_optimizer,
    unsaid_selective,
    when,
    yaml_text,
)
from autopar.export.megatron import unsaid_groups
from autopar.report import Plan, Recompute

ROTATE = {"ring": "alltoall", "gather": "allgather", "blocks": "allgather"}

Backend = Literal["FSDP", "MULTI_GPU", "MEGATRON_LM"]

_COMMON: dict[str, Any] = {
    "vpp": (1,),
    "schedules": ("1f1b",),
    "activation_offload": False,
    "recompute_per_stage": False,
}
_ALONE: dict[str, Any] = {"pp": (1,), "ep": (1,), "sp": (False,), "optimizer_offload": False}
LIMITS: tuple[dict[str, Any], ...] = (
    {**_COMMON, **_ALONE, "zero": (2, 3), "recompute": ("none", "block", "uniform")},
    {**_COMMON, **_ALONE, "zero": (0,), "tp": (1,), "cp": (1,), "recompute": ("none",)},
    {**_COMMON, "zero": (0, 1), "partial_shard_groups": False},
)
# What it starts, in the order of the limits.
FRAMEWORKS = ("fsdp", "pytorch-ddp", "accelerate-megatron")


def supports(job: Job) -> list[str]:
    """Returns what Accelerate's file cannot say of a plan; empty if it says it exactly."""
    plan, problem = job.plan, job.problem
    common = [
        *unsaid_everywhere(job),
        *unsaid_host(plan),
        *unsaid_optimizer(job),
        *unsaid_framework(job),
        *when(
            (plan.schedule != "1f1b", f"schedule {plan.schedule}"),
            (
                problem.workload.precision not in ("bf16", "fp16"),
                f"precision {problem.workload.precision}",
            ),
        ),
    ]
    if _backend(plan) == "MEGATRON_LM":
        return [*common, *_unsaid_by_megatron(job), *unsaid_groups(plan), *unsaid_selective(job)]
    return common + _unsaid_by_fsdp(job)


def files(job: Job) -> list[File]:
    """Returns the configuration and the script that launches a Trainer with it."""
    problem, plan = job.problem, job.plan
    backend = _backend(plan)
    table: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": backend,
        "mixed_precision": problem.workload.precision,
        "num_machines": job.nodes,
        "num_processes": problem.cluster.devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
    }
    match backend:
        case "FSDP":
            table |= _fsdp(job)
        case "MEGATRON_LM":
            table["megatron_lm_config"] = _megatron(job)
        case "MULTI_GPU":
            pass
    return [
        File("accelerate.yaml", commented(header(job)) + yaml_text(table)),
        File("accelerate.sh", _script(job)),
    ]


def framework(job: Job) -> str:
    """Returns the profile of the framework that a plan runs in."""
    backends: tuple[Backend, ...] = ("FSDP", "MULTI_GPU", "MEGATRON_LM")
    return FRAMEWORKS[backends.index(_backend(job.plan))]


def _backend(plan: Plan) -> Backend:
    if plan.zero > 1:
        return "FSDP"
    replicas = plan.zero == 0 and plan.tp == plan.cp == plan.pp == plan.ep == 1
    if replicas and plan.stages[0].recompute.granularity == "none" and not plan.optimizer_offload:
        return "MULTI_GPU"
    return "MEGATRON_LM"


def _unsaid_by_fsdp(job: Job) -> list[str]:
    plan = job.plan
    without = plan.stages[0].recompute.granularity == "none"
    return when(
        (plan.pp > 1, f"ZeRO stage {plan.zero} with pipeline stages"),
        (
            plan.cp > 1 and job.problem.framework.context_exchange not in ROTATE,
            "context parallel that exchanges heads",
        ),
        (plan.zero > 0 and plan.shard_group == 1, "FSDP over one rank"),
        (plan.ep > 1, f"expert parallel {plan.ep} with FSDP"),
        (plan.sp, "sequence parallel with FSDP"),
        (plan.optimizer_offload, "optimizer offload with FSDP"),
        (not without and not job.whole_recompute, "recompute of only some layers or operators"),
        (
            plan.zero > 1 and plan.shard_group % plan.cp != 0,
            f"shard groups of {plan.shard_group} with context parallel {plan.cp}",
        ),
    )


def _unsaid_by_megatron(job: Job) -> list[str]:
    plan = job.plan
    # Only the last stage may differ.
    rest = {stage.layers for stage in plan.stages[:-1]}
    return when(
        (plan.vpp > 1, f"{plan.vpp} chunks a stage"),
        (len(rest) > 1, "uneven layers but in the last stage"),
        (plan.zero == 1 and plan.shard_group != plan.dp * plan.cp, "partial shard groups"),
        (plan.optimizer_offload and plan.zero == 0, "optimizer offload without ZeRO stage 1"),
        (len({stage.recompute for stage in plan.stages}) > 1,
         "recompute that differs between stages"),
        (job.problem.workload.attention != "flash", "unfused attention"),
        # Megatron-LM's default, which the file cannot change.
        (plan.ep > 1 and job.problem.framework.expert_dispatch != "gather",
         f"expert dispatch {job.problem.framework.expert_dispatch}"),
    )  # fmt: skip


def _fsdp(job: Job) -> dict[str, Any]:
    plan = job.plan
    rotate = ROTATE.get(job.problem.framework.context_exchange, "allgather")
    return {
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": job.whole_recompute,
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": plan.dp * plan.cp // plan.shard_group,
            "parallelism_config_dp_shard_size": plan.shard_group // plan.cp,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
            "parallelism_config_cp_comm_strategy": rotate,
        },
    }


def _megatron(job: Job) -> dict[str, Any]:
    plan = job.plan
    layers = [stage.layers for stage in plan.stages]
    settings: dict[str, Any] = {
        "tp_degree": plan.tp,
        "pp_degree": plan.pp,
        "num_micro_batches": job.micro_batches,
        "sequence_parallelism": plan.sp,
        "use_distributed_optimizer": plan.zero == 1,
        "context_parallel_size": plan.cp,
    }
    if job.problem.model.moe is not None:
        settings["expert_model_parallel_size"] = plan.ep
        settings["expert_tensor_parallel_size"] = plan.etp
    if layers[-1] != layers[0]:
        settings["decoder_last_pipeline_num_layers"] = layers[-1]
    if plan.optimizer_offload:
        settings |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    match plan.stages[0].recompute:
        case Recompute(granularity="selective"):
            settings |= {"recompute_activations": True, "recompute_granularity": "selective"}
        case Recompute(granularity="block" | "uniform" as method, layers=count):
            settings |= {
                "recompute_granularity": "full",
                "recompute_method": method,
                "recompute_num_layers": count,
            }
        case _:
            settings["recompute_activations"] = False
    return {f"megatron_lm_{name}": value for name, value in settings.items()}


def _script(job: Job) -> str:
    usage = [
        f"Run it on each of {job.nodes} nodes with NODE_RANK from 0 and MASTER_ADDR, the first"
        " node's name;",
        "its arguments are the training script, which takes transformers' TrainingArguments, and"
        " its own.",
    ]
    # Megatron-LM accumulates by itself.
    steps = 1 if _backend(job.plan) == "MEGATRON_LM" else job.micro_batches
    lines = [
        "exec accelerate launch --config_file accelerate.yaml",
        '--machine_rank "${NODE_RANK:?}" --main_process_ip "${MASTER_ADDR:?}"'
        ' --main_process_port "${MASTER_PORT:-29500}"',
        '"$@"',
        f"--per_device_train_batch_size {job.plan.mbs} --gradient_accumulation_steps {steps}",
    ]
    command = " \\\n    ".join(lines)
    return (
        f"#!/usr/bin/env bash\n{commented([*header(job), *usage])}set -euo pipefail\n\n{command}\n"
    )
