"""What each keyword of MindSpore's parallel context does to it.

Keywords are applied one after another, so one that is refused leaves those before it set; a nested
setting likewise leaves what it had changed before it was refused. That is what MindSpore does.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from autopar.compat.context import Context
from autopar.compat.keys import COMMUNICATIONS, FUSIONS, KEYS, LEVELS, MODES, SEARCHES, Ranges
from autopar.errors import shown

# MindSpore's numbers are of 64 bits; indices of gradients are unsigned of 32.
_INTEGERS = range(-(2**63), 2**63)
_INDICES = range(2**32)


def apply(context: Context, keywords: dict[str, Any], ranges: Ranges) -> None:
    """Applies keywords in their order, after the types of all were looked at.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: As MindSpore would.

    Example:
        >>> from autopar.compat.keys import RANGES
        >>> context = Context()
        >>> apply(context, {"device_num": 8, "comm_fusion": {"openstate": False}}, RANGES["2.10"])
        >>> context.get("device_num"), context.get("comm_fusion")["openstate"]
        (8, False)
    """
    for name, value in keywords.items():
        kind = KEYS[name].type if name in KEYS else None
        if kind is not None and value is not None and not isinstance(value, kind):
            raise TypeError(wrong(name, f"of type {kind.__name__}", value))
    for name, value in keywords.items():
        if name not in KEYS:
            raise ValueError(f"set_auto_parallel_context has no key {shown(name)}")
        _SETTERS[name](context, name, value, ranges)


def wrong(name: str, must: str, found: object) -> str:
    """Returns what an error says: the key, what it must be, what was found."""
    return f"{name}: must be {must}, found {shown(found)}"


Setter = Callable[[Context, str, Any, Ranges], None]


def whole(name: str, value: Any, least: int) -> int:
    """Returns an integer from `least` that is no truth value.

    Raises:
        TypeError: It is no integer, or of more than 64 bits.
        ValueError: It is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(wrong(name, "an integer", value))
    if value not in _INTEGERS:
        raise TypeError(wrong(name, "an integer of 64 bits", value))
    if value < least:
        raise ValueError(wrong(name, f"an integer from {least}", value))
    return value


