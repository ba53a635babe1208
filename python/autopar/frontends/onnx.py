"""ONNX files read as graphs. Needs the `onnx` package, the extra `autopar[onnx]`.

Shapes come from ONNX's own inference, once the inputs' are settled. What depends on constants alone
(shapes, axes, positions) is computed here by ONNX's reference, as a compiler would, and is no
operator of the graph. Weights are not needed: a tensor whose data lies in another file is fine.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from autopar import files
from autopar.errors import SpecError, shown
from autopar.frontends.draft import (
    Draft,
    Reading,
    Shape,
    check_names,
    elements,
    in_order,
    settled,
)
from autopar.frontends.onnx_forms import Node, lower
from autopar.graph import Dtype, Gradients

# Constants of more elements are not computed; nothing that shapes depend on is as large.
COMPUTED = 4096
# Protobuf allows no larger message.
LARGEST_BYTES = 2**31

DTYPES: dict[str, Dtype] = {
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "DOUBLE": "float64",
    "FLOAT8E4M3FN": "float8",
    "FLOAT8E5M2": "float8",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT16": "int16",
    "UINT16": "int16",
    "INT32": "int32",
    "UINT32": "int32",
    "INT64": "int64",
    "UINT64": "int64",
    "BOOL": "bool",
}


def read(
    path: str | PathLike[str],
    input_shapes: Mapping[str, Shape] | None = None,
    gradients: Gradients = "none",
) -> Reading:
    """Returns the graph of an ONNX file.

    Args:
        path: The file.
        input_shapes: Shapes of inputs with open dimensions.
        gradients: Whether the graph is trained, its gradients implied.

    Raises:
        SpecError: The `onnx` package is missing, the file is not ONNX, or a dimension is unknown.
    """
    name = files.printable(path)
    onnx = _package(name)
    model = _load(onnx, path, name)
    given = dict(input_shapes or {})
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    check_names(given, [value.name for value in inputs])
    reader = _Reader(onnx, model, name)
    for value in inputs:
        reader.add_input(value, given)
    for tensor in model.graph.initializer:
        reader.add_weight(tensor)
    nodes = list(model.graph.node)
    named = [(node.name or node.op_type, node.input, node.output) for node in nodes]
    for index in in_order(named, reader.types, name):
        reader.add_node(nodes[index], index)
    outputs = [reader.actual(value.name) for value in model.graph.output]
    return Reading.of(reader.draft, outputs, gradients)


class _Reader:
    """The tensors of a file as far as they are known, and the document so far."""

    def __init__(self, onnx: Any, model: Any, path: str) -> None:
        self.onnx = onnx
        self.path = path
        self.draft = Draft(model.graph.name or Path(path).stem)
        # Type of every tensor; value of small constants; the tensor that another name stands for.
        self.types: dict[str, Any] = {}
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self.aliases: dict[str, str] = {}
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.opset_imports = list(model.opset_import)
        self.ir_version = model.ir_version
        self.sizes: dict[str, int] = {}
        self.stated = {value.name: value.type for value in model.graph.value_info}
        self.stated |= {value.name: value.type for value in model.graph.output}
        self.used = {name for node in model.graph.node for name in node.input}
        self.used |= {value.name for value in model.graph.output}
        # Statistics of a batch norm are kept, not trained.
        self.kept = {
            name
            for node in model.graph.node
            if node.op_type == "BatchNormalization"
            for name in node.input[3:]
        }

    def actual(self, name: str) -> str:
        """Returns the tensor that a name stands for."""
        return self.aliases.get(name, name)

    def add_input(self, value: Any, given: Mapping[str, Shape]) -> None:
        """Adds an input with its open dimensions settled."""
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type":
            what = f"input {shown(value.name)} is no tensor"
            raise SpecError(self.path, what, "Export the graph without lists and maps.")
        if not tensor.HasField("shape") and value.name not in given:
            what = "the shape of this input is unknown"
            hint = f"Give it, as --input_shape {value.name}:1,128."
            raise SpecError(f"--input_shape {value.name}", what, hint)
        dims = _dims(value.type)
        shape = settled(value.name, dims, given) if tensor.HasField("shape") else given[value.name]
        for dim, size in zip(dims, shape, strict=False):
            if isinstance(dim, str):
                self.sizes[dim] = size
        self._define(value.name, tensor.elem_type, shape)
        self.draft.add_tensor(value.name, shape, self._dtype(value.name), "input")

    def add_weight(self, tensor: Any) -> None:
        """Adds a parameter, or a constant if it is small or not of floating point."""
        shape = tuple(tensor.dims)
        self._define(tensor.name, tensor.data_type, shape)
        dtype = self._dtype(tensor.name)
        external = tensor.data_location == self.onnx.TensorProto.EXTERNAL
        if not external and elements(shape) <= COMPUTED:
            self.values[tensor.name] = self.onnx.numpy_helper.to_array(tensor)
        trained = "float" in dtype and elements(shape) > 1 and tensor.name not in self.kept
        self.draft.add_tensor(tensor.name, shape, dtype, "parameter" if trained else "constant")

    def add_node(self, node: Any, index: int) -> None:
        """Adds an operator, unless it comes to constants or to a tensor that is there."""
        read = [self.actual(name) for name in node.input]
        if node.op_type == "Identity" and not node.domain:
            self.aliases[node.output[0]] = read[0]
            return
        types = self._inferred(node, read)
        roles = {self.draft.tensors[name].role for name in read if name}
        if node.op_type in ("Shape", "Size") and not node.domain:
            # Their values need no more of the input than its shape.
            self._compute(node, [np.broadcast_to(np.False_, self._shape(read[0]))])
            return
        known = all(name in self.values for name in read if name)
        if known and roles <= {"constant"} and _is_small(types) and not _draws(node):
            self._compute(node, [self.values.get(name) for name in read])
            return
        for name, value in types.items():
            self._define(name, value.tensor_type.elem_type, self._settled(node, name, value))
        if roles <= {"constant"}:
            for name in types:
                self.draft.add_tensor(name, self._shape(name), self._dtype(name), "constant")
            return
        if not self.used.intersection(node.output):
            return
        lower(
            self.draft,
            Node(
                name=node.name or f"{node.op_type}_{index}",
                kind=node.op_type if not node.domain else f"{node.domain}.{node.op_type}",
                inputs=tuple(read),
                outputs=tuple(name if name in self.used else "" for name in node.output),
                shapes={name: self._shape(name) for name in (*read, *types) if name},
                dtypes={name: self._dtype(name) for name in types},
                values={name: self.values[name] for name in read if name in self.values},
                attributes={
                    entry.name: self.onnx.helper.get_attribute_value(entry)
                    for entry in node.attribute
                },
                opset=self.opsets.get(node.domain, 1),
            ),
        )

    def _inferred(self, node: Any, read: list[str]) -> dict[str, Any]:
        """Returns the types of an operator's outputs as far as ONNX can tell."""
        stated = {name: self.stated[name] for name in node.output if name in self.stated}
        copy = type(node)()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(read)
        try:
            schema = self.onnx.defs.get_schema(
                node.op_type, self.opsets.get(node.domain, 1), node.domain
            )
            found = self.onnx.shape_inference.infer_node_outputs(
                schema,
                copy,
                {name: self.types[name] for name in read if name},
                {
                    name: self.onnx.numpy_helper.from_array(self.values[name], name)
                    for name in read
                    if name in self.values
                },
                opset_imports=self.opset_imports,
                ir_version=self.ir_version,
            )
        except self.onnx.defs.SchemaError:
            found = {}
        except self.onnx.shape_inference.InferenceError as error:
            reason = str(error).strip().splitlines()[-1]
            what = f"the shapes around {node.op_type} {shown(node.name)} do not match: {reason}"
            raise SpecError(self.path, what, "Check the graph and --input_shape.") from None
        types = {}
        for name in filter(None, node.output):
            types[name] = found.get(name, stated.get(name))
            if types[name] is None or types[name].WhichOneof("value") != "tensor_type":
                what = f"the type of {shown(name)}, which {node.op_type} writes, is unknown"
                hint = "Export with the types of all values."
                raise SpecError(self.path, what, hint)
            if not _dims(types[name]) and name in stated and _dims(stated[name]):
                types[name] = stated[name]
        return types

    def _settled(self, node: Any, name: str, value: Any) -> Shape:
        """Returns the shape of a type; names of dimensions mean what they mean of the inputs."""
        if not value.tensor_type.HasField("shape"):
            what = f"the shape of {shown(name)}, which {node.op_type} writes, is unknown"
            raise SpecError(self.path, what, "Export with shapes, or give --input_shape.")
        shape = []
        for axis, dim in enumerate(_dims(value)):
            size = self.sizes.get(dim, dim) if isinstance(dim, str) else dim
            if not isinstance(size, int):
                what = f"dimension {axis} of {shown(name)}, which {node.op_type} writes, is unknown"
                hint = "It depends on values; export with a fixed size, or give --input_shape."
                raise SpecError(self.path, what, hint)
            shape.append(size)
        return tuple(shape)

    def _compute(self, node: Any, values: list[Any]) -> None:
        """Runs an operator on constants by ONNX's reference."""
        from onnx.reference import ReferenceEvaluator

        try:
            evaluator = ReferenceEvaluator(node, opsets=self.opsets)
            given = zip(node.input, values, strict=False)
            results = evaluator.run(None, {name: value for name, value in given if name})
        except Exception as error:
            reason = " ".join(str(error).split())[:120]
            what = f"{node.op_type} {shown(node.name)} cannot be computed: {reason}"
            raise SpecError(self.path, what, "Check the graph and --input_shape.") from None
        for name, result in zip(node.output, results, strict=True):
            if name:
                value = np.asarray(result)
                kind = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                self._define(name, kind, value.shape)
                self.values[name] = value
                self.draft.add_tensor(name, value.shape, self._dtype(name), "constant")

    def _define(self, name: str, kind: int, shape: Shape) -> None:
        self.types[name] = self.onnx.helper.make_tensor_type_proto(kind, shape)

    def _shape(self, name: str) -> Shape:
        return tuple(dim.dim_value for dim in self.types[name].tensor_type.shape.dim)

    def _dtype(self, name: str) -> Dtype:
        kind = self.onnx.TensorProto.DataType.Name(self.types[name].tensor_type.elem_type)
        if kind not in DTYPES:
            what = f"{shown(name)} holds {kind}, which autopar does not know"
            raise SpecError(self.path, what, f"Known: {', '.join(DTYPES)}.")
        return DTYPES[kind]


