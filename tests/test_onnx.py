"""ONNX files as graphs: exported networks, single operators, and what is refused."""

import shutil
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from autopar import SpecError, graph, planner
from autopar.frontends.draft import Reading, input_shapes
from autopar.frontends.onnx import read
from autopar.graph import Graph

GRAPHS = Path(__file__).parent / "data/graphs"


def kinds(reading: Reading) -> Counter[str]:
    return Counter(operator.form.kind for operator in reading.graph.operators)


def shape_of(net: Graph) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in net.tensors}


def stored(
    folder: Path,
    nodes: Sequence[Any],
    inputs: dict[str, list[Any]],
    outputs: Sequence[str],
    constants: dict[str, Any] | None = None,
    opset: int = 18,
    dtypes: dict[str, int] | None = None,
) -> Path:
    """Writes a model; constants are arrays."""
    dtypes = dtypes or {}
    net = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), shape)
            for name, shape in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    model = helper.make_model(
        net, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.x", 1)]
    )
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def test_gpt2_keeps_what_computes_and_loses_what_only_makes_shapes() -> None:
    model = onnx.load(GRAPHS / "gpt2-medium.onnx", load_external_data=False)
    assert len(model.graph.node) > 1000
    reading = read(GRAPHS / "gpt2-medium.onnx", {"ids": (4, 512)})
    assert len(reading.graph.operators) > 1000
    assert reading.notes == ()
    found = kinds(reading)
    # 24 layers: projection, scores, values, output, up, down; and the head.
    assert found["matmul"] == 24 * 6 + 1
    assert found["softmax"] == 24
    assert found["norm"] == 2 * 24 + 1
    assert found["opaque"] == 0
    shapes = shape_of(reading.graph)
    assert shapes["logits"] == (4, 512, 50257)
    scores = [o for o in reading.graph.operators if o.form.kind == "softmax"]
    assert {shapes[o.outputs[0]] for o in scores} == {(4, 16, 512, 512)}
    assert planner.check_graph(reading.graph)[-1].startswith("node_")


def test_resnet50_has_its_53_convolutions() -> None:
    reading = read(GRAPHS / "resnet50.onnx", {"image": (8, 3, 224, 224)})
    # 53 convolutions, 49 activations, 16 residual sums; the classifier is a product and a sum.
    assert kinds(reading) == {
        "convolution": 53, "elementwise": 49 + 16 + 1, "pool": 1, "reduce": 1, "reshape": 1,
        "matmul": 1,
    }  # fmt: skip
    parameters = [t for t in reading.graph.tensors if t.role == "parameter"]
    # torchvision says 25,557,032 parameters; the norms' 2 x 26,560 are folded into 26,560 biases.
    assert sum(int(np.prod(t.shape)) for t in parameters) == 25_557_032 - 26_560
    assert len(planner.check_graph(reading.graph)) == 123


def test_shapes_are_those_that_the_reference_computes() -> None:
    path = GRAPHS / "encoder-opset14.onnx"
    model = onnx.load(path, load_external_data=False)
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = random.standard_normal(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]  # outside training, which the reference draws numbers for
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for name in {out for node in model.graph.node for out in node.output} - {"y"}
        if name
    )
    names = [value.name for value in model.graph.output]
    x = random.standard_normal((2, 16, 256), np.float32)
    values = ReferenceEvaluator(model).run(names, {"x": x})
    found = {name: value.shape for name, value in zip(names, values, strict=True)}
    net = read(path, {"x": (2, 16, 256)}).graph
    compared = {name: shape for name, shape in shape_of(net).items() if name in found}
    assert len(compared) > 100
    assert compared == {name: found[name] for name in compared}


def node(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), name="op", **attributes)


