"""Megatron-LM: the exported script's words through its argument parser and `validate_args`.

The wheel of megatron-core has no parser; the one here is that of Megatron-LM 0.15 in flag-scale.
"""

import contextlib
import importlib
import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cases import Case, expect, layers_of, run, stage_layers

WHEEL = Path(find_spec("flag_scale").submodule_search_locations[0])


def command_line(folder: Path) -> list[str]:
    """Returns the words that the exported script hands to torchrun, by running it with an echo."""
    echo = folder / "torchrun"
    echo.write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n'
        'printf "env %s\\n" "${CUDA_DEVICE_MAX_CONNECTIONS:-}"\n'
    )
    echo.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NODE_RANK": "0", "MASTER_ADDR": "first", "MEGATRON": "/megatron",
    }  # fmt: skip
    out = subprocess.run(
        # The fused rotary embedding needs Transformer Engine, which needs a GPU.
        ["bash", folder / "megatron.sh", "--no-rope-fusion"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.splitlines()


def parsed(arguments: list[str], devices: int, connections: str) -> Any:
    """Returns what Megatron-LM understands of its arguments on a cluster of so many devices."""
    module = sys.modules["megatron.training.arguments"]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if connections:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(devices)}
    sys.argv = ["pretrain_gpt.py", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        return module.validate_args(module.parse_args())


def built_layers(config: Any, plan: Case) -> list[int]:
    """Returns the layers that this Megatron builds on each stage."""
    state = importlib.import_module("megatron.core.parallel_state")
    block = importlib.import_module("megatron.core.transformer.transformer_block")
    return stage_layers(state, block, config, plan)


def check(folder: Path, case: Case) -> None:
    plan, model = case["plan"], case["problem"]["model"]
    words = command_line(folder)
    program = words.index("/megatron/pretrain_gpt.py")
    counts = dict(zip(words[:program:2], words[1:program:2], strict=False))
    devices = int(counts["--nnodes"]) * int(counts["--nproc-per-node"])
    expect(devices, case["problem"]["cluster"]["devices"], "devices")
    args = parsed(words[program + 1 : -1], devices, words[-1].removeprefix("env "))
    expect(args.data_parallel_size, plan["dp"], "dp")
    expect(args.tensor_model_parallel_size, plan["tp"], "tp")
    expect(args.context_parallel_size, plan["cp"], "cp")
    expect(args.pipeline_model_parallel_size, plan["pp"], "pp")
    expect(args.virtual_pipeline_model_parallel_size or 1, plan["vpp"], "vpp")
    expect(args.expert_model_parallel_size, plan["ep"], "ep")
    if model["moe"]:
        expect(args.expert_tensor_parallel_size, plan["etp"], "etp")
        expect(args.num_experts, model["moe"]["experts"], "experts")
    expect(args.sequence_parallel, plan["sp"], "sp")
    expect(args.use_distributed_optimizer, plan["zero"] > 0, "distributed optimizer")
    expect(args.micro_batch_size, plan["mbs"], "micro-batch")
    granularity = plan["stages"][0]["recompute"]["granularity"]
    method = granularity if granularity in ("block", "uniform") else None
    expect(args.recompute_method, method, "recompute method")
    expect(args.recompute_num_layers, plan["stages"][0]["recompute"].get("layers"), "recompute")
    if granularity == "selective":
        framework = case["problem"]["framework"]
        named = framework["named"]
        modules = {"layernorm": named["norm"], "moe_act": named["activation"]}
        if framework["selective"] == "attention":
            modules = {"core_attn": True}
        wanted = {module for module, again in modules.items() if again}
        expect(set(args.recompute_modules), wanted, "recomputed modules")
    # Of its own rules, this version of the parser still has one that 0.16 dropped.
    if plan["tp"] <= args.num_query_groups or not args.group_query_attention:
        config = sys.modules["megatron.training.arguments"].core_transformer_config_from_args(args)
        expect(built_layers(config, plan), layers_of(case), "layers of the stages")
    calculator = importlib.import_module("megatron.core.num_microbatches_calculator")
    steps = calculator.ConstantNumMicroBatchesCalculator(
        args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False, 0
    ).get()
    batch = case["problem"]["workload"]["global_batch_size"]
    expect(steps * plan["mbs"] * plan["dp"], batch, "global batch")


if __name__ == "__main__":
    sys.path[:0] = [str(WHEEL / "third_party/Megatron-LM"), str(WHEEL)]
    # What the parser asks of a device, answered as an H100 does.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    importlib.import_module("megatron.training.arguments")
    run(check)
