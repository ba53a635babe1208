"""MindSpore 2.10: the context takes the keywords, cells and operators what the module says of them.

Strategies are what `Primitive.shard` takes, and for operators with a parameter those of the file,
whose stages are those of the layers.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import mindspore
from cases import Case, expect, layers_of, run
from mindspore import nn, ops


def check(folder: Path, case: Case) -> None:
    plan, module = case["plan"], {}
    exec((folder / "auto_parallel_context.py").read_text(), module)
    check_context(folder, module["CONTEXT"], plan)
    batch = module["MICRO_BATCH_SIZE"] * module["MICRO_BATCHES"] * plan["dp"]
    expect(batch, case["problem"]["workload"]["global_batch_size"], "global batch")
    check_cells(module, case)
    for inputs, outputs in module.get("CUTS", {}).values():
        # Values are looked at when a network is compiled; types and what goes beside what, here.
        ops.MatMul().shard(inputs, outputs)
    cut = plan["tp"] * plan["cp"] * plan["ep"] > 1
    expect((folder / "strategies.json").exists(), cut, "strategy file")
    if cut:
        check_strategies(json.loads((folder / "strategies.json").read_text()), module, case)


def check_context(folder: Path, keywords: dict[str, Any], plan: dict[str, Any]) -> None:
    mindspore.reset_auto_parallel_context()
    with contextlib.chdir(folder):
        mindspore.set_auto_parallel_context(**keywords)
    get = mindspore.get_auto_parallel_context
    devices = plan["dp"] * plan["tp"] * plan["cp"] * plan["pp"]
    expect(get("device_num"), devices, "devices")
    expect(get("pipeline_stages"), plan["pp"], "pp")
    expect(get("enable_parallel_optimizer"), plan["zero"] > 0, "parallel optimizer")
    expect(get("pipeline_interleave"), plan["vpp"] > 1, "interleave")
    read = ("parallel_mode", "gradients_mean", "enable_alltoall", "dataset_strategy")
    for key in read:
        expect(get(key), keywords[key], key)
    file = keywords.get("strategy_ckpt_config", {}).get("load_file", "")
    expect(get("strategy_ckpt_config")["load_file"], file, "strategy file")
    size = keywords.get("parallel_optimizer_config", {}).get("optimizer_weight_shard_size", -1)
    partial = plan["zero"] > 0 and plan["shard_group"] != plan["dp"] * plan["cp"]
    expect(size, plan["shard_group"] if partial else -1, "shard group")


def check_cells(module: dict[str, Any], case: Case) -> None:
    plan, cells = case["plan"], []
    for stage, _, again in module["LAYERS"]:
        cell = nn.Dense(1, 1)
        cell.pipeline_stage = stage
        if again:
            cell.recompute(**module["RECOMPUTE"])
        cells.append(cell)
    network = nn.PipelineCell(nn.SequentialCell(cells), module["MICRO_BATCHES"])
    expect(network.micro_size, module["MICRO_BATCHES"], "micro-batches")
    stages = [cell.pipeline_stage for cell in cells]
    expect([stages.count(stage) for stage in range(plan["pp"])], layers_of(case), "layers")
    kept = {"none": 0, "block": None}
    for index, stage in enumerate(plan["stages"]):
        recompute = stage["recompute"]
        again = sum(row[2] for row in module["LAYERS"] if row[0] == index)
        if kept.get(recompute["granularity"], stage["layers"]) is not None:
            expect(again, kept.get(recompute["granularity"], stage["layers"]), "recompute")


def check_strategies(table: dict[str, Any], module: dict[str, Any], case: Case) -> None:
    plan = case["plan"]
    # Tokens are rows: replicas and context ranks cut the same dimension. Experts are the first of
    # their products' three.
    cuts = [[plan["dp"] * plan["cp"], plan["tp"]], [plan["tp"], 1]]
    of_experts = [[plan["ep"], 1, 1]] * 2
    stages = [stage for stage, *_ in module["LAYERS"]]
    for layer, stage in enumerate(stages):
        wanted = {f"MatMul_layers.{layer}.mlp.down.weight": cuts}
        if plan["ep"] > 1:
            # In several groups they have layouts, which no strategy file holds.
            name = f"BatchMatMul_layers.{layer}.mlp.experts.down.weight"
            wanted = {name: of_experts} if plan["ep"] == plan["dp"] else {}
        for name, each in wanted.items():
            said = table["parallel_strategy_item"][name]
            expect(said, {"parallel_strategy": each, "stage": stage}, name)
    if 1 < plan["ep"] < plan["dp"]:
        # Devices of a layout count from the last dimension of its grid: experts 0, groups 1.
        rows, weights = (each.to_dict() for each in module["CUTS"]["layers.*.mlp.experts.down"][0])
        for layout, places in ((rows, (0, 1, -1)), (weights, (0, -1, -1))):
            expect(layout["device_matrix"], (plan["dp"] // plan["ep"], plan["ep"]), "grid")
            expect(layout["tensor_map"], places, "places")


if __name__ == "__main__":
    run(check)