F32, I64 = np.float32, np.int64
X = [4, 6, 8]
SINGLE: dict[str, tuple[Any, dict[str, list[Any]], dict[str, Any], Any]] = {
    "a product with turned factors": (
        node("Gemm", "x w", transA=1, transB=1),
        {"x": [8, 4], "w": [5, 8]}, {}, graph.MatMul(transpose_a=True, transpose_b=True),
    ),
    "a batch product": (node("MatMul", "x w"), {"x": X, "w": [8, 5]}, {}, graph.MatMul()),
    "a product with a vector": (node("MatMul", "x w"), {"x": X, "w": [8]}, {}, graph.Opaque()),
    "a grouped convolution": (
        node("Conv", "x w", group=2, strides=[2, 2], pads=[1, 1, 1, 1]),
        {"x": [1, 4, 8, 8], "w": [6, 2, 3, 3]}, {},
        graph.Convolution(strides=(2, 2), dilations=(1, 1), groups=2),
    ),
    "a pool": (
        node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]), {"x": [1, 4, 8, 8]}, {},
        graph.Pool(window=(2, 2), strides=(2, 2)),
    ),
    "a lookup": (
        node("Gather", "w x", axis=1), {"x": [3], "w": [4, 9]}, {}, graph.Gather(axis=1)
    ),
    "a layer norm": (
        node("LayerNormalization", "x g b", axis=-2),
        {"x": X, "g": [6, 8], "b": [6, 8]}, {}, graph.Norm(axes=(1, 2)),
    ),
    "softmax": (node("Softmax", "x", axis=1), {"x": X}, {}, graph.Softmax(axes=(1,))),
    "a sum over axes given as an input": (
        node("ReduceSum", "x a", keepdims=0), {"x": X}, {"a": np.array([-1], I64)},
        graph.Reduce(axes=(2,)),
    ),
    "a mean over all": (
        node("ReduceMean", "x"), {"x": X}, {}, graph.Reduce(axes=(0, 1, 2))
    ),
    "a place": (
        node("ArgMax", "x", axis=-1), {"x": X}, {}, graph.Reduce(axes=(2,), places=True)
    ),
    "a reversal": (
        node("Slice", "x s e a p"), {"x": X},
        {"s": np.array([-1]), "e": np.array([-100]), "a": np.array([1]), "p": np.array([-1])},
        graph.Slice(axes=(1,)),
    ),
    "a part of one axis": (
        node("Slice", "x s e"), {"x": X},
        {"s": np.array([0, 2]), "e": np.array([99, 5])}, graph.Slice(axes=(1,)),
    ),
    "a margin": (
        node("Pad", "x p"), {"x": X}, {"p": np.array([0, 0, 1, 0, 0, 1])}, graph.Slice(axes=(2,)),
    ),
    "a running sum": (
        node("CumSum", "x a"), {"x": X}, {"a": np.array(1)}, graph.Slice(axes=(1,))
    ),
    "turned axes": (node("Transpose", "x"), {"x": X}, {}, graph.Transpose(permutation=(2, 1, 0))),
    "side by side": (
        node("Concat", "x z", axis=-1), {"x": X, "z": [4, 6, 1]}, {}, graph.Concat(axis=2)
    ),
    "apart": (node("Split", "x", "y z", axis=2, num_outputs=2), {"x": X}, {}, graph.Split(axis=2)),
    "the largest": (
        node("TopK", "x k", "y z", axis=1), {"x": X}, {"k": np.array([2])}, graph.TopK(axis=1)
    ),
    "stretched": (
        node("Expand", "x s"), {"x": [1, 8]}, {"s": np.array([6, 8])}, graph.Elementwise()
    ),
    "a shape that keeps and infers": (
        node("Reshape", "x s"), {"x": X}, {"s": np.array([0, -1])}, graph.Reshape()
    ),
    "a loss": (
        node("SoftmaxCrossEntropyLoss", "x t"), {"x": [6, 8], "t": [6]}, {}, graph.CrossEntropy()
    ),
    "a loss with classes in the middle": (
        node("SoftmaxCrossEntropyLoss", "x t"), {"x": X, "t": [4, 8]}, {}, graph.Opaque()
    ),
    "a batch norm": (
        node("BatchNormalization", "x g b m v"),
        {"x": [2, 4, 8], "g": [4], "b": [4], "m": [4], "v": [4]}, {}, graph.BatchNorm(),
    ),
    "values chosen at places of many axes": (
        node("GatherND", "x i"), {"x": X, "i": [4, 2]}, {}, graph.Opaque()
    ),
}  # fmt: skip
WHOLE = {"i", "t"}


