"""A function of a network, cut by layouts of its borders; operators that run again."""

import json
from dataclasses import replace

import pytest

import autopar
from autopar import SpecError
from autopar.cli import main
from autopar.compat import functional
from autopar.graph import (
    CrossEntropy,
    Elementwise,
    Graph,
    MatMul,
    Operator,
    Softmax,
    Tensor,
    recomputed,
)  # fmt: skip
from autopar.sharding import Sharding

ROWS, WIDTH, INNER = 4096, 1024, 4096


def network() -> Graph:
    """Returns a product, a function of ReLU and a product, a sum, and a loss."""
    shapes = {
        "x": (ROWS, WIDTH), "w1": (WIDTH, INNER), "h": (ROWS, INNER), "r": (ROWS, INNER),
        "w2": (INNER, WIDTH), "y": (ROWS, WIDTH), "z": (ROWS, WIDTH), "labels": (ROWS,),
    }  # fmt: skip
    roles = {"x": "input", "labels": "input", "w1": "parameter", "w2": "parameter"}
    tensors = [
        Tensor(
            name, shape, "int32" if name == "labels" else "float16", roles.get(name, "activation")
        )  # type: ignore[arg-type]
        for name, shape in shapes.items()
    ]
    operators = (
        Operator(name="up", form=MatMul(), inputs=("x", "w1"), outputs=("h",)),
        Operator(name="relu", source="ReLU", form=Elementwise(), inputs=("h",), outputs=("r",)),
        Operator(name="down", form=MatMul(), inputs=("r", "w2"), outputs=("y",)),
        Operator(name="sum", source="Add", form=Elementwise(), inputs=("y", "x"), outputs=("z",)),
        Operator(name="loss", form=CrossEntropy(), inputs=("z", "labels"), outputs=("l",)),
    )
    return Graph(
        name="net",
        gradients="implied",
        tensors=(*tensors, Tensor("l", (), "float32")),
        operators=operators,
    )


def cut(graph: Graph, **options: object) -> Sharding:
    return autopar.shard(graph, "a800", devices=8, method="dp", **options)  # type: ignore[arg-type]


FUNCTION = ("relu", "down")


def test_batches_at_every_border_cost_what_data_parallel_costs() -> None:
    found = functional.shard(network(), FUNCTION, [None], [None], cluster="a800", devices=8)
    assert (found.inputs, found.outputs) == (("h",), ("y",))
    assert found.network.cost == replace(
        cut(network(), others="data_parallel").cost, limit_bytes=found.network.cost.limit_bytes
    )


def test_layouts_spread_from_the_borders_and_are_paid_for_there() -> None:
    # Columns go in, so that the product sums over its inner axis; the batch comes out.
    found = functional.shard(network(), FUNCTION, [(1, 8)], [(8, 1)], cluster="a800", devices=8)
    cuts = {each.name: each for each in found.network.operators}
    assert cuts["relu"].inputs == ((1, 8),)
    assert cuts["down"].inputs == ((1, 8), (8, 1))
    assert cuts["up"].inputs == ((8, 1), (1, 1))
    assert cuts["sum"].inputs == ((8, 1), (8, 1))
    # h goes from rows to columns, and back as a gradient.
    [entry] = [each for each in found.network.reshards if each.tensor == "h"]
    assert [step.operation for step in entry.forward] == ["all_to_all"]
    assert [step.operation for step in entry.backward] == ["all_to_all"]
    # w2 lies in parts, so that its gradient needs no sum.
    assert cuts["down"].gradient_ps == 0 < cuts["up"].gradient_ps


