"""MindFormers 1.3: its run configuration, and the same as arguments of its parallel classes.

The rules are those of `mindformers.modules.transformer` and of the layer settings of a LLaMA model;
MindSpore runs the pipeline and shards the optimizer.
"""

from dataclasses import replace
from typing import Any

from autopar.compat.plans import step_keywords
from autopar.export import mindformers_recompute
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
    yaml_text,
)
from autopar.export.mindformers_recompute import MARKED, by_chunk, whole_layers
from autopar.framework import Named
from autopar.frontends.mindformers_recompute import NONE
from autopar.render.text import GIB
from autopar.report import Plan
from autopar.spec import Problem

SCHEDULES = ("1f1b", "interleaved")
# How tokens reach experts with all-to-all, and without.
DISPATCH = ("copies", "gather_split")

# What MindSpore itself holds a plan to.
STEP_LIMITS: dict[str, Any] = {
    "schedules": SCHEDULES,
    "recompute": ("none", "block", "uniform"),
    "activation_offload": False,
    "optimizer_offload": False,
}
LIMITS: tuple[dict[str, Any], ...] = (
    {**STEP_LIMITS, "recompute": (*STEP_LIMITS["recompute"], "selective")},
)


def supports(job: Job) -> list[str]:
    """Returns what MindFormers' file cannot say of a plan; empty if it says it exactly."""
    problem, plan = job.problem, job.plan
    chip = problem.cluster.groups[plan.stages[0].chip].chip
    moe = problem.model.moe is not None
    return [
        *unsaid_everywhere(job),
        *unsaid_host(plan),
        *unsaid_optimizer(job),
        *_unsaid_model(problem),
        *unsaid_step(job),
        *_unsaid_recompute(job),
        *when(
            (not chip.name.startswith("ascend"), f"the chip {chip.name}"),
            (plan.pp > 1 and job.micro_batches < plan.pp,
             f"{job.micro_batches} micro-batches for {plan.pp} stages"),
            (problem.framework.whole_vocabulary and plan.tp > 1 and plan.pp > 1,
             "a whole vocabulary on each rank of a pipeline's ends"),
            (plan.ep > 1 and problem.framework.expert_dispatch not in DISPATCH,
             f"expert dispatch {problem.framework.expert_dispatch}"),
            (plan.cp > 1 and problem.framework.context_exchange in ("gather", "blocks"),
             "context parallel that gathers keys and values"),
            (moe and plan.etp != plan.tp, "experts that tensor parallel does not cut"),
            (moe and plan.dp % plan.ep != 0, f"expert parallel {plan.ep} beyond data parallel"),
            (problem.workload.precision not in ("bf16", "fp16"),
             f"precision {problem.workload.precision}"),
            (problem.workload.dropout, "dropout"),
        ),
    ]  # fmt: skip


def files(job: Job) -> list[File]:
    """Returns the run configuration and the arguments of the parallel classes."""
    return [
        File("mindformers.yaml", commented(header(job)) + yaml_text(_run(job))),
        File("parallel_config.py", commented(header(job)) + _classes(job)),
    ]


def parallel_context(job: Job) -> dict[str, Any]:
    """Returns the keywords of `set_auto_parallel_context` that a plan sets, devices left aside."""
    plan = job.plan
    said = step_keywords(job.problem, plan)
    if plan.zero == 0:
        del said["parallel_optimizer_config"]
    if plan.pp == 1:
        del said["pipeline_config"]
    return {"gradients_mean": True, "full_batch": True, **said}


