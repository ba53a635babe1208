"""Has the real MindSpore compile plans with tensor, sequence, context and expert parallel as they
are exported for it: tests/clients/run mindspore_export.

The context, the strategy file and the cuts are those of the exported files; the network is the
model's graph (`networks.py`), small enough to be compiled on a processor. The compiler must report
the cuts of every operator, save the strategies that it loaded, and have as many communication
operators in each stage's layers as `stage_communications` counts.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from networks import module

import autopar
from autopar import catalog, planner
from autopar.export import launchers
from autopar.export.job import Job
from autopar.spec import Model

ORACLE = Path(__file__).with_name("oracle_plans.py")
LAYERS, TOKENS = 4, 128
# Sizes that the compiler takes in seconds; heads that share keys, norms with biases.
SMALL = {"layers": LAYERS, "hidden": 256, "ffn_hidden": 512, "heads": 8, "head_dim": 32,
         "vocab": 1024}  # fmt: skip
MODELS = {
    "llama": ("llama2-7b", {"kv_heads": 8}),
    "grouped": ("llama3-70b", {"kv_heads": 4}),
    "experts": ("mixtral-8x7b", {"kv_heads": 4}),
}
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"tp": 2, "sp": True}),
    ("llama", {"cp": 4, "zero": 1}),
    ("grouped", {"tp": 4, "sp": False, "zero": 1}),
    ("llama", {"pp": 2, "tp": 2, "sp": True}),
    ("llama", {"pp": 2, "vpp": 2, "tp": 2, "sp": True}),
    ("experts", {"ep": 8}),
    ("experts", {"ep": 4}),
)
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"tp": 2, "sp": False}),
    ("llama", {"tp": 8, "sp": True}),
    ("llama", {"tp": 4, "sp": True, "mbs": 2, "zero": 1}),
    ("llama", {"cp": 2}),
    ("llama", {"cp": 8}),
    ("grouped", {"tp": 2, "sp": True}),
    ("grouped", {"tp": 4, "sp": True, "zero": 1}),
    ("llama", {"pp": 4, "tp": 2, "sp": False}),
    ("llama", {"pp": 2, "tp": 4, "sp": True}),
    ("llama", {"pp": 2, "layers": (1, 3), "tp": 2, "sp": True}),
    ("llama", {"pp": 2, "cp": 2}),
    ("llama", {"pp": 2, "vpp": 2, "tp": 2, "sp": False, "zero": 1}),
    ("grouped", {"pp": 2, "vpp": 2, "tp": 4, "sp": True}),
    ("experts", {"ep": 8, "mbs": 1, "zero": 1}),
    ("experts", {"pp": 2, "ep": 4}),
    ("experts", {"pp": 4, "ep": 2, "zero": 1}),
    ("experts", {"pp": 2, "vpp": 2, "ep": 4}),
    ("experts", {"ep": 2}),
    ("experts", {"ep": 4, "zero": 1}),
    ("experts", {"ep": 2, "mbs": 1, "zero": 1}),
    ("experts", {"pp": 2, "ep": 2}),
    ("experts", {"pp": 2, "vpp": 2, "ep": 2, "zero": 1}),
)
# The loss of the compiled network exchanges logits in place of sums over the vocabulary, so that
# exchanges are counted where experts are.
KINDS = ("AllGather", "ReduceScatter", "AllReduce", "AlltoAll")


def model(name: str) -> Model:
    source, sizes = MODELS[name]
    found = replace(catalog.model(source).model, name=name, **(SMALL | sizes))
    return replace(found, moe=found.moe and replace(found.moe, expert_ffn=found.ffn_hidden))


def job(name: str, degrees: dict[str, Any]) -> Job:
    """Returns a plan of eight devices."""
    problem = autopar.problem(
        model(name), "ascend_910b", devices=8, global_batch_size=8, sequence_length=TOKENS,
        framework="mindformers",
    )  # fmt: skip
    exchange = replace(problem.framework, context_exchange="gather")
    problem = replace(problem, framework=exchange)
    plan = autopar.plan(problem, **degrees)
    return Job(problem, plan, autopar.estimate(problem, plan))


def write(said: Job, folder: Path, rank: int) -> dict[str, Any]:
    """Writes the files of a plan and its network, and returns what they say."""
    for file in launchers.export("mindspore", said):
        (folder / file.name).write_text(file.text)
    exported: dict[str, Any] = {}
    text = (folder / "auto_parallel_context.py").read_text()
    # The wheel is not here: what its layouts cut is looked for in the groups of the exchanges.
    text = text.replace("from mindspore import Layout", "def Layout(*_): return lambda *_: None")
    exec(text, exported)
    plan = said.plan
    graph = planner.model_graph(
        said.problem.model, batch=plan.dp * plan.mbs, sequence_length=TOKENS, layers=LAYERS,
        framework=said.problem.framework,
    )  # fmt: skip
    text, cells = module(graph, plan.vpp)
    (folder / "network.py").write_text(text)
    places = {cell: place_of(operator, exported["LAYERS"]) for cell, operator in cells.items()}
    micro_batches = exported["MICRO_BATCHES"] if plan.pp > 1 else 1
    case = {"cells": cells, "places": places, "rank": rank,
            "tokens": [plan.dp * plan.mbs * micro_batches, TOKENS]}  # fmt: skip
    (folder / "case.json").write_text(json.dumps(case))
    return exported | case


def place_of(operator: str, rows: list[tuple[int, int, bool]]) -> tuple[int, int]:
    """Returns stage and chunk of an operator: its layer's, or those of the end at which it is."""
    if layer := re.match(r"layers\.(\d+)\.", operator):
        return rows[int(layer[1])][:2]
    return rows[0 if operator.startswith("embed") else -1][:2]


