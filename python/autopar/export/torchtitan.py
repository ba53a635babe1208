"""torchtitan 0.2: its TOML configuration.

Data parallel is FSDP2 (`zero` 3, and 2 as parameters that stay gathered after the forward pass) or
DDP (`zero` 0). Each chunk of a pipeline names its modules, so that any split is said exactly.
"""

import json
from typing import Any

from autopar.export.job import (
    File,
    Job,
    chunk_layers,
    commented,
    header,
    unsaid_everywhere,
    unsaid_framework,
    unsaid_host,
    unsaid_optimizer,
    when,
)
from autopar.frontends.torchtitan import FLAVORS
from autopar.report import Plan
from autopar.spec import Model

SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-v": "ZBVZeroBubble",
}
# How keys and values go round, how tokens reach experts, and whether parameters are let go.
ROTATE = {"ring": "alltoall", "gather": "allgather", "blocks": "allgather"}
EXCHANGES = {"copies": "standard", "once_a_node": "deepep"}
RESHARD = {"micro_batch": "always", "step_in_pipeline": "default", "step": "never"}

_COMMON: dict[str, Any] = {
    "schedules": tuple(SCHEDULES),
    "recompute": ("none", "selective", "block", "uniform"),
    "activation_offload": False,
    "optimizer_offload": False,
    "recompute_per_stage": False,
}
LIMITS: tuple[dict[str, Any], ...] = (
    {**_COMMON, "zero": (0,), "cp": (1,), "ep": (1,)},
    {**_COMMON, "zero": (2, 3)},
)


def supports(job: Job) -> list[str]:
    """Returns what torchtitan's file cannot say of a plan; empty if it says it exactly."""
    plan, work = job.plan, job.problem.workload
    experts = job.problem.model.moe
    moe = experts is not None
    said = _checkpoints(job)
    return [
        *unsaid_everywhere(job),
        *unsaid_host(plan),
        *unsaid_optimizer(job),
        *unsaid_framework(job),
        *when(
            (plan.schedule not in SCHEDULES, f"schedule {plan.schedule}"),
            (plan.zero == 1, "ZeRO stage 1"),
            (plan.zero == 0 and plan.cp > 1, "context parallel without FSDP"),
            (plan.cp > 1 and job.problem.framework.context_exchange not in ROTATE,
             "context parallel that exchanges heads"),
            (plan.zero > 0 and plan.shard_group % plan.cp != 0,
             f"shard groups of {plan.shard_group} with context parallel {plan.cp}"),
            (plan.zero > 0 and plan.shard_group == 1, "FSDP over one rank"),
            (plan.optimizer_offload, "optimizer offload"),
            (plan.tp > 1 and not plan.sp, "tensor parallel without sequence parallel"),
            (plan.ep > 1 and job.problem.framework.expert_dispatch not in EXCHANGES,
             f"expert dispatch {job.problem.framework.expert_dispatch}"),
            (plan.ep > 1 and plan.zero == 0, "expert parallel without FSDP"),
            (plan.ep > 1 and _expert_ranks(plan) % plan.ep != 0,
             f"expert parallel {plan.ep} over {_expert_ranks(plan)} sharding ranks"),
            (moe and plan.ep == 1 and plan.etp != plan.tp,
             "experts that tensor parallel does not cut, without expert parallel"),
            (experts is not None and experts.capacity_factor > 0, "a capacity of the experts"),
            (said is None, "recompute of only some layers or operators"),
            (work.precision not in ("bf16", "fp32"), f"precision {work.precision}"),
            (work.attention != "flash", "unfused attention"),
            (work.dropout, "dropout"),
        ),
    ]  # fmt: skip


