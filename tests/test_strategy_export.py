"""An answer as MindSpore's strategy file and as a sharding table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autopar
from autopar import SpecError, graph
from autopar.export.mindspore_strategy import json_bytes, protobuf_bytes, strategy_file
from autopar.export.sharding_table import table
from autopar.frontends.atc import Device
from autopar.frontends.graph_file import read_strategies
from autopar.frontends.mindspore_strategy import read, read_protobuf
from autopar.graph import Elementwise, Gather, Graph, MatMul, Norm, Operator, Tensor
from autopar.sharding import Cuts, FixedStrategy, Sharding

GOLDEN = Path(__file__).parent / "data/mindspore"
Strategies = dict[str, Cuts]


def operator(name: str, form: graph.Form, inputs: str, outputs: str, source: str) -> Operator:
    return Operator(
        name=name,
        source=source,
        form=form,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
    )


def two_matmuls(*, bias: bool = False) -> Graph:
    """Returns the network of most golden files: a product, ReLU, a product, and perhaps a bias."""
    tensors = [
        Tensor("x", (128, 64), "float32", "input"),
        Tensor("w1", (64, 256), "float32", "parameter"),
        Tensor("h", (128, 256), "float32"),
        Tensor("r", (128, 256), "float32"),
        Tensor("w2", (256, 64), "float32", "parameter"),
        Tensor("y", (128, 64), "float32"),
    ]
    operators = [
        operator("m1", MatMul(), "x w1", "h", "MatMul"),
        operator("relu", Elementwise(), "h", "r", "ReLU"),
        operator("m2", MatMul(), "r w2", "y", "MatMul"),
    ]
    if bias:
        tensors += [Tensor("b", (64,), "float32", "parameter"), Tensor("z", (128, 64), "float32")]
        operators.append(operator("add", Elementwise(), "y b", "z", "Add"))
    return Graph(name="net", tensors=tuple(tensors), operators=tuple(operators))


NORM = Graph(
    name="norm",
    tensors=(
        Tensor("x", (128, 64), "float32", "input"),
        Tensor("g", (64,), "float32", "parameter"),
        Tensor("b", (64,), "float32", "parameter"),
        Tensor("y", (128, 64), "float32"),
    ),
    operators=(operator("norm", Norm(axes=(1,)), "x g b", "y", "LayerNorm"),),
)
LOOKUP = Graph(
    name="lookup",
    tensors=(
        Tensor("emb", (64, 32), "float32", "parameter"),
        Tensor("i", (16, 8), "int32", "input"),
        Tensor("y", (16, 8, 32), "float32"),
    ),
    operators=(operator("gather", Gather(), "emb i", "y", "Gather"),),
)


def cut(net: Graph, devices: int, strategies: Strategies) -> Sharding:
    fixed = [FixedStrategy(operator=name, inputs=inputs) for name, inputs in strategies.items()]
    return autopar.shard(net, f"a800:{devices}", method="dp", strategies=fixed)


# What the compiler was told, and the file that it then wrote.
COMPILED: dict[str, tuple[Graph, int, Strategies]] = {
    "two_matmuls": (two_matmuls(), 8, {"m1": ((2, 1), (1, 4)), "m2": ((2, 4), (4, 1))}),
    "repeated_computation": (
        two_matmuls(bias=True), 8,
        {"m1": ((2, 1), (1, 2)), "m2": ((2, 2), (2, 1)), "add": ((8, 1), (1,))},
    ),
    "contracted_axis": (
        two_matmuls(bias=True), 8,
        {"m1": ((2, 2), (2, 2)), "m2": ((1, 4), (4, 2)), "add": ((8, 1), (1,))},
    ),
    "two_matmuls_on_64": (
        two_matmuls(bias=True), 64,
        {"m1": ((8, 1), (1, 8)), "m2": ((8, 8), (8, 1)), "add": ((64, 1), (1,))},
    ),
    "layer_norm": (NORM, 8, {"norm": ((4, 1), (1,), (1,))}),
    "embedding": (LOOKUP, 8, {"gather": ((2, 1), (4, 1))}),
}  # fmt: skip


@pytest.mark.parametrize(("net", "devices", "strategies"), COMPILED.values(), ids=COMPILED)
def test_the_file_is_that_of_the_compiler(
    request: pytest.FixtureRequest, net: Graph, devices: int, strategies: Strategies
) -> None:
    name = request.node.callspec.id
    file = strategy_file(cut(net, devices, strategies))
    golden = read(GOLDEN / f"{name}.json")
    assert (
        json_bytes(replace(file, current_stage=golden.current_stage))
        == (GOLDEN / f"{name}.json").read_bytes()
    )
    # The compiler writes the records of the other form in the order of its hash tables.
    other = read(GOLDEN / f"{name}.ckpt")
    own = read_protobuf(protobuf_bytes(file))
    assert set(own.operators) == set(other.operators)
    assert set(own.layouts) == set(other.layouts)


@pytest.mark.parametrize("ending", ["json", "ckpt"])
def test_the_file_of_the_compiler_sets_the_strategies(ending: str) -> None:
    net = two_matmuls()
    fixed = read_strategies(GOLDEN / f"two_matmuls.{ending}", net)
    assert fixed == (
        FixedStrategy(operator="m1", inputs=((2, 1), (1, 4))),
        FixedStrategy(operator="m2", inputs=((2, 4), (4, 1))),
    )
    found = autopar.shard(net, "a800:8", method="dp", strategies=fixed)
    assert [each.inputs for each in found.operators][::2] == [each.inputs for each in fixed]


def test_a_strategy_for_an_operator_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match='the graph has no operator "Gather_emb"'):
        read_strategies(GOLDEN / "embedding.json", two_matmuls())


def test_two_operators_that_one_name_would_say_are_refused() -> None:
    tied = replace(
        two_matmuls(),
        operators=(
            operator("m1", MatMul(), "x w1", "h", "MatMul"),
            operator("m2", MatMul(transpose_b=True), "h w1", "y", "MatMul"),
        ),
    )
    tied = replace(tied, tensors=tuple(t for t in tied.tensors if t.name not in ("r", "w2")))
    same = cut(tied, 8, {"m1": ((8, 1), (1, 1)), "m2": ((8, 1), (1, 1))})
    assert len(strategy_file(same).operators) == 1
    apart = cut(tied, 8, {"m1": ((8, 1), (1, 1)), "m2": ((4, 2), (1, 2))})
    with pytest.raises(SpecError, match="two operators MatMul_w1 are cut differently"):
        strategy_file(apart)


def test_the_table_lists_the_part_of_every_device() -> None:
    found = cut(two_matmuls(), 8, {"m1": ((2, 1), (1, 4)), "m2": ((2, 4), (4, 1))})
    devices = [Device(node_id=rank // 4, item_id=rank % 4) for rank in range(8)]
    listed = json.loads(json.dumps(table(found, devices)))
    assert listed["operators"]["m1"] == {"inputs": [[2, 1], [1, 4]], "outputs": [[2, 4]]}
    # Rank 6 = 1 * 4 + 2: the second half of the rows, the third quarter of the inner axis.
    sixth = listed["devices"][6]
    assert (sixth["rank"], sixth["node_id"], sixth["item_id"]) == (6, 1, 2)
    assert sixth["slices"] == {
        "x": [[64, 128], [0, 64]],
        "w1": [[0, 64], [128, 192]],
        "w2": [[128, 192], [0, 64]],
    }


def test_the_parts_of_a_tensor_make_it_up() -> None:
    found = cut(two_matmuls(), 8, {"m1": ((2, 1), (1, 2)), "m2": ((2, 2), (2, 1))})
    shapes = {tensor.name: tensor.shape for tensor in found.problem.graph.tensors}
    for name in ("x", "w1", "w2"):
        parts = [tuple(map(tuple, each["slices"][name])) for each in table(found)["devices"]]
        held = [
            (row, column)
            for (r0, r1), (c0, c1) in set(parts)
            for row in range(r0, r1)
            for column in range(c0, c1)
        ]
        rows, columns = shapes[name]
        assert sorted(held) == [(row, column) for row in range(rows) for column in range(columns)]
        assert len({parts.count(part) for part in parts}) == 1
