"""Holds autopar's strategy files against the real MindSpore: tests/clients/run mindspore_strategy.

Each file that the compiler saves is read, and written again to the same bytes. Each file that is
written here is loaded by the compiler, which reports the strategies in it back: files written by
hand, and those of the plans of each method for a network in training.

MindSpore runs in the Python that is given. A case is compiled with one of the two forms of file,
with --all with both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from networks import block, two_matmuls

import autopar
from autopar.export.mindspore_strategy import (
    group_bytes,
    group_name,
    strategy_bytes,
    strategy_file,
)
from autopar.frontends.mindspore_strategy import (
    OperatorStrategy,
    StrategyFile,
    operator_names,
    read,
    read_group,
)
from autopar.graph import Graph
from autopar.sharding import Method

ORACLE = Path(__file__).with_name("oracle.py")
LOSS = "SoftmaxCrossEntropyWithLogits"
Case = dict[str, Any]
Cuts = list[list[int]]
Forms = tuple[str, ...]

SAVED: tuple[Case, ...] = (
    {"network": "two_matmuls", "devices": 2,
     "cuts": {"matmul1": [[1, 1], [1, 2]], "matmul2": [[1, 2], [2, 1]]}},
    {"network": "two_matmuls", "devices": 8, "train": True,
     "cuts": {"matmul1": [[2, 2], [2, 1]], "matmul2": [[2, 1], [1, 2]]}},
    {"network": "two_matmuls", "devices": 64, "mode": "recursive_programming"},
    {"network": "block", "devices": 8, "train": True, "mode": "dynamic_programming"},
    {"network": "block", "devices": 4, "train": True, "mode": "sharding_propagation",
     "cuts": {"logits": [[2, 1], [2, 1]]}},
    {"network": "two_stages", "devices": 8, "train": True, "stages": 2, "rank": 7,
     "cuts": {"matmul1": [[2, 1], [1, 2]], "matmul2": [[1, 4], [4, 1]]}},
)  # fmt: skip

# A network, and what the file says of its operators with a parameter.
LOADED: tuple[tuple[Case, dict[str, Cuts]], ...] = (
    ({"network": "two_matmuls", "devices": 2},
     {"MatMul_w1": [[2, 1], [1, 1]], "MatMul_w2": [[1, 2], [2, 1]], "Add_b": [[1, 2], [2]]}),
    ({"network": "two_matmuls", "devices": 8},
     {"MatMul_w1": [[4, 1], [1, 2]], "MatMul_w2": [[4, 2], [2, 1]], "Add_b": [[2, 2], [2]]}),
    ({"network": "two_matmuls", "devices": 64, "train": True},
     {"MatMul_w1": [[8, 1], [1, 8]], "MatMul_w2": [[8, 8], [8, 1]], "Add_b": [[64, 1], [1]]}),
    ({"network": "block", "devices": 4, "train": True},
     {"MatMul_wq": [[2, 1], [1, 2]], "MatMul_wk": [[1, 1], [1, 4]], "MatMul_w1": [[4, 1], [1, 1]],
      "MatMul_head": [[2, 1], [2, 1]], "LayerNorm_gain": [[2, 1], [1], [1]]}),
    ({"network": "two_stages", "devices": 8, "train": True, "stages": 2, "rank": 7},
     {"MatMul_stage1.w": [[2, 1], [1, 2]]}),
)  # fmt: skip


# A network of the oracle, the same as a graph, and methods for its plan.
PLANNED: tuple[tuple[Case, Graph, tuple[Method, ...]], ...] = (
    ({"network": "two_matmuls", "devices": 2, "train": True}, two_matmuls(train=True), ("dp",)),
    ({"network": "two_matmuls", "devices": 8, "train": True, "rows": 8, "hidden": 4096,
      "inner": 16384}, two_matmuls(8, 4096, 16384, train=True), ("dp", "ilp")),
    ({"network": "two_matmuls", "devices": 64, "train": True, "rows": 4096, "hidden": 8192,
      "inner": 28672}, two_matmuls(4096, 8192, 28672, train=True), ("dp",)),
    ({"network": "block", "devices": 4, "train": True}, block(), ("dp",)),
    ({"network": "block", "devices": 8, "train": True}, block(), ("dp", "ilp")),
)  # fmt: skip
# What MindSpore cuts as it must: a reshape follows its input, its loss is two operators.
FOLLOWING = ("reshape", "loss", "mul")


def answer(python: str, case: Case) -> dict[str, Any]:
    """Returns what the real compiler says to a case, in a process of its own: what it propagates
    depends on what it has compiled before."""
    run = subprocess.run(
        [python, str(ORACLE)], input=json.dumps(case), capture_output=True, text=True, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"mindspore"')]
    if not lines:
        sys.exit(f"MindSpore ended without an answer:\n{run.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def compiled(python: str, case: Case) -> dict[str, Cuts]:
    """Returns the strategies that the real compiler reports of a case that it accepts."""
    said = answer(python, case)
    if "raises" in said:
        sys.exit(f"MindSpore refuses {case}: {said['raises']}")
    strategies: dict[str, Cuts] = said["strategies"]
    return strategies


def by_operator(reported: dict[str, Cuts], graph: Graph) -> dict[str, Cuts]:
    """Returns the reported strategies by the names of the graph's operators.

    The compiler calls an operator by the cell that the oracle has put it in, or by its kind where
    the network has one of that. A stage's operators appear once for each micro-batch, alike.
    """
    found: dict[str, Cuts] = {}
    for operator in graph.operators:
        kind = LOSS if operator.source == "CrossEntropy" else operator.source
        named = [cuts for name, cuts in reported.items() if f"/{operator.name}-Named/" in name]
        alike = named or [cuts for name, cuts in reported.items() if f"/{kind}-op" in name]
        assert all(cuts == alike[0] for cuts in alike), (operator.name, alike)
        if alike:
            found[operator.name] = alike[0]
    return found


def check_saved(python: str, case: Case, forms: Forms, folder: Path) -> str:
    """Reads what the compiler saved in both forms, and writes it again."""
    for form in forms:
        file, groups = folder / f"saved.{form}", folder / "saved.group"
        strategies = compiled(python, {**case, "save": str(file), "groups": str(groups)})
        saved = read(file)
        assert strategy_bytes(saved, file.name) == file.read_bytes(), file.read_bytes()
        listed = read_group(groups)
        assert group_bytes(listed) == groups.read_bytes()
        for name, ranks in listed.groups:
            assert group_name(ranks) == name
        reported = [tuple(map(tuple, cuts)) for cuts in strategies.values()]
        for operator in saved.operators:
            assert operator.inputs in reported, (operator, strategies)
    return f"{len(saved.operators)} operators, {len(listed.groups)} groups"


def check_loaded(python: str, case: Case, cuts: dict[str, Cuts], forms: Forms, folder: Path) -> str:
    """Has the compiler load a file in both forms, and compares what it reports."""
    stage = case.get("rank", 0) * case.get("stages", 1) // case["devices"]
    file = StrategyFile(
        operators=tuple(
            OperatorStrategy(name=name, inputs=tuple(map(tuple, rows)), stage=stage)
            for name, rows in cuts.items()
        )
    )
    for form in forms:
        path, again = folder / f"ours.{form}", folder / f"again.{form}"
        path.write_bytes(strategy_bytes(file, path.name))
        strategies = compiled(python, {**case, "load": str(path), "save": str(again)})
        saved = {operator.name: operator for operator in read(again).operators}
        for operator in file.operators:
            assert saved[operator.name] == operator, (saved[operator.name], operator)
            assert [list(row) for row in operator.inputs] in strategies.values()
    return f"{len(file.operators)} operators reported back"


def check_planned(
    python: str, case: Case, graph: Graph, method: Method, forms: Forms, folder: Path
) -> str:
    """Has the compiler load the file of a plan, other operators being set, and compares."""
    plan = autopar.shard(graph, f"ascend_910b:{case['devices']}", method=method)
    file = strategy_file(plan)
    named = operator_names(graph)
    cuts = {
        operator.name: operator.inputs
        for operator in plan.operators
        if operator.name not in named and not operator.name.startswith(FOLLOWING)
    }
    # MindSpore counts the factor of a product with a number as an input.
    cuts |= {name: (*rows, ()) for name, rows in cuts.items() if name == "scale"}
    for form in forms:
        path, again = folder / f"plan.{form}", folder / f"again.{form}"
        path.write_bytes(strategy_bytes(file, path.name))
        reported = compiled(python, {**case, "cuts": cuts, "load": str(path), "save": str(again)})
        saved = {operator.name: operator for operator in read(again).operators}
        for operator in file.operators:
            assert saved[operator.name] == operator, (saved[operator.name], operator)
        found = by_operator(reported, graph)
        for name, rows in cuts.items():
            assert found[name] == [list(row) for row in rows], (name, rows, found[name])
    return f"{method}: {len(file.operators)} operators loaded, {len(cuts)} set"


def main() -> None:
    parser = argparse.ArgumentParser(description="autopar's strategy files and the real MindSpore")
    parser.add_argument("--all", action="store_true", help="both forms of each file")
    parser.add_argument("--python", required=True, help="Python that has MindSpore")
    arguments = parser.parse_args()
    python = arguments.python
    count = 0

    def forms() -> Forms:
        nonlocal count
        count += 2 if arguments.all else 1
        return ("json", "ckpt") if arguments.all else (("json", "ckpt")[count % 2],)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in SAVED:
            done = check_saved(python, case, forms(), folder)
            print("saved  ", case["network"], case["devices"], done, flush=True)
        for case, graph, methods in PLANNED:
            for method in methods:
                done = check_planned(python, case, graph, method, forms(), folder)
                print("planned", case["network"], case["devices"], done, flush=True)
        for case, cuts in LOADED:
            done = check_loaded(python, case, cuts, forms(), folder)
            print("loaded ", case["network"], case["devices"], done, flush=True)
    print(f"{count} compilations: MindSpore and autopar agree")


if __name__ == "__main__":
    main()
