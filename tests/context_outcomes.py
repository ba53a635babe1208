"""What calls do to the drop-in's context, in the form in which the real one's outcomes are kept."""

from pathlib import Path
from typing import Any

from autopar.compat import mindspore
from autopar.compat.context import Context
from autopar.compat.keys import FUSIONS
from outcomes import Calls, called

GOLDEN = Path(__file__).parent / "data/mindspore_context_2.10.jsonl"

READABLE = """
    device_num global_rank gradients_mean gradient_fp32_sync loss_repeated_mean pipeline_stages
    auto_pipeline pipeline_result_broadcast pipeline_interleave pipeline_scheduler parallel_mode
    search_mode auto_parallel_search_mode parameter_broadcast strategy_ckpt_load_file
    strategy_ckpt_save_file full_batch dataset_strategy enable_parallel_optimizer
    force_fp32_communication grad_accumulation_step all_reduce_fusion_config communi_parallel_mode
    optimizer_weight_shard_size optimizer_weight_shard_aggregated_save sharding_propagation
    enable_alltoall comm_fusion strategy_ckpt_config full_batch_is_set dump_local_norm
    dump_local_norm_path dump_device_local_norm auto_parallel_new_interface init_param_in_compile
""".split()
"""The keys that `get_auto_parallel_context` of 2.10 answers."""


def outcome(calls: Calls) -> dict[str, Any]:
    """Returns the exceptions, the state and the folders that calls leave; null is a reset."""
    mindspore._context = Context()
    raises, folders = called(
        calls, mindspore.set_auto_parallel_context, mindspore.reset_auto_parallel_context
    )
    return {"raises": raises, "state": state(), "folders": folders}


def state() -> dict[str, str]:
    """Returns all settings as `repr` writes them; in parentheses those without a public getter."""
    context = mindspore._context
    seen: dict[str, Any] = {name: mindspore.get_auto_parallel_context(name) for name in READABLE}
    seen |= {
        "(gradient_accumulation_shard)": context.gradient_accumulation_shard,
        "(parallel_optimizer_threshold)": context.parallel_optimizer_threshold,
        "(pipeline_segments)": context.pipeline_segments,
        "(fusion)": [context.fused[kind] for kind in FUSIONS],
        "(fusion_mb)": [context.fusion_mb[kind] for kind in FUSIONS],
    }
    return {name: repr(value) for name, value in seen.items()}
