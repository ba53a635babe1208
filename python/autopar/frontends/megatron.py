"""Megatron-LM's arguments, from a shell script or YAML, as a question and a plan.

A script is read, never run (`frontends.shell`). YAML is the form of Megatron-LM's functional tests
(`MODEL_ARGS` with `--name: value`) or a table of the same names. The rules are those of
`megatron/training/arguments.py`.
"""

import re
from typing import Any

from autopar.errors import shown
from autopar.frontends import megatron_arguments, megatron_model
from autopar.frontends.launch import Launch
from autopar.frontends.megatron_arguments import Arguments
from autopar.frontends.places import keys, places
from autopar.report import Recompute

# Modules of selective recompute that drop their output, and what the framework names them.
MODULES = {"layernorm": "norm", "moe_act": "activation"}
# Scopes of CUDA graphs, as the framework says them.
GRAPHS = {"attn": "attention", "mlp": "mlp", "moe_router": "router"}

LAYOUT = "pipeline-model-parallel-layout"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
CHUNK, CHUNKS = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
EMBEDDING = "account-for-embedding-in-pipeline-split"
LOSS = "account-for-loss-in-pipeline-split"
_TP, _CP = "tensor-model-parallel-size", "context-parallel-size"
_PP, _EP = "pipeline-model-parallel-size", "expert-model-parallel-size"
_ZERO = ("use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp")
OPTIMIZERS = ("adam", "muon", "dist_muon")
# Where arguments say what of a plan and a problem.
FIELDS = {
    "plan.dp": keys("nproc-per-node", "nnodes", _TP, _CP, _PP, called="data-parallel size"),
    "plan.tp": keys(_TP),
    "plan.sp": keys("sequence-parallel"),
    "plan.cp": keys(_CP),
    "plan.pp": keys(_PP),
    "plan.ep": keys(_EP),
    "plan.etp": keys("expert-tensor-parallel-size", _TP),
    "plan.vpp": keys(CHUNKS, CHUNK, LAYOUT, called="virtual pipeline size"),
    "plan.mbs": keys("micro-batch-size"),
    "plan.zero": keys(*_ZERO, "data-parallel-sharding-strategy", called="ZeRO stage"),
    "plan.shard_group": keys("num-distributed-optimizer-instances"),
    "plan.schedule": keys(CHUNKS, CHUNK, LAYOUT),
    "plan.optimizer_offload": keys("optimizer-cpu-offload"),
    "plan.stages.layers": keys(LAYOUT, FIRST, LAST, _PP),
    "plan.stages.recompute": keys(
        "recompute-num-layers", "recompute-method", "recompute-granularity", "recompute-activations"
    ),
    "workload.global_batch_size": keys("global-batch-size"),
    "workload.sequence_length": keys("seq-length"),
    "workload.precision": keys("fp4-format", "fp8-format", "bf16", "fp16"),
    "workload.attention": keys("attention-backend"),
    "cluster.devices": keys("nproc-per-node", "nnodes", called="world size"),
    **megatron_model.FIELDS,
}


def read(file: str) -> Launch:
    """Returns the job that a script or a YAML file of Megatron-LM starts.

    Raises:
        SpecError: The file is wrong, contradicts itself, or needs a shell to be understood.
    """
    given = megatron_arguments.read(file)
    _check(given)
    notes = []
    if unread := given.unread():
        notes.append(f"not read: {', '.join(f'--{name}' for name in unread)}")
    plan = _plan(given, notes)
    question: dict[str, Any] = {
        "sequence_length": given.count("seq-length"),
        "precision": _precision(given),
        "attention": _attention(given),
        "dropout": any(
            given.number(f"{kind}-dropout", 0.1) > 0 for kind in ("attention", "hidden")
        ),
    }
    if "nproc-per-node" in given:
        question["devices"] = given.count("nnodes", 1) * given.count("nproc-per-node")
    if "global-batch-size" in given:
        question["global_batch_size"] = given.count("global-batch-size")
    elif "devices" in question:
        # Megatron-LM's default: one micro-batch a replica.
        replicas = question["devices"] // (plan["tp"] * plan["cp"] * plan["pp"])
        question["global_batch_size"] = plan["mbs"] * max(replicas, 1)
    spelled = "vocab-size" in given or "padded-vocab-size" in given
    return Launch(
        file=given.file,
        framework="megatron-core",
        model=megatron_model.model(given) if spelled else None,
        question=question,
        plan=plan,
        copies=given.count("num-distributed-optimizer-instances", 1),
        recompute=(_recompute(given),),
        changes=_changes(given),
        notes=tuple(notes),
        places=places(given, FIELDS),
    )


