"""The parallel context on a graph: how its operators are cut, and what each key does to that.

`autopar.compat.mindspore.search` plans a model's degrees; here the context acts on single
operators, as in MindSpore's searches and in networks whose operators were told strategies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autopar import planner
from autopar.cluster import Cluster
from autopar.compat.context import Context
from autopar.compat.effects import DEFAULT_THRESHOLD, RECURSIVE_LIMIT, Effect
from autopar.compat.keys import KEYS
from autopar.errors import SpecError
from autopar.frontends import graph_file
from autopar.graph import Graph
from autopar.planner import Name
from autopar.sharding import FixedInput, FixedStrategy, Fusion, Grouping, Sharding

# MindSpore's searches, and the methods that search as they do.
METHODS: dict[str, dict[str, Any]] = {
    "recursive_programming": {"method": "recursive", "cost_model": "mindspore"},
    "dynamic_programming": {"method": "dp"},
    "sharding_propagation": {"method": "propagate"},
}


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph as a context has it cut.

    Attributes:
        sharding: The strategies, and what they cost.
        effects: What each key did, or that it changes nothing, and why.
    """

    sharding: Sharding
    effects: tuple[Effect, ...]


def shard(
    context: Context,
    graph: Graph,
    cluster: Name | Cluster,
    strategies: Sequence[FixedStrategy] = (),
    *,
    time_limit_s: float | None = None,
) -> Cut:
    """Returns how a graph is cut beside a context.

    The devices are those of one pipeline stage, whose graph it is.

    Args:
        context: The context; `autopar.compat.mindspore.context()` is that of the process.
        graph: The operators of a stage.
        cluster: One kind of chip; as in `autopar.shard`.
        strategies: What operators were told (`Primitive.shard`); others are searched in
            auto_parallel, and cut along the batch in semi_auto_parallel.
        time_limit_s: As in `autopar.shard`.

    Raises:
        SpecError: Keys contradict each other or the graph, or the search refuses the devices.

    Example:
        >>> from autopar.compat.settings import apply
        >>> from autopar.compat.keys import RANGES
        >>> context = Context()
        >>> keys = {"parallel_mode": "auto_parallel", "device_num": 8, "gradient_fp32_sync": False,
        ...         "search_mode": "dynamic_programming"}
        >>> apply(context, keys, RANGES["2.10"])
        >>> net = planner.model_graph("llama2-7b", batch=8, sequence_length=512, layers=1)
        >>> cut = shard(context, net, "ascend_910b")
        >>> cut.sharding.problem.options.method, cut.sharding.problem.options.gradient_bytes
        ('dp', 2)
        >>> print(next(each for each in cut.effects if each.key == "search_mode"))
        search_mode=dynamic_programming: method=dp: strategies are searched
    """
    asked = _Asked(context, graph, tuple(strategies))
    found = {
        "device_num": asked.devices(),
        "pipeline_stages": asked.stages(),
        "parallel_mode": asked.others(),
        "search_mode": asked.search(),
        "strategy_ckpt_load_file": asked.loaded(),
        "dataset_strategy": asked.dataset(),
        "enable_parallel_optimizer": asked.optimizer(),
        "enable_alltoall": asked.alltoall(),
        "gradient_fp32_sync": asked.gradients(),
        "comm_fusion": asked.fusion(),
    }
    options: dict[str, Any] = {}
    for changes, _ in found.values():
        options |= changes
    sharding = planner.shard(graph, cluster, time_limit_s=time_limit_s, **options)
    effects = [Effect(key, _value(context, key), *found.get(key, _other(key))) for key in KEYS]
    return Cut(sharding, tuple(effects))


Found = tuple[dict[str, Any], str]


def _value(context: Context, key: str) -> Any:
    """Returns the value of a key; null for those that MindSpore does not let one read."""
    try:
        return context.get(key)
    except ValueError:
        return None


