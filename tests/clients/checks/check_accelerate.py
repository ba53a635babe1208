"""Accelerate 1.15: `accelerate launch` reads the file, and its plugins the environment it makes."""

import os
from pathlib import Path
from unittest.mock import patch

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin, MegatronLMPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from cases import Case, expect, layers_of, run


def check(folder: Path, case: Case) -> None:
    plan, path = case["plan"], str(folder / "accelerate.yaml")
    config = load_config_from_file(path)
    expect(config.num_processes, case["problem"]["cluster"]["devices"], "devices")
    words = ["--config_file", path, "--main_process_ip", "first", "--main_process_port", "29500"]
    args = launch_command_parser().parse_args([*words, "train.py"])
    args, *_ = _validate_launch_command(args)
    environment = {k: str(v) for k, v in prepare_multi_gpu_env(args).items()}
    with patch.dict(os.environ, environment, clear=True):
        if plan["zero"] > 1:
            expect(environment["ACCELERATE_USE_FSDP"], "true", "FSDP")
            plugin = FullyShardedDataParallelPlugin()
            expect(plugin.fsdp_version, 2, "FSDP version")
            expect(plugin.reshard_after_forward, plan["zero"] == 3, "ZeRO stage")
            dims = ParallelismConfig()
            expect(dims.dp_replicate_size * dims.dp_shard_size, plan["dp"], "dp")
            expect(dims.dp_shard_size * dims.cp_size, plan["shard_group"], "shard group")
            expect((dims.tp_size, dims.cp_size), (plan["tp"], plan["cp"]), "tp, cp")
            recompute = plan["stages"][0]["recompute"]["granularity"]
            expect(plugin.activation_checkpointing, recompute != "none", "recompute")
        elif environment.get("ACCELERATE_USE_MEGATRON_LM") == "true":
            check_megatron(plan, environment, case)
        else:
            expect(plan["dp"], config.num_processes, "dp")


def check_megatron(plan: dict, environment: dict[str, str], case: Case) -> None:
    expect(environment["MEGATRON_LM_TP_DEGREE"], str(plan["tp"]), "tp")
    plugin = MegatronLMPlugin()
    expect((plugin.tp_degree, plugin.pp_degree), (plan["tp"], plan["pp"]), "tp, pp")
    expect(plugin.sequence_parallelism, plan["sp"], "sp")
    expect(plugin.use_distributed_optimizer, plan["zero"] == 1, "distributed optimizer")
    steps = plugin.num_micro_batches * plan["mbs"] * plan["dp"]
    expect(steps, case["problem"]["workload"]["global_batch_size"], "global batch")
    expect(int(plugin.context_parallel_size or 1), plan["cp"], "cp")
    layers = layers_of(case)
    last = int(plugin.decoder_last_pipeline_num_layers or layers[0])
    expect(last, layers[-1], "last stage")


if __name__ == "__main__":
    run(check)