@pytest.mark.parametrize(("op", "inputs", "constants", "form"), SINGLE.values(), ids=SINGLE)
def test_an_operator_has_the_form_and_the_shapes_that_onnx_infers(
    tmp_path: Path, op: Any, inputs: dict[str, list[Any]], constants: dict[str, Any], form: Any
) -> None:
    dtypes = {name: TensorProto.INT64 for name in inputs if name in WHOLE}
    if op.op_type == "Gather":
        dtypes["x"] = TensorProto.INT64
    path = stored(tmp_path, [op], inputs, op.output, constants, dtypes=dtypes)
    reading = read(path)
    planner.check_graph(reading.graph)
    assert [operator.form for operator in reading.graph.operators] == [form]
    assert bool(reading.notes) == isinstance(form, graph.Opaque)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    for value in inferred.graph.output:
        dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        assert shape_of(reading.graph)[value.name] == dims


def test_one_hot_has_its_new_axis(tmp_path: Path) -> None:
    constants = {"d": np.array(10), "v": np.array([0, 1], F32)}
    path = stored(
        tmp_path, [node("OneHot", "x d v", axis=-1)], {"x": [4, 6]}, ["y"], constants,
        dtypes={"x": TensorProto.INT64},
    )  # fmt: skip
    net = read(path).graph
    assert net.operators[0].form == graph.OneHot(axis=2)
    assert shape_of(net)["y"] == (4, 6, 10)
    planner.check_graph(net)


def test_a_softmax_of_old_takes_all_axes_from_its_own_on(tmp_path: Path) -> None:
    path = stored(tmp_path, [node("Softmax", "x")], {"x": X}, ["y"], opset=11)
    assert read(path).graph.operators[0].form == graph.Softmax(axes=(1, 2))


def test_a_lone_number_is_part_of_its_operator(tmp_path: Path) -> None:
    nodes = [node("Mul", "x half", "h"), node("Add", "h bias")]
    constants = {"half": np.array(0.5, F32), "bias": np.ones(8, F32)}
    net = read(stored(tmp_path, nodes, {"x": X}, ["y"], constants)).graph
    assert [operator.inputs for operator in net.operators] == [("x",), ("h", "bias")]
    assert {t.name: t.role for t in net.tensors}["bias"] == "parameter"


def test_gemm_is_a_product_and_a_sum(tmp_path: Path) -> None:
    path = stored(
        tmp_path, [node("Gemm", "x w b")], {"x": [4, 8]}, ["y"],
        {"w": np.ones((8, 5), F32), "b": np.ones(5, F32)},
    )  # fmt: skip
    net = read(path, gradients="implied").graph
    assert [o.form.kind for o in net.operators] == ["matmul", "elementwise"]
    assert net.gradients == "implied"
    assert planner.check_graph(net) == ["op", "op/bias"]


def test_a_mask_that_somebody_reads_makes_dropout_unknown(tmp_path: Path) -> None:
    alone = stored(tmp_path, [node("Dropout", "x", "y m")], {"x": X}, ["y"])
    assert kinds(read(alone)) == {"elementwise": 1}
    both = stored(tmp_path, [node("Dropout", "x", "y m")], {"x": X}, ["y", "m"])
    reading = read(both)
    assert kinds(reading) == {"opaque": 1}
    assert reading.notes == ("1 x Dropout: not known; replicated, or cut along the leading axis",)


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    nodes = [node("Relu", "h"), node("Neg", "x", "h")]
    net = read(stored(tmp_path, nodes, {"x": X}, ["y"])).graph
    assert [operator.source for operator in net.operators] == ["Neg", "Relu"]


def test_identities_are_other_names(tmp_path: Path) -> None:
    nodes = [node("Identity", "x", "same"), node("Relu", "same"), node("Identity", "y", "out")]
    net = read(stored(tmp_path, nodes, {"x": X}, ["out"])).graph
    assert [(operator.inputs, operator.outputs) for operator in net.operators] == [(("x",), ("y",))]


