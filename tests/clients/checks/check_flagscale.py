"""FlagScale 0.8: its flattening of YAML, its hetero arguments, and Megatron's `validate_args`.

Each rank of a mixed plan is asked in turn what it takes itself for; the process group is a fake of
the plan's size, which `torch.distributed` has for such checks.
"""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from cases import Case, expect, layers_of, run
from check_megatron_lm import WHEEL, built_layers
from torch.testing._internal.distributed.fake_pg import FakeStore


def parsed(words: list[str], devices: int, rank: int, envs: dict[str, Any]) -> Any:
    arguments = importlib.import_module("megatron.training.arguments")
    train = importlib.import_module("flagscale.train.arguments")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= {name: str(value) for name, value in envs.items()}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(devices)}
    sys.argv = ["train_gpt.py", *words]
    with contextlib.redirect_stdout(io.StringIO()):
        args = arguments.parse_args()
        extended = None
        if args.enable_hetero:
            mapper = SimpleNamespace(to_logical_ranks=lambda ranks: ranks)
            extended = train.FSTrainArguments(args, rank_mapper=mapper)
            extended.pre_validate_args()
        arguments.validate_args(args)
        train.FSTrainArguments.post_validate_args(SimpleNamespace(args=args))
        return args


def check(folder: Path, case: Case) -> None:
    plan, devices = case["plan"], case["problem"]["cluster"]["devices"]
    table = yaml.safe_load((folder / "flagscale.yaml").read_text())
    runner = table["experiment"]["runner"]
    expect(runner["nnodes"] * runner["nproc_per_node"], devices, "devices")
    flatten = importlib.import_module("flagscale.runner.utils").flatten_dict_to_args
    # The fused rotary embedding needs Transformer Engine, which needs a GPU.
    words = [*flatten(table["train"]), "--no-rope-fusion"]
    kinds = [stage["chip"] for stage in plan["stages"]]
    own = plan["tp_of_kind"]
    degrees = [own[kind] if own else plan["tp"] for kind in kinds]
    for first in sorted({kinds.index(kind) for kind in kinds}):
        rank = sum(degrees[:first]) * plan["dp"] * plan["cp"]
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=rank, world_size=devices
        )
        try:
            args = parsed(words, devices, rank, table["experiment"]["envs"])
        finally:
            torch.distributed.destroy_process_group()
        expect(args.tensor_model_parallel_size, degrees[first], "tp")
        expect(args.context_parallel_size, plan["cp"], "cp")
        expect(args.expert_model_parallel_size, plan["ep"], "ep")
        expect(args.data_parallel_size, plan["dp"], "dp")
        expect(args.micro_batch_size, plan["mbs"], "micro-batch")
        expect(args.sequence_parallel, plan["sp"] and degrees[first] > 1, "sp")
        if args.enable_hetero:
            expect(args.pipeline_model_parallel_size, kinds.count(kinds[first]), "stages of a kind")
            expect(args.hetero_pipeline_layer_split, layers_of(case), "layers")
            names = [group["chip"]["name"] for group in case["problem"]["cluster"]["groups"]]
            used = [names[kind] for kind in dict.fromkeys(kinds)]
            expect(args.hetero_device_types, used, "kinds")
        else:
            expect(args.pipeline_model_parallel_size, plan["pp"], "pp")
            config = importlib.import_module(
                "megatron.training.arguments"
            ).core_transformer_config_from_args(args)
            expect(built_layers(config, plan), layers_of(case), "layers")
        check_recompute(args, plan)


def check_recompute(args: Any, plan: dict[str, Any]) -> None:
    wanted = [stage["recompute"] for stage in plan["stages"]]
    if args.recompute_granularity_per_stage_micro_batch is None:
        found = args.recompute_method or args.recompute_granularity or "none"
        expect({found}, {recompute["granularity"] for recompute in wanted}, "recompute")
        return
    stages = zip(
        args.recompute_granularity_per_stage_micro_batch,
        args.recompute_method_per_stage_micro_batch,
        args.recompute_num_layers_per_stage_micro_batch,
        wanted,
        strict=True,
    )
    for flags, methods, layers, recompute in stages:
        on = recompute["granularity"] != "none"
        expect(set(flags), {int(on)}, "recompute")
        if on:
            expect(set(methods), {int(recompute["granularity"] == "block")}, "method")
            expect(set(layers), {recompute["layers"]}, "recomputed layers")


if __name__ == "__main__":
    sys.path[:0] = [str(WHEEL / "third_party/Megatron-LM"), str(WHEEL)]
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    run(check)
