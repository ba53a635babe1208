"""Compiles small networks with the real MindSpore, in its own environment; `check.py` starts it.

Standard input: one case a line, as JSON: `network` and its sizes, `devices`, `mode` (semi or the
name of a search), `train`, `rank`, `stages`, `cuts` (operator -> counts for `Primitive.shard`), and
the files to `load`, `save` and `groups`. Standard output: one JSON object a line, with `strategies`
(operator -> counts, as the compiler reports them) or `raises`.
"""

import json
import sys
from typing import Any

import wheel  # isort: skip
import mindspore
import mindspore.common.dtype as dtypes
import numpy as np
from mindspore import Parameter, Tensor, context, nn, ops
from mindspore._c_expression import AutoParallelContext
from mindspore.graph.api import _cell_graph_executor
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

wheel.pretend("GPU")


def weight(name: str, *shape: int) -> Parameter:
    return Parameter(Tensor(np.ones(shape), dtypes.float32), name=name)


class Named(nn.Cell):
    """An operator of two inputs in a cell of its own, whose name then stands in the operator's."""

    def __init__(self, operator: ops.Primitive) -> None:
        super().__init__()
        self.operator = operator

    def construct(self, a: Any, b: Any) -> Any:
        return self.operator(a, b)

    def shard(self, cuts: tuple[tuple[int, ...], ...]) -> None:
        self.operator.shard(cuts)


class Network(nn.Cell):
    """A cell whose operators are named where it has several of a kind.

    The compiler would tell them apart by numbers, which each search gives in an order of its own.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        several = (ops.Add, ops.BatchMatMul, ops.MatMul, ops.Transpose)
        super().__setattr__(name, Named(value) if isinstance(value, several) else value)


class TwoMatmuls(Network):
    """`MatMul(ReLU(MatMul(x, w1)), w2) + b`, times two."""

    def __init__(self, hidden: int = 64, inner: int = 256, **_: Any) -> None:
        super().__init__()
        self.w1, self.w2 = weight("w1", hidden, inner), weight("w2", inner, hidden)
        self.b = weight("b", hidden)
        self.matmul1, self.matmul2 = ops.MatMul(), ops.MatMul()
        self.relu, self.add, self.mul = ops.ReLU(), ops.Add(), ops.Mul()

    def construct(self, x: Any) -> Any:
        x = self.matmul2(self.relu(self.matmul1(x, self.w1)), self.w2)
        return self.mul(self.add(x, self.b), 2.0)


class Mlp(Network):
    """The second half of a transformer layer, on rows of tokens."""

    def __init__(self, hidden: int = 256, **_: Any) -> None:
        super().__init__()
        self.w1, self.w2 = weight("w1", hidden, 4 * hidden), weight("w2", 4 * hidden, hidden)
        self.bias = weight("bias", 4 * hidden)
        self.up, self.down, self.gelu = ops.MatMul(), ops.MatMul(), ops.GeLU()
        self.add2, self.add3 = ops.Add(), ops.Add()

    def construct(self, x: Any) -> Any:
        f = self.gelu(self.add2(self.up(x, self.w1), self.bias))
        return self.add3(x, self.down(f, self.w2))


class Attention(Network):
    """The first half of a transformer layer, on rows of tokens."""

    def __init__(self, batch: int = 16, tokens: int = 128, hidden: int = 256, heads: int = 8,
                 **_: Any) -> None:  # fmt: skip
        super().__init__()
        self.split, self.joined = (batch, tokens, heads, hidden // heads), (batch * tokens, hidden)
        self.gain, self.shift = weight("gain", hidden), weight("shift", hidden)
        self.wq, self.wk = weight("wq", hidden, hidden), weight("wk", hidden, hidden)
        self.wv, self.wo = weight("wv", hidden, hidden), weight("wo", hidden, hidden)
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1)
        self.query, self.key, self.value, self.out = (ops.MatMul() for _ in range(4))
        self.scores, self.mixed = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.softmax, self.add1 = ops.Mul(), ops.Softmax(-1), ops.Add()
        self.reshape1, self.reshape2 = ops.Reshape(), ops.Reshape()
        self.reshape3, self.reshape4 = ops.Reshape(), ops.Reshape()
        self.turn1, self.turn2, self.turn3, self.turn4 = (ops.Transpose() for _ in range(4))

    def construct(self, x: Any) -> Any:
        h, _, _ = self.norm(x, self.gain, self.shift)
        q = self.turn1(self.reshape1(self.query(h, self.wq), self.split), (0, 2, 1, 3))
        k = self.turn2(self.reshape2(self.key(h, self.wk), self.split), (0, 2, 1, 3))
        v = self.turn3(self.reshape3(self.value(h, self.wv), self.split), (0, 2, 1, 3))
        a = self.mixed(self.softmax(self.scale(self.scores(q, k), 0.125)), v)
        a = self.reshape4(self.turn4(a, (0, 2, 1, 3)), self.joined)
        return self.add1(x, self.out(a, self.wo))


class Block(Network):
    """A transformer block between an embedding and a loss."""

    def __init__(self, batch: int = 16, tokens: int = 128, hidden: int = 256, heads: int = 8,
                 vocabulary: int = 1024, **_: Any) -> None:  # fmt: skip
        super().__init__()
        self.rows, self.vocabulary = batch * tokens, vocabulary
        self.split, self.joined = (batch, tokens, heads, hidden // heads), (batch * tokens, hidden)
        self.embedding = weight("embedding", vocabulary, hidden)
        self.gain, self.shift = weight("gain", hidden), weight("shift", hidden)
        self.wq, self.wk = weight("wq", hidden, hidden), weight("wk", hidden, hidden)
        self.wv, self.wo = weight("wv", hidden, hidden), weight("wo", hidden, hidden)
        self.w1, self.w2 = weight("w1", hidden, 4 * hidden), weight("w2", 4 * hidden, hidden)
        self.bias, self.head = weight("bias", 4 * hidden), weight("head", vocabulary, hidden)
        self.gather = ops.Gather()
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1)
        self.query, self.key, self.value, self.out = (ops.MatMul() for _ in range(4))
        self.up, self.down = ops.MatMul(), ops.MatMul()
        self.scores, self.mixed = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.scale, self.softmax, self.gelu = ops.Mul(), ops.Softmax(-1), ops.GeLU()
        self.add1, self.add2, self.add3 = ops.Add(), ops.Add(), ops.Add()
        self.reshape0, self.reshape1, self.reshape2 = (ops.Reshape() for _ in range(3))
        self.reshape3, self.reshape4, self.reshape5 = (ops.Reshape() for _ in range(3))
        self.turn1, self.turn2, self.turn3, self.turn4 = (ops.Transpose() for _ in range(4))
        self.logits = ops.MatMul(transpose_b=True)
        self.one_hot, self.mean = ops.OneHot(), ops.ReduceMean()
        self.on, self.off = Tensor(1.0, dtypes.float32), Tensor(0.0, dtypes.float32)
        self.loss = ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, ids: Any, labels: Any) -> Any:
        x = self.reshape0(self.gather(self.embedding, ids, 0), self.joined)
        h, _, _ = self.norm(x, self.gain, self.shift)
        q = self.turn1(self.reshape1(self.query(h, self.wq), self.split), (0, 2, 1, 3))
        k = self.turn2(self.reshape2(self.key(h, self.wk), self.split), (0, 2, 1, 3))
        v = self.turn3(self.reshape3(self.value(h, self.wv), self.split), (0, 2, 1, 3))
        a = self.mixed(self.softmax(self.scale(self.scores(q, k), 0.125)), v)
        a = self.reshape4(self.turn4(a, (0, 2, 1, 3)), self.joined)
        x = self.add1(x, self.out(a, self.wo))
        f = self.gelu(self.add2(self.up(x, self.w1), self.bias))
        x = self.add3(x, self.down(f, self.w2))
        labels = self.one_hot(
            self.reshape5(labels, (self.rows,)), self.vocabulary, self.on, self.off
        )
        return self.mean(self.loss(self.logits(x, self.head), labels)[0])


class Stage(nn.Cell):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.w = weight(f"w{index}", 64, 64)
        self.matmul = ops.MatMul()
        self.pipeline_stage = index

    def construct(self, x: Any) -> Any:
        return self.matmul(x, self.w)


class TwoStages(nn.Cell):
    """A matrix product on each of two pipeline stages."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.stage0, self.stage1 = Stage(0), Stage(1)
        self.matmul1, self.matmul2 = self.stage0.matmul, self.stage1.matmul
        self.loss = nn.SoftmaxCrossEntropyWithLogits()

    def construct(self, x: Any, y: Any) -> Any:
        return self.loss(self.stage1(self.stage0(x)), y)