def unsaid_step(job: Job) -> list[str]:
    """Returns what MindSpore cannot say of how a plan's step runs."""
    plan, threshold = job.plan, job.problem.framework.whole_below_bytes
    recompute = [stage.recompute for stage in plan.stages]
    return when(
        (plan.schedule not in SCHEDULES, f"schedule {plan.schedule}"),
        (is_ignored(plan), "optimizer shards of one rank"),
        (plan.optimizer_offload, "optimizer offload"),
        (plan.zero > 0 and threshold % 1024 > 0, f"a threshold of {threshold} bytes"),
        (
            any(r.granularity == "uniform" and r.layers != 1 for r in recompute),
            "recompute in groups of layers",
        ),
        (
            any(r.regathers for r in recompute),
            "sharded parameters that are gathered again for recomputed layers alone",
        ),
    )


def _unsaid_recompute(job: Job) -> list[str]:
    """Returns what of its recompute the layers of a LLaMA are not told, or have no names for."""
    plan, framework = job.plan, job.problem.framework
    kinds = {stage.recompute.granularity for stage in plan.stages}
    single = "selective" in kinds or any(
        stage.recompute.operators not in (None, NONE) for stage in plan.stages
    )
    whole = [any(whole_layers(plan, index)) for index in range(plan.pp)]
    unmarked = replace(framework.named, **dict.fromkeys(MARKED, False)) != Named()
    return when(
        (
            plan.tp > 1 and any(whole) and framework.keeps_tensor_results,
            "recompute that does not repeat communication, which no layer is told",
        ),
        (
            plan.tp > 1
            and not plan.sp
            and any(whole)
            and not job.whole_recompute
            and framework.slices_kept_inputs,
            "inputs kept in slices where some layers are recomputed",
        ),
        ("selective" in kinds and framework.selective != "named", "selective recompute"),
        (
            "selective" in kinds and unmarked,
            "recompute of operators that no pattern marks",
        ),
        (
            single and job.problem.model.moe is not None,
            "single operators of experts that are computed again",
        ),
    )


def is_ignored(plan: Plan) -> bool:
    """Returns whether MindSpore would shard over all replicas: it passes over groups of one."""
    return plan.zero > 0 and plan.shard_group == 1 < plan.dp * plan.cp


def _run(job: Job) -> dict[str, Any]:
    problem, plan = job.problem, job.plan
    usable = min(cost.capacity_bytes for cost in job.estimate.stages) // GIB
    return {
        "use_parallel": problem.cluster.devices > 1,
        "micro_batch_interleave_num": 1,
        "runner_config": {
            "batch_size": plan.mbs,
            "gradient_accumulation_steps": job.micro_batches if plan.pp == 1 else 1,
        },
        "context": {
            "mode": 0,
            "device_target": "Ascend",
            "max_device_memory": f"{usable}GB",
        },
        "parallel": {"parallel_mode": "semi_auto_parallel", **parallel_context(job)},
        "parallel_config": _parallel_arguments(job),
        "recompute_config": _recompute_arguments(job),
        **_experts(problem),
        "model": {"model_config": _model(job)},
    }


def _parallel_arguments(job: Job) -> dict[str, Any]:
    plan = job.plan
    arguments: dict[str, Any] = {
        "data_parallel": plan.dp,
        "model_parallel": plan.tp,
        "expert_parallel": plan.ep,
        "pipeline_stage": plan.pp,
        "micro_batch_num": job.micro_batches if plan.pp > 1 else 1,
        "gradient_aggregation_group": job.problem.framework.fused_groups or 4,
        "vocab_emb_dp": job.problem.framework.whole_vocabulary and plan.pp == 1,
    }
    if plan.cp > 1:
        arguments["context_parallel"] = plan.cp
        if job.problem.framework.context_exchange == "heads":
            arguments["context_parallel_algo"] = "ulysses_cp"
    if plan.sp:
        arguments["use_seq_parallel"] = True
    return arguments


def _recompute_arguments(job: Job) -> dict[str, Any]:
    framework = job.problem.framework
    said = mindformers_recompute.settings(job.problem, job.plan)
    arguments: dict[str, Any] = {
        "recompute": job.whole_recompute or said.recompute,
        "select_recompute": said.select_recompute,
    }
    if said.select_comm_recompute:
        arguments["select_comm_recompute"] = said.select_comm_recompute
    return arguments | {
        "parallel_optimizer_comm_recompute": False,
        "mp_comm_recompute": not framework.keeps_tensor_results,
        "recompute_slice_activation": framework.slices_kept_inputs,
    }


