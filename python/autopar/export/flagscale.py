"""FlagScale 0.8: its YAML, for one kind of chip and, as the only open executor, for several.

The arguments are Megatron-LM's. Several kinds are process meshes `[tp, cp, ep, dp, pp]`, one a kind
in the order of the stages, so that each stage lies on its chips; recompute may differ from stage to
stage. The rules are those of `flagscale/train/arguments.py`.
"""

from itertools import groupby
from typing import Any

from autopar.export import megatron
from autopar.export.job import File, Job, commented, header, unsaid_everywhere, when, yaml_text
from autopar.report import Recompute

LIMITS = megatron.STAGE_LIMITS


def supports(job: Job) -> list[str]:
    """Returns what FlagScale's file cannot say of a plan; empty if it says it exactly."""
    problem, plan = job.problem, job.plan
    settings = {stage.recompute for stage in plan.stages}
    several = len(job.kinds) > 1
    differ = len(settings) > 1
    broken = [
        f"{devices} {problem.cluster.groups[kind].chip.name} on nodes of {node}"
        for kind, devices, node in _shares(job)
        if devices % node
    ]
    return [
        *(broken if several else unsaid_everywhere(job)),
        *megatron.unsaid_arguments(job),
        *when(
            (plan.tp > problem.model.kv_heads,
             f"tp {plan.tp} over {problem.model.kv_heads} key heads"),
            (several and plan.vpp > 1, "several chunks a stage with several kinds of chip"),
            (several and plan.shard_group != plan.dp * plan.cp and plan.zero > 0,
             "partial shard groups with several kinds of chip"),
            (differ and plan.vpp > 1,
             "recompute that differs between stages of several chunks"),
            (differ and any(setting.granularity == "selective" for setting in settings),
             "selective recompute of only some stages"),
        ),
    ]  # fmt: skip


def files(job: Job) -> list[File]:
    """Returns the experiment for `flagscale train` or `run.py --config-name flagscale`."""
    lines = header(job)
    if len(job.kinds) > 1:
        hosts = ", then ".join(
            f"{devices // node} lines NAME slots={node} type={_chip(job, kind)}"
            for kind, devices, node in _shares(job)
        )
        lines.append(f"The hostfile lists the nodes in this order: {hosts}.")
    lines.append("Data, tokenizer, learning rate and checkpoints belong into train.data and so on.")
    table = {
        "experiment": {
            "exp_name": job.problem.model.name,
            "exp_dir": f"./outputs/{job.problem.model.name}",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "flagscale/train/train_gpt.py",
            },
            "runner": {
                "backend": "torchrun",
                "nnodes": sum(devices // node for _, devices, node in _shares(job)),
                "nproc_per_node": job.devices_per_node,
                "hostfile": "hostfile",
            },
            "envs": megatron.plan_environment(job),
        },
        "train": {
            "system": _yaml_keys(_system(job)),
            "model": _yaml_keys(megatron.model_arguments(job.problem)),
        },
        "action": "run",
    }
    return [File("flagscale.yaml", commented(lines) + yaml_text(table))]


def _system(job: Job) -> dict[str, Any]:
    plan = job.plan
    arguments = megatron.plan_arguments(job)
    if len({stage.recompute for stage in plan.stages}) == 1:
        arguments |= megatron.recompute_arguments(job)
    else:
        arguments |= _recompute_of_stages(job)
    if len(job.kinds) == 1:
        return arguments
    # The split of the layers is the meshes' own; Megatron's arguments for it contradict them.
    for name in list(arguments):
        if name.startswith("decoder-") or name == "pipeline-model-parallel-layout":
            del arguments[name]
    counts = {kind: sum(stage.chip == kind for stage in plan.stages) for kind in job.kinds}
    meshes = [
        [plan.tp_of(kind), plan.cp, plan.ep, plan.dp, count] for kind, count in counts.items()
    ]
    names = [_chip(job, kind) for kind in job.kinds]
    hetero: dict[str, Any] = {
        "enable-hetero": None,
        "hetero-pipeline-layer-split": [stage.layers for stage in plan.stages],
        "hetero-process-meshes": [degree for mesh in meshes for degree in mesh],
        "hetero-device-types": names,
        # The runner replaces it on each node by the type that the hostfile gives.
        "hetero-current-device-type": names[0],
    }
    if job.problem.model.moe is not None:
        degrees = [plan.etp_of(kind) for kind in job.kinds]
        hetero["expert-tensor-parallel-size-per-process-mesh"] = degrees
    return arguments | hetero


def _recompute_of_stages(job: Job) -> dict[str, Any]:
    """Returns recompute stage by stage, the same for all micro-batches: runs of equal stages."""
    steps = job.micro_batches
    flags, methods, layers = [], [], []
    for setting, run in groupby(stage.recompute for stage in job.plan.stages):
        count = len(list(run))
        flags.append([count, steps, int(setting != Recompute())])
        methods.append([count, steps, int(setting.granularity == "block")])
        layers.append([count, steps, setting.layers or 1])
    return {
        "recompute-granularity": "full",
        "recompute-method": "uniform",
        "recompute-num-layers": 1,
        "recompute-granularity-per-stage-micro-batch": flags,
        "recompute-method-per-stage-micro-batch": methods,
        "recompute-num-layers-per-stage-micro-batch": layers,
    }


def _shares(job: Job) -> list[tuple[int, int, int]]:
    """Returns each kind with the devices that it gives and those of a node."""
    plan, shares = job.plan, []
    for kind in job.kinds:
        stages = sum(stage.chip == kind for stage in plan.stages)
        devices = stages * plan.devices_per_stage(kind)
        node = job.problem.cluster.groups[kind].chip.devices_per_node
        shares.append((kind, devices, min(node, job.problem.cluster.devices)))
    return shares


def _chip(job: Job, kind: int) -> str:
    return job.problem.cluster.groups[kind].chip.name


def _yaml_keys(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments as FlagScale spells them: underscores, and true for a flag."""
    return {
        name.replace("-", "_"): True if value is None else value
        for name, value in arguments.items()
    }
