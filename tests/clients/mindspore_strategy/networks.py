"""The networks of `oracle.py` as graphs of autopar; operators have the oracle's names."""

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


def block(train: bool = True) -> Graph:
    net = Network("block")
    net.tensor("ids", BATCH, TOKENS, role="input", dtype="int32")
    net.tensor("labels", ROWS, role="input", dtype="int32")
    net.tensor("embedding", VOCABULARY, HIDDEN, role="parameter")
    for name in ("gain", "shift"):
        net.tensor(name, HIDDEN, role="parameter")
    for name in ("wq", "wk", "wv", "wo"):
        net.tensor(name, HIDDEN, HIDDEN, role="parameter")
    net.tensor("w1", HIDDEN, 4 * HIDDEN, role="parameter")
    net.tensor("bias", 4 * HIDDEN, role="parameter")
    net.tensor("w2", 4 * HIDDEN, HIDDEN, role="parameter")
    net.tensor("head", VOCABULARY, HIDDEN, role="parameter")
    split, heads = (BATCH, TOKENS, HEADS, WIDTH), (BATCH, HEADS, TOKENS, WIDTH)
    turned = Transpose(permutation=(0, 2, 1, 3))
    net.add("gather", "Gather", Gather(), "embedding ids", BATCH, TOKENS, HIDDEN)
    net.add("reshape0", "Reshape", Reshape(), "gather.out", ROWS, HIDDEN)
    net.add("norm", "LayerNorm", Norm(axes=(1,)), "reshape0.out gain shift", ROWS, HIDDEN)
    for i, (name, weight) in enumerate((("query", "wq"), ("key", "wk"), ("value", "wv")), 1):
        net.add(name, "MatMul", MatMul(), f"norm.out {weight}", ROWS, HIDDEN)
        net.add(f"reshape{i}", "Reshape", Reshape(), f"{name}.out", *split)
        net.add(f"turn{i}", "Transpose", turned, f"reshape{i}.out", *heads)
    scores = (BATCH, HEADS, TOKENS, TOKENS)
    net.add("scores", "BatchMatMul", MatMul(transpose_b=True), "turn1.out turn2.out", *scores)
    net.add("scale", "Mul", Elementwise(), "scores.out", *scores)
    net.add("softmax", "Softmax", Softmax(axes=(3,)), "scale.out", *scores)
    net.add("mixed", "BatchMatMul", MatMul(), "softmax.out turn3.out", *heads)
    net.add("turn4", "Transpose", turned, "mixed.out", *split)
    net.add("reshape4", "Reshape", Reshape(), "turn4.out", ROWS, HIDDEN)
    net.add("out", "MatMul", MatMul(), "reshape4.out wo", ROWS, HIDDEN)
    net.add("add1", "Add", Elementwise(), "reshape0.out out.out", ROWS, HIDDEN)
    net.add("up", "MatMul", MatMul(), "add1.out w1", ROWS, 4 * HIDDEN)
    net.add("add2", "Add", Elementwise(), "up.out bias", ROWS, 4 * HIDDEN)
    net.add("gelu", "GeLU", Elementwise(), "add2.out", ROWS, 4 * HIDDEN)
    net.add("down", "MatMul", MatMul(), "gelu.out w2", ROWS, HIDDEN)
    net.add("add3", "Add", Elementwise(), "add1.out down.out", ROWS, HIDDEN)
    net.add("logits", "MatMul", MatMul(transpose_b=True), "add3.out head", ROWS, VOCABULARY)
    net.add("loss", "CrossEntropy", CrossEntropy(), "logits.out labels", 1)
    return net.graph(train)
