"""Frozen TensorFlow graphs: against TensorFlow's own shapes, operator by operator, and refused."""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autopar import SpecError, graph, planner, protobuf
from autopar.frontends.draft import Reading
from autopar.frontends.graphdef import read

GRAPHS = Path(__file__).parent / "data/graphs"


def kinds(reading: Reading) -> Counter[str]:
    return Counter(operator.form.kind for operator in reading.graph.operators)


def known_shapes(path: Path) -> dict[str, list[int]]:
    """Returns the shapes that TensorFlow itself wrote into a file; -1 is the open batch."""
    found = {}
    for node in protobuf.read(path.read_bytes(), "").messages(1, "node"):
        for entry in node.messages(5, "attr"):
            if entry.text(1, "key") == "_output_shapes" and node.text(2, "op") != "Const":
                value = next(entry.messages(2, "value"))
                shapes = next(value.messages(1, "list")).messages(7, "shape")
                for place, shape in enumerate(shapes):
                    name = node.text(1, "name") + (f":{place}" if place else "")
                    found[name] = [dim.integer(1, "size", 0) for dim in shape.messages(2, "dim")]
    return found


@pytest.mark.parametrize(
    ("name", "shape", "compared"),
    [("bert-2-layers", {"ids": (4, 32)}, 100), ("images", {"image": (8, 64, 64, 3)}, 25)],
)
def test_shapes_are_those_of_tensorflow(
    name: str, shape: dict[str, tuple[int, ...]], compared: int
) -> None:
    path = GRAPHS / f"{name}.pb"
    reading = read(path, shape)
    assert reading.notes == ()
    planner.check_graph(reading.graph)
    known = known_shapes(path)
    count = 0
    for tensor in reading.graph.tensors:
        if tensor.name in known:
            wanted = known[tensor.name]
            channels_first = [wanted[axis] for axis in (0, 3, 1, 2)] if len(wanted) == 4 else []
            assert any(
                len(order) == len(tensor.shape)
                and all(a in (-1, b) for a, b in zip(order, tensor.shape, strict=True))
                for order in (wanted, channels_first)
            ), (tensor, wanted)
            count += 1
    assert count > compared


def test_a_transformer_has_its_operators() -> None:
    # Two layers of 4 projections, 2 products of attention, 2 of the feed-forward; and the head.
    found = kinds(read(GRAPHS / "bert-2-layers.pb", {"ids": (4, 32)}))
    assert found["matmul"] == 2 * 8 + 1
    assert found["softmax"] == 2
    assert found["gather"] == 1
    # Two norms a layer, of a mean and a variance each.
    assert found["reduce"] == 2 * 2 * 2


def test_images_are_turned_once() -> None:
    reading = read(GRAPHS / "images.pb", {"image": (8, 64, 64, 3)})
    found = kinds(reading)
    assert found["convolution"] == 6
    assert found["batch_norm"] == 3
    assert found["transpose"] == 1
    shapes = {tensor.name: tensor for tensor in reading.graph.tensors}
    filters = [
        shapes[operator.inputs[1]].shape
        for operator in reading.graph.operators
        if operator.form.kind == "convolution"
    ]
    # Out, in of a group, height, width; one is depthwise: 32 groups of two.
    assert sorted(filters) == [
        (16, 3, 7, 7), (16, 16, 3, 3), (32, 16, 1, 1), (32, 16, 3, 3), (32, 64, 1, 1),
        (64, 1, 3, 3),
    ]  # fmt: skip
    statistics = [tensor for tensor in reading.graph.tensors if tensor.role == "constant"]
    assert sorted(tensor.shape for tensor in statistics) == [(16,), (16,), (32,), (32,)]


# --- Graphs written here, field by field

Attribute = bytes
FLOAT, INT32, INT64 = 1, 3, 9


def kind(value: int) -> Attribute:
    return protobuf.integer(6, value)


def number(value: int) -> Attribute:
    return protobuf.integer(3, value)


def numbers(*values: int) -> Attribute:
    return protobuf.chunk(1, protobuf.integers(3, values))


def truth(value: bool) -> Attribute:
    return protobuf.integer(5, value)


