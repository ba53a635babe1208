"""Holds autopar's strategy files against the real MindSpore: python check.py PYTHON_OF_MINDSPORE.

Each file that the compiler saves is read, and written again to the same bytes. Each file that is
written here, in both forms, is loaded by the compiler, which reports the strategies in it back.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autopar.export.mindspore_strategy import group_bytes, group_name, strategy_bytes
from autopar.frontends.mindspore_strategy import (
    OperatorStrategy,
    StrategyFile,
    read,
    read_group,
)

ORACLE = Path(__file__).with_name("oracle.py")
Case = dict[str, Any]

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
LOADED: tuple[tuple[Case, dict[str, list[list[int]]]], ...] = (
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


def compiled(python: str, case: Case) -> dict[str, list[list[int]]]:
    """Returns the strategies that the real compiler reports, in a process of its own."""
    run = subprocess.run(
        [python, str(ORACLE)], input=json.dumps(case), capture_output=True, text=True, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"mindspore"')]
    if not lines:
        sys.exit(f"MindSpore ended without an answer:\n{run.stderr[-2000:]}")
    answer = json.loads(lines[-1])
    if "raises" in answer:
        sys.exit(f"MindSpore refuses {case}: {answer['raises']}")
    strategies: dict[str, list[list[int]]] = answer["strategies"]
    return strategies


def in_order(strategies: dict[str, list[list[int]]], kind: str) -> list[list[list[int]]]:
    """Returns the strategies of the operators of a kind by their number in the compiler's names."""
    found = {
        int(name.rpartition("-op")[2]): cuts
        for name, cuts in strategies.items()
        if name.rpartition("/")[2].rpartition("-op")[0] == kind
    }
    return [found[number] for number in sorted(found)]


def check_saved(python: str, case: Case, folder: Path) -> str:
    """Reads what the compiler saved in both forms, and writes it again."""
    for form in ("json", "ckpt"):
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


def check_loaded(python: str, case: Case, cuts: dict[str, list[list[int]]], folder: Path) -> str:
    """Has the compiler load a file in both forms, and compares what it reports."""
    stage = case.get("rank", 0) * case.get("stages", 1) // case["devices"]
    file = StrategyFile(
        operators=tuple(
            OperatorStrategy(name=name, inputs=tuple(map(tuple, rows)), stage=stage)
            for name, rows in cuts.items()
        )
    )
    for form in ("json", "ckpt"):
        path, again = folder / f"ours.{form}", folder / f"again.{form}"
        path.write_bytes(strategy_bytes(file, path.name))
        strategies = compiled(python, {**case, "load": str(path), "save": str(again)})
        saved = {operator.name: operator for operator in read(again).operators}
        for operator in file.operators:
            assert saved[operator.name] == operator, (saved[operator.name], operator)
            kind = operator.name.partition("_")[0]
            assert [list(row) for row in operator.inputs] in in_order(strategies, kind)
    return f"{len(file.operators)} operators reported back"


def main(python: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        for case in SAVED:
            print("saved ", case["network"], case["devices"], check_saved(python, case, Path(name)))
        for case, cuts in LOADED:
            done = check_loaded(python, case, cuts, Path(name))
            print("loaded", case["network"], case["devices"], done)


if __name__ == "__main__":
    main(sys.argv[1])
