"""The networks of `oracle.py` as graphs of autopar; operators have the oracle's names."""

from typing import Any

from autopar.graph import (
    CrossEntropy,
    Dtype,
    Elementwise,
    Form,
    Gather,
    Graph,
    MatMul,
    Norm,
    Operator,
    Reshape,
    Role,
    Softmax,
    Tensor,
    Transpose,
)

BATCH, TOKENS, HIDDEN, HEADS, VOCABULARY = 16, 128, 256, 8, 1024
ROWS, WIDTH = BATCH * TOKENS, HIDDEN // HEADS


class Network:
    """Tensors and operators, added in order; an operator writes one tensor of its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, name: str, *shape: int, role: Role, dtype: Dtype = "float32") -> None:
        self.tensors.append(Tensor(name, shape, dtype, role))

    def add(self, name: str, source: str, form: Form, inputs: str, *shape: int) -> None:
        self.tensors.append(Tensor(f"{name}.out", shape, "float32"))
        self.operators.append(
            Operator(
                name=name,
                source=source,
                form=form,
                inputs=tuple(inputs.split()),
                outputs=(f"{name}.out",),
            )
        )

    def graph(self, train: bool) -> Graph:
        return Graph(
            name=self.name,
            gradients="implied" if train else "none",
            tensors=tuple(self.tensors),
            operators=tuple(self.operators),
        )


def two_matmuls(rows: int = 128, hidden: int = 64, inner: int = 256, train: bool = False) -> Graph:
    net = Network("two_matmuls")
    net.tensor("x", rows, hidden, role="input")
    net.tensor("w1", hidden, inner, role="parameter")
    net.tensor("w2", inner, hidden, role="parameter")
    net.tensor("b", hidden, role="parameter")
    net.add("matmul1", "MatMul", MatMul(), "x w1", rows, inner)
    net.add("relu", "ReLU", Elementwise(), "matmul1.out", rows, inner)
    net.add("matmul2", "MatMul", MatMul(), "relu.out w2", rows, hidden)
    net.add("add", "Add", Elementwise(), "matmul2.out b", rows, hidden)
    net.add("mul", "Mul", Elementwise(), "add.out", rows, hidden)
    return net.graph(train)


def _attention(net: Network, x: str) -> str:
    """Adds the first half of a transformer layer; returns what it writes."""
    for name in ("gain", "shift"):
        net.tensor(name, HIDDEN, role="parameter")
    for name in ("wq", "wk", "wv", "wo"):
        net.tensor(name, HIDDEN, HIDDEN, role="parameter")
    split, heads = (BATCH, TOKENS, HEADS, WIDTH), (BATCH, HEADS, TOKENS, WIDTH)
    scores = (BATCH, HEADS, TOKENS, TOKENS)
    turned = Transpose(permutation=(0, 2, 1, 3))
    net.add("norm", "LayerNorm", Norm(axes=(1,)), f"{x} gain shift", ROWS, HIDDEN)
    for i, (name, weight) in enumerate((("query", "wq"), ("key", "wk"), ("value", "wv")), 1):
        net.add(name, "MatMul", MatMul(), f"norm.out {weight}", ROWS, HIDDEN)
        net.add(f"reshape{i}", "Reshape", Reshape(), f"{name}.out", *split)
        net.add(f"turn{i}", "Transpose", turned, f"reshape{i}.out", *heads)
    net.add("scores", "BatchMatMul", MatMul(transpose_b=True), "turn1.out turn2.out", *scores)
    net.add("scale", "Mul", Elementwise(), "scores.out", *scores)
    net.add("softmax", "Softmax", Softmax(axes=(3,)), "scale.out", *scores)
    net.add("mixed", "BatchMatMul", MatMul(), "softmax.out turn3.out", *heads)
    net.add("turn4", "Transpose", turned, "mixed.out", *split)
    net.add("reshape4", "Reshape", Reshape(), "turn4.out", ROWS, HIDDEN)
    net.add("out", "MatMul", MatMul(), "reshape4.out wo", ROWS, HIDDEN)
    net.add("add1", "Add", Elementwise(), f"{x} out.out", ROWS, HIDDEN)
    return "add1.out"


def _mlp(net: Network, x: str) -> str:
    """Adds the second half of a transformer layer; returns what it writes."""
    net.tensor("w1", HIDDEN, 4 * HIDDEN, role="parameter")
    net.tensor("bias", 4 * HIDDEN, role="parameter")
    net.tensor("w2", 4 * HIDDEN, HIDDEN, role="parameter")
    net.add("up", "MatMul", MatMul(), f"{x} w1", ROWS, 4 * HIDDEN)
    net.add("add2", "Add", Elementwise(), "up.out bias", ROWS, 4 * HIDDEN)
    net.add("gelu", "GeLU", Elementwise(), "add2.out", ROWS, 4 * HIDDEN)
    net.add("down", "MatMul", MatMul(), "gelu.out w2", ROWS, HIDDEN)
    net.add("add3", "Add", Elementwise(), f"{x} down.out", ROWS, HIDDEN)
    return "add3.out"


def mlp(train: bool = True) -> Graph:
    net = Network("mlp")
    net.tensor("x", ROWS, HIDDEN, role="input")
    _mlp(net, "x")
    return net.graph(train)


def attention(train: bool = True) -> Graph:
    net = Network("attention")
    net.tensor("x", ROWS, HIDDEN, role="input")
    _attention(net, "x")
    return net.graph(train)


def block(train: bool = True) -> Graph:
    net = Network("block")
    net.tensor("ids", BATCH, TOKENS, role="input", dtype="int32")
    net.tensor("labels", ROWS, role="input", dtype="int32")
    net.tensor("embedding", VOCABULARY, HIDDEN, role="parameter")
    net.add("gather", "Gather", Gather(), "embedding ids", BATCH, TOKENS, HIDDEN)
    net.add("reshape0", "Reshape", Reshape(), "gather.out", ROWS, HIDDEN)
    x = _mlp(net, _attention(net, "reshape0.out"))
    net.tensor("head", VOCABULARY, HIDDEN, role="parameter")
    net.add("logits", "MatMul", MatMul(transpose_b=True), f"{x} head", ROWS, VOCABULARY)
    net.add("loss", "CrossEntropy", CrossEntropy(), "logits.out labels", 1)
    return net.graph(train)


def stage(index: int) -> Graph:
    """Returns a pipeline stage of `two_stages` for one of its four micro-batches of 16 rows."""
    net = Network(f"stage{index}")
    net.tensor("x", 16, 64, role="input")
    net.tensor(f"w{index}", 64, 64, role="parameter")
    name = f"matmul{index + 1}"
    net.add(name, "MatMul", MatMul(), f"x w{index}", 16, 64)
    if index == 1:
        net.tensor("labels", 16, 64, role="input")
        net.add("loss", "CrossEntropy", CrossEntropy(), f"{name}.out labels", 16)
    return net.graph(train=True)


# The operator that is set where a search starts from one.
FIXED_FIRST = {"two_matmuls": "matmul1", "mlp": "up", "attention": "query", "block": "up"}


def graph_of(case: dict[str, Any]) -> Graph:
    """Returns the graph that `oracle.py` compiles for a case; of a pipeline the rank's stage."""
    match case["network"]:
        case "two_stages":
            return stage(case["rank"] * 2 // case["devices"])
        case "two_matmuls":
            sizes = {key: case[key] for key in ("rows", "hidden", "inner") if key in case}
            return two_matmuls(**sizes, train=case["train"])
        case name:
            return {"mlp": mlp, "attention": attention, "block": block}[name](case["train"])