def _experts(problem: Problem) -> dict[str, Any]:
    moe = problem.model.moe
    if moe is None:
        return {}
    return {"moe_config": {"expert_num": moe.experts, "num_experts_chosen": moe.topk}}


def _model(job: Job) -> dict[str, Any]:
    problem, plan = job.problem, job.plan
    model, work = problem.model, problem.workload
    width = model.moe.expert_ffn if model.moe else model.ffn_hidden
    config: dict[str, Any] = {
        "type": "LlamaConfig",
        "batch_size": plan.mbs,
        "seq_length": work.sequence_length,
        "hidden_size": model.hidden,
        "num_layers": model.layers,
        "num_heads": model.heads,
        "n_kv_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "intermediate_size": width,
        "qkv_has_bias": model.qkv_bias,
        "tie_word_embeddings": model.tied_embeddings,
        "compute_dtype": "bfloat16" if work.precision == "bf16" else "float16",
        "use_flash_attention": work.attention == "flash",
        "offset": _offsets(model.layers, plan),
        "pp_interleave_num": plan.vpp,
    }
    if plan.cp > 1 and problem.framework.context_exchange == "ring":
        config["use_ring_attention"] = True
    return config


def _offsets(layers: int, plan: Plan) -> int | list[Any]:
    """Returns by how much each stage, or chunk of each stage, differs from an equal share."""
    share = layers // (plan.pp * plan.vpp)
    offsets = [[layers - share for layers in chunk_layers(plan, index)] for index in range(plan.pp)]
    return by_chunk(offsets) if any(map(any, offsets)) else 0


def _classes(job: Job) -> str:
    plan = job.plan
    recompute = _call("TransformerRecomputeConfig", _recompute_arguments(job))
    arguments = _parallel_arguments(job) | {"optimizer_shard": plan.zero > 0}
    parallel = _call("TransformerOpParallelConfig", arguments, "    recompute=recompute_config,\n")
    return (
        "from mindformers.modules.transformer import (\n"
        "    TransformerOpParallelConfig,\n    TransformerRecomputeConfig,\n)\n\n"
        f"recompute_config = {recompute}parallel_config = {parallel}"
    )


def _call(name: str, arguments: dict[str, Any], more: str = "") -> str:
    keywords = "".join(f"    {key}={value!r},\n" for key, value in arguments.items())
    return f"{name}(\n{keywords}{more})\n"


def _unsaid_model(problem: Problem) -> list[str]:
    """Returns in what a model is not of LLaMA's shape."""
    model, moe = problem.model, problem.model.moe
    return when(
        (model.norm != "rmsnorm" or model.norm_bias or model.norms_per_layer != 2, "its norms"),
        (not model.norm_weight, "norms without a weight"),
        (model.position != "rope", f"{model.position} positions"),
        (model.activation != "swiglu", f"activation {model.activation}"),
        (model.o_bias or model.mlp_bias or model.head_bias, "biases beyond those of the queries"),
        (model.qk_norm != "none", "a norm on queries and keys"),
        (model.parallel_block, "a parallel block"),
        (model.embedding_norm, "a norm after the embedding"),
        (model.attention_sinks, "attention sinks"),
        (model.mla is not None, "latent attention"),
        (model.window is not None, "sliding windows"),
        (model.head_dim * model.heads != model.hidden, f"heads of {model.head_dim}"),
        (
            moe is not None
            and (moe.shared_ffn > 0 or moe.first_dense > 0 or moe.every > 1 or moe.router_bias),
            "shared experts, dense layers or a router bias",
        ),
        (moe is not None and moe.capacity_factor > 0, "a capacity of the experts"),
    )
