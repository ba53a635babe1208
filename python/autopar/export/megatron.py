"""Megatron-LM (Megatron-Core 0.16): the argument list as a shell script and as YAML.

The arguments and their rules are those of `megatron/training/arguments.py` and `TransformerConfig`.
Ranks run tensor parallel fastest, then context, data and pipeline: Megatron's default order.
"""

import shlex
from dataclasses import replace
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
    unsaid_selective,
    when,
    yaml_text,
)
from autopar.framework import ExpertDispatch, Named
from autopar.frontends.megatron import GRAPHS, MODULES
from autopar.report import Plan, Recompute
from autopar.spec import Model, Problem

# An argument with its value; None for a flag without one.
Arguments = dict[str, Any]

SCHEDULES = ("1f1b", "interleaved")
CONTEXT = {"ring": "p2p", "gather": "all_gather", "heads": "a2a"}
DISPATCH: dict[ExpertDispatch, Arguments] = {
    "copies": {"moe-token-dispatcher-type": "alltoall"},
    "once_a_node": {"moe-token-dispatcher-type": "flex", "moe-enable-deepep": None},
    "gather": {"moe-token-dispatcher-type": "allgather"},
}

_COMMON: dict[str, Any] = {"schedules": SCHEDULES, "activation_offload": False}
STAGE_LIMITS: tuple[dict[str, Any], ...] = (
    {**_COMMON, "zero": (0, 1)},
    {**_COMMON, "zero": (2, 3), "pp": (1,), "optimizer_offload": False},
)
"""Where recompute may be said for each stage."""
LIMITS: tuple[dict[str, Any], ...] = tuple(
    {**part, "recompute_per_stage": False} for part in STAGE_LIMITS
)


def supports(job: Job) -> list[str]:
    """Returns what Megatron's arguments cannot say of a plan; empty if they say it exactly."""
    settings = {stage.recompute for stage in job.plan.stages}
    return [
        *unsaid_everywhere(job),
        *unsaid_arguments(job),
        *when((len(settings) > 1, "recompute that differs between stages")),
    ]


def unsaid_arguments(job: Job) -> list[str]:
    """Returns what the arguments cannot say, the kinds of chip and recompute left aside."""
    problem, plan = job.problem, job.plan
    overlap = problem.framework.overlap
    expert_ranks = plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)
    return [
        *unsaid_host(plan),
        *unsaid_framework(job),
        *_unsaid_selective(job),
        *unsaid_groups(plan),
        *unsaid_model(problem),
        *when(
            (plan.schedule not in SCHEDULES, f"schedule {plan.schedule}"),
            (
                _optimizer(job) is None,
                "updates made orthogonal by other ranks than own whole tensors",
            ),
            (problem.workload.precision == "tf32", "precision tf32"),
            (plan.zero > 1 and plan.pp > 1, f"ZeRO stage {plan.zero} with pipeline stages"),
            (plan.optimizer_offload and plan.zero != 1, "optimizer offload without ZeRO stage 1"),
            (
                plan.vpp > 1 and plan.pp == 2 and not overlap.pipeline,
                "two interleaved stages without overlapped sends",
            ),
            (overlap.expert and plan.ep > 1, "overlap of the experts' exchange"),
            (
                plan.cp > 1 and problem.framework.context_exchange not in CONTEXT,
                f"context parallel by {problem.framework.context_exchange}",
            ),
            (
                plan.ep > 1 and problem.framework.expert_dispatch not in DISPATCH,
                f"expert dispatch {problem.framework.expert_dispatch}",
            ),
            (
                bool(problem.model.moe) and plan.zero > 0 and expert_ranks % _instances(plan) != 0,
                f"shard groups of {plan.shard_group} over {expert_ranks} replicas of the experts",
            ),
        ),
    ]


