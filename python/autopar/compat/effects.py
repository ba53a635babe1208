"""What each key of the parallel context does to the search for a plan: a limit, an option, nothing.

A key becomes a field of the problem, which the core prices. What no field expresses changes nothing
here, and its effect says why, so that a reader can tell what a plan does not show. Keys that do not
apply in the parallel mode have no effect (`autopar.compat.keys.KEYS`).

The level of single operators (strategies of tensors, `search_mode`) is another search; here a key
acts on the degrees, the schedule, what is sharded, and what travels.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autopar import wire
from autopar.compat.context import Context
from autopar.compat.keys import KEYS
from autopar.errors import SpecError
from autopar.spec import Problem

Changes = dict[str, Any]
Rule = Callable[["Asked"], tuple[Changes, str]]

# Both searches of 2.10 refuse other device counts, and this one larger ones (its own messages).
RECURSIVE_LIMIT = 1024
# Of the parallel optimizer, in KB, where none is set.
DEFAULT_THRESHOLD = 64


@dataclass(frozen=True, slots=True)
class Effect:
    """What one key did.

    Attributes:
        key: The key, a nested one with a dot.
        value: Its value.
        changes: Fields of the problem that it set, by path, or of the `ShardingOptions` with which
            the fastest plan's operators were priced; empty where it changes nothing.
        because: Why it did that, or nothing.

    Example:
        >>> print(Effect("pipeline_stages", 4, {"options.pp": [4]}, "the stages are given"))
        pipeline_stages=4: options.pp=[4]: the stages are given
        >>> print(Effect("global_rank", 0, {}, "a plan is of all ranks"))
        global_rank=0: nothing: a plan is of all ranks
    """

    key: str
    value: Any
    changes: Mapping[str, Any]
    because: str

    def __str__(self) -> str:
        """Returns one line."""
        what = ", ".join(f"{path}={value}" for path, value in self.changes.items()) or "nothing"
        return f"{self.key}={self.value}: {what}: {self.because}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A context beside the problem that it acts on.

    Attributes:
        context: The context.
        problem: The problem as it stands without it.
    """

    context: Context
    problem: Problem

    @property
    def chooses_stages(self) -> bool:
        """Whether auto_pipeline acts."""
        return (
            bool(self.context.get("auto_pipeline"))
            and self.context.search == "recursive_programming"
        )

    @property
    def shards(self) -> bool:
        """Whether the parallel optimizer acts."""
        # In data_parallel it knows Lamb and AdamWeightDecay on Ascend only.
        chips = [group.chip.name for group in self.problem.cluster.groups]
        ascend = all(name.startswith("ascend") for name in chips)
        return bool(self.context.get("enable_parallel_optimizer")) and (
            self.context.automatic or (self.context.mode == "data_parallel" and ascend)
        )


def applied(context: Context, problem: Problem) -> tuple[Problem, tuple[Effect, ...]]:
    """Returns the problem as a context makes it, and what each key did, in the order of `KEYS`.

    Args:
        context: The context.
        problem: The problem without it. Its options stay as limits.

    Raises:
        SpecError: Keys contradict each other or the problem, or name what no plan can say.

    Example:
        >>> from autopar import planner
        >>> from autopar.compat.keys import RANGES
        >>> from autopar.compat.settings import apply
        >>> context = Context()
        >>> keys = {"parallel_mode": "semi_auto_parallel", "device_num": 8, "pipeline_stages": 2}
        >>> apply(context, keys, RANGES["2.10"])
        >>> question = planner.problem(
        ...     "llama2-7b", "ascend_910b", devices=8, global_batch_size=64, sequence_length=4096
        ... )
        >>> limited, effects = applied(context, question)
        >>> limited.options.pp, limited.options.zero
        ((2,), (0,))
    """
    asked = Asked(context, problem)
    document = wire.write(problem)
    effects = []
    for key, rule in _RULES.items():
        scope = KEYS[key.split(".")[0]].scope
        if scope == "auto" and not asked.context.automatic:
            rule = _nothing(f"does not apply in {asked.context.mode}")
        changes, because = rule(asked)
        for path, value in changes.items():
            _put(document, key, path, value)
        effects.append(Effect(key, _value(context, key), changes, because))
    return wire.read(Problem, document), tuple(effects)


def _put(document: Any, key: str, path: str, value: Any) -> None:
    """Sets a field of a problem document; limits are narrowed, never widened."""
    *outer, last = path.split(".")
    part = document
    for name in outer:
        part = part[name]
    if outer == ["options"] and isinstance(value, list) and part[last]:
        kept = [item for item in part[last] if item in value]
        if not kept:
            what = f"allows {last} {_listed(value)} where {_listed(part[last])} is asked for"
            raise SpecError(key, what, "Give keys that agree.")
        value = kept
    part[last] = value


