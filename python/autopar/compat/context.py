"""The state of MindSpore's parallel context: every setting, its default, and how it is read."""

from copy import deepcopy
from typing import Any

from autopar.compat.keys import FUSIONS
from autopar.errors import shown

_DEFAULTS: dict[str, Any] = {
    "device_num": 1,
    "global_rank": 0,
    "gradients_mean": False,
    "gradient_fp32_sync": True,
    "loss_repeated_mean": True,
    "pipeline_stages": 1,
    "auto_pipeline": False,
    "pipeline_result_broadcast": False,
    "pipeline_interleave": False,
    "pipeline_scheduler": "1f1b",
    "parallel_mode": "stand_alone",
    "search_mode": "recursive_programming",
    "parameter_broadcast": False,
    "strategy_ckpt_load_file": "",
    "strategy_ckpt_save_file": "",
    "full_batch": False,
    "enable_parallel_optimizer": False,
    "force_fp32_communication": False,
    "grad_accumulation_step": 1,
    "all_reduce_fusion_config": [],
    "communi_parallel_mode": "all_group_parallel",
    "optimizer_weight_shard_size": -1,
    "optimizer_weight_shard_aggregated_save": False,
    "sharding_propagation": False,
    "enable_alltoall": False,
    "comm_fusion": {
        "openstate": True,
        **{kind: {"mode": "auto", "config": None} for kind in FUSIONS},
    },
    "full_batch_is_set": False,
    "dump_local_norm": False,
    "dump_local_norm_path": "",
    "dump_device_local_norm": False,
    "auto_parallel_new_interface": False,
    "init_param_in_compile": True,
}


class Context:
    """The settings of one process.

    Attributes:
        values: The settings that can be read under their own name.
        pipeline_segments: Segments of the pipeline.
        group_ckpt_save_file: File for the communication groups.
        only_trainable_params: Whether strategy files leave out parameters that are not trained.
        gradient_accumulation_shard: Whether accumulated gradients are sharded.
        parallel_optimizer_threshold: Smallest sharded parameter in KB; -1 unless set, that is 64.
        shards_parameters: Whether optimizer_level is level3.
        fused: Which kinds of collective were given a fusion setting and not closed.
        fusion_mb: Fusion threshold of each kind of collective.
    """

    def __init__(self) -> None:
        # A reset forgets the tuple but not that one was given, as MindSpore has it.
        self._cut_given = False
        self.reset()

    def reset(self) -> None:
        """Puts every setting back to its default."""
        self.values: dict[str, Any] = deepcopy(_DEFAULTS)
        self.pipeline_segments = 1
        self.group_ckpt_save_file = ""
        self.only_trainable_params = True
        self.gradient_accumulation_shard = False
        self.parallel_optimizer_threshold = -1
        self.shards_parameters = False
        self.fused = dict.fromkeys(FUSIONS, False)
        self.fusion_mb = dict.fromkeys(FUSIONS, 64)
        self._cut: list[list[int]] = []
        self._layouts: tuple[Any, ...] | None = None

    @property
    def mode(self) -> str:
        """The parallel mode."""
        return str(self.get("parallel_mode"))

    @property
    def automatic(self) -> bool:
        """Whether the mode is one of those in which the keys of scope `auto` apply."""
        return self.mode in ("semi_auto_parallel", "auto_parallel")

    @property
    def devices(self) -> int:
        """Devices that train one model together."""
        return 1 if self.mode == "stand_alone" else int(self.get("device_num"))

    @property
    def stages(self) -> int:
        """The most pipeline stages that a plan may have."""
        return int(self.get("pipeline_stages")) if self.automatic else 1

    @property
    def search(self) -> str:
        """The search over operators; empty outside auto_parallel."""
        if self.mode != "auto_parallel":
            return ""
        if self.get("sharding_propagation"):
            return "sharding_propagation"
        return str(self.get("search_mode"))

    def get(self, name: str) -> Any:
        """Returns the value of a key; a copy where it is a list or a dictionary.

        Raises:
            ValueError: There is no such key to read.
        """
        if name == "auto_parallel_search_mode":
            name = "search_mode"
        if name == "dataset_strategy":
            return self._dataset_strategy()
        if name == "strategy_ckpt_config":
            return {
                "load_file": self.values["strategy_ckpt_load_file"],
                "save_file": self.values["strategy_ckpt_save_file"],
                "only_trainable_params": self.only_trainable_params,
            }
        if name not in self.values:
            raise ValueError(f"get_auto_parallel_context has no key {shown(name)}")
        return deepcopy(self.values[name])

    def _dataset_strategy(self) -> Any:
        if self._layouts is not None:
            return self._layouts
        if self._cut_given:
            return deepcopy(self._cut)
        return "full_batch" if self.values["full_batch"] else "data_parallel"

    def cut_dataset(self, cuts: list[list[int]] | None) -> None:
        """Notes how the inputs are cut: a list an input, or null where a word says it."""
        self._cut_given = cuts is not None
        if cuts is not None:
            self._cut = cuts

    def lay_dataset(self, layouts: tuple[Any, ...]) -> None:
        """Notes the layouts of the inputs."""
        self._layouts = layouts