def _optimizer(job: Job) -> str | None:
    """Returns the name of the optimizer; None if none does what the framework and the plan say.

    Muon is each replica's without ZeRO, or that of who owns whole tensors, which are passed on
    after the step and not beside the next (--overlap-param-gather is Adam's over shards).
    """
    framework, zero = job.problem.framework, job.plan.zero
    if not framework.orthogonal.iterations:
        return "adam"
    if framework.orthogonal.shared:
        owned = framework.shards == "tensors" and framework.all_reduces
        beside = framework.overlap.parameter_gather
        return "dist_muon" if zero == 1 and owned and not beside else None
    return "muon" if zero == 0 else None


def unsaid_groups(plan: Plan) -> list[str]:
    """Returns whether a chunk does not end with a whole group of layers computed again.

    Megatron-Core 0.16 counts on past the last layer of such a chunk and ends with an IndexError
    (Megatron-LM issue 2294; its pull request 3562 mends it).
    """
    groups = [
        (stage.recompute.layers or 1, layers)
        for index, stage in enumerate(plan.stages)
        if stage.recompute.granularity == "uniform"
        for layers in chunk_layers(plan, index)
    ]
    ragged = next((f"{size} layers in chunks of {n}" for size, n in groups if n % size), "")
    return when((bool(ragged), f"recompute in groups of {ragged}"))


def _unsaid_selective(job: Job) -> list[str]:
    """Returns whether selective recompute is of something that no module is."""
    model, framework = job.problem.model, job.problem.framework
    if framework.selective != "named":
        return unsaid_selective(job)
    kinds = {stage.recompute.granularity for stage in job.plan.stages}
    named = framework.named
    moe = model.moe
    experts = moe is not None and not (moe.first_dense or moe.every > 1 or moe.shared_ffn)
    apart = named.activation and not (experts and framework.fused.grouped_gemm)
    others = replace(named, norm=False, activation=False) != Named()
    return when(
        ("selective" in kinds and others, "recompute of single operators"),
        ("selective" in kinds and apart, "recompute of the activation outside grouped experts"),
    )


def unsaid_model(problem: Problem) -> list[str]:
    """Returns what the arguments cannot say of a model."""
    model, moe = problem.model, problem.model.moe
    biases = (model.qkv_bias, model.o_bias, model.mlp_bias)
    return when(
        (model.norm_bias != (model.norm == "layernorm"), f"{model.norm} with that bias"),
        (not model.norm_weight, "norms without a weight"),
        (model.norms_per_layer != 2, f"{model.norms_per_layer} norms a layer"),
        (model.position in ("alibi", "relative"), f"{model.position} positions"),
        (
            model.position == "learned" and problem.workload.sequence_length > model.position_rows,
            f"a sequence beyond {model.position_rows} learned positions",
        ),
        (model.activation in ("clamped_swiglu", "geglu", "relu"), f"activation {model.activation}"),
        (
            biases not in ((True,) * 3, (False,) * 3, (True, False, False)),
            "biases of only some projections",
        ),
        (model.head_bias, "a bias of the output head"),
        (model.qk_norm == "full", "a norm over all channels of queries and keys"),
        (model.parallel_block, "a parallel block"),
        (model.embedding_norm, "a norm after the embedding"),
        (moe is not None and moe.expert_bias != model.mlp_bias, "biases of the experts alone"),
        (moe is not None and moe.router_bias and moe.expert_bias, "a learned router bias"),
        (moe is not None and moe.shared_gate, "a gate on the shared expert"),
    )


def files(job: Job) -> list[File]:
    """Returns the script for torchrun and the same arguments as YAML."""
    arguments = {**model_arguments(job.problem), **plan_arguments(job), **recompute_arguments(job)}
    environment = plan_environment(job)
    return [
        File("megatron.sh", _script(job, arguments, environment)),
        File("megatron.yaml", commented(header(job)) + _yaml(arguments, environment)),
    ]