# What Megatron-LM refuses an argument without: one of each list.
NEEDS = {
    "overlap-param-gather": (("use-distributed-optimizer", "use-megatron-fsdp"),
                             ("overlap-grad-reduce",)),
    "optimizer-cpu-offload": (("use-precision-aware-optimizer",),),
    "tp-comm-overlap": (("sequence-parallel",),),
    "use-torch-fsdp2": (("no-gradient-accumulation-fusion",),
                        ("untie-embeddings-and-output-weights",)),
}  # fmt: skip
# What it refuses beside each other.
APART = {
    "fp16": ("bf16",),
    LAYOUT: (CHUNK, CHUNKS, FIRST, LAST, EMBEDDING, LOSS),
    CHUNK: (CHUNKS, FIRST, LAST),
    "use-torch-fsdp2": ("use-distributed-optimizer", "fp16"),
}


def _check(given: Arguments) -> None:
    """Refuses what Megatron-LM's `validate_args` and `TransformerConfig` refuse of what is read."""
    for name, needs in NEEDS.items():
        for some in needs if name in given else ():
            if not any(other in given for other in some):
                other = " or ".join(f"--{other}" for other in some)
                raise given.error(name, f"given without {other}", "Give both or neither.")
    for name, others in APART.items():
        for other in others if name in given else ():
            if other in given:
                raise given.error(name, f"given beside --{other}", "Give one of them.")
    tp, pp, ep = (given.count(name, 1) for name in (_TP, _PP, _EP))
    if ep > 1 and "num-experts" not in given:
        raise given.error(_EP, f"is {ep} without --num-experts", "Give 1, or the experts.")
    if ep > 1 and "fp16" in given:
        raise given.error(_EP, f"is {ep} beside --fp16", "Give --bf16.")
    for name, degree in ((_PP, pp), (_EP, ep)) if "use-torch-fsdp2" in given else ():
        if degree > 1:
            raise given.error(name, f"is {degree} beside --use-torch-fsdp2", "Give 1.")
    if "tp-comm-overlap" in given and tp == 1:
        what = f"given with one tensor-parallel rank (--{_TP} is 1)"
        raise given.error("tp-comm-overlap", what, "Leave it out.")
    if "moe-enable-deepep" in given and given.text("moe-token-dispatcher-type") != "flex":
        what = "given without --moe-token-dispatcher-type flex"
        raise given.error("moe-enable-deepep", what, "Give both or neither.")
    inside = given.count("expert-tensor-parallel-size", tp)
    if "num-experts" in given and "disable-bias-linear" not in given and inside > 1:
        what = f"biases of experts that {inside} tensor-parallel ranks cut"
        hint = "Give --expert-tensor-parallel-size 1 or --disable-bias-linear."
        raise given.error("num-experts", what, hint)
    if "max-position-embeddings" in given:
        rows, length = given.count("max-position-embeddings"), given.count("seq-length")
        if rows < length:
            what = f"is {rows}, less than --seq-length {length}"
            raise given.error("max-position-embeddings", what, "Make them agree.")


def _precision(given: Arguments) -> str:
    if "fp4-format" in given:
        return "fp4"
    if "fp8-format" in given:
        return "fp8"
    return "bf16" if "bf16" in given else "fp16" if "fp16" in given else "fp32"


def _attention(given: Arguments) -> str:
    known = ("auto", "flash", "fused", "unfused", "local")
    backend = given.word("attention-backend", known, "auto")
    return "unfused" if backend in ("unfused", "local") else "flash"


def _plan(given: Arguments, notes: list[str]) -> dict[str, Any]:
    tp = given.count("tensor-model-parallel-size", 1)
    cp = given.count("context-parallel-size", 1)
    plan: dict[str, Any] = {
        "tp": tp,
        "sp": "sequence-parallel" in given and tp > 1,
        "cp": cp,
        "mbs": given.count("micro-batch-size"),
        **_stages(given),
        **_sharding(given),
    }
    if "sequence-parallel" in given and tp == 1:
        notes.append("--sequence-parallel is off with one tensor-parallel rank")
    if "num-experts" in given:
        plan["ep"] = given.count("expert-model-parallel-size", 1)
        plan["etp"] = given.count("expert-tensor-parallel-size", tp)
    plan["optimizer_offload"] = "optimizer-cpu-offload" in given
    return plan


