"""megatron-core 0.16.1: `TransformerConfig` of the exported YAML gives our layers a stage."""

from pathlib import Path
from typing import Any

import torch
import yaml
from cases import Case, expect, layers_of, run, stage_layers
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import transformer_block
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

# Arguments that the configuration calls by another name.
RENAMED = {
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "num-experts": "num_moe_experts",
}


def configuration(arguments: dict[str, Any], pp: int) -> TransformerConfig:
    """Returns the configuration of the arguments that it has a field for."""
    kind = MLATransformerConfig if "multi-latent-attention" in arguments else TransformerConfig
    fields: dict[str, Any] = {"pipeline_dtype": torch.bfloat16}
    for name, value in arguments.items():
        field = RENAMED.get(name, name.replace("-", "_"))
        if field in kind.__dataclass_fields__ and field not in ("window_size", "moe_layer_freq"):
            alone = field == "recompute_modules" and isinstance(value, str)
            fields[field] = [value] if alone else value
    fields["gated_linear_unit"] = "swiglu" in arguments
    fields["add_bias_linear"] = "disable-bias-linear" not in arguments
    layout = arguments.get("pipeline-model-parallel-layout")
    if layout is not None and (chunks := (layout.count("|") + 1) // pp) > 1:
        fields["virtual_pipeline_model_parallel_size"] = chunks
    return kind(**fields)


def check(folder: Path, case: Case) -> None:
    plan = case["plan"]
    table = yaml.safe_load((folder / "megatron.yaml").read_text())["MODEL_ARGS"]
    arguments = {name.removeprefix("--"): value for name, value in table.items()}
    config = configuration(arguments, plan["pp"])
    expect(
        stage_layers(parallel_state, transformer_block, config, plan),
        layers_of(case),
        "layers of the stages",
    )
    expect(config.sequence_parallel, plan["sp"], "sp")
    expect(config.expert_model_parallel_size, plan["ep"], "ep")
    expect(config.context_parallel_size, plan["cp"], "cp")
    sharded = "use-distributed-optimizer" in arguments
    overlap = "overlap-param-gather" in arguments
    OptimizerConfig(lr=1e-4, use_distributed_optimizer=sharded, overlap_param_gather=overlap)
    DistributedDataParallelConfig(
        use_distributed_optimizer=sharded,
        overlap_grad_reduce="overlap-grad-reduce" in arguments,
        overlap_param_gather=overlap,
        num_distributed_optimizer_instances=arguments.get("num-distributed-optimizer-instances", 1),
    )
    batch, size = arguments["global-batch-size"], arguments["micro-batch-size"]
    steps = ConstantNumMicroBatchesCalculator(batch, size, plan["dp"], False, 0).get()
    expect(steps * size * plan["dp"], case["problem"]["workload"]["global_batch_size"], "batch")


if __name__ == "__main__":
    run(check)