def text(value: str) -> Attribute:
    return protobuf.chunk(2, value.encode())


def dims(shape: Sequence[int]) -> bytes:
    return b"".join(protobuf.chunk(2, protobuf.integer(1, size)) for size in shape)


def shapes(*listed: Sequence[int]) -> Attribute:
    return protobuf.chunk(1, b"".join(protobuf.chunk(7, dims(shape)) for shape in listed))


def node(op: str, inputs: str = "", name: str = "op", **attributes: Attribute) -> bytes:
    parts = [protobuf.chunk(1, name.encode()), protobuf.chunk(2, op.encode())]
    parts += [protobuf.chunk(3, tensor.encode()) for tensor in inputs.split()]
    for key, value in attributes.items():
        entry = protobuf.chunk(1, key.encode()) + protobuf.chunk(2, value)
        parts.append(protobuf.chunk(5, entry))
    return protobuf.chunk(1, b"".join(parts))


def placeholder(name: str, shape: Sequence[int] | None, dtype: int = FLOAT) -> bytes:
    if shape is None:
        return node("Placeholder", name=name, dtype=kind(dtype))
    return node("Placeholder", name=name, dtype=kind(dtype), shape=protobuf.chunk(7, dims(shape)))


def constant(name: str, values: Sequence[int], shape: Sequence[int] | None = None) -> bytes:
    """Returns a constant of 32-bit integers, spelled as bytes."""
    shape = [len(values)] if shape is None else shape
    tensor = protobuf.integer(1, INT32) + protobuf.chunk(2, dims(shape))
    tensor += protobuf.chunk(4, struct.pack(f"<{len(values)}i", *values))
    return node("Const", name=name, dtype=kind(INT32), value=protobuf.chunk(8, tensor))


def weight(name: str, shape: Sequence[int]) -> bytes:
    tensor = protobuf.integer(1, FLOAT) + protobuf.chunk(2, dims(shape))
    return node("Const", name=name, dtype=kind(FLOAT), value=protobuf.chunk(8, tensor))


def stored(folder: Path, *nodes: bytes) -> Path:
    path = folder / "net.pb"
    path.write_bytes(b"".join(nodes))
    return path


