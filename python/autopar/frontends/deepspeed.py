"""DeepSpeed's JSON, as a question and a plan; the model and the devices come from flags.

The rules of the batch are those of `deepspeed/runtime/config.py`: two of its three numbers give the
third.
"""

from typing import Any

from autopar.frontends import launch
from autopar.frontends.launch import Launch, Settings
from autopar.report import Recompute


def read(file: str) -> Launch:
    """Returns the job that a DeepSpeed configuration describes.

    Raises:
        SpecError: The file is wrong or contradicts itself.
    """
    settings = launch.json_settings(file)
    stage = settings.count("zero_optimization.stage", 0, least=0)
    if stage > 3:
        raise settings.error("zero_optimization.stage", f"must be from 0 to 3, found {stage}")
    question: dict[str, Any] = {"precision": _precision(settings)}
    plan: dict[str, Any] = {
        "tp": settings.count("tensor_parallel.autotp_size", 1, least=0) or 1,
        "sp": False,
        "cp": settings.count("sequence_parallel_size", 1),
        "zero": stage,
        "optimizer_offload": _offload(settings),
    }
    if settings.has("pipeline.stages") and settings.value("pipeline.stages") != "auto":
        plan["pp"] = settings.count("pipeline.stages")
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
    return Launch(
        file=settings.file,
        framework="deepspeed",
        question=question,
        plan=plan,
        recompute=_recompute(settings),
        changes={"overlap": {"gradient_reduce": settings.flag(OVERLAP, stage == 3)}},
        notes=_notes(settings),
    )


BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
OVERLAP = "zero_optimization.overlap_comm"


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


def _recompute(settings: Settings) -> tuple[Recompute, ...] | None:
    """Returns what the pipeline engine checkpoints; elsewhere the model's code decides."""
    interval = settings.count("pipeline.activation_checkpoint_interval", 0, least=0)
    if interval:
        return (Recompute("uniform", interval),)
    return (Recompute("uniform", 1),) if settings.has("activation_checkpointing") else None


def _notes(settings: Settings) -> tuple[str, ...]:
    notes = []
    if not settings.has("activation_checkpointing") and not settings.has("pipeline"):
        notes.append("whether activations are checkpointed the model's code decides: --recompute")
    sharded = ("zero_hpz_partition_size", "mics_shard_size", "zero_quantized_weights")
    for key in sharded:
        if settings.value(f"zero_optimization.{key}") not in (None, False, 1, -1):
            notes.append(f"not read: zero_optimization.{key}")
    return tuple(notes)
