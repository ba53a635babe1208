"""Compiles an exported plan with the real MindSpore, in its own environment; `check_plans.py`
starts it.

Argument: a folder with the exported files, `network.py` (the network that they are of) and
`case.json`: `cells` (the operator of each cell), `places` (stage and chunk of each cell), `tokens`
(the shape of a step's batch) and `rank`. Standard output: one JSON object, with `strategies`
(operator -> counts, as the compiler reports them) and `communications` (kind of communication
operator -> how many that may share a subgraph) and `exchanges` (the ranks of each all-to-all), or
`raises`. The compiler saves its file as `again.json`.
"""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

# The last graph of the frontend is written there; read when the compiler is loaded.
os.environ |= {
    "MS_DEV_SAVE_GRAPHS": "1",
    "MS_DEV_SAVE_GRAPHS_PATH": str(Path(sys.argv[1], "ir")),
    "MS_DEV_DUMP_IR_PASSES": "backend_pass",
}

sys.path.insert(0, str(Path(__file__).parents[1] / "mindspore_strategy"))
import wheel  # isort: skip
import mindspore.common.dtype as dtypes
import numpy as np
from mindspore import Tensor, context, nn
from mindspore._c_expression import AutoParallelContext
from mindspore.graph.api import _cell_graph_executor
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

# Products of more than two dimensions, attention in one operator: what the plan is for.
wheel.pretend("Ascend")


def strategies(case: dict[str, Any], said: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Returns what the compiler says of each operator."""
    import network as module

    wheel.devices = said["CONTEXT"]["device_num"]
    context.set_auto_parallel_context(**said["CONTEXT"], global_rank=case["rank"])
    load = said["CONTEXT"]["strategy_ckpt_config"]["load_file"]
    files = {"load_file": load, "save_file": str(Path("again.json").resolve())}
    context.set_auto_parallel_context(strategy_ckpt_config=files)
    AutoParallelContext.get_instance().set_hccl_test_avaible(True)
    network = module.Network()
    for cell, operator in case["cells"].items():
        if said["CONTEXT"].get("pipeline_stages", 1) > 1:
            each = getattr(network, cell)
            each.pipeline_stage, each.pipeline_segment = case["places"][cell]
        cuts = said["CUTS"].get(re.sub(r"^layers\.\d+\.", "layers.*.", operator))
        if cuts is not None:
            getattr(network, cell).operator.shard(*cuts)
    step = nn.TrainOneStepCell
    if said["CONTEXT"].get("pipeline_stages", 1) > 1:
        network, step = nn.PipelineCell(network, said["MICRO_BATCHES"]), _TrainGradAccuStepCell
    network = step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    network.set_train()
    batch = [Tensor(np.zeros(case["tokens"]), dtypes.int32)] * 2
    _cell_graph_executor.compile(network, *batch, phase="train")
    return _cell_graph_executor._get_shard_strategy(network)


def last_graph() -> str:
    """Returns the last graph of the frontend as text."""
    return max(Path("ir").rglob("*.ir"), key=lambda file: file.stem.rpartition("_")[2]).read_text()


def communications(graph: str) -> dict[str, int]:
    """Returns how many communication operators of a kind a graph marks as reusable.

    The mean of the loss, which has no dimensions, is left out.
    """
    call = r"= (\w+)\(.*[{ ]comm_reuse: Bool\(1\).*\n.*-> \(<Tensor\[\w+\], \((?=\d)"
    return dict(Counter(re.findall(call, graph)))


def exchanges(graph: str) -> list[list[int]]:
    """Returns the ranks of each all-to-all that moves tokens to experts or back."""
    calls = re.findall(r"= AlltoAll\(.*?rank_list: \(([\d, ]+)\)", graph)
    return [[int(rank) for rank in call.split(",") if rank.strip()] for call in calls]


def main() -> None:
    os.chdir(sys.argv[1])
    sys.path.insert(0, ".")
    said: dict[str, Any] = {}
    exec(Path("auto_parallel_context.py").read_text(), said)
    try:
        found = strategies(json.loads(Path("case.json").read_text()), said)
        graph = last_graph()
        answer: dict[str, Any] = {
            "strategies": found,
            "communications": communications(graph),
            "exchanges": exchanges(graph),
        }
    except Exception as error:
        answer = {"raises": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
    print("\n" + json.dumps({"compiled": True, **answer}), flush=True)


if __name__ == "__main__":
    main()