X = placeholder("x", [4, 6, 8])
SINGLE: dict[str, tuple[tuple[bytes, ...], Any, tuple[int, ...]]] = {
    "a product with turned factors": (
        (placeholder("x", [8, 4]), weight("w", [5, 8]),
         node("MatMul", "x w", transpose_a=truth(True), transpose_b=truth(True))),
        graph.MatMul(transpose_a=True, transpose_b=True), (4, 5),
    ),
    "a batch product": (
        (X, placeholder("z", [4, 5, 8]), node("BatchMatMulV2", "x z", adj_y=truth(True))),
        graph.MatMul(transpose_b=True), (4, 6, 5),
    ),
    "softmax": ((X, node("Softmax", "x")), graph.Softmax(axes=(2,)), (4, 6, 8)),
    "a lookup": (
        (weight("w", [9, 8]), placeholder("x", [4, 6], INT32), constant("a", [0], []),
         node("GatherV2", "w x a")),
        graph.Gather(), (4, 6, 8),
    ),
    "a sum": (
        (X, constant("a", [-1]), node("Sum", "x a", keep_dims=truth(True))),
        graph.Reduce(axes=(2,)), (4, 6, 1),
    ),
    "a place": (
        (X, constant("a", [1], []), node("ArgMax", "x a")),
        graph.Reduce(axes=(1,), places=True), (4, 8),
    ),
    "a shape that infers": (
        (X, constant("s", [-1, 16]), node("Reshape", "x s")), graph.Reshape(), (12, 16)
    ),
    "one axis more": ((X, constant("a", [-1], []), node("ExpandDims", "x a")),
                      graph.Reshape(), (4, 6, 8, 1)),
    "one axis less": (
        (placeholder("x", [4, 1, 8]), node("Squeeze", "x", squeeze_dims=numbers(1))),
        graph.Reshape(), (4, 8),
    ),
    "turned axes": ((X, constant("p", [2, 0, 1]), node("Transpose", "x p")),
                    graph.Transpose(permutation=(2, 0, 1)), (8, 4, 6)),
    "side by side": (
        (X, placeholder("z", [4, 1, 8]), constant("a", [1], []), node("ConcatV2", "x z a")),
        graph.Concat(axis=1), (4, 7, 8),
    ),
    "apart in parts of their own size": (
        (X, constant("s", [2, -1]), constant("a", [1], []),
         node("SplitV", "x s a", num_split=number(2))),
        graph.Split(axis=1), (4, 2, 8),
    ),
    "a part": ((X, constant("b", [0, 1, 0]), constant("s", [-1, 2, 8]), node("Slice", "x b s")),
               graph.Slice(axes=(1,)), (4, 2, 8)),
    "a part in steps, backwards": (
        (X, constant("b", [0, 5]), constant("e", [4, 0]), constant("s", [1, -2]),
         node("StridedSlice", "x b e s")),
        graph.Slice(axes=(1,)), (4, 3, 8),
    ),
    "margins": ((X, constant("p", [0, 0, 1, 2, 0, 0], [3, 2]), node("Pad", "x p")),
                graph.Slice(axes=(1,)), (4, 9, 8)),
    "a running sum": ((X, constant("a", [2], []), node("Cumsum", "x a")),
                      graph.Slice(axes=(2,)), (4, 6, 8)),
    "one hot": (
        (placeholder("x", [4, 6], INT64), constant("d", [10], []), constant("on", [1], []),
         constant("off", [0], []), node("OneHot", "x d on off", axis=number(-1))),
        graph.OneHot(axis=2), (4, 6, 10),
    ),
    "the largest": ((X, constant("k", [3], []), node("TopKV2", "x k")),
                    graph.TopK(axis=2), (4, 6, 3)),
    "a loss": (
        (placeholder("x", [6, 8]), placeholder("t", [6], INT32),
         node("SparseSoftmaxCrossEntropyWithLogits", "x t")),
        graph.CrossEntropy(), (6,),
    ),
    "a comparison": ((X, placeholder("z", [6, 1]), node("Greater", "x z")),
                     graph.Elementwise(), (4, 6, 8)),
    "an unknown operator that says its shape": (
        (X, node("Mystery", "x", _output_shapes=shapes([4, 3]))), graph.Opaque(), (4, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "form", "shape"), SINGLE.values(), ids=SINGLE)
def test_an_operator_has_its_form_and_shape(
    tmp_path: Path, nodes: tuple[bytes, ...], form: Any, shape: tuple[int, ...]
) -> None:
    reading = read(stored(tmp_path, *nodes))
    planner.check_graph(reading.graph)
    assert [operator.form for operator in reading.graph.operators] == [form]
    written = {tensor.name: tensor.shape for tensor in reading.graph.tensors}
    assert written[reading.graph.operators[0].outputs[0]] == shape
    assert bool(reading.notes) == isinstance(form, graph.Opaque)


def test_values_that_are_spelled_once_stand_for_all(tmp_path: Path) -> None:
    # int_val (field 7) holds 3 once for two places: a shape of [3, 3]; none at all are zeros.
    tensor = protobuf.integer(1, INT32) + protobuf.chunk(2, dims([2])) + protobuf.integer(7, 3)
    shape = node("Const", name="s", dtype=kind(INT32), value=protobuf.chunk(8, tensor))
    path = stored(tmp_path, placeholder("x", [9]), shape, node("Reshape", "x s"))
    assert read(path).graph.tensors[-1].shape == (3, 3)


def test_shapes_made_at_run_time_are_computed(tmp_path: Path) -> None:
    path = stored(
        tmp_path, X, node("Shape", "x", "shape"), constant("b", [0]), constant("e", [1]),
        constant("i", [1]),
        node("StridedSlice", "shape b e i", "batch", shrink_axis_mask=number(1)),
        constant("rest", [48], []), node("Pack", "batch rest", "wanted"),
        node("Reshape", "x wanted", "flat"), node("Identity", "flat", "out"),
    )  # fmt: skip
    net = read(path).graph
    assert [operator.name for operator in net.operators] == ["flat"]
    assert {tensor.name: tensor.shape for tensor in net.tensors} == {
        "x": (4, 6, 8),
        "flat": (4, 48),
    }


def test_inputs_that_only_order_are_left_out(tmp_path: Path) -> None:
    path = stored(tmp_path, X, node("NoOp", "^x", "first"), node("Relu", "x ^first"))
    assert [operator.inputs for operator in read(path).graph.operators] == [("x",)]


def refused(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(SpecError) as error:
        read(path, shapes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_open_dimensions_are_named(tmp_path: Path) -> None:
    open_batch = stored(tmp_path, placeholder("x", [-1, 8]), node("Relu", "x"))
    assert "--input_shape x: dimension 0 of this input is unknown" in refused(open_batch)
    assert read(open_batch, {"x": (2, 8)}).graph.tensors[0].shape == (2, 8)
    assert "dimension 1 is 8 in the graph, found 9" in refused(open_batch, {"x": (2, 9)})
    assert 'the graph has no input "z"' in refused(open_batch, {"z": (2, 9)})
    no_shape = stored(tmp_path, placeholder("x", None), node("Relu", "x"))
    assert "--input_shape x: the shape of this input is unknown" in refused(no_shape)
    assert read(no_shape, {"x": (2, 8)}).graph.tensors[0].shape == (2, 8)


WRONG: dict[str, tuple[tuple[bytes, ...], str]] = {
    "a variable": (
        (node("VarHandleOp", name="w"),), '"w" is a variable. Freeze the graph'
    ),
    "an unknown operator": (
        (X, node("Mystery", "x")),
        'the shape of what Mystery "op" writes is unknown. Write the graph with _output_shapes',
    ),
    "inner dimensions": (
        (X, placeholder("z", [4, 9, 5]), node("BatchMatMul", "x z")),
        'the shapes around BatchMatMul "op" do not match: 8 columns and 9 rows',
    ),
    "a broadcast": ((X, placeholder("z", [7]), node("Add", "x z")), 'around Add "op" do not match'),
    "a reshape": (
        (X, constant("s", [5, 5]), node("Reshape", "x s")),
        'around Reshape "op" do not match: [4, 6, 8] and [5, 5]',
    ),
    "an input too few": ((X, node("BatchMatMul", "x")), 'around BatchMatMul "op" do not match'),
    "a missing tensor": ((X, node("Add", "x z")), '"op" reads "z", which nothing writes'),
    "a cycle": (
        (X, node("Add", "x b", "a"), node("Relu", "a", "b")),
        "operators wait for each other in a cycle",
    ),
    "a name twice": ((X, X, node("Relu", "x")), '"x" is written twice'),
    "axes that depend on data": (
        (X, placeholder("a", [1], INT32), node("Sum", "x a")),
        'Sum "op" takes "a", whose values are unknown',
    ),
    "texts": ((placeholder("x", [4], 7), node("Relu", "x")), 'input "x" has a type that autopar'),
    "nothing": ((X,), "no operator computes an output"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "what"), WRONG.values(), ids=WRONG)
def test_a_wrong_graph_is_refused(tmp_path: Path, nodes: tuple[bytes, ...], what: str) -> None:
    assert what in refused(stored(tmp_path, *nodes))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = (GRAPHS / "images.pb").read_bytes()
    path = tmp_path / "part.pb"
    for size in (1, 40, 1000, len(data) - 1):
        path.write_bytes(data[:size])
        refused(path, {"image": (1, 64, 64, 3)})
    path.write_bytes(b"\x00\x01\x02\x03")
    assert "begins a field of number 0" in refused(path)


def test_a_length_of_2_gb_reads_no_2_gb(tmp_path: Path) -> None:
    # Field 1, a node, of 2^31 - 1 bytes, of which none follow.
    path = stored(tmp_path, bytes.fromhex("0affffffff07"))
    assert "truncated: the field at byte 0 has 2147483647 bytes, 0 follow" in refused(path)


def test_a_weight_whose_bytes_are_too_few_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, X, constant("s", [4, 48], [3]), node("Reshape", "x s"))
    assert "8 bytes are no 3 values of int32" in refused(path)