def test_a_parameter_s_plan_is_where_it_lies() -> None:
    found = functional.shard(
        network(), FUNCTION, [None], parameter_plan={"w2": (1, 8)}, cluster="a800", devices=8
    )
    [lies] = [each for each in found.network.tensors if each.name == "w2"]
    # All eight devices, three prime axes, cut its columns.
    assert lies.axes == ((), (0, 1, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["none*"], [None]), r'function: the graph has no operator "none\*"'),
        ((FUNCTION, []), r"in_strategy: has 0 entries for 1 tensors: h\. Give one"),
        ((FUNCTION, [None], [None, None]), "out_strategy: has 2 entries for 1 tensors: y"),
        ((FUNCTION, [None], None, {"h": (1, 1)}), 'parameter_plan: the graph has no parameter "h"'),
        ((FUNCTION, [(3, 1)]), "enter h"),
    ],
)
def test_what_does_not_fit_the_function_is_named(
    arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        functional.shard(network(), *arguments, cluster="a800", devices=8)  # type: ignore[arg-type]


def test_the_command_cuts_a_function_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["shard", "gpt3-6.7b", "--chip", "a800", "--devices", "8", "--layers", "1",
             "--sequence-length", "512", "--function", "layers.0.mlp.up*",
             "--function", "layers.0.mlp.act", "--in-strategy", "8x1x1"]  # fmt: skip
    assert main(words) == 0
    told = capsys.readouterr()
    assert "function of 3 operators: enter layers.0.mlp.norm.out 8x1x1" in told.err
    assert "leave layers.0.mlp.act.out as it comes" in told.err
    assert main([*words, "--zero", "1"]) == 2
    assert "--zero: given beside --function" in capsys.readouterr().err
    assert main(words[:-2]) == 2
    assert "--in-strategy: missing" in capsys.readouterr().err


def test_the_command_runs_operators_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["shard", "gpt3-6.7b", "--chip", "a800", "--devices", "1", "--layers", "1",
             "--batch", "1", "--sequence-length", "512", "--method", "dp",
             "--format", "json"]  # fmt: skip
    bytes_kept = []
    for more in ([], ["--recompute", "*.mlp.act"]):
        assert main([*words, *more]) == 0
        bytes_kept.append(json.loads(capsys.readouterr().out)["cost"]["memory_bytes"])
    # One sequence of 512 tokens of 16,384 numbers of 2 bytes.
    assert bytes_kept[0] - bytes_kept[1] == 512 * 16384 * 2


# --- Operators that run again


def alone(graph: Graph) -> Sharding:
    return autopar.shard(graph, "a800", devices=1, method="dp")


def test_an_operator_that_runs_again_keeps_what_it_reads_and_runs_twice_forward() -> None:
    plain, again = alone(network()), alone(recomputed(network(), ["relu"]))
    before, after = ({each.name: each for each in one.operators} for one in (plain, again))
    # ReLU's result of 4,096 x 4,096 numbers was kept for the second product; its input is anyway.
    assert plain.cost.memory_bytes - again.cost.memory_bytes == ROWS * INNER * 2
    assert after["relu"].memory_bytes < before["relu"].memory_bytes
    forward = autopar.shard(replace(network(), gradients="none"), "a800", devices=1, method="dp")
    [once] = [each.compute_ps for each in forward.operators if each.name == "relu"]
    assert after["relu"].compute_ps == before["relu"].compute_ps
    assert after["relu"].recompute_ps == pytest.approx(once, abs=2)
    assert after["down"].compute_ps == before["down"].compute_ps


def test_a_chain_that_runs_again_keeps_its_first_input_alone() -> None:
    again = alone(recomputed(network(), ["up", "relu"]))
    # Neither the product's result nor ReLU's is kept: x is, as it was.
    plain = alone(network())
    assert plain.cost.memory_bytes - again.cost.memory_bytes == 2 * ROWS * INNER * 2


def test_a_softmax_that_runs_again_does_not_keep_its_result() -> None:
    tensors = (
        Tensor("x", (64, 64), "float16", "input"),
        Tensor("w", (64, 64), "float16", "parameter"),
        Tensor("y", (64, 64)),
        Tensor("p", (64, 64)),
    )
    operators = (
        Operator(name="mm", form=MatMul(), inputs=("x", "w"), outputs=("y",)),
        Operator(name="softmax", form=Softmax(axes=(1,)), inputs=("y",), outputs=("p",)),
    )
    graph = Graph(name="net", gradients="implied", tensors=tensors, operators=operators)
    # Its result of 64 x 64 numbers of 2 bytes or its input, as many.
    assert alone(recomputed(graph, ["softmax"])).cost.memory_bytes == alone(graph).cost.memory_bytes
    both = alone(recomputed(graph, ["*"])).cost.memory_bytes
    assert alone(graph).cost.memory_bytes - both == 64 * 64 * 2


def test_an_unknown_operator_cannot_run_again() -> None:
    with pytest.raises(SpecError, match=r'^--recompute: the graph has no operator "none"'):
        recomputed(network(), ["none"])
