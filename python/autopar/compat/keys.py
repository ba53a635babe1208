"""The keywords of MindSpore's parallel context: type, default, where each applies, what it means.

Source: `set_auto_parallel_context` in MindSpore's documentation of release 2.3, and what the
released package 2.10.0 does (`tests/clients/mindspore` runs it).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["common", "auto", "internal"]

MODES = ("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel")
SEARCHES = ("recursive_programming", "dynamic_programming", "sharding_propagation")
COMMUNICATIONS = ("all_group_parallel", "same_server_group_parallel", "no_group_parallel")
LEVELS = ("level1", "level2", "level3")
FUSIONS = ("allreduce", "allgather", "reducescatter")


@dataclass(frozen=True, slots=True)
class Key:
    """One keyword.

    Attributes:
        type: Type that is checked before any keyword of a call is applied; null where the value is
            only looked at when its turn comes.
        scope: Applies in every mode, in semi_auto_parallel and auto_parallel only, or is not
            documented. A key is stored in every mode all the same.
        meaning: What it does and its range, in one sentence.
    """

    type: type | None
    scope: Scope
    meaning: str


KEYS: dict[str, Key] = {
    "device_num": Key(int, "common", "Devices of the job, from 1; to 4,096 in 2.3."),
    "global_rank": Key(int, "common", "Rank of this process, 0 to 4,095."),
    "gradients_mean": Key(bool, "common", "Divide gradients by the replicas after their sum."),
    "gradient_fp32_sync": Key(bool, "auto", "Sum gradients in 32 bits."),
    "loss_repeated_mean": Key(bool, "auto", "Mean over repeated computation in backward."),
    "pipeline_stages": Key(int, "auto", "Pipeline stages, from 1."),
    "auto_pipeline": Key(None, "auto", "Stages are chosen, from 1 to pipeline_stages."),
    "pipeline_result_broadcast": Key(bool, "auto", "Inference: send the result to every stage."),
    "pipeline_segments": Key(int, "internal", "Segments of the pipeline, from 1."),
    "parallel_mode": Key(str, "common", f"One of {', '.join(MODES)}."),
    "search_mode": Key(str, "auto", f"Search over operators: one of {', '.join(SEARCHES)}."),
    "auto_parallel_search_mode": Key(str, "auto", "The older name of search_mode."),
    "parameter_broadcast": Key(bool, "auto", "Send device 0's parameters to all before training."),
    "strategy_ckpt_load_file": Key(str, "auto", "Strategy file to load."),
    "strategy_ckpt_save_file": Key(str, "auto", "Strategy file to write; its folder is made."),
    "strategy_ckpt_config": Key(dict, "auto", "load_file, save_file and only_trainable_params."),
    "group_ckpt_save_file": Key(str, "auto", "File for the groups that compilation creates."),
    "full_batch": Key(bool, "auto", "The older form of dataset_strategy='full_batch'."),
    "dataset_strategy": Key(
        None, "auto", "data_parallel, full_batch, or how each input is cut, a tuple an input."
    ),
    "enable_parallel_optimizer": Key(bool, "common", "Shard the optimizer over the replicas."),
    "parallel_optimizer_config": Key(
        dict,
        "common",
        "gradient_accumulation_shard, parallel_optimizer_threshold (KB, from 0), "
        "optimizer_weight_shard_size (-1 or from 1), optimizer_level (level1 to level3).",
    ),
    "enable_alltoall": Key(bool, "common", "All-to-all as one operator, not gather and split."),
    "force_fp32_communication": Key(bool, "common", "Sum everything in 32 bits."),
    "all_reduce_fusion_config": Key(list, "common", "Gradient indices at which all-reduces end."),
    "comm_fusion": Key(dict, "auto", "openstate, and mode and config for each kind of collective."),
    "pipeline_config": Key(dict, "common", "pipeline_interleave and pipeline_scheduler, both."),
    "grad_accumulation_step": Key(int, "internal", "1; no other value is accepted any more."),
    "communi_parallel_mode": Key(str, "internal", f"One of {', '.join(COMMUNICATIONS)}."),
    "optimizer_weight_shard_size": Key(int, "internal", "Ranks that share the optimizer, from 2."),
    "optimizer_weight_shard_aggregated_save": Key(bool, "internal", "Gather shards to save them."),
    "sharding_propagation": Key(bool, "internal", "The older form of that search_mode."),
    "dump_local_norm": Key(None, "internal", "Write the norms of local gradients."),
    "dump_local_norm_path": Key(None, "internal", "Where to write them."),
    "dump_device_local_norm": Key(None, "internal", "Write the norm of each device's gradients."),
    "auto_parallel_new_interface": Key(None, "internal", "Set by the AutoParallel class."),
    "init_param_in_compile": Key(None, "internal", "Parameters are made while compiling."),
}
"""Every keyword that can be set, with what it means."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where releases differ.

    Attributes:
        devices: Largest device_num; null for none.
        schedulers: Values of pipeline_scheduler.
        fusion_mb: Smallest threshold of comm_fusion's mode `size`.
        optimizer_level: Whether parallel_optimizer_config has optimizer_level.
    """

    devices: int | None
    schedulers: tuple[str, ...]
    fusion_mb: int
    optimizer_level: bool


RANGES = {
    "2.10": Ranges(
        devices=None,
        schedulers=("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v"),
        fusion_mb=0,
        optimizer_level=True,
    ),
    "2.3": Ranges(devices=4096, schedulers=("1f1b", "gpipe"), fusion_mb=1, optimizer_level=False),
}
"""Releases whose ranges are known: the package 2.10.0, and 2.3 as documented."""
