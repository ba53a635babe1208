"""A model's graph as a network of MindSpore: Python text, each operator in a cell of its name.

Products and look-ups take tokens as rows, as the exported cuts have them. Rotary positions, which
are no primitive, are an elementwise operator in their place; tokens go to experts and back by
look-ups within their sequence.
"""

import re

from autopar.graph import Graph, Operator, Reduce, Softmax, Split, Transpose

HEAD = """\
import mindspore.common.dtype as dtypes
import numpy as np
from mindspore import Parameter, Tensor, lazy_inline, nn, ops
from mindspore.ops.operations.nn_ops import FlashAttentionScore


def weight(name, *shape):
    return Parameter(Tensor(np.ones(shape), dtypes.float32), name=name)

"""
# A cell for operators of so many inputs; its name then stands in the operator's.
NAMED = """
class {name}(nn.Cell):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def construct(self, {letters}):
        return self.operator({letters}){result}

"""
LOSS = """\
        rows = ops.reshape({logits}, (-1, {width}))
        labels = self.one_hot(ops.reshape(labels, (-1,)), {width}, self.on, self.off)
        return self.mean(self.loss(rows, labels)[0])
"""
# Primitive, and which of its results is meant.
PRIMITIVES = {
    "RmsNorm": ("ops.RmsNorm()", "[0]"),
    "LayerNorm": ("ops.LayerNorm(-1, -1)", "[0]"),
    "Rope": ("ops.ReLU()", ""),
    "Add": ("ops.Add()", ""),
    "BiasAdd": ("ops.Add()", ""),
    "Mul": ("ops.Mul()", ""),
    "Silu": ("ops.auto_generate.SiLU()", ""),
    "Gelu": ("ops.GeLU()", ""),
}


def variable(name: str) -> str:
    """Returns a name of Python for one of the graph."""
    return re.sub(r"\W", "_", name)


def cell(inputs: int, result: str) -> str:
    """Returns the name of the class of an operator's cell."""
    return f"Named{inputs}{result.replace('[', '_').strip(']')}"


class Writer:
    """The lines of a network, operator by operator."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = {tensor.name: tensor for tensor in graph.tensors}
        self.made: list[str] = []
        self.run: list[str] = []
        self.cells: dict[tuple[int, str], None] = {}

    def value(self, name: str) -> str:
        own = self.tensors[name].role == "parameter"
        return f"self.{variable(name)}" if own else variable(name)

    def add(self, operator: Operator) -> None:
        inputs = [self.value(name) for name in operator.inputs]
        shape = self.tensors[operator.outputs[0]].shape
        result = ""
        match operator.source, operator.form:
            case "MatMul", form:
                width = self.tensors[operator.inputs[0]].shape[-1]
                primitive = f"ops.MatMul({form.transpose_a}, {form.transpose_b})"
                inputs[0] = f"ops.reshape({inputs[0]}, (-1, {width}))"
            case "Gather", _:
                primitive = "ops.Gather()"
                inputs = [inputs[0], f"ops.reshape({inputs[1]}, (-1,))", "0"]
            case "BatchMatMul", form:
                primitive = f"ops.BatchMatMul({form.transpose_a}, {form.transpose_b})"
            case "Dispatch" | "Combine", _:
                # Which places of a sequence, in place of which expert: a look-up alike.
                primitive = "ops.Gather(1)"
                width = self.tensors[operator.inputs[0]].shape[-1]
                rows = f"ops.reshape({inputs[0]}, ({shape[0]}, -1, {width}))"
                inputs = [rows, f"ops.reshape({inputs[1]}, ({shape[0]}, -1))", "1"]
            case "Softmax", Softmax(axes=axes):
                primitive = f"ops.Softmax({axes[0]})"
            case "TopK", _:
                primitive, inputs = "ops.TopK()", [*inputs, str(shape[-1])]
            case "ReduceSum", Reduce(axes=axes):
                primitive, inputs = "ops.ReduceSum()", [*inputs, str(axes)]
            case "Reshape", _:
                primitive, inputs = "ops.Reshape()", [*inputs, str(shape)]
            case _, Transpose(permutation=permutation):
                primitive, inputs = "ops.Transpose()", [*inputs, str(permutation)]
            case _, Split(axis=axis):
                primitive = self.split(operator, axis)
            case "FlashAttention", _:
                heads = self.tensors[operator.inputs[0]].shape[1]
                primitive = f"FlashAttentionScore({heads}, input_layout='BNSD')"
                inputs, result = inputs + ["None"] * 7, "[3]"
            case source, _:
                primitive, result = PRIMITIVES[source]
        name = variable(operator.name)
        self.cells[len(inputs), result] = None
        self.made.append(f"self.{name} = {cell(len(inputs), result)}({primitive})")
        call = f"self.{name}({', '.join(inputs)})"
        if operator.source in ("MatMul", "Gather", "Dispatch", "Combine"):
            call = f"ops.reshape({call}, {shape})"
        self.run.append(f"{', '.join(map(variable, operator.outputs))} = {call}")

    def split(self, operator: Operator, axis: int) -> str:
        parts = [self.tensors[name].shape[axis] for name in operator.outputs]
        if len(set(parts)) == 1:
            return f"ops.Split({axis}, {len(parts)})"
        return f"ops.operations.array_ops.SplitV({parts}, {axis}, {len(parts)})"

    def text(self, width: int, logits: str, chunks: int) -> str:
        """Returns the module."""
        weights = [
            f"self.{variable(name)} = weight({name!r}, *{tensor.shape})"
            for name, tensor in self.tensors.items()
            if tensor.role == "parameter"
        ]
        loss = [
            "self.one_hot, self.mean = ops.OneHot(), ops.ReduceMean()",
            "self.on, self.off = Tensor(1.0, dtypes.float32), Tensor(0.0, dtypes.float32)",
            "self.loss = ops.SoftmaxCrossEntropyWithLogits()",
        ]
        cells = "".join(
            NAMED.format(
                name=cell(count, result),
                letters=", ".join("abcdefghij"[:count]),
                result=result,
            )
            for count, result in self.cells
        )
        made = "".join(f"        {line}\n" for line in [*weights, *self.made, *loss])
        run = "".join(f"        {line}\n" for line in self.run)
        # An interleaved pipeline is compiled of networks that stay calls until it is split.
        lazy = "    @lazy_inline\n" if chunks > 1 else ""
        return (
            f"{HEAD}{cells}\nclass Network(nn.Cell):\n{lazy}    def __init__(self):\n"
            f"        super().__init__()\n{made}\n    def construct(self, tokens, labels):\n{run}"
            f"{LOSS.format(logits=variable(logits), width=width)}"
        )


def module(graph: Graph, chunks: int) -> tuple[str, dict[str, str]]:
    """Returns the text of a network whose stages hold so many chunks each, and the operators by the
    names of their cells."""
    writer = Writer(graph)
    *operators, loss = graph.operators
    for operator in operators:
        writer.add(operator)
    logits = loss.inputs[0]
    text = writer.text(writer.tensors[logits].shape[-1], logits, chunks)
    return text, {variable(operator.name): operator.name for operator in operators}