def _dims(value: Any) -> list[int | str | None]:
    """Returns the dimensions of a type: a size, a name, or None."""
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.tensor_type.shape.dim
    ]


def _is_small(types: Mapping[str, Any]) -> bool:
    """Returns whether no output is known to be larger than what is worth computing."""
    return all(
        elements([dim for dim in _dims(value) if isinstance(dim, int)]) <= COMPUTED
        for value in types.values()
    )


def _draws(node: Any) -> bool:
    """Returns whether an operator is random, or holds graphs of its own."""
    random = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike",
              "Bernoulli", "Multinomial")  # fmt: skip
    return node.op_type in random or any(entry.HasField("g") for entry in node.attribute)


def _package(path: str) -> Any:
    try:
        import onnx
    except ImportError:
        hint = "Install it: pip install 'autopar[onnx]'."
        raise SpecError(path, "reading ONNX needs the package onnx", hint) from None
    return onnx


def _load(onnx: Any, path: str | PathLike[str], name: str) -> Any:
    """Returns the model of a file, its local functions inlined."""
    data = files.read_bytes(path, LARGEST_BYTES)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        what = "no ONNX model, or truncated"
        raise SpecError(name, what, "Give a whole file as an exporter wrote it.") from None
    if not model.graph.node:
        raise SpecError(name, "no ONNX model: it has no operators", "Give a file of ONNX.")
    if model.functions:
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return model
