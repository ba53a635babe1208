"""DeepSpeed 0.19: `DeepSpeedConfig` takes the file for as many replicas as the plan has."""

import json
import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

from cases import Case, expect, run
from deepspeed.runtime import config as configuration
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.tensor_parallel.config import get_tensor_parallel_config


class Replicas:
    """What DeepSpeed asks Megatron's parallel state for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


def check(folder: Path, case: Case) -> None:
    plan = case["plan"]
    path = folder / "deepspeed.json"
    config = DeepSpeedConfig(str(path), mpu=Replicas(plan["dp"]))
    batch = case["problem"]["workload"]["global_batch_size"]
    expect(config.train_batch_size, batch, "global batch")
    expect(config.train_micro_batch_size_per_gpu, plan["mbs"], "micro-batch")
    expect(config.zero_optimization_stage, plan["zero"], "ZeRO stage")
    expect(config.zero_config.offload_optimizer is not None, plan["optimizer_offload"], "offload")
    expect(json.loads(path.read_text()).get("sequence_parallel_size", 1), plan["cp"], "cp")
    parallel = get_tensor_parallel_config(json.loads(path.read_text()))
    expect(parallel.autotp_size or 1, plan["tp"], "tp")
    if plan["pp"] > 1:
        expect(config.pipeline["stages"], plan["pp"], "pp")
        layers = plan["stages"][0]["recompute"].get("layers")
        if plan["stages"][0]["recompute"]["granularity"] == "uniform":
            expect(config.pipeline["activation_checkpoint_interval"], layers, "checkpoints")


if __name__ == "__main__":
    # A process alone has one replica whatever it is told; this one is rank 0 of many.
    configuration.dist.get_rank = lambda: 0
    run(check)