NETWORKS = {"two_matmuls": TwoMatmuls, "mlp": Mlp, "attention": Attention, "block": Block,
            "two_stages": TwoStages}  # fmt: skip


def inputs(case: dict[str, Any]) -> list[Tensor]:
    match case["network"]:
        case "block":
            shape = [case.get("batch", 16), case.get("tokens", 128)]
            return [Tensor(np.zeros(shape), dtypes.int32)] * 2
        case "two_stages":
            return [Tensor(np.ones([64, 64]), dtypes.float32)] * 2
        case "mlp" | "attention":
            rows = case.get("batch", 16) * case.get("tokens", 128)
            return [Tensor(np.ones([rows, case.get("hidden", 256)]), dtypes.float32)]
        case _:
            shape = [case.get("rows", 128), case.get("hidden", 64)]
            return [Tensor(np.ones(shape), dtypes.float32)]


def strategies(case: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Returns what the compiler says of each operator."""
    wheel.devices = case["devices"]
    context.reset_auto_parallel_context()
    settings: dict[str, Any] = {"parallel_mode": "semi_auto_parallel"}
    if case.get("mode", "semi") != "semi":
        settings = {"parallel_mode": "auto_parallel", "search_mode": case["mode"]}
    files = {"load_file": case.get("load", ""), "save_file": case.get("save", "")}
    context.set_auto_parallel_context(
        **settings,
        device_num=case["devices"],
        global_rank=case.get("rank", 0),
        dataset_strategy="full_batch",
        pipeline_stages=case.get("stages", 1),
        strategy_ckpt_config={key: value for key, value in files.items() if value},
        group_ckpt_save_file=case.get("groups", ""),
    )
    AutoParallelContext.get_instance().set_hccl_test_avaible(True)
    network = NETWORKS[case["network"]](**case)
    for name, cuts in case.get("cuts", {}).items():
        getattr(network, name).shard(tuple(tuple(row) for row in cuts))
    if case.get("stages", 1) > 1:
        network = nn.PipelineCell(network, 4)
    if case.get("train"):
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        step = _TrainGradAccuStepCell if case.get("stages", 1) > 1 else nn.TrainOneStepCell
        network = step(network, optimizer)
    network.set_train()
    _cell_graph_executor.compile(network, *inputs(case), phase="train")
    return _cell_graph_executor._get_shard_strategy(network)


for line in sys.stdin:
    try:
        answer: dict[str, Any] = {"strategies": strategies(json.loads(line))}
    except Exception as error:
        answer = {"raises": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
    print("\n" + json.dumps({"mindspore": mindspore.__version__, **answer}), flush=True)
