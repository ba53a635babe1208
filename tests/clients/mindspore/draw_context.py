"""Draws calls of the context at random: every key, with values that are right and wrong."""

import random
from typing import Any

ANYTHING: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 8, 2**31, 2**63, -(2**63) - 1, 1.5, -2.5, "", "x", b"x"),
    *([], [1], [2, 1], [1, 1], ["a"], [True], [-1], (), (1,), ((1, 8),), {}, {"x": 1}),
)

SECTIONS: tuple[Any, ...] = (
    *({"mode": mode, "config": config} for mode in ("auto", "size") for config in (None, 0, 32)),
    {"mode": "index", "config": [1, 5]},
    {"mode": "index", "config": [5, 1]},
    {"mode": "size", "config": -1},
    {"mode": "auto"},
    {"config": None},
    {"mode": "x", "config": None, "extra": 1},
)

NESTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "comm_fusion": {
        "openstate": (True, False, 1),
        "allreduce": SECTIONS,
        "allgather": SECTIONS,
        "reducescatter": SECTIONS,
        "alltoall": SECTIONS,
    },
    "parallel_optimizer_config": {
        "gradient_accumulation_shard": (True, False, 1),
        "parallel_optimizer_threshold": (0, 64, -1, True, 1.5, 2**63),
        "optimizer_weight_shard_size": (-1, 0, 1, 2, 8, -1.0, True, None),
        "optimizer_level": ("level1", "level2", "level3", "x", 1),
        "zz": (1,),
    },
    "pipeline_config": {
        "pipeline_interleave": (True, False, 1),
        "pipeline_scheduler": (
            *("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v", "x", 1),
        ),
        "x": (1,),
    },
    "strategy_ckpt_config": {
        "load_file": ("a.json", "", 1, None),
        "save_file": ("b/c.json", 1),
        "only_trainable_params": (True, False, 1),
        "x": (1,),
    },
}

LIKELY: dict[str, tuple[Any, ...]] = {
    "device_num": (1, 8, 4096, 4097, 0),
    "global_rank": (0, 4095, 4096),
    "pipeline_stages": (1, 4, 0),
    "pipeline_segments": (1, 4, 0),
    "parallel_mode": (
        *("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel"),
        *("auto_parallel", "AUTO_PARALLEL"),
    ),
    "search_mode": ("recursive_programming", "dynamic_programming", "sharding_propagation", "x"),
    "auto_parallel_search_mode": ("dynamic_programming", "x"),
    "dataset_strategy": ("data_parallel", "full_batch", "x", ((1, 8), (8,)), ([1],), ((1, "a"),)),
    "all_reduce_fusion_config": ([1, 2], [3, 3], [2**32], [0]),
    "communi_parallel_mode": (
        *("all_group_parallel", "same_server_group_parallel", "no_group_parallel", "x"),
    ),
    "strategy_ckpt_load_file": ("a.json", "é"),
    "strategy_ckpt_save_file": ("a/b/c.json", "a.ckpt", "d/"),
    "group_ckpt_save_file": ("g/h.pb", "g.pb"),
    "optimizer_weight_shard_size": (1, 2, 8, -1),
    "grad_accumulation_step": (1, 2, 0),
    "gradients_mean": (True, False),
    "gradient_fp32_sync": (True, False),
    "loss_repeated_mean": (True, False),
    "auto_pipeline": (True, False),
    "pipeline_result_broadcast": (True, False),
    "parameter_broadcast": (True, False),
    "full_batch": (True, False),
    "enable_parallel_optimizer": (True, False),
    "force_fp32_communication": (True, False),
    "optimizer_weight_shard_aggregated_save": (True, False),
    "sharding_propagation": (True, False),
    "enable_alltoall": (True, False),
    "dump_local_norm": (True, 0),
    "dump_local_norm_path": ("here", b"there"),
    "dump_device_local_norm": (True, 2.5),
    "auto_parallel_new_interface": (True, False),
    "init_param_in_compile": (True, False),
    "no_such_key": (1,),
}


def value(name: str, dice: random.Random) -> Any:
    """Returns a value for a key: mostly one that its setter looks at closely."""
    if dice.random() < 0.25:
        return dice.choice(ANYTHING)
    if name in NESTED:
        parts = list(NESTED[name].items())
        dice.shuffle(parts)
        kept = parts[: dice.choice((0, 1, 1, 2, 2, 3, 4))]
        return {key: dice.choice(choices) for key, choices in kept}
    return dice.choice(LIKELY[name])


def calls(count: int, seed: int) -> list[list[dict[str, Any] | None]]:
    """Returns `count` cases of one to four calls, each with up to three keys, or a reset."""
    dice = random.Random(seed)
    names = [*LIKELY, *NESTED, *NESTED]
    cases: list[list[dict[str, Any] | None]] = []
    for _ in range(count):
        case: list[dict[str, Any] | None] = []
        for _ in range(dice.choice((1, 1, 2, 3, 4))):
            if dice.random() < 0.1:
                case.append(None)
            else:
                picked = dice.sample(names, dice.choice((1, 1, 2, 3)))
                case.append({name: value(name, dice) for name in picked})
        cases.append(case)
    return cases
