"""`autopar shard` on graph files, from the file to the strategies."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from autopar import protobuf, wire
from autopar.frontends.mindspore_strategy import read
from autopar.graph import Graph, Opaque, Operator, Tensor
from conftest import Command

GRAPHS = Path(__file__).parent / "data/graphs"


@pytest.mark.parametrize(
    ("name", "shape", "products"),
    [
        # The head reads the embedding turned over, by an operator of its own.
        ("gpt2-medium.onnx", "ids:8,512", 24 * 4),
        ("resnet50.onnx", "image:64,3,224,224", 1),
        ("images.pb", "image:8,64,64,3", 1),
    ],
)
def test_a_file_is_cut_end_to_end(
    command: Command, tmp_path: Path, name: str, shape: str, products: int
) -> None:
    run = command(
        "shard", GRAPHS / name, "--chip", "ascend_910b", "--devices", "8", "--method", "dp",
        "--input-shape", shape, "--save-mindspore", "net.strategy.json", "--format", "json",
    )  # fmt: skip
    assert run.code == 0, run.err
    found = json.loads(run.out)
    assert found["proof"]["exact"]
    assert found["problem"]["graph"]["gradients"] == "implied"
    file = read(tmp_path / "net.strategy.json")
    assert sum("MatMul_" in each.name for each in file.operators) == products
    tensors = found["problem"]["graph"]["tensors"]
    parameters = {tensor["name"] for tensor in tensors if tensor["role"] == "parameter"}
    assert {layout.name for layout in file.layouts} == parameters


def test_inference_has_no_gradients(command: Command) -> None:
    run = command(
        "shard", GRAPHS / "encoder-opset14.onnx", "--chip", "a800", "--devices", "4",
        "--method", "dp", "--inference", "--format", "json",
    )  # fmt: skip
    found = json.loads(run.out)
    assert found["problem"]["graph"]["gradients"] == "none"
    assert found["cost"]["gradient_ps"] == found["cost"]["optimizer_ps"] == 0


@pytest.mark.parametrize("name", ["net.json", "net.ckpt"])
def test_an_answer_in_mindspores_form_sets_the_next(command: Command, name: str) -> None:
    asked = (
        "shard", GRAPHS / "encoder-opset14.onnx", "--chip", "a800", "--devices", "4",
        "--method", "dp", "--format", "json",
    )  # fmt: skip
    first = command(*asked, "--save-mindspore", name)
    again = command(*asked, "--strategies", name)
    assert again.code == 0, again.err
    assert json.loads(again.out)["cost"] == json.loads(first.out)["cost"]
    assert json.loads(again.out)["problem"]["options"]["strategies"]


WRONG = {
    "a shape for a model": (
        ("llama2-7b", "--input-shape", "ids:1,2"),
        "--input-shape: given for a model. Give --batch",
    ),
    "an open dimension": ((str(GRAPHS / "gpt2-medium.onnx"),), 'dimension 0 "batch" of this input'),
    "a strategy for an operator that is not there": (
        (
            str(GRAPHS / "encoder-opset14.onnx"),
            "--strategies",
            str(GRAPHS.parent / "mindspore/two_matmuls.json"),
        ),
        'two_matmuls.json: parallel_strategy_item: the graph has no operator "MatMul_w1"',
    ),
    "a file that is not there": (("none.onnx",), "none.onnx: no such file"),
}


@pytest.mark.parametrize(("arguments", "what"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused_in_one_line(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    run = command(
        "shard", *arguments, "--chip", "a800", "--devices", "4", "--save-mindspore", "out.json"
    )
    assert run.code == 2
    assert run.err.count("\n") == 1
    assert what in run.err
    assert list(tmp_path.iterdir()) == []


def test_a_strategy_that_cannot_be_set_is_named_in_its_file(
    command: Command, tmp_path: Path
) -> None:
    fixed = {"operator": "nope", "inputs": [[1, 1]]}
    text = json.dumps({"schema": "autopar.strategies/1", "strategies": [fixed]})
    (tmp_path / "fixed.json").write_text(text, encoding="utf-8")
    graph = str(GRAPHS / "encoder-opset14.onnx")
    run = command("shard", graph, "--chip", "a100", "--devices", "4", "--strategies", "fixed.json")
    assert run.code == 2
    assert run.err.startswith(
        'error: fixed.json: strategies[0].operator: there is no operator "nope"'
    )


ROWS = (64, 128)


def onnx_file(folder: Path) -> Path:
    """Returns a file with one operator that ONNX does not define."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ROWS) for name in "xy")
    odd = helper.make_node("Mystery", ["x"], ["y"], "odd", domain="com.acme")
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    model = helper.make_model(helper.make_graph([odd], "net", [x], [y]), opset_imports=versions)
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def graphdef_file(folder: Path) -> Path:
    """Returns a frozen graph with one operator that TensorFlow does not have."""
    shape = b"".join(protobuf.chunk(2, protobuf.integer(1, size)) for size in ROWS)

    def attribute(key: bytes, value: bytes) -> bytes:
        return protobuf.chunk(5, protobuf.chunk(1, key) + protobuf.chunk(2, value))

    x = protobuf.chunk(1, b"x") + protobuf.chunk(2, b"Placeholder")
    x += attribute(b"dtype", protobuf.integer(6, 1))
    x += attribute(b"shape", protobuf.chunk(7, shape))
    odd = protobuf.chunk(1, b"odd") + protobuf.chunk(2, b"Mystery") + protobuf.chunk(3, b"x")
    odd += attribute(b"_output_shapes", protobuf.chunk(1, protobuf.chunk(7, shape)))
    path = folder / "net.pb"
    path.write_bytes(protobuf.chunk(1, x) + protobuf.chunk(1, odd))
    return path


def document(folder: Path) -> Path:
    """Returns a graph document with one operator that is opaque."""
    tensors = (Tensor("x", ROWS, role="input"), Tensor("y", ROWS))
    odd = Operator(name="odd", source="Mystery", form=Opaque(), inputs=("x",), outputs=("y",))
    path = folder / "net.json"
    path.write_text(wire.dumps(Graph(name="net", tensors=tensors, operators=(odd,))), "utf-8")
    return path


@pytest.mark.parametrize("write", [onnx_file, graphdef_file, document])
@pytest.mark.parametrize("method", ["dp", "ilp"])
def test_the_report_names_an_unknown_operator_and_cuts_its_leading_axis_alone(
    command: Command, tmp_path: Path, write: Callable[[Path], Path], method: str
) -> None:
    asked = ["shard", write(tmp_path), "--chip", "a800", "--devices", "4", "--method", method]
    said = "operators of unknown kind, replicated or cut along the leading axis alone: odd"
    run = command(*asked, "--use-all-devices")
    assert run.code == 0, run.err
    assert f"Note: {said}" in run.out
    run = command(*asked, "--use-all-devices", "--format", "json")
    found = json.loads(run.out)
    assert said in found["notes"]
    assert found["operators"][0]["inputs"] == found["operators"][0]["outputs"] == [[4, 1]]