def reported(answer: dict[str, Any], cells: dict[str, str]) -> dict[str, list[list[list[int]]]]:
    """Returns the strategies by the operators' names: one for each micro-batch of a pipeline."""
    found: dict[str, list[list[list[int]]]] = {}
    for name, cuts in answer["strategies"].items():
        if cell := re.search(r"network-Network/(\w+?)-Named", name):
            found.setdefault(cells[cell[1]], []).append(cuts)
    return found


def check(python: str, name: str, degrees: dict[str, Any], rank: int) -> int:
    """Compiles a plan for one rank, and returns how many operators were cut as it says."""
    said = job(name, degrees)
    what = f"{name} {degrees}, rank {rank}"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        exported = write(said, folder, rank)
        run = subprocess.run([python, ORACLE, folder], capture_output=True, text=True, check=False)
        lines = [line for line in run.stdout.splitlines() if line.startswith('{"compiled"')]
        if not lines:
            sys.exit(f"{what}: MindSpore ended without an answer:\n{run.stderr[-2000:]}")
        answer = json.loads(lines[-1])
        if "raises" in answer:
            sys.exit(f"{what}: MindSpore refuses the plan: {answer['raises']}")
        found = reported(answer, exported["cells"])
        loaded = json.loads((folder / "strategies.json").read_text())["parallel_strategy_item"]
        saved = json.loads((folder / "again.json").read_text())["parallel_strategy_item"]
    stage = rank * said.plan.pp // 8
    calls = answer["communications"]
    assert compiled(said, calls) == of_layers(said, stage), (what, calls, of_layers(said, stage))
    mine = {key: cuts for key, cuts in loaded.items() if cuts["stage"] == stage}
    assert mine.items() <= saved.items(), (what, mine, saved)
    count = len(mine)
    axes = exported.get("AXES", {})
    if said.plan.ep > 1:
        # Ranks in a row hold the experts of a group, of which each group of them has all.
        first = rank - rank % said.plan.ep
        group = list(range(first, first + said.plan.ep))
        assert answer["exchanges"], what
        assert all(each == group for each in answer["exchanges"]), (
            what,
            group,
            answer["exchanges"],
        )
    for operator, (inputs, _) in exported["CUTS"].items():
        names = {operator.replace("*", str(layer)) for layer in range(LAYERS)} - {"loss"}
        for each in names:
            if place_of(each, exported["LAYERS"])[0] != stage:
                continue
            if operator in axes:
                # The compiler reports counts alone.
                assert each not in found, (what, each)
                count += 1
                continue
            cuts = [list(cut) for cut in inputs]
            assert found[each], (what, each)
            assert all(own == cuts for own in found[each]), (what, each, cuts, found[each])
            count += 1
    return count


def compiled(said: Job, calls: dict[str, int]) -> int:
    """Returns how many communication operators the compiler has, apart from the loss's."""
    gathers, scatters, sums, exchanges = (calls.get(kind, 0) for kind in KINDS)
    if said.plan.tp > 1 and not said.plan.sp:
        # A sum that is scattered and gathered again is one: over all devices of a stage the
        # compiler has it so at a look-up.
        assert gathers == scatters
        return sums + gathers
    return gathers + scatters + sums + exchanges * (said.plan.ep > 1)


def of_layers(said: Job, stage: int) -> int:
    """Returns how many communication operators a stage's graph holds apart from the loss's."""
    plan = said.plan
    loss = (3 * (plan.tp > 1) + (plan.dp * plan.cp > 1)) * (stage == plan.pp - 1)
    passes = said.micro_batches if plan.pp > 1 else 1
    found = planner.stage_communications(said.problem, plan)[stage].operators
    # In chunks that are reused an operator stands once for all micro-batches.
    return int(found - loss * passes) // (passes if plan.vpp > 1 else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="exported plans and the real MindSpore")
    parser.add_argument("--all", action="store_true", help="more plans")
    parser.add_argument("--python", required=True, help="Python that has MindSpore")
    arguments = parser.parse_args()
    plans = operators = 0
    for name, degrees in PLANS + MORE * arguments.all:
        for rank in {0, 7} if degrees.get("pp", 1) > 1 else {0}:
            operators += check(arguments.python, name, degrees, rank)
            plans += 1
            print(name, degrees, "rank", rank, flush=True)
    print(f"{plans} compilations: {operators} operators are cut as the exported plans say")


if __name__ == "__main__":
    main()
