"""DeepSpeed's JSON, as a question and a plan; the model and the devices come from flags.

The rules of the batch are those of `deepspeed/runtime/config.py`: two of its three numbers give the
third.
"""

from typing import Any

from autopar.frontends import launch
from autopar.frontends.launch import Launch, Settings
from autopar.frontends.places import keys, places
from autopar.report import Recompute


def read(file: str) -> Launch:
    """Returns the job that a DeepSpeed configuration describes.

    Raises:
        SpecError: The file is wrong or contradicts itself.
    """
    settings = launch.json_settings(file)
    settings.refuse_misspelt(("", Z, "tensor_parallel", "pipeline"), FIELDS)
    stage = settings.degree(STAGE, 0, least=0)
    if stage > 3:
        raise settings.error(STAGE, f"must be from 0 to 3, found {stage}", "Give a ZeRO stage.")
    question: dict[str, Any] = {"precision": _precision(settings)}
    # Without ZeRO its bf16 optimizer shards 32-bit copies and moments all the same, and sums whole
    # gradients in 32 bits beside those of the pass (runtime/bf16_optimizer.py).
    own = question["precision"] == "bf16" and not stage
    plan: dict[str, Any] = {
        "tp": settings.degree(_TP, least=0) or 1,
        "sp": False,
        "cp": settings.degree(_CP),
        "zero": 1 if own else stage,
        "optimizer_offload": _offload(settings),
        **_groups(settings, stage),
    }
    if settings.value(_PP) != "auto" and settings.place(_PP).line is not None:
        plan["pp"] = settings.degree(_PP)
    batch = {key: settings.count(key) for key in BATCH if settings.has(key)}
    if len(batch) < 2:
        missing = next(key for key in BATCH if key not in batch)
        what = "missing key: two of the three numbers of the batch are needed"
        raise settings.error(missing, what, "Add it.")
    plan["mbs"] = batch.get(BATCH[1])
    replicas = None
    if len(batch) == 3:
        replicas, rest = divmod(batch[BATCH[0]], batch[BATCH[1]] * batch[BATCH[2]])
        if rest or not replicas:
            product = batch[BATCH[1]] * batch[BATCH[2]]
            what = f"{batch[BATCH[0]]} is no multiple of micro-batch x accumulation = {product}"
            raise settings.error(BATCH[0], what, "Make them agree.")
        plan["dp"] = replicas
    if BATCH[0] in batch:
        question["global_batch_size"] = batch[BATCH[0]]
    if plan["mbs"] is None:
        del plan["mbs"]
    if BATCH[0] not in batch or BATCH[1] not in batch:
        what = "missing key: the batch depends on the replicas without it"
        missing = next(key for key in BATCH[:2] if key not in batch)
        raise settings.error(missing, what, "Add it.")
    recompute, notes = _recompute(settings), _notes(settings, plan)
    changes: dict[str, Any] = {"overlap": {"gradient_reduce": settings.flag(OVERLAP, stage == 3)}}
    if own:
        changes["bytes"] = {"gradient": 6, "gradient_sent": 4}
        notes = (*notes, "bf16 without ZeRO: the optimizer shards its states all the same")
    return Launch(
        file=settings.file,
        framework="deepspeed",
        question=question,
        plan=plan,
        recompute=recompute,
        changes=changes,
        notes=notes,
        places=places(settings, FIELDS),
    )


Z = "zero_optimization"
STAGE = f"{Z}.stage"
MICS, HPZ = f"{Z}.mics_shard_size", f"{Z}.zero_hpz_partition_size"
# ZeRO++ sends parameters and gradients in fewer bits.
QUANTIZED = (f"{Z}.zero_quantized_weights", f"{Z}.zero_quantized_gradients")
OVERLAP = f"{Z}.overlap_comm"
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_TP, _CP, _PP = "tensor_parallel.autotp_size", "sequence_parallel_size", "pipeline.stages"
# Where the file says what of a plan and a problem.
FIELDS = {
    "plan.dp": keys(*BATCH, called="data-parallel size"),
    "plan.tp": keys(_TP),
    "plan.cp": keys(_CP),
    "plan.pp": keys(_PP),
    "plan.mbs": keys(BATCH[1]),
    "plan.zero": keys(STAGE),
    "plan.shard_group": keys(MICS),
    "plan.optimizer_offload": keys(f"{Z}.offload_optimizer.device"),
    "plan.stages.layers": keys(_PP),
    "plan.stages.recompute": keys(
        "pipeline.activation_checkpoint_interval", "activation_checkpointing"
    ),
    "workload.global_batch_size": keys(BATCH[0]),
    "workload.precision": keys("bf16.enabled", "fp16.enabled"),
    "cluster.devices": keys(*BATCH, _TP, _CP, _PP, called="world size"),
}


def _precision(settings: Settings) -> str:
    kinds = [kind for kind in ("bf16", "fp16") if settings.flag(f"{kind}.enabled")]
    if len(kinds) > 1:
        raise settings.error("fp16.enabled", "true beside bf16", "Enable one of them.")
    return kinds[0] if kinds else "fp32"


def _offload(settings: Settings) -> bool:
    devices = ("none", "cpu", "nvme")
    where = settings.word("zero_optimization.offload_optimizer.device", devices, "none")
    for path in ("zero_optimization.offload_param.device",):
        if settings.word(path, devices, "none") != "none":
            raise settings.error(path, "parameters on the host have no estimate", "Leave it out.")
    if where == "nvme":
        path = "zero_optimization.offload_optimizer.device"
        raise settings.error(path, "an optimizer on NVMe has no estimate", "Give cpu or none.")
    return where == "cpu"


def _groups(settings: Settings, stage: int) -> dict[str, Any]:
    """Returns the ranks over which parameters are sharded, where it is not all.

    MiCS (Zhang et al., 2022) is ZeRO's third stage within groups that hold copies of each other.
    ZeRO++ (Wang et al., 2023) beside its shards keeps a copy of the parameters in each smaller
    group for the backward pass, which no plan says; below the third stage both do nothing.
    """
    size = settings.value(MICS)
    copied = settings.count(HPZ, 1, least=0)
    if stage == 3 and copied > 1:
        what = f"a second copy of the parameters, in groups of {copied}, has no estimate"
        raise settings.error(HPZ, what, "Set it to 1.")
    for path in QUANTIZED:
        if settings.flag(path) and stage == 3:
            raise settings.error(path, "quantized messages have no estimate", "Set it to false.")
    if size in (None, -1) or stage != 3:
        return {}
    return {"shard_group": settings.count(MICS)}


def _recompute(settings: Settings) -> tuple[Recompute, ...] | None:
    """Returns what the pipeline engine checkpoints; elsewhere the model's code decides."""
    interval = settings.count("pipeline.activation_checkpoint_interval", 0, least=0)
    if interval:
        return (Recompute("uniform", interval),)
    return (Recompute("uniform", 1),) if settings.has("activation_checkpointing") else None


def _notes(settings: Settings, plan: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if not settings.has("activation_checkpointing") and not settings.has("pipeline"):
        notes.append("whether activations are checkpointed the model's code decides: --recompute")
    for path in (MICS, HPZ, *QUANTIZED):
        if settings.value(path) not in (None, False, 1, -1) and "shard_group" not in plan:
            notes.append(f"{path} acts in ZeRO stage 3 only")
    return tuple(notes)