def _stages(given: Arguments) -> dict[str, Any]:
    """Returns the stages, their chunks and their layers."""
    pp, layers = given.count(_PP, 1), given.count("num-layers")
    if layout := given.text(LAYOUT):
        stages = _layout(given, layout, pp)
        held = [sum(stage) for stage in stages]
        if sum(held) != layers:
            what = f"holds {sum(held)} layers, --num-layers is {layers}"
            raise given.error(LAYOUT, what, "Make them agree.")
        return {"pp": pp, "vpp": len(stages[0]), "layers": held}
    # The embedding and the loss count as layers where they are asked to.
    ends = {0: EMBEDDING in given, -1: LOSS in given}
    fixed = {end: given.count(name) for end, name in ((0, FIRST), (-1, LAST)) if name in given}
    if fixed and any(ends.values()):
        name = EMBEDDING if EMBEDDING in given else LOSS
        other = FIRST if FIRST in given else LAST
        raise given.error(name, f"given beside --{other}", "Give one of them.")
    middle, rest = pp - len(fixed), layers - sum(fixed.values()) + sum(ends.values())
    if rest < 0 or (middle > 0 and (rest % middle or not rest)) or (middle <= 0 and rest):
        what = f"{rest} layers do not divide into {middle} equal stages"
        if fixed:
            what = f"the ends leave {rest} of {layers} layers to {max(middle, 0)} equal stages"
        at = next(name for name in (_PP, "num-layers") if name in given)
        hint = f"Change --{_PP} or the layers of an end."
        raise given.error(at, what, hint)
    held = [rest // middle if middle else 0] * pp
    for end, count in fixed.items():
        held[end] = count
    vpp, at = given.count(CHUNKS, 1), CHUNKS
    if CHUNK in given:
        size, at = given.count(CHUNK), CHUNK
        if held[0] % size:
            what = f"{size} does not divide the {held[0]} layers of every stage"
            raise given.error(CHUNK, what, "Give a divisor.")
        vpp = held[0] // size
    if vpp > 1 and pp < 3 and "no-overlap-p2p-communication" in given:
        what = f"chunks on {pp} stages beside --no-overlap-p2p-communication"
        raise given.error(at, what, "Give 3 stages or more, or leave that out.")
    for stage, count in enumerate(held):
        if count % vpp:
            what = f"{vpp} does not divide the {count} layers of stage {stage}"
            raise given.error(at, what, "Give a divisor.")
    for end, counts in ends.items():
        held[end] -= counts
    return {"pp": pp, "vpp": vpp, "layers": held}


def _layout(given: Arguments, layout: str, pp: int) -> list[list[int]]:
    """Returns the layers of each chunk of each stage: E embedding, t layer, L loss, | a border."""
    text = layout.replace(" ", "").replace(",", "")
    while match := re.search(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text):
        text = text[: match.start()] + match[1] * int(match[2] or 1) + text[match.end() :]
    text = re.sub(r"([EtL|])\*(\d{1,4})", lambda m: m[1] * int(m[2]), text)
    if not re.fullmatch(r"E[t|]*L", text):
        raise given.error(LAYOUT, f"no layout, found {shown(layout)}", "Write it as Et*3|t*4L.")
    chunks = [part.count("t") for part in text.split("|")]
    if len(chunks) % pp:
        raise given.error(LAYOUT, f"{len(chunks)} chunks on {pp} stages", "Give whole rounds.")
    return [chunks[stage::pp] for stage in range(pp)]


def _sharding(given: Arguments) -> dict[str, Any]:
    """Returns the ZeRO stage."""
    owned = given.word("optimizer", OPTIMIZERS, "adam") == "dist_muon"
    zero = 1 if owned or "use-distributed-optimizer" in given else 0
    if "use-torch-fsdp2" in given:
        zero = 3
    if "use-megatron-fsdp" in given:
        stages = {"no_shard": zero, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        zero = stages[given.word("data-parallel-sharding-strategy", tuple(stages), "no_shard")]
    return {"zero": zero}


def _recompute(given: Arguments) -> Recompute:
    kind = given.word("recompute-granularity", ("full", "selective"), "none")
    if "recompute-activations" in given:
        kind = "selective"
    method = given.word("recompute-method", ("block", "uniform"), "")
    if kind == "full":
        if not method:
            what = "full without --recompute-method"
            raise given.error("recompute-granularity", what, "Give block or uniform.")
        layers = given.count("recompute-num-layers")
        return Recompute("block" if method == "block" else "uniform", layers)
    for name in ("recompute-method", "recompute-num-layers"):
        if name in given:
            raise given.error(name, f"given with granularity {kind}", "Leave it out.")
    return Recompute("selective") if kind == "selective" else Recompute()


def _modules(given: Arguments) -> dict[str, Any]:
    """Returns what selective recompute computes again, as the framework says it."""
    if _recompute(given).granularity != "selective":
        return {}
    modules = given.given.get("recompute-modules", ["core_attn"])
    if modules == ["core_attn"]:
        return {"selective": "attention"}
    if not modules or not set(modules) <= MODULES.keys():
        what = f"must be core_attn, or of {', '.join(MODULES)}, found {shown(' '.join(modules))}"
        raise given.error("recompute-modules", what, "Others have no estimate.")
    some = ("moe-layer-freq", "moe-shared-expert-intermediate-size")
    if "moe_act" in modules and ("num-experts" not in given or any(n in given for n in some)):
        what = "moe_act is estimated where every layer has experts, and none that all tokens share"
        raise given.error("recompute-modules", what, "Leave it out.")
    return {"selective": "named", "named": {MODULES[module]: True for module in modules}}


def _graphs(given: Arguments) -> dict[str, Any]:
    """Returns what the host launches as graphs.

    Without a scope a graph holds whole layers, of a mixture of experts what precedes the exchange.
    """
    known = ("none", "local", "transformer_engine")
    if given.word("cuda-graph-impl", known, "none") == "none":
        return {}
    scopes = given.given.get("cuda-graph-scope", [])
    if scopes == ["full_iteration"]:
        return {"launch_us": 0.0}
    if not set(scopes) <= {*GRAPHS, "moe_preprocess", "full"}:
        what = f"must be full_iteration, or of {', '.join(GRAPHS)}, moe_preprocess, found"
        found = shown(" ".join(scopes))
        raise given.error("cuda-graph-scope", f"{what} {found}", "Others have no estimate.")
    every = not scopes or "full" in scopes
    return {"graphs": {field: every or scope in scopes for scope, field in GRAPHS.items()}}


def _orthogonal(given: Arguments) -> dict[str, Any]:
    """Returns what an optimizer does to matrices: Muon, by each replica or by who owns them.

    `dist_muon` gives whole matrices to ranks, which get sums of all gradients and pass on what they
    updated (megatron/core/optimizer/layer_wise_optimizer.py).
    """
    name = given.word("optimizer", OPTIMIZERS, "adam")
    if name == "adam":
        return {}
    owned = name == "dist_muon"
    steps = given.count("muon-num-ns-steps", 5)
    whole = {"shards": "tensors", "all_reduces": True} if owned else {}
    return {"orthogonal": {"iterations": steps, "shared": owned}, **whole}


def _changes(given: Arguments) -> dict[str, Any]:
    """Returns what the arguments set of the framework."""
    context = {"p2p": "ring", "all_gather": "gather", "a2a": "heads"}
    dispatch = {"alltoall": "copies", "allgather": "gather", "flex": "copies"}
    tokens = given.word("moe-token-dispatcher-type", tuple(dispatch), "allgather")
    once = tokens == "flex" and "moe-enable-deepep" in given
    half = "fp16" in given and "accumulate-allreduce-grads-in-fp32" not in given
    sent = 2 if half or "grad-reduce-in-bf16" in given else 4
    return {
        **_modules(given),
        **_graphs(given),
        **_orthogonal(given),
        "context_exchange": context[given.word("cp-comm-type", tuple(context), "p2p")],
        "expert_dispatch": "once_a_node" if once else dispatch[tokens],
        "overlap": {
            "gradient_reduce": "overlap-grad-reduce" in given,
            "parameter_gather": "overlap-param-gather" in given,
            "tensor": "pipelined" if "tp-comm-overlap" in given else "backward",
            "pipeline": "no-overlap-p2p-communication" not in given,
        },
        "fused": {
            "cross_entropy": "cross-entropy-loss-fusion" in given,
            "grouped_gemm": "moe-grouped-gemm" in given,
            "gradient_accumulation": "no-gradient-accumulation-fusion" not in given,
        },
        "bytes": {"gradient": sent, "gradient_sent": sent},
        "held": {"update_bytes": 4 if half else 0},
    }
