"""Graphs: what the core accepts and how it refuses the rest."""

import dataclasses
from typing import get_args

import pytest

from autopar import SpecError, _core, graph, planner, wire
from autopar.graph import Elementwise, Graph, MatMul, Operator, Reshape, Tensor

X = Tensor("x", (64, 256), role="input")
W = Tensor("w", (256, 512), role="parameter")
Y = Tensor("y", (64, 512))
Z = Tensor("z", (64, 512))
MM = Operator(name="mm", source="MatMul", form=MatMul(), inputs=("x", "w"), outputs=("y",))
ACT = Operator(name="act", source="Gelu", form=Elementwise(), inputs=("y",), outputs=("z",))
NET = Graph(name="net", tensors=(X, W, Y, Z), operators=(ACT, MM))


def test_operators_may_be_listed_in_any_order() -> None:
    assert planner.check_graph(NET) == ["mm", "act"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"tensors": (X, Y, Z)}, 'operators[1] "mm".inputs[1]: there is no tensor "w"'),
        ({"tensors": (X, W, Y, Z, Z)}, 'tensors[4]: the name "z" is empty or used twice'),
        ({"operators": (MM, MM)}, 'operators[1].name: the name "mm" is empty or used twice'),
        ({"operators": ()}, "operators: must not be empty"),
        (
            {"tensors": (X, dataclasses.replace(W, shape=(128, 512)), Y, Z)},
            'operators[1] "mm".inputs: the inner dimensions differ, 256 and 128',
        ),
        (
            {"tensors": (X, W, dataclasses.replace(Y, shape=(64, 0)), Z)},
            'tensors[2].shape[1]: dimension 1 of "y" must be positive, found 0',
        ),
        (
            {"tensors": (X, W, dataclasses.replace(Y, shape=(2**40, 2**40)), Z)},
            'tensors[2].shape: "y" must have at most 2^50 bytes',
        ),
        (
            {"tensors": (X, W, dataclasses.replace(Y, role="input"), Z)},
            'tensors[2].role: only an activation is written by an operator; one writes "y"',
        ),
        ({"operators": (ACT,)}, 'no operator writes "y"'),
        (
            {"operators": (MM, dataclasses.replace(ACT, inputs=("z",), outputs=("y",)))},
            '"y" is already written by "mm"',
        ),
        (
            {"operators": (dataclasses.replace(ACT, form=Reshape(), inputs=("x",)), MM)},
            "both sides must have as many elements, found [64, 256] to [64, 512]",
        ),
    ],
)
def test_a_wrong_graph_is_refused_with_its_place(changed: dict[str, object], error: str) -> None:
    with pytest.raises(SpecError) as raised:
        planner.check_graph(dataclasses.replace(NET, **changed))  # type: ignore[arg-type]
    assert error in str(raised.value)


def test_a_cycle_is_refused_by_the_names_on_it() -> None:
    shape = (4, 4)
    tensors = (Tensor("x", shape, role="input"), *(Tensor(name, shape) for name in "abc"))
    chain = [("p", "xc", "a"), ("q", "a", "b"), ("r", "b", "c")]
    operators = tuple(
        Operator(name=name, form=Elementwise(), inputs=tuple(read), outputs=(written,))
        for name, read, written in chain
    )
    with pytest.raises(SpecError) as raised:
        planner.check_graph(Graph(name="loop", tensors=tensors, operators=operators))
    assert "operators: 3 wait for each other in a cycle: q, r, p" in str(raised.value)


@pytest.mark.parametrize("form", get_args(graph.Form))
def test_the_core_knows_every_form_with_the_same_keys(form: type) -> None:
    # What has no default is a list of axes or sizes. The core refuses missing and unknown keys.
    given = {
        field.name: (1, 2)
        for field in dataclasses.fields(form)
        if field.default is dataclasses.MISSING
    }
    operator = dataclasses.replace(MM, form=form(**given))
    document = wire.dumps(dataclasses.replace(NET, operators=(operator,)))
    assert wire.loads(Graph, _core.canonical("graph", document)).operators[0] == operator
