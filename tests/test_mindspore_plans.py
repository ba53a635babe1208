"""Autopar's plans against those that the real MindSpore 2.10.0 chose, by the lines of a data file.

`tests/clients/mindspore_strategy/searches.py` writes the file and compiles its cases again.
"""

import sys
from pathlib import Path

import pytest

import autopar
from autopar.sharding import FixedStrategy

sys.path.insert(0, str(Path(__file__).parent / "clients/mindspore_strategy"))

import plans
from networks import graph_of


def named(line: plans.Line) -> str:
    keys = ("network", "devices", "mode", "rows", "rank", "train")
    return " ".join(str(line[key]) for key in keys if key in line)


def cases(mode: str | None = None, most: int = 1024) -> list[object]:
    return [
        pytest.param(line, id=named(line))
        for line in plans.lines(mode)
        if plans.devices(line) <= most
    ]


# A pipeline is cut as a whole, and the last cuts are undone: its stages are not searched alone.
RECURSION = [line for line in plans.lines("recursive_programming") if "stages" not in line]


@pytest.mark.parametrize("line", RECURSION, ids=named)
def test_recursion_by_mindspore_s_costs_cuts_products_and_losses_as_it_does(
    line: plans.Line,
) -> None:
    # What stands between them follows by our reshards: MindSpore copies a neighbour's cuts.
    graph = graph_of(line)
    found = autopar.shard(
        graph, f"{plans.CHIP}:{plans.devices(line)}", method="recursive", cost_model="mindspore"
    )
    decided = {o.name for o in graph.operators if o.source in ("MatMul", "CrossEntropy")}
    theirs = {each.operator: each.inputs for each in plans.fixed(line, graph)}
    ours = {operator.name: operator.inputs for operator in found.operators}
    assert {name: ours[name] for name in decided} == {name: theirs[name] for name in decided}


@pytest.mark.parametrize("line", cases())
def test_no_plan_of_mindspore_s_costs_less_than_ours(line: plans.Line) -> None:
    # Integer programs of 64 devices take 20 s each: the check beside MindSpore solves them too.
    row = plans.row(line, ("dp", "ilp") if plans.devices(line) <= 8 else ("dp",))
    for plan in row.ours.values():
        assert plan.proof.exact
        assert plan.cost.total_ps <= row.theirs.cost.total_ps
    if row.ours["dp"].cost.total_ps == row.theirs.cost.total_ps:
        assert row.equal


def test_the_cost_model_is_that_of_recursion_alone() -> None:
    graph = graph_of({"network": "mlp", "train": True})
    with pytest.raises(autopar.SpecError, match="ranks the cuts of recursive alone"):
        autopar.shard(graph, f"{plans.CHIP}:8", method="dp", cost_model="mindspore")


def test_set_operators_keep_their_strategies_under_mindspore_s_costs() -> None:
    graph = graph_of({"network": "mlp", "train": True})
    up = FixedStrategy(operator="up", inputs=((2, 1), (1, 4)))
    found = autopar.shard(
        graph, f"{plans.CHIP}:8", method="recursive", cost_model="mindspore", strategies=[up]
    )
    assert next(o for o in found.operators if o.name == "up").inputs == up.inputs