def _listed(items: Iterable[Any]) -> str:
    return " or ".join(str(item) for item in items)


def _value(context: Context, key: str) -> Any:
    """Returns the value of a key, also of those that MindSpore does not let one read."""
    hidden = {
        "pipeline_segments": context.pipeline_segments,
        "group_ckpt_save_file": context.group_ckpt_save_file,
        "parallel_optimizer_config.gradient_accumulation_shard": (
            context.gradient_accumulation_shard
        ),
        "parallel_optimizer_config.parallel_optimizer_threshold": (
            context.parallel_optimizer_threshold
        ),
        "parallel_optimizer_config.optimizer_weight_shard_size": context.get(
            "optimizer_weight_shard_size"
        ),
        "parallel_optimizer_config.optimizer_level": _level(context),
    }
    if key in hidden:
        return hidden[key]
    outer, _, inner = key.partition(".")
    return context.get(inner) if outer == "pipeline_config" else context.get(outer)


def _level(context: Context) -> str:
    if context.shards_parameters:
        return "level3"
    return "level2" if context.gradient_accumulation_shard else "level1"


def _nothing(because: str) -> Rule:
    """Returns the rule of a key that changes nothing, and why."""
    return lambda asked: ({}, because)


def _device_num(asked: Asked) -> tuple[Changes, str]:
    if asked.context.mode == "stand_alone":
        return {"cluster.devices": 1}, "in stand_alone each device trains by itself"
    return {"cluster.devices": asked.context.devices}, "the devices of the job"


def _parallel_mode(asked: Asked) -> tuple[Changes, str]:
    one: Changes = {f"options.{degree}": [1] for degree in ("tp", "cp", "ep", "pp")}
    match asked.context.mode:
        case "stand_alone":
            return one | {"options.dp": [1]}, "one device, nothing is split"
        case "data_parallel":
            return one, "only the batch is split"
        case "hybrid_parallel":
            return {"options.pp": [1]}, "splits are written by hand, without stages"
        case "semi_auto_parallel":
            return {}, "every degree may be configured: the plan says which"
        case _:
            return {}, "every degree is searched"


