"""torchtitan's TOML, as a question and a plan.

The degrees are those of `torchtitan/distributed/parallel_dims.py`; a shard degree of -1 takes the
ranks that the others leave, which needs the devices from flags.
"""

from typing import Any

from autopar import catalog
from autopar.errors import SpecError, shown
from autopar.frontends import launch
from autopar.frontends.launch import Launch, Settings
from autopar.frontends.places import keys, places
from autopar.report import Recompute

# Models that it defines itself: by their names in the catalog, its name and flavor.
FLAVORS = {
    "llama3-8b": ("llama3", "8B"),
    "llama3.1-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3.1-70b": ("llama3", "70B"),
    "llama3.3-70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
}
SCHEDULES = {
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "GPipe": "gpipe",
    "ZBVZeroBubble": "zb-v",
}
P = "parallelism"
RESHARD = f"{P}.fsdp_reshard_after_forward"
ROTATE = f"{P}.context_parallel_rotate_method"
# When parameters are gathered; kept after the forward pass, they are gathered for both at once.
GATHERS = {"default": "step_in_pipeline", "always": "micro_batch", "never": "micro_batch"}
BACKEND = f"{P}.expert_parallel_comm_backend"
# How tokens reach experts.
EXCHANGES: dict[str, str] = {"standard": "copies", "deepep": "once_a_node"}
REPLICAS = f"{P}.data_parallel_replicate_degree"
SHARDS = f"{P}.data_parallel_shard_degree"
PARTS = f"{P}.module_fqns_per_model_part"
SIZE = f"{P}.pipeline_parallel_layers_per_stage"
ENDS = (
    f"{P}.pipeline_parallel_first_stage_less_layers",
    f"{P}.pipeline_parallel_last_stage_less_layers",
)
_TP, _CP = f"{P}.tensor_parallel_degree", f"{P}.context_parallel_degree"
_PP, _EP = f"{P}.pipeline_parallel_degree", f"{P}.expert_parallel_degree"
_SCHEDULE = f"{P}.pipeline_parallel_schedule"
# Where the file says what of a plan and a problem.
FIELDS = {
    "plan.dp": keys(SHARDS, REPLICAS, called="data-parallel degree"),
    "plan.tp": keys(_TP),
    "plan.sp": keys(_TP, called="sequence parallel"),
    "plan.cp": keys(_CP),
    "plan.pp": keys(_PP),
    "plan.ep": keys(_EP),
    "plan.etp": keys(f"{P}.expert_tensor_parallel_degree", _TP),
    "plan.vpp": keys(PARTS, SIZE, _SCHEDULE, called="parts a stage"),
    "plan.mbs": keys(f"{P}.pipeline_parallel_microbatch_size", "training.local_batch_size"),
    "plan.zero": keys(SHARDS, RESHARD, called="ZeRO stage"),
    "plan.shard_group": keys(SHARDS, REPLICAS, called="shards x context_parallel_degree"),
    "plan.schedule": keys(_SCHEDULE, f"{_SCHEDULE}_csv"),
    "plan.stages.layers": keys(PARTS, SIZE, *ENDS, _PP),
    "plan.stages.recompute": keys(
        "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    ),
    "workload.global_batch_size": keys("training.global_batch_size", "training.local_batch_size"),
    "workload.sequence_length": keys("training.seq_len"),
    "workload.precision": keys(
        "model.converters", "training.mixed_precision_param", "training.dtype"
    ),
    "cluster.devices": keys(SHARDS, REPLICAS, _TP, _CP, _PP, called="world size"),
    "model": keys("model.flavor", "model.name"),
}


def read(file: str) -> Launch:
    """Returns the job that a torchtitan configuration describes.

    Raises:
        SpecError: The file is wrong or contradicts itself.
    """
    settings = launch.toml_settings(file)
    settings.refuse_misspelt(("", P, "training", "activation_checkpoint"), FIELDS)
    question: dict[str, Any] = {
        "sequence_length": settings.count("training.seq_len", 2048),
        "precision": _precision(settings),
    }
    plan, notes = _degrees(settings), []
    pp = plan["pp"]
    local = settings.count("training.local_batch_size", 8)
    batch = settings.value("training.global_batch_size")
    if pp > 1:
        plan |= _pipeline(settings, pp)
        plan["mbs"] = settings.count(f"{P}.pipeline_parallel_microbatch_size", 1)
    else:
        plan["mbs"] = local
    if batch not in (None, -1):
        question["global_batch_size"] = settings.count("training.global_batch_size")
    elif "dp" in plan:
        question["global_batch_size"] = local * plan["dp"]
    if settings.flag("training.enable_cpu_offload"):
        path = "training.enable_cpu_offload"
        raise settings.error(path, "parameters on the host have no estimate", "Set it to false.")
    recompute, every, unclear = _recompute(settings)
    unread = [key for key in settings.unread([P]) if key not in WITHOUT_EFFECT]
    if unread:
        notes.append(f"not read: {', '.join(unread)}")
    return Launch(
        file=settings.file,
        framework="torchtitan",
        model=_model(settings),
        question=question,
        plan=plan,
        copies=1 if "dp" in plan else settings.count(REPLICAS, 1),
        recompute=recompute,
        every=every,
        unclear=unclear,
        changes={
            "gathers": GATHERS[settings.word(RESHARD, tuple(GATHERS), "default")],
            "context_exchange": "ring"
            if settings.word(ROTATE, ("allgather", "alltoall"), "allgather") == "alltoall"
            else "blocks",
            "expert_dispatch": EXCHANGES[settings.word(BACKEND, tuple(EXCHANGES), "standard")],
        },
        notes=tuple(notes),
        places=places(settings, FIELDS),
    )


MODES = ("none", "full", "selective", "memory_budget")
WITHOUT_EFFECT = frozenset(
    f"{P}.{name}"
    for name in (
        "disable_loss_parallel",
        "context_parallel_load_balancer",
        "pipeline_parallel_schedule_csv",
    )
)


def _recompute(settings: Settings) -> tuple[tuple[Recompute, ...] | None, int, str]:
    """Returns what is recomputed, or how manieth layer is, or why neither can be said."""
    mode = settings.word("activation_checkpoint.mode", MODES, "selective")
    if mode in ("none", "full"):
        return (Recompute("uniform", 1) if mode == "full" else Recompute(),), 0, ""
    path = "activation_checkpoint.selective_ac_option"
    option = str(settings.value(path) or "2")
    if mode == "memory_budget":
        return None, 0, "activation checkpointing by a budget of memory is no setting of a plan"
    if option == "op":
        # What the framework's selective recompute is.
        return (Recompute("selective"),), 0, ""
    if not option.isdecimal() or int(option) == 0:
        what = f"must be op or a positive number, found {shown(option)}"
        raise settings.error(path, what, "Give one of them.")
    return None, int(option), ""


def _model(settings: Settings) -> str | None:
    said = (settings.value("model.name"), settings.value("model.flavor"))
    return next((name for name, flavor in FLAVORS.items() if flavor == said), None)


def _precision(settings: Settings) -> str:
    kinds = ("bfloat16", "float32")
    mixed = settings.word("training.mixed_precision_param", kinds, "bfloat16")
    whole = settings.word("training.dtype", kinds, "float32")
    converters = settings.value("model.converters") or []
    if not isinstance(converters, list):
        what = f"must be a list, found {shown(converters)}"
        raise settings.error("model.converters", what, "Write it in brackets.")
    if any("nvfp4" in str(name) for name in converters):
        return "fp4"
    if any("float8" in str(name) for name in converters):
        return "fp8"
    return "bf16" if "bfloat16" in (mixed, whole) else "fp32"


def _degrees(settings: Settings) -> dict[str, Any]:
    tp, cp, ep = settings.count(_TP, 1), settings.count(_CP, 1), settings.count(_EP, 1)
    inside = settings.count(f"{P}.expert_tensor_parallel_degree", 1)
    replicas = settings.count(REPLICAS, 1)
    kept = settings.word(RESHARD, tuple(GATHERS), "default")
    plan: dict[str, Any] = {
        "tp": tp,
        "sp": tp > 1,
        "cp": cp,
        "pp": settings.count(_PP, 1),
        "ep": ep,
        # Alone, tensor parallel cuts experts as it cuts the rest.
        "etp": inside if ep > 1 else tp,
        "zero": 2 if kept == "never" else 3,
    }
    if settings.value(SHARDS) in (None, -1):
        return plan
    shards = settings.count(SHARDS)
    plan["dp"] = replicas * shards
    if shards * cp == 1:
        plan["zero"] = 0
    else:
        plan["shard_group"] = shards * cp
    return plan


def _pipeline(settings: Settings, pp: int) -> dict[str, Any]:
    schedule = SCHEDULES[settings.word(_SCHEDULE, tuple(SCHEDULES), "1F1B")]
    chunks = settings.value(PARTS)
    if chunks is None:
        counts = _split(settings, pp, 2 if schedule in ("interleaved", "zb-v") else 1)
        return _dealt(counts, pp, schedule)
    if not isinstance(chunks, list) or not all(isinstance(chunk, list) for chunk in chunks):
        what = f"must be a list of lists, found {shown(chunks)}"
        raise settings.error(PARTS, what, "List the modules of each part.")
    counts = [sum(str(name).startswith("layers.") for name in chunk) for chunk in chunks]
    if len(counts) % pp or not counts:
        what = f"{len(counts)} parts on {pp} stages"
        raise settings.error(PARTS, what, "Give whole rounds.")
    return _dealt(counts, pp, schedule)


def _split(settings: Settings, pp: int, usual: int) -> list[int]:
    """Returns the layers of each part as torchtitan's `generate_llm_fqn_per_model_part` deals them.

    The embedding counts as some layers of the first part and the head as some of the last; what
    does not divide goes to the first parts.

    Args:
        settings: The file.
        pp: Stages.
        usual: Parts of a stage where the file does not say how many layers one has.
    """
    name = _model(settings)
    if name is None:
        what = "missing key: the model, whose layers it lists, is none that is known here"
        raise SpecError(f"{settings.file}: {PARTS}", what, "Add it.")
    ends = [settings.count(path, 1, least=0) for path in ENDS]
    layers = catalog.model(name).model.layers + sum(ends)
    parts = pp * usual
    if settings.has(SIZE):
        parts = -(-layers // settings.count(SIZE))
        if parts % pp:
            what = f"{layers} layers, ends counted, make {parts} parts on {pp} stages"
            raise settings.error(SIZE, what, "Give a size that makes whole rounds.")
    share, rest = divmod(layers, parts)
    for path, weight in zip(ENDS, ends, strict=True):
        if weight > share:
            at = path if settings.has(path) else _PP
            what = f"an end that counts as {weight} layers in parts of {share}"
            raise settings.error(at, what, "Give fewer stages, or a smaller end.")
    counts = [share + (part < rest) for part in range(parts)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    return counts


def _dealt(counts: list[int], pp: int, schedule: str) -> dict[str, Any]:
    """Returns the schedule, chunks and layers of stages that hold parts in turn."""
    rounds = [counts[i : i + pp] for i in range(0, len(counts), pp)]
    if schedule == "zb-v":
        rounds[1:] = [layers[::-1] for layers in rounds[1:]]
    held = [sum(stage) for stage in zip(*rounds, strict=True)]
    return {"schedule": schedule, "vpp": len(rounds), "layers": held}
