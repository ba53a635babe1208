"""MindSpore's plans priced by autopar's estimate, beside autopar's own; needs no MindSpore."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from networks import graph_of

import autopar
from autopar.graph import Graph
from autopar.sharding import FixedStrategy, Method, Sharding

DATA = Path(__file__).parents[2] / "data/mindspore_searches_2.10.jsonl"
CHIP = "ascend_910b"
Line = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A plan of MindSpore's beside ours.

    Attributes:
        line: What was compiled, with the strategies that came out.
        theirs: MindSpore's strategies; what it did not report is cut as suits them best.
        ours: The plans of our methods, with the same operators set by the user.
    """

    line: Line
    theirs: Sharding
    ours: dict[Method, Sharding]

    @property
    def equal(self) -> str:
        """Why its plan costs no more than ours; empty where it does."""
        best = min(self.ours.values(), key=lambda plan: plan.cost.total_ps)
        if best.cost.total_ps < self.theirs.cost.total_ps:
            return ""
        alike = [
            (a.inputs, a.outputs) == (b.inputs, b.outputs)
            for a, b in zip(best.operators, self.theirs.operators, strict=True)
        ]
        if all(alike):
            return "the same cuts"
        return f"{alike.count(False)} operators cut otherwise at equal cost"

    def __str__(self) -> str:
        line = self.line
        sizes = "x".join(str(line[key]) for key in ("rows", "hidden", "inner") if key in line)
        stage = f" stage {line['rank'] * 2 // line['devices']}" if "rank" in line else ""
        name = f"{line['network']}{stage} {sizes}".strip() + ("" if line["train"] else " forward")
        costs = [plan.cost.total_ps / 1e9 for plan in (self.theirs, *self.ours.values())]
        text = " ".join(f"{cost:10.4f}" for cost in costs)
        return f"{name:36} {line['devices']:3} {line['mode']:22} {text}  {self.equal}"


HEADER = f"{'network':36} {'n':>3} {'search':22} {'theirs ms':>10} {'dp':>10} {'ilp':>10}  equal by"


def lines(mode: str | None = None) -> Iterator[Line]:
    """Returns the cases of the data file that the compiler accepted."""
    for text in DATA.read_text("utf-8").splitlines():
        line = json.loads(text)
        if "strategies" in line and mode in (None, line["mode"]):
            yield line


def devices(line: Line) -> int:
    """Returns the devices of a case; of a pipeline those of one stage."""
    count: int = line["devices"]
    return count // line.get("stages", 1)


def fixed(line: Line, graph: Graph) -> list[FixedStrategy]:
    """Returns MindSpore's strategies as those that a user sets.

    It lists a number that is a factor as an input, and labels as rows of one-hot vectors.
    """
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    operators = {operator.name: operator for operator in graph.operators}
    return [
        FixedStrategy(
            operator=name,
            inputs=tuple(
                tuple(row[: len(shapes[tensor])])
                for row, tensor in zip(cuts, operators[name].inputs, strict=False)
            ),
        )
        for name, cuts in line["strategies"].items()
    ]


def row(line: Line, methods: tuple[Method, ...] = ("dp", "ilp")) -> Row:
    """Returns a case's plan and ours, all priced by the same estimate."""
    graph, cluster = graph_of(line), f"{CHIP}:{devices(line)}"
    theirs = fixed(line, graph)
    set_ = [each for each in theirs if each.operator in line.get("cuts", {})]
    return Row(
        line,
        autopar.shard(graph, cluster, method="dp", strategies=theirs),
        {
            method: autopar.shard(graph, cluster, method=method, strategies=set_)
            for method in methods
        },
    )