def model_arguments(problem: Problem) -> Arguments:
    """Returns the arguments that describe the model and its sequences."""
    model, work = problem.model, problem.workload
    positions = model.position_rows or max(model.max_positions, work.sequence_length)
    arguments: Arguments = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn_hidden,
        "num-attention-heads": model.heads,
        "seq-length": work.sequence_length,
        "max-position-embeddings": positions,
        "vocab-size": model.vocab,
        "make-vocab-size-divisible-by": problem.framework.vocab_multiple,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "position-embedding-type": "rope" if model.position == "rope" else "learned_absolute",
    }
    if model.mla is None:
        arguments["kv-channels"] = model.head_dim
        if model.kv_heads != model.heads:
            arguments |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    flags = {
        "swiglu": model.activation == "swiglu",
        "squared-relu": model.activation == "relu2",
        "disable-bias-linear": not model.mlp_bias,
        "add-qkv-bias": model.qkv_bias and not model.mlp_bias,
        # With latent attention the flag stands for the norms of the compressed vectors.
        "qk-layernorm": model.qk_norm == "head" or model.mla is not None,
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
    }
    arguments |= {flag: None for flag, given in flags.items() if given}
    if model.attention_sinks:
        arguments["softmax-type"] = "learnable"
    if model.window is not None:
        # The window counts the positions to the left of the query, which sees itself too.
        arguments["window-size"] = f"{model.window.size - 1},0"
        if model.window.global_every:
            arguments["window-attn-skip-freq"] = model.window.global_every
    if not work.dropout:
        arguments |= {"attention-dropout": 0.0, "hidden-dropout": 0.0}
    return arguments | _latent_arguments(model) | _expert_arguments(problem)


def plan_arguments(job: Job) -> Arguments:
    """Returns the arguments that describe the plan, its recompute left aside."""
    problem, plan = job.problem, job.plan
    overlap, number = problem.framework.overlap, problem.framework.bytes
    rounded = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "fp4": "bf16"}
    precision = rounded.get(problem.workload.precision)
    arguments: Arguments = {
        "micro-batch-size": plan.mbs,
        "global-batch-size": problem.workload.global_batch_size,
        "tensor-model-parallel-size": plan.tp,
        "pipeline-model-parallel-size": plan.pp,
        "context-parallel-size": plan.cp,
    }
    if plan.cp > 1:
        arguments["cp-comm-type"] = CONTEXT[problem.framework.context_exchange]
    if problem.model.moe is not None:
        arguments["expert-model-parallel-size"] = plan.ep
        arguments["expert-tensor-parallel-size"] = plan.etp
    arguments |= _stage_arguments(plan)
    if problem.workload.precision == "fp8":
        arguments["fp8-format"] = "hybrid"
    if problem.workload.precision == "fp4":
        arguments["fp4-format"] = "e2m1"
    if problem.workload.attention == "unfused":
        arguments["attention-backend"] = "unfused"
    fsdp = plan.zero > 1
    muon = problem.framework.orthogonal.iterations
    if muon:
        arguments |= {"optimizer": _optimizer(job), "muon-num-ns-steps": muon}
    flags = {
        str(precision): precision is not None,
        "sequence-parallel": plan.sp,
        "use-distributed-optimizer": plan.zero > 0 and not muon,
        "overlap-grad-reduce": overlap.gradient_reduce,
        "overlap-param-gather": plan.zero > 0
        and overlap.gradient_reduce
        and overlap.parameter_gather,
        "grad-reduce-in-bf16": precision == "bf16" and number.gradient == number.gradient_sent == 2,
        "accumulate-allreduce-grads-in-fp32": precision == "fp16" and number.gradient == 4,
        "tp-comm-overlap": plan.sp and overlap.tensor == "pipelined",
        "no-overlap-p2p-communication": plan.vpp > 1 and not overlap.pipeline,
        "no-gradient-accumulation-fusion": not problem.framework.fused.gradient_accumulation,
        "cross-entropy-loss-fusion": problem.framework.fused.cross_entropy,
        "optimizer-cpu-offload": plan.optimizer_offload,
        "use-precision-aware-optimizer": plan.optimizer_offload,
        "use-megatron-fsdp": fsdp,
    }
    arguments |= {flag: None for flag, given in flags.items() if given}
    arguments |= _graph_arguments(problem)
    if fsdp:
        strategy = "optim_grads" if plan.zero == 2 else "optim_grads_params"
        arguments["data-parallel-sharding-strategy"] = strategy
        arguments["ckpt-format"] = "fsdp_dtensor"
    if plan.zero > 0 and _instances(plan) > 1:
        arguments["num-distributed-optimizer-instances"] = _instances(plan)
    return arguments