def boolean(name: str, value: Any) -> bool:
    """Returns a truth value; TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(wrong(name, "True or False", value))
    return value


def _flag(context: Context, name: str, value: Any, _: Ranges) -> None:
    context.values[name] = boolean(name, value)


def _flag_or_none(context: Context, name: str, value: bool | None, _: Ranges) -> None:
    context.values[name] = bool(value)


def _truth(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not hasattr(type(value), "__bool__"):
        raise TypeError(wrong(name, "a truth value", value))
    context.values[name] = bool(value)


def _text(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not isinstance(value, (str, bytes)):
        raise TypeError(wrong(name, "a text", value))
    context.values[name] = value if isinstance(value, str) else value.decode()


def _parts(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        # However negative, it is out of range here and not of the wrong type.
        value = max(value, 0)
    return whole(name, value, 1)


def _stages(context: Context, name: str, value: Any, _: Ranges) -> None:
    context.values[name] = _parts(name, value)


def _segments(context: Context, name: str, value: Any, _: Ranges) -> None:
    context.pipeline_segments = _parts(name, value)


def _device_num(context: Context, name: str, value: Any, ranges: Ranges) -> None:
    # A truth value counts as an integer here.
    if value is None:
        raise TypeError(wrong(name, "an integer", value))
    if value < 1 or (ranges.devices is not None and value > ranges.devices):
        to = "" if ranges.devices is None else f" to {ranges.devices}"
        raise ValueError(wrong(name, f"an integer from 1{to}", value))
    if value not in _INTEGERS:
        raise TypeError(wrong(name, "an integer of 64 bits", value))
    context.values[name] = int(value)


def _global_rank(context: Context, name: str, value: Any, _: Ranges) -> None:
    if value is None:
        raise TypeError(wrong(name, "an integer", value))
    if not 0 <= value <= 4095:
        raise ValueError(wrong(name, "an integer from 0 to 4095", value))
    context.values[name] = int(value)


def _one_of(words: tuple[str, ...], key: str | None = None) -> Setter:
    """Returns the setter of a key that takes one of some words; `key` where it is stored."""

    def put(context: Context, name: str, value: Any, _: Ranges) -> None:
        if not isinstance(value, str):
            raise TypeError(wrong(name, "a text", value))
        if value not in words:
            raise ValueError(wrong(name, f"one of {', '.join(words)}", value))
        context.values[key or name] = value

    return put


def _full_batch(context: Context, name: str, value: bool | None, ranges: Ranges) -> None:
    _flag_or_none(context, name, value, ranges)
    context.values["full_batch_is_set"] = True


def _dataset_strategy(context: Context, name: str, value: Any, ranges: Ranges) -> None:
    if isinstance(value, str):
        if value not in ("full_batch", "data_parallel"):
            raise ValueError(wrong(name, "full_batch or data_parallel", value))
        _full_batch(context, "full_batch", value == "full_batch", ranges)
        context.cut_dataset(None)
        return
    if not isinstance(value, tuple):
        raise TypeError(wrong(name, "a text or a tuple", value))
    if value and hasattr(value[0], "to_dict"):
        context.lay_dataset(value)
        for layout in value:
            if not hasattr(layout, "to_dict"):
                raise TypeError(wrong(name, "a layout for each input", layout))
            if layout.to_dict()["interleaved_parallel"]:
                raise ValueError(f"{name}: a layout must not be interleaved")
        return
    for part in value:
        if not isinstance(part, tuple):
            raise TypeError(wrong(name, "a tuple for each input", part))
        for cut in part:
            if not isinstance(cut, int):
                raise TypeError(wrong(name, "an integer for each dimension", cut))
    cuts = [[int(cut) for cut in part] for part in value]
    if not all(cut in _INTEGERS for part in cuts for cut in part):
        context.cut_dataset([])
        raise TypeError(f"{name}: must be of 64-bit integers")
    context.cut_dataset(cuts)


def _make_folder(file: str) -> None:
    folder = Path(f"{file}x").parent
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _load_file(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not isinstance(value, str):
        raise TypeError(wrong(name, "a path", value))
    context.values[name] = value


def _save_file(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not isinstance(value, str):
        raise TypeError(wrong(name, "a path", value))
    _make_folder(value)
    context.values[name] = value


def _group_file(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not isinstance(value, str):
        raise TypeError(wrong(name, "a path", value))
    _make_folder(value)
    context.group_ckpt_save_file = value


def _known(name: str, config: dict[Any, Any], known: tuple[str, ...]) -> None:
    for key in config:
        if key not in known:
            raise ValueError(f"{name}: has no key {shown(key)}, only {', '.join(known)}")


def _strategy_config(context: Context, name: str, value: Any, _: Ranges) -> None:
    if value is None:
        raise TypeError(wrong(name, "a dictionary", value))
    _known(name, value, ("load_file", "save_file", "only_trainable_params"))
    for key, kept in (
        ("load_file", "strategy_ckpt_load_file"),
        ("save_file", "strategy_ckpt_save_file"),
    ):
        if key in value:
            if not isinstance(value[key], str):
                raise TypeError(wrong(f"{name}.{key}", "a path", value[key]))
            context.values[kept] = value[key]
    if "only_trainable_params" in value:
        key = f"{name}.only_trainable_params"
        context.only_trainable_params = boolean(key, value["only_trainable_params"])


def _pipeline_config(context: Context, name: str, value: Any, ranges: Ranges) -> None:
    if value is None:
        raise TypeError(wrong(name, "a dictionary", value))
    _known(name, value, ("pipeline_interleave", "pipeline_scheduler"))
    if "pipeline_interleave" not in value:
        raise KeyError(f"{name}: needs pipeline_interleave")
    interleave = boolean(f"{name}.pipeline_interleave", value["pipeline_interleave"])
    context.values["pipeline_interleave"] = interleave
    if "pipeline_scheduler" not in value:
        raise KeyError(f"{name}: needs pipeline_scheduler")
    scheduler = value["pipeline_scheduler"]
    if not isinstance(scheduler, str) or scheduler not in ranges.schedulers:
        must = f"one of {', '.join(ranges.schedulers)}"
        raise ValueError(wrong(f"{name}.pipeline_scheduler", must, scheduler))
    if not interleave and scheduler != "1f1b":
        must = "1f1b without pipeline_interleave"
        raise TypeError(wrong(f"{name}.pipeline_scheduler", must, scheduler))
    context.values["pipeline_scheduler"] = scheduler


def _optimizer_config(context: Context, name: str, value: Any, ranges: Ranges) -> None:
    if value is None:
        raise TypeError(wrong(name, "a dictionary", value))
    known = ["gradient_accumulation_shard", "parallel_optimizer_threshold"]
    known.append("optimizer_weight_shard_size")
    if ranges.optimizer_level:
        known.append("optimizer_level")
    _known(name, value, tuple(known))
    level = value.get("optimizer_level")
    if "gradient_accumulation_shard" in value:
        key = f"{name}.gradient_accumulation_shard"
        context.gradient_accumulation_shard = boolean(key, value["gradient_accumulation_shard"])
        if "optimizer_level" in value and level != "level2":
            raise ValueError(wrong(f"{name}.optimizer_level", f"level2 beside {key}", level))
    if "parallel_optimizer_threshold" in value:
        key = f"{name}.parallel_optimizer_threshold"
        context.parallel_optimizer_threshold = whole(key, value["parallel_optimizer_threshold"], 0)
    if "optimizer_weight_shard_size" in value and value["optimizer_weight_shard_size"] != -1:
        key = f"{name}.optimizer_weight_shard_size"
        size = whole(key, value["optimizer_weight_shard_size"], 1)
        _shard_size(context, "optimizer_weight_shard_size", size, ranges)
    if "optimizer_level" in value:
        if level not in LEVELS:
            raise ValueError(wrong(f"{name}.optimizer_level", f"one of {', '.join(LEVELS)}", level))
        if context.gradient_accumulation_shard and level != "level2":
            must = "level2 while gradient_accumulation_shard is set"
            raise ValueError(wrong(f"{name}.optimizer_level", must, level))
        if level == "level2":
            context.gradient_accumulation_shard = True
        if level == "level3":
            context.shards_parameters = True


def _shard_size(context: Context, name: str, value: Any, _: Ranges) -> None:
    if isinstance(value, bool):
        raise TypeError(wrong(name, "an integer", value))
    # One rank shares nothing: not an error, but not kept either.
    if not isinstance(value, int) or value > 1:
        context.values[name] = whole(name, value, 1)


def _accumulation(context: Context, name: str, value: Any, _: Ranges) -> None:
    if isinstance(value, int) and value > 1:
        raise ValueError(f"{name}: must be 1: accumulation is a cell of the network now")
    context.values[name] = whole(name, value, 1)


def _indices(context: Context, name: str, value: Any, _: Ranges) -> None:
    if not value:
        raise ValueError(f"{name}: must not be empty")
    if not isinstance(value, list):
        raise TypeError(wrong(name, "a list", value))
    for index in value:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(wrong(name, "of integers", index))
    if len(set(value)) != len(value):
        raise ValueError(f"{name}: must not repeat an index")
    if sorted(value) != value:
        raise ValueError(f"{name}: must ascend")
    if not all(index in _INDICES for index in value):
        raise TypeError(f"{name}: must be of integers from 0 to {_INDICES[-1]}")
    context.values["all_reduce_fusion_config"] = list(value)
    context.fused["allreduce"] = True


def _comm_fusion(context: Context, name: str, value: Any, ranges: Ranges) -> None:
    if value is None:
        raise AttributeError(wrong(name, "a dictionary", value))
    config = deepcopy(value)
    config.setdefault("openstate", True)
    for key, part in config.items():
        if key in FUSIONS:
            _fuse(context, f"{name}.{key}", key, part, ranges)
        elif key == "openstate":
            if not boolean(f"{name}.openstate", part):
                context.fused = dict.fromkeys(FUSIONS, False)
        else:
            known = ", ".join(("openstate", *FUSIONS))
            raise KeyError(f"{name}: has no key {shown(key)}, only {known}")
        context.values[name][key] = part


def _fuse(context: Context, name: str, kind: str, part: Any, ranges: Ranges) -> None:
    """Applies the fusion setting of one kind of collective."""
    context.fused[kind] = True
    if not isinstance(part, dict):
        raise TypeError(wrong(name, "a dictionary", part))
    for key in ("mode", "config"):
        if key not in part:
            raise KeyError(f"{name}: needs {key}")
    modes = ("auto", "size", "index") if kind == "allreduce" else ("auto", "size")
    mode, config = part["mode"], part["config"]
    if mode not in modes:
        raise KeyError(wrong(f"{name}.mode", f"one of {', '.join(modes)}", mode))
    if mode == "auto":
        context.fusion_mb[kind] = 64
    elif mode == "index":
        _indices(context, f"{name}.config", config, ranges)
    else:
        if not isinstance(config, (int, float)) or (isinstance(config, float) and config >= 0):
            raise TypeError(wrong(f"{name}.config", "a whole number of MB", config))
        if config < ranges.fusion_mb:
            must = f"a number of MB from {ranges.fusion_mb}"
            raise ValueError(wrong(f"{name}.config", must, config))
        if config not in _INTEGERS:
            raise TypeError(wrong(f"{name}.config", "a 64-bit integer", config))
        context.fusion_mb[kind] = int(config)


_SETTERS: dict[str, Setter] = {
    "device_num": _device_num,
    "global_rank": _global_rank,
    "gradients_mean": _flag_or_none,
    "gradient_fp32_sync": _flag_or_none,
    "loss_repeated_mean": _flag,
    "pipeline_stages": _stages,
    "auto_pipeline": _flag,
    "pipeline_result_broadcast": _flag,
    "pipeline_segments": _segments,
    "parallel_mode": _one_of(MODES),
    "search_mode": _one_of(SEARCHES),
    "auto_parallel_search_mode": _one_of(SEARCHES, "search_mode"),
    "parameter_broadcast": _flag_or_none,
    "strategy_ckpt_load_file": _load_file,
    "strategy_ckpt_save_file": _save_file,
    "strategy_ckpt_config": _strategy_config,
    "group_ckpt_save_file": _group_file,
    "full_batch": _full_batch,
    "dataset_strategy": _dataset_strategy,
    "enable_parallel_optimizer": _flag,
    "parallel_optimizer_config": _optimizer_config,
    "enable_alltoall": _flag,
    "force_fp32_communication": _flag,
    "all_reduce_fusion_config": _indices,
    "comm_fusion": _comm_fusion,
    "pipeline_config": _pipeline_config,
    "grad_accumulation_step": _accumulation,
    "communi_parallel_mode": _one_of(COMMUNICATIONS),
    "optimizer_weight_shard_size": _shard_size,
    "optimizer_weight_shard_aggregated_save": _flag,
    "sharding_propagation": _flag,
    "dump_local_norm": _truth,
    "dump_local_norm_path": _text,
    "dump_device_local_norm": _truth,
    "auto_parallel_new_interface": _truth,
    "init_param_in_compile": _truth,
}