WRONG_SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "none": ({}, '--input_shape ids: dimension 0 "batch" of this input is unknown. Give its shape'),
    "too few": ({"ids": (4,)}, "--input_shape ids: must have 2 dimensions, found 1"),
    "another name": (
        {"input": (1, 2)},
        '--input_shape: the graph has no input "input". Its inputs: ids.',
    ),
}


@pytest.mark.parametrize(("shapes", "what"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_open_dimensions_must_be_settled(shapes: dict[str, tuple[int, ...]], what: str) -> None:
    with pytest.raises(SpecError) as error:
        read(GRAPHS / "gpt2-medium.onnx", shapes)
    assert what in str(error.value)


def test_a_fixed_dimension_stays() -> None:
    with pytest.raises(SpecError, match="dimension 1 is 3 in the graph, found 4"):
        read(GRAPHS / "resnet50.onnx", {"image": (1, 4, 224, 224)})


@pytest.mark.parametrize("text", ["ids", "ids:0,2", "ids:1,x", ":1,2", "ids:1;ids:2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--input_shape: "):
        input_shapes(text)


def test_a_size_that_depends_on_values_is_named(tmp_path: Path) -> None:
    path = stored(tmp_path, [node("NonZero", "x", "h"), node("Neg", "h")], {"x": X}, ["y"])
    with pytest.raises(SpecError) as error:
        read(path)
    assert 'dimension 1 of "h", which NonZero writes, is unknown' in str(error.value)


def test_an_operator_of_another_domain_needs_its_shape(tmp_path: Path) -> None:
    custom = helper.make_node("Magic", ["x"], ["y"], domain="com.x")
    path = stored(tmp_path, [custom], {"x": X}, ["y"])
    with pytest.raises(SpecError, match='the type of "y", which Magic writes, is unknown'):
        read(path)
    model = onnx.load(path)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, X))
    onnx.save(model, path)
    reading = read(path)
    assert kinds(reading) == {"opaque": 1}
    assert reading.notes[0].startswith("1 x com.x.Magic: not known")


def test_wrong_graphs_are_refused(tmp_path: Path) -> None:
    def refused(nodes: list[Any], inputs: dict[str, list[Any]]) -> str:
        with pytest.raises(SpecError) as error:
            read(stored(tmp_path, nodes, inputs, ["y"]))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert '"op" reads "z", which nothing writes' in refused([node("Add", "x z")], {"x": X})
    looped = [node("Neg", "y", "h"), node("Add", "x h")]
    assert "operators wait for each other in a cycle" in refused(looped, {"x": X})
    twice = [node("Neg", "x"), node("Abs", "x")]
    assert '"y" is written twice' in refused(twice, {"x": X})
    mismatch = refused([node("MatMul", "x z")], {"x": [4, 8], "z": [7, 5]})
    assert 'the shapes around MatMul "op" do not match' in mismatch


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = (GRAPHS / "encoder-opset14.onnx").read_bytes()
    path = tmp_path / "part.onnx"
    for size in (1, 7, 100, 5000, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SpecError) as error:
            read(path, {"x": (2, 4, 256)})
        assert "\n" not in str(error.value)
    path.write_bytes(b'{"a": 1}')
    with pytest.raises(SpecError, match="no ONNX model"):
        read(path)


def test_a_length_of_2_gb_reads_no_2_gb(tmp_path: Path) -> None:
    # Field 7, the graph, of 2^31 - 1 bytes, of which none follow.
    path = tmp_path / "huge.onnx"
    path.write_bytes(bytes.fromhex("3affffffff07"))
    with pytest.raises(SpecError, match="no ONNX model, or truncated"):
        read(path)


def test_of_a_file_beyond_2_gb_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 1)
    tracemalloc.start()
    with pytest.raises(SpecError, match="larger than 2048 MiB"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_without_the_package_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    shutil.copy(GRAPHS / "resnet50.onnx", tmp_path / "net.onnx")
    with pytest.raises(SpecError, match=r"pip install 'autopar\[onnx\]'"):
        read(tmp_path / "net.onnx")