def _graph_arguments(problem: Problem) -> Arguments:
    """Returns the arguments of what the host launches as graphs: a step, or parts of it."""
    framework, moe = problem.framework, problem.model.moe
    if framework.launch_us == 0:
        return {"cuda-graph-impl": "local", "cuda-graph-scope": "full_iteration"}
    absent = {"moe_router"} if moe is None else set()
    if moe is not None and moe.first_dense == 0 and moe.every == 1:
        absent = {"mlp"}
    graphed = {scope for scope, field in GRAPHS.items() if getattr(framework.graphs, field)}
    scopes = [scope for scope in GRAPHS if scope in graphed - absent]
    if "moe_router" in scopes:
        scopes.append("moe_preprocess")
    if not scopes:
        return {}
    return {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": scopes}


def plan_environment(job: Job) -> dict[str, int]:
    """Returns the environment that a plan needs: one queue orders collectives before products."""
    plan = job.plan
    ordered = (plan.tp > 1 or plan.cp > 1) and plan.zero < 2
    return {"CUDA_DEVICE_MAX_CONNECTIONS": 1} if ordered else {}


def _modules(job: Job) -> str | list[str]:
    """Returns the modules that selective recompute computes again."""
    if job.problem.framework.selective != "named":
        return "core_attn"
    named = job.problem.framework.named
    return [module for module, field in MODULES.items() if getattr(named, field)]


def recompute_arguments(job: Job) -> Arguments:
    """Returns the arguments of the one setting of recompute that all stages have."""
    match job.plan.stages[0].recompute:
        case Recompute(granularity="selective"):
            return {"recompute-granularity": "selective", "recompute-modules": _modules(job)}
        case Recompute(granularity="block" | "uniform" as method, layers=layers):
            return {
                "recompute-granularity": "full",
                "recompute-method": method,
                "recompute-num-layers": layers,
            }
        case _:
            return {}


def stage_layout(plan: Plan) -> str:
    """Returns the layers of every chunk as Megatron's layout string, in the order of the model.

    Example:
        >>> from autopar.report import Stage
        >>> stage_layout(Plan(pp=3, stages=(Stage(layers=3), Stage(layers=5), Stage(layers=4))))
        'Et*3|t*5|t*4L'
    """
    stages = [chunk_layers(plan, index) for index in range(plan.pp)]
    rounds = [layers for chunk in zip(*stages, strict=True) for layers in chunk]
    return f"E{'|'.join(f't*{layers}' if layers else '' for layers in rounds)}L"


def _stage_arguments(plan: Plan) -> Arguments:
    """Returns how many layers each stage and chunk holds: the shortest exact form."""
    layers = [stage.layers for stage in plan.stages]
    chunks: Arguments = {"num-virtual-stages-per-pipeline-rank": plan.vpp} if plan.vpp > 1 else {}
    first = {"decoder-first-pipeline-num-layers": layers[0]}
    last = {"decoder-last-pipeline-num-layers": layers[-1]}
    if any(count % plan.vpp for count in layers):
        return {"pipeline-model-parallel-layout": stage_layout(plan)}
    if len(set(layers)) == 1:
        return chunks
    if len(set(layers[1:])) == 1:
        return chunks | first
    if len(set(layers[:-1])) == 1:
        return chunks | last
    if len(set(layers[1:-1])) == 1:
        return chunks | first | last
    return {"pipeline-model-parallel-layout": stage_layout(plan)}


def _latent_arguments(model: Model) -> Arguments:
    if model.mla is None:
        return {}
    mla = model.mla
    rank = {"q-lora-rank": mla.q_lora_rank} if mla.q_lora_rank else {}
    return {
        "multi-latent-attention": None,
        **rank,
        "kv-lora-rank": mla.kv_lora_rank,
        "qk-head-dim": mla.qk_nope_dim,
        "qk-pos-emb-head-dim": mla.qk_rope_dim,
        "v-head-dim": mla.v_dim,
    }


def _expert_arguments(problem: Problem) -> Arguments:
    moe, layers = problem.model.moe, problem.model.layers
    if moe is None:
        return {}
    arguments: Arguments = {
        "num-experts": moe.experts,
        "moe-router-topk": moe.topk,
        "moe-ffn-hidden-size": moe.expert_ffn,
        **DISPATCH.get(problem.framework.expert_dispatch, {}),
    }
    if moe.shared_ffn:
        arguments["moe-shared-expert-intermediate-size"] = moe.shared_ffn
    if moe.every > 1:
        sparse = [
            int(layer >= moe.first_dense and (layer + 1) % moe.every == 0)
            for layer in range(layers)
        ]
        arguments["moe-layer-freq"] = f"[{','.join(map(str, sparse))}]"
    elif moe.first_dense:
        arguments["moe-layer-freq"] = f"([0]*{moe.first_dense}+[1]*{layers - moe.first_dense})"
    if moe.router_bias:
        arguments |= {"moe-router-score-function": "sigmoid", "moe-router-enable-expert-bias": None}
    if moe.capacity_factor:
        # Padded, so that all experts take as long.
        arguments |= {
            "moe-expert-capacity-factor": moe.capacity_factor,
            "moe-pad-expert-input-to-capacity": None,
        }
    if problem.framework.fused.grouped_gemm:
        arguments["moe-grouped-gemm"] = None
    return arguments


def _instances(plan: Plan) -> int:
    """Returns how many copies of the optimizer state there are."""
    return plan.dp * plan.cp // plan.shard_group


def _script(job: Job, arguments: Arguments, environment: dict[str, int]) -> str:
    usage = [
        f"Run it on each of {job.nodes} nodes: NODE_RANK counts them from 0, MASTER_ADDR names the"
        " first, MEGATRON is",
        "the folder of Megatron-LM. Data, tokenizer, learning rate and checkpoints follow as"
        " further arguments.",
    ]
    lines = [
        f"--nnodes {job.nodes} --nproc-per-node {job.devices_per_node}",
        '--node-rank "${NODE_RANK:?}" --master-addr "${MASTER_ADDR:?}"'
        ' --master-port "${MASTER_PORT:-29500}"',
        '"${MEGATRON:?}/pretrain_gpt.py"',
        *(f"--{name}{_word(value)}" for name, value in arguments.items()),
        '"$@"',
    ]
    exports = "".join(f"export {name}={value}\n" for name, value in environment.items())
    command = " \\\n    ".join(["exec torchrun", *lines])
    return (
        f"#!/usr/bin/env bash\n{commented([*header(job), *usage])}set -euo pipefail\n"
        f"{exports}\n{command}\n"
    )


def _word(value: Any) -> str:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return "".join(f" {shlex.quote(str(each))}" for each in values)


def _yaml(arguments: Arguments, environment: dict[str, int]) -> str:
    """Returns the form of Megatron-LM's own functional tests: a flag without a value is true."""
    named = {f"--{name}": True if value is None else value for name, value in arguments.items()}
    table: dict[str, Any] = {"ENV_VARS": environment} if environment else {}
    return yaml_text({**table, "MODEL_ARGS": named})