def _other(key: str) -> Found:
    """Returns why a key does nothing by itself."""
    same = {
        "auto_parallel_search_mode": "search_mode",
        "sharding_propagation": "search_mode",
        "strategy_ckpt_config": "strategy_ckpt_load_file",
        "full_batch": "dataset_strategy",
        "parallel_optimizer_config": "enable_parallel_optimizer",
        "force_fp32_communication": "gradient_fp32_sync",
        "all_reduce_fusion_config": "comm_fusion",
    }
    if key in same:
        return {}, f"acts with {same[key]}"
    return {}, "changes neither cuts nor costs of single operators"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A context beside the graph of a stage."""

    context: Context
    graph: Graph
    strategies: tuple[FixedStrategy, ...]

    @property
    def ranks(self) -> int:
        """Devices of a stage."""
        devices, stages = self.context.devices, self.context.stages
        if devices % stages:
            what = f"{stages} stages do not divide {devices} devices"
            raise SpecError("pipeline_stages", what, "Give a divisor of device_num.")
        return devices // stages

    def devices(self) -> Found:
        return {"devices": self.ranks}, "the devices of a stage"

    def stages(self) -> Found:
        return {}, "the graph is that of one stage, on its share of the devices"

    def others(self) -> Found:
        if self.context.mode == "hybrid_parallel":
            hint = "Set semi_auto_parallel and give the strategies."
            raise SpecError("parallel_mode", "hybrid_parallel writes every cut by hand", hint)
        if self.context.mode == "auto_parallel":
            return {"others": "search"}, "operators that were told nothing are searched"
        return {"others": "data_parallel"}, "operators that were told nothing cut the batch"

    def search(self) -> Found:
        search = self.context.search
        if not search:
            return {"method": "dp"}, "there is nothing to search; borders are priced"
        limit = RECURSIVE_LIMIT if search == "recursive_programming" else self.ranks
        if search != "sharding_propagation" and (self.ranks.bit_count() != 1 or self.ranks > limit):
            needs = f"{search} needs a power of two devices a stage"
            what = f"{needs}, at most {limit}, found {self.ranks}"
            raise SpecError("search_mode", what, "Change device_num or pipeline_stages.")
        return METHODS[search], "strategies are searched"

    def loaded(self) -> Found:
        """Returns what operators were told: by the file where there is one, else by hand."""
        file = str(self.context.get("strategy_ckpt_load_file")) if self.context.automatic else ""
        if not file or self.context.search == "recursive_programming":
            because = "recursive_programming passes over it" if file else "no file is named"
            return ({"strategies": self.strategies} if self.strategies else {}), because
        read = graph_file.read_strategies(file, self.graph)
        named = {each.operator for each in read}
        kept = tuple(each for each in self.strategies if each.operator not in named)
        return {"strategies": (*kept, *read)}, "strategies of the file overrule those by hand"

    def dataset(self) -> Found:
        if not self.context.automatic:
            return {}, f"does not apply in {self.context.mode}"
        inputs = [tensor for tensor in self.graph.tensors if tensor.role == "input"]
        said = self.context.get("dataset_strategy")
        if said == "full_batch":
            rows = [[1] * len(tensor.shape) for tensor in inputs]
        elif said == "data_parallel":
            rows = [[self.ranks, *[1] * (len(tensor.shape) - 1)] for tensor in inputs]
        else:
            rows = said
            if len(rows) != len(inputs):
                what = f"cuts {len(rows)} tensors where the graph reads {len(inputs)}"
                raise SpecError("dataset_strategy", what, "Give cuts of each in its order.")
        fixed = tuple(
            FixedInput(tensor=tensor.name, cuts=tuple(row))
            for tensor, row in zip(inputs, rows, strict=True)
        )
        return {"dataset": fixed}, "how each input lies as it is read"

    def optimizer(self) -> Found:
        if not self.context.get("enable_parallel_optimizer") or not self.context.automatic:
            return {"zero": 0}, "every device that holds a parameter holds its optimizer state"
        level = 1
        if self.context.gradient_accumulation_shard:
            level = 2
        if self.context.shards_parameters:
            level = 3
        threshold = self.context.parallel_optimizer_threshold
        small = DEFAULT_THRESHOLD if threshold == -1 else threshold
        because = f"parameters are divided whatever their size, those of {small} KB too"
        return {"zero": level}, because

    def alltoall(self) -> Found:
        on = bool(self.context.get("enable_alltoall"))
        return {"all_to_all": on}, "an all-to-all, or an all-gather and a slice in its place"

    def gradients(self) -> Found:
        wide = self.context.get("force_fp32_communication")
        if not self.context.automatic and not wide:
            return {}, f"does not apply in {self.context.mode}"
        wide = wide or self.context.get("gradient_fp32_sync")
        return {"gradient_bytes": 4 if wide else 2}, "bytes of a gradient on the wire"

    def fusion(self) -> Found:
        said = self.context.get("comm_fusion")
        if not self.context.automatic:
            return {}, f"does not apply in {self.context.mode}"
        if not said["openstate"]:
            return {"fusion": None}, "each exchange is charged by itself, behind nothing"
        kinds = {
            "all_reduce": self._grouping("allreduce"),
            "all_gather": self._grouping("allgather"),
            "reduce_scatter": self._grouping("reducescatter"),
        }
        return {
            "fusion": Fusion(**kinds)
        }, "exchanges of so many bytes, or from these places, are one"

    def _grouping(self, kind: str) -> Grouping:
        places = self.context.get("all_reduce_fusion_config")
        if kind == "allreduce" and places:
            return Grouping(mode="index", places=tuple(places))
        mode = self.context.get("comm_fusion")[kind]["mode"]
        megabytes = self.context.fusion_mb[kind]
        if mode == "size" and megabytes > 0:
            return Grouping(mode="size", mb=megabytes)
        return Grouping(mode="auto")