def _search_mode(asked: Asked) -> tuple[Changes, str]:
    if asked.context.search in ("", "sharding_propagation"):
        return {}, "acts on single operators, and in auto_parallel only"
    largest = (
        RECURSIVE_LIMIT
        if asked.context.search == "recursive_programming"
        else asked.context.devices
    )
    allowed = [
        stages
        for stages in range(1, asked.context.stages + 1)
        if asked.context.devices % stages == 0
        and (asked.context.devices // stages).bit_count() == 1
        and asked.context.devices // stages <= largest
    ]
    needs = f"{asked.context.search} needs a power of two devices a stage"
    if asked.context.search == "recursive_programming":
        needs += f", at most {RECURSIVE_LIMIT}"
    if not allowed:
        hint = "Change device_num or pipeline_stages, or search by sharding_propagation."
        raise SpecError("search_mode", f"{needs}, found {asked.context.devices} devices", hint)
    return {"options.pp": allowed}, needs


def _pipeline_stages(asked: Asked) -> tuple[Changes, str]:
    if asked.context.devices % asked.context.stages:
        what = f"{asked.context.stages} stages do not divide {asked.context.devices} devices"
        raise SpecError("pipeline_stages", what, "Give a divisor of device_num.")
    if asked.chooses_stages:
        return {}, "the most that auto_pipeline may choose"
    return {"options.pp": [asked.context.stages]}, "the stages are given"


def _auto_pipeline(asked: Asked) -> tuple[Changes, str]:
    if not asked.chooses_stages:
        return {}, "acts where it is on, in auto_parallel with recursive_programming only"
    divisors = [n for n in range(1, asked.context.stages + 1) if asked.context.devices % n == 0]
    return {"options.pp": divisors}, "stages are chosen up to pipeline_stages"


def _interleave(asked: Asked) -> tuple[Changes, str]:
    if asked.context.stages == 1:
        return {}, "there is no pipeline"
    if asked.context.get("pipeline_interleave"):
        return {}, "a stage may hold several model chunks"
    return {"options.vpp": [1]}, "a stage holds one model chunk"


def _scheduler(asked: Asked) -> tuple[Changes, str]:
    if asked.context.stages == 1:
        return {}, "there is no pipeline"
    scheduler = asked.context.get("pipeline_scheduler")
    interleaves = asked.context.get("pipeline_interleave")
    schedules = {
        "1f1b": ["interleaved", "1f1b"] if interleaves else ["1f1b"],
        "gpipe": ["gpipe"],
        "zero_bubble_v": ["zb-v"],
    }.get(scheduler)
    if schedules is None:
        hint = "Give 1f1b, gpipe or zero_bubble_v."
        what = f"{scheduler} splits sequences, which no plan does"
        raise SpecError("pipeline_config.pipeline_scheduler", what, hint)
    return {"options.schedules": schedules}, "the schedule is given"


def _dataset_strategy(asked: Asked) -> tuple[Changes, str]:
    cuts = asked.context.get("dataset_strategy")
    if isinstance(cuts, str):
        return {}, "tokens on the way in take no time or memory in the estimate"
    first = cuts[0] if cuts else []
    if not isinstance(first, list) or not first:
        return {}, "names no cut of the first input"
    if min(first) < 1:
        raise SpecError("dataset_strategy", f"cuts must be from 1, found {first}")
    changes: Changes = {"options.dp": [first[0]]}
    if len(first) > 1 and first[1] > 1:
        changes["options.cp"] = [first[1]]
    return changes, "the first input is cut into replicas, and its sequence into context ranks"


def _parallel_optimizer(asked: Asked) -> tuple[Changes, str]:
    if asked.shards:
        return {"options.zero": [1, 2, 3]}, "optimizer state is sharded over the replicas"
    if asked.context.get("enable_parallel_optimizer"):
        because = "acts in semi_auto and auto modes, and in data_parallel on Ascend only"
        return {"options.zero": [0]}, because
    return {"options.zero": [0]}, "every replica holds the whole optimizer state"


def _if_sharded(rule: Rule) -> Rule:
    """Returns a rule that acts with the parallel optimizer only."""
    return lambda asked: rule(asked) if asked.shards else ({}, "acts with the parallel optimizer")


def _accumulation_shard(asked: Asked) -> tuple[Changes, str]:
    if asked.context.gradient_accumulation_shard:
        changes = {"options.zero": [2], "framework.gathers": "micro_batch"}
        return changes, "gradients are sharded and reduced in every micro-batch"
    return {}, "gradients are accumulated whole and reduced once a step"


def _optimizer_level(asked: Asked) -> tuple[Changes, str]:
    if asked.context.shards_parameters:
        changes = {"options.zero": [3], "framework.gathers": "micro_batch"}
        return changes, "parameters are gathered again for the backward pass"
    if asked.context.gradient_accumulation_shard:
        return {"options.zero": [2]}, "gradients are sharded too"
    return {"options.zero": [1]}, "parameters are gathered once a step"


def _shard_size(asked: Asked) -> tuple[Changes, str]:
    size = asked.context.get("optimizer_weight_shard_size")
    if size == -1:
        return {"options.partial_shard_groups": False}, "all replicas share one optimizer state"
    because = "ranks that share it; ignored for replicas that it does not divide"
    return {"options.shard_group": [size]}, because


def _threshold(asked: Asked) -> tuple[Changes, str]:
    kilobytes = asked.context.parallel_optimizer_threshold
    limit = DEFAULT_THRESHOLD if kilobytes == -1 else kilobytes
    because = "parameters of at most so many bytes on a rank stay whole on each replica"
    return {"framework.whole_below_bytes": limit * 1024}, because


def _alltoall(asked: Asked) -> tuple[Changes, str]:
    if asked.problem.model.moe is None:
        return {}, "without experts a plan exchanges nothing by all-to-all"
    if asked.context.get("enable_alltoall"):
        return {"framework.expert_dispatch": "copies"}, "tokens reach experts by all-to-all"
    because = "tokens reach experts by all-gather, split and concat"
    return {"framework.expert_dispatch": "gather_split"}, because


def _fp32_sync(asked: Asked) -> tuple[Changes, str]:
    if asked.context.get("force_fp32_communication"):
        return {}, "force_fp32_communication says it already"
    if asked.context.get("gradient_fp32_sync"):
        return {"framework.bytes.gradient_sent": 4}, "gradients travel in 32 bits"
    if asked.problem.workload.precision in ("tf32", "fp32"):
        return {}, "gradients have 32 bits anyway"
    return {"framework.bytes.gradient_sent": 2}, "gradients travel in 16 bits"


def _force_fp32(asked: Asked) -> tuple[Changes, str]:
    if not asked.context.get("force_fp32_communication"):
        return {"framework.sums_in_fp32": False}, "activations are summed as they are computed"
    changes = {"framework.sums_in_fp32": True, "framework.bytes.gradient_sent": 4}
    return changes, "gradients and activations are summed in 32 bits"


def _fusion_places(asked: Asked) -> tuple[Changes, str]:
    places = asked.context.get("all_reduce_fusion_config")
    if not places:
        return {}, "names no places"
    if asked.shards:
        return {}, "scattered gradients are grouped by comm_fusion's sizes"
    changes = {"framework.fused_reduce_places": places}
    return changes, "groups of a stage's gradients begin there; each is summed when it is complete"


def _comm_fusion(asked: Asked) -> tuple[Changes, str]:
    kinds = {"reducescatter": "reduce", "allgather": "gather"}
    changes = {
        f"framework.fused_{end}_bytes": asked.context.fusion_mb[kind] * 2**20
        for kind, end in (kinds if asked.shards else {"allreduce": "reduce"}).items()
        if asked.context.fused[kind] and _sized(asked, kind)
    }
    if changes:
        return changes, "collectives of so many bytes start once and end together"
    because = "without a size for the collectives of this plan the framework's groups stay"
    return {}, because


def _sized(asked: Asked, kind: str) -> bool:
    """Returns whether a kind of collective is fused by size: not closed, not by index, not 0 MB."""
    fusion = asked.context.get("comm_fusion")
    by_index = kind == "allreduce" and bool(asked.context.get("all_reduce_fusion_config"))
    return fusion["openstate"] and not by_index and asked.context.fusion_mb[kind] > 0


_OUTSIDE = "acts before or after training, not in a step"
_OPERATORS = "acts on single operators, not on the plan's degrees"

_RULES: dict[str, Rule] = {
    "device_num": _device_num,
    "global_rank": _nothing("a plan is of all ranks"),
    "gradients_mean": _nothing("one product a gradient is not priced"),
    "gradient_fp32_sync": _fp32_sync,
    "loss_repeated_mean": _nothing("one product in the backward pass is not priced"),
    "parallel_mode": _parallel_mode,
    "pipeline_stages": _pipeline_stages,
    "auto_pipeline": _auto_pipeline,
    "search_mode": _search_mode,
    "auto_parallel_search_mode": _nothing("says what search_mode says"),
    "sharding_propagation": _nothing("says what search_mode says"),
    "pipeline_config.pipeline_interleave": _interleave,
    "pipeline_config.pipeline_scheduler": _scheduler,
    "pipeline_result_broadcast": _nothing("concerns inference"),
    "pipeline_segments": _nothing("undocumented"),
    "dataset_strategy": _dataset_strategy,
    "full_batch": _nothing("says what dataset_strategy says"),
    "enable_parallel_optimizer": _parallel_optimizer,
    "parallel_optimizer_config.optimizer_level": _if_sharded(_optimizer_level),
    "parallel_optimizer_config.gradient_accumulation_shard": _if_sharded(_accumulation_shard),
    "parallel_optimizer_config.parallel_optimizer_threshold": _if_sharded(_threshold),
    "parallel_optimizer_config.optimizer_weight_shard_size": _nothing(
        "says what optimizer_weight_shard_size says"
    ),
    "optimizer_weight_shard_size": _if_sharded(_shard_size),
    "optimizer_weight_shard_aggregated_save": _nothing(_OUTSIDE),
    "enable_alltoall": _alltoall,
    "force_fp32_communication": _force_fp32,
    "all_reduce_fusion_config": _fusion_places,
    "comm_fusion": _comm_fusion,
    "communi_parallel_mode": _nothing("the estimate runs no two groups' collectives at once"),
    "parameter_broadcast": _nothing(_OUTSIDE),
    "grad_accumulation_step": _nothing("one is the only value; micro-batches are the plan's"),
    "strategy_ckpt_load_file": _nothing(_OPERATORS),
    "strategy_ckpt_save_file": _nothing(_OUTSIDE),
    "strategy_ckpt_config": _nothing(_OPERATORS),
    "group_ckpt_save_file": _nothing(_OUTSIDE),
    "dump_local_norm": _nothing("writing norms is not priced"),
    "dump_local_norm_path": _nothing("writing norms is not priced"),
    "dump_device_local_norm": _nothing("writing norms is not priced"),
    "auto_parallel_new_interface": _nothing("says which interface set the keys"),
    "init_param_in_compile": _nothing(_OUTSIDE),
}