def files(job: Job) -> list[File]:
    """Returns the TOML file for `torchtitan --job.config_file`."""
    problem, plan = job.problem, job.plan
    own = problem.model.name
    name, flavor = FLAVORS.get(own, (own, own))
    lines = header(job)
    if own not in FLAVORS:
        lines.append(f"torchtitan defines no {own}: register a train spec and flavor of that name.")
    replicas, shards = _data_parallel(plan)
    # One local batch is what a replica runs between two optimizer steps of the pipeline, or one
    # micro-batch, which torchtitan then accumulates.
    local = plan.mbs * job.micro_batches if plan.pp > 1 else plan.mbs
    dtype = "bfloat16" if problem.workload.precision == "bf16" else "float32"
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "never"
        if plan.zero == 2
        else RESHARD[problem.framework.gathers],
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "context_parallel_rotate_method": ROTATE.get(
            problem.framework.context_exchange, "allgather"
        ),
        "expert_parallel_degree": plan.ep,
        "expert_tensor_parallel_degree": plan.etp if plan.ep > 1 else 1,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.ep > 1:
        backend = EXCHANGES[problem.framework.expert_dispatch]
        parallelism["expert_parallel_comm_backend"] = backend
    if plan.pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
            "pipeline_parallel_microbatch_size": plan.mbs,
            "module_fqns_per_model_part": chunk_modules(problem.model, plan),
        }
    tables: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "local_batch_size": local,
            "global_batch_size": problem.workload.global_batch_size,
            "seq_len": problem.workload.sequence_length,
            "mixed_precision_param": dtype,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
        "activation_checkpoint": _checkpoints(job) or {},
        "compile": {"enable": problem.framework.fused.activation},
    }
    lines.append(
        f"torchrun --nnodes {job.nodes} --nproc-per-node {job.devices_per_node}"
        " -m torchtitan.train --job.config_file torchtitan.toml"
    )
    return [File("torchtitan.toml", commented(lines) + toml_text(tables))]


def _checkpoints(job: Job) -> dict[str, str] | None:
    """Returns what is checkpointed; null for what the file cannot say."""
    if job.whole_recompute:
        return {"mode": "full"}
    kinds = {stage.recompute.granularity for stage in job.plan.stages}
    if kinds == {"none"}:
        return {"mode": "none"}
    if kinds == {"selective"} and job.problem.framework.selective == "operators":
        return {"mode": "selective", "selective_ac_option": "op"}
    return None


def chunk_modules(model: Model, plan: Plan) -> list[list[str]]:
    """Returns the modules of each chunk, in the order of the model.

    Chunks lie in rounds over the stages, or with zb-v in a V: down and back.
    """
    stages = [chunk_layers(plan, index) for index in range(plan.pp)]
    rounds = [list(chunk) for chunk in zip(*stages, strict=True)]
    if plan.schedule == "zb-v":
        rounds[1].reverse()
    counts = [count for chunk in rounds for count in chunk]
    chunks, first = [], 0
    for count in counts:
        chunks.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    chunks[0].insert(0, "tok_embeddings")
    chunks[-1] += ["norm", "output"]
    return chunks


def toml_text(tables: dict[str, dict[str, Any]]) -> str:
    """Returns tables of numbers, booleans, texts and lists as TOML.

    Example:
        >>> toml_text({"training": {"steps": 3, "names": [["a"], ["b"]]}})
        '\\n[training]\\nsteps = 3\\nnames = [["a"], ["b"]]\\n'
    """
    # JSON's texts, numbers, booleans and lists are TOML's.
    text = ""
    for name, table in tables.items():
        text += f"\n[{name}]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    return text


def _data_parallel(plan: Plan) -> tuple[int, int]:
    """Returns the replicas and the shards of data parallel; context parallel shards too."""
    if plan.zero == 0:
        return plan.dp, 1
    return plan.dp * plan.cp // plan.shard_group, plan.shard_group // plan.cp


def _expert_ranks(plan: Plan) -> int:
    """Returns the ranks that expert parallel divides: those that shard, and tensor parallel's."""
    return plan.shard_group * plan.tp // plan.etp
