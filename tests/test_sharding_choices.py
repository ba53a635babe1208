"""What may be chosen beside the cuts: recompute, slices of the dataset, prefetch, buckets."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import autopar
from autopar import SpecError, catalog, planner
from autopar.export.mindspore_strategy import json_bytes, strategy_file
from autopar.frontends.mindspore_strategy import fixed_strategies, read
from autopar.graph import Convolution, Elementwise, Gather, Graph, MatMul, Operator, Tensor
from autopar.sharding import FixedInput, FixedStrategy, Fusion, Grouping, Sharding

CHIP = "a800"
ROWS, WIDTH = 4096, 2048


def mlp(layers: int = 1, training: bool = True) -> Graph:
    """Returns products with a function after each: `a = x w`, `g = gelu(a)`, and so on."""
    tensors = [Tensor("x", (ROWS, WIDTH), "bfloat16", "input")]
    operators = []
    last = "x"
    for i in range(layers):
        tensors += [
            Tensor(f"w{i}", (WIDTH, WIDTH), "bfloat16", "parameter"),
            Tensor(f"a{i}", (ROWS, WIDTH), "bfloat16"),
            Tensor(f"g{i}", (ROWS, WIDTH), "bfloat16"),
        ]
        operators += [
            Operator(name=f"mm{i}", form=MatMul(), inputs=(last, f"w{i}"), outputs=(f"a{i}",)),
            Operator(
                name=f"gelu{i}",
                source="Gelu",
                form=Elementwise(),
                inputs=(f"a{i}",),
                outputs=(f"g{i}",),
            ),
        ]
        last = f"g{i}"
    return Graph(
        name="mlp",
        gradients="implied" if training else "none",
        tensors=tuple(tensors),
        operators=tuple(operators),
    )


def recomputed(found: Sharding) -> list[str]:
    return [operator.name for operator in found.operators if operator.recompute]


def test_recompute_trades_an_output_for_its_forward_pass() -> None:
    graph = mlp(2)
    free = autopar.shard(graph, CHIP, devices=1, method="dp")
    again = FixedStrategy(operator="gelu0", inputs=((1, 1),), recompute=True)
    set_ = autopar.shard(graph, CHIP, devices=1, method="dp", strategies=[again])
    # The second product keeps 4096 x 2048 numbers of 2 bytes; the function's input is kept anyway.
    assert free.cost.memory_bytes - set_.cost.memory_bytes == ROWS * WIDTH * 2
    forward = autopar.shard(mlp(2, training=False), CHIP, devices=1, method="dp")
    gelu = next(operator for operator in forward.operators if operator.name == "gelu0")
    assert set_.cost.recompute_ps == gelu.compute_ps
    assert set_.cost.total_ps - free.cost.total_ps == gelu.compute_ps


@pytest.mark.parametrize("method", ["dp", "ilp"])
def test_a_limit_is_met_by_recomputing_what_costs_least(method: str) -> None:
    graph = mlp(2)
    free = autopar.shard(graph, CHIP, devices=1, method="dp", recompute=True)
    assert recomputed(free) == []
    limit = (free.cost.memory_bytes - ROWS * WIDTH) / 2**30
    found = autopar.shard(graph, CHIP, devices=1, method=method, recompute=True, memory_gib=limit)  # type: ignore[arg-type]
    assert found.fits
    assert found.proof.exact
    assert recomputed(found) == ["gelu0"]
    assert not autopar.shard(graph, CHIP, devices=1, method="dp", memory_gib=limit).fits


def test_recompute_is_saved_and_set_again() -> None:
    graph = mlp(2)
    least = autopar.shard(graph, CHIP, devices=2, method="dp", memory_gib=1e-9, recompute=True)
    again = autopar.shard(graph, CHIP, devices=2, method="dp", strategies=least.chosen().strategies)
    assert recomputed(again) == recomputed(least)
    assert again.cost.memory_bytes == least.cost.memory_bytes


def convolution() -> Graph:
    tensors = (
        Tensor("image", (8, 16, 64, 64), "bfloat16", "input"),
        Tensor("filter", (32, 16, 3, 3), "bfloat16", "parameter"),
        Tensor("out", (8, 32, 64, 64), "bfloat16"),
    )
    form = Convolution(strides=(1, 1), dilations=(1, 1))
    conv = Operator(name="conv", form=form, inputs=("image", "filter"), outputs=("out",))
    return Graph(name="conv", tensors=tensors, operators=(conv,))


@pytest.mark.parametrize("cuts", [(8, 1, 1, 1), (1, 1, 8, 1), (1, 1, 1, 8), (2, 1, 2, 2)])
def test_the_dataset_is_sliced_along_batch_height_and_width(cuts: tuple[int, ...]) -> None:
    slices = [FixedInput(tensor="image", cuts=cuts)]
    found = autopar.shard(convolution(), CHIP, devices=8, dataset=slices)
    image = next(tensor for tensor in found.tensors if tensor.name == "image")
    assert tuple(2 ** len(axes) for axes in image.axes) == cuts
    free = autopar.shard(convolution(), CHIP, devices=8)
    assert found.cost.total_ps >= free.cost.total_ps
    if cuts == free.operators[0].inputs[0]:
        assert found.cost.total_ps == free.cost.total_ps


@pytest.mark.parametrize(
    ("tensor", "cuts", "error"),
    [
        ("filter", (1, 1, 1, 1), "there is no input"),
        ("image", (3, 1, 1, 1), "must divide"),
        ("image", (2, 1, 1), "must divide"),
    ],
)
def test_impossible_slices_are_refused(tensor: str, cuts: tuple[int, ...], error: str) -> None:
    with pytest.raises(SpecError, match=error):
        autopar.shard(
            convolution(), CHIP, devices=8, dataset=[FixedInput(tensor=tensor, cuts=cuts)]
        )


DATA_PARALLEL = {"devices": 8, "method": "dp", "others": "data_parallel"}


def test_weights_gathered_ahead_are_hidden_as_far_as_the_buffer_goes() -> None:
    graph = mlp(6)
    plain = autopar.shard(graph, CHIP, zero=3, **DATA_PARALLEL)  # type: ignore[arg-type]
    assert plain.overlap is None
    found = [
        autopar.shard(graph, CHIP, zero=3, prefetch_mb=mb, **DATA_PARALLEL)  # type: ignore[arg-type]
        for mb in (1, 10, 20, 0)
    ]
    times = [answer.cost.total_ps for answer in found]
    assert times == sorted(times, reverse=True)
    # A weight of 8.4 MB does not fit into 1 MB: it comes alone, when the one before is done with.
    # Each gather is rounded to a picosecond.
    assert times[0] == pytest.approx(plain.cost.total_ps, abs=12)
    assert times[-1] < plain.cost.total_ps
    weight = WIDTH * WIDTH * 2
    buffers = [answer.overlap.buffer_bytes for answer in found if answer.overlap]
    assert buffers[:3] == [weight, weight, 2 * weight]
    for answer in found:
        assert answer.overlap is not None
        assert answer.cost.memory_bytes == plain.cost.memory_bytes + answer.overlap.buffer_bytes
        exposed = answer.overlap.gathers_exposed_ps + answer.overlap.gradients_exposed_ps
        assert answer.cost.hidden_ps == answer.cost.gradient_ps - exposed
    # The first gather of each pass has nothing to hide behind.
    assert found[-1].overlap is not None
    assert found[-1].overlap.gathers_exposed_ps > 0


def test_a_buffer_without_a_limit_takes_the_memory_that_is_left() -> None:
    graph = mlp(6)
    plain = autopar.shard(graph, CHIP, zero=3, **DATA_PARALLEL)  # type: ignore[arg-type]
    weight = WIDTH * WIDTH * 2

    def within(room: int) -> Sharding:
        limit = (plain.cost.memory_bytes + room) / 2**30
        options = {**DATA_PARALLEL, "zero": 3, "prefetch_mb": 0, "memory_gib": limit}
        return autopar.shard(graph, CHIP, **options)  # type: ignore[arg-type]

    # There is room for two weights and a half, and two lie in it: as with 20 MB.
    two = autopar.shard(graph, CHIP, zero=3, prefetch_mb=20, **DATA_PARALLEL)  # type: ignore[arg-type]
    found = within(weight * 5 // 2)
    assert found.fits
    assert found.overlap == two.overlap
    # A weight that does not fit comes alone all the same: then the plan does not fit.
    assert not within(weight // 2).fits


def grouped(mode: str, mb: int | None = None, places: tuple[int, ...] = ()) -> Fusion:
    return Fusion(all_reduce=Grouping(mode=mode, mb=mb, places=places))  # type: ignore[arg-type]


def test_gradients_are_grouped_by_size_and_by_place() -> None:
    graph = mlp(6)

    def buckets(fusion: Fusion) -> list[tuple[str, ...]]:
        found = autopar.shard(graph, CHIP, fusion=fusion, **DATA_PARALLEL)  # type: ignore[arg-type]
        assert found.overlap is not None
        assert {bucket.operation for bucket in found.overlap.buckets} == {"all_reduce"}
        return [bucket.tensors for bucket in found.overlap.buckets]

    # A gradient is 2048 x 2048 x 4 = 16.8 MB: four pass 64 MB, two pass 20 MB. The last is first.
    assert buckets(grouped("auto")) == [("w5", "w4", "w3", "w2"), ("w1", "w0")]
    assert buckets(grouped("size", 20)) == [("w5", "w4"), ("w3", "w2"), ("w1", "w0")]
    assert buckets(grouped("index", places=(1, 4))) == [("w0",), ("w3", "w2", "w1"), ("w5", "w4")]


def test_the_best_bucket_exposes_least() -> None:
    graph = mlp(6)

    def exposed(fusion: Fusion) -> int:
        found = autopar.shard(graph, CHIP, fusion=fusion, **DATA_PARALLEL)  # type: ignore[arg-type]
        assert found.overlap is not None
        return found.overlap.gradients_exposed_ps

    best = exposed(grouped("best"))
    sizes = [exposed(grouped("size", 2**power)) for power in range(11)]
    assert best == min(sizes)
    assert best < exposed(grouped("size", 10**6)), "one bucket waits for the whole backward pass"


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_is_hidden_never_makes_a_plan_better_than_its_bound(zero: int) -> None:
    graph = mlp(3)
    plain = autopar.shard(graph, CHIP, devices=8, method="dp", zero=zero)
    found = autopar.shard(
        graph, CHIP, devices=8, method="dp", zero=zero, fusion=Fusion(), prefetch_mb=0
    )
    assert found.proof.bound_ps is not None
    assert found.proof.bound_ps <= found.cost.total_ps <= plain.cost.total_ps


@pytest.mark.parametrize(
    ("grouping", "error"),
    [
        (Grouping(mode="size"), "must be given with the mode size"),
        (Grouping(mb=3), "must be given with the mode size"),
        (Grouping(mode="index", places=(3, 1)), "must ascend"),
        (Grouping(mode="auto", places=(1,)), "must ascend"),
    ],
)
def test_wrong_groupings_are_refused(grouping: Grouping, error: str) -> None:
    with pytest.raises(SpecError, match=error):
        autopar.shard(mlp(), CHIP, devices=2, fusion=Fusion(all_reduce=grouping))


def test_places_group_the_exchange_of_all_reduce_alone() -> None:
    fusion = Fusion(all_gather=Grouping(mode="index", places=(1,)))
    with pytest.raises(SpecError, match="must be auto, size or best"):
        autopar.shard(mlp(), CHIP, devices=2, fusion=fusion)


def test_larger_buckets_have_fewer_exchanges() -> None:
    counts = []
    for power in (0, 5, 7, 9):
        fusion = grouped("size", 2**power)
        found = autopar.shard(mlp(6), CHIP, fusion=fusion, **DATA_PARALLEL)  # type: ignore[arg-type]
        assert found.overlap is not None
        counts.append(len(found.overlap.buckets))
    assert all(a >= b for a, b in pairwise(counts))
    assert counts[0] == 6
    assert counts[-1] == 1


def test_identical_communication_operators_share_subgraphs_up_to_a_limit() -> None:
    def count(limit: int | None) -> tuple[int, int, int, int]:
        found = autopar.shard(mlp(6), CHIP, reuse_limit=limit, **DATA_PARALLEL)  # type: ignore[arg-type]
        c = found.communications
        return c.operators, c.replaced, c.subgraphs, c.compiled

    # Data parallel: one all-reduce a weight, all alike.
    assert count(None) == (6, 0, 0, 6)
    assert count(0) == (6, 6, 1, 1)
    assert count(5) == (6, 0, 0, 6)


def test_buckets_leave_fewer_communication_operators() -> None:
    fusion = grouped("size", 40)
    found = autopar.shard(mlp(6), CHIP, fusion=fusion, reuse_limit=0, **DATA_PARALLEL)  # type: ignore[arg-type]
    # Three gradients of 16.8 MB fill a bucket.
    assert found.communications.operators == 2
    assert found.communications.compiled == 1


def test_an_operator_on_the_host_moves_what_it_reads_and_writes_over_its_link() -> None:
    # 64 x 512 places in a table of 50,000 rows of 1,024 numbers of 2 bytes (primitive_target CPU).
    tensors = (
        Tensor("table", (50_000, 1024), "bfloat16", "parameter"),
        Tensor("ids", (64, 512), "int32", "input"),
        Tensor("rows", (64, 512, 1024), "bfloat16"),
    )
    look_up = Operator(
        name="embed", form=Gather(), inputs=("table", "ids"), outputs=("rows",), host=True
    )
    graph = Graph(name="embedding", tensors=tensors, operators=(look_up,))
    found = autopar.shard(graph, CHIP, devices=1, method="dp")
    host = found.problem.cluster.groups[0].chip.host
    rows, ids = 64 * 512 * 1024 * 2, 64 * 512 * 4
    # The table stays in the host's memory: what is read of it is what is written. The ids lie there
    # already, and the rows cross the link.
    seconds = rows / (host.pcie_gb_per_s * 1e9) + 2 * rows / (host.memory_gb_per_s * 1e9)
    assert found.operators[0].compute_ps == pytest.approx(seconds * 1e12, rel=ids / rows)
    assert found.cost.memory_bytes == 0
    beside = replace(graph, operators=(replace(look_up, host=False),))
    assert autopar.shard(beside, CHIP, devices=1, method="dp").cost.memory_bytes == 50_000 * 2048


def embedding() -> Graph:
    tensors = (
        Tensor("table", (64, 32), "float32", "parameter"),
        Tensor("ids", (16, 8), "int32", "input"),
        Tensor("rows", (16, 8, 32), "float32"),
    )
    look_up = Operator(name="embed", form=Gather(), inputs=("table", "ids"), outputs=("rows",))
    return Graph(name="embedding", tensors=tensors, operators=(look_up,))


def manual_split(rows: tuple[int, ...]) -> FixedStrategy:
    parts = len(rows)
    return FixedStrategy(operator="embed", inputs=((parts, 1), (1, parts)), rows=rows)


def test_a_table_is_cut_into_parts_of_unlike_rows() -> None:
    # The example of MindSpore's guide: four parts of 10, 20, 30 and 4 rows (manual_split).
    split = [manual_split((10, 20, 30, 4))]
    found = autopar.shard(embedding(), CHIP, devices=4, method="dp", strategies=split)
    # A device must have room for the largest part; features are cut as the rows, nothing is summed.
    assert found.cost.memory_bytes == 30 * 32 * 4
    assert found.operators[0].outputs == ((1, 4, 1),)
    assert found.cost.communication_ps == 0
    assert [part["table"][0] for part in planner.slices(found)] == [
        [0, 10], [10, 30], [30, 60], [60, 64],
    ]  # fmt: skip
    (layout,) = strategy_file(found).layouts
    assert layout.split_shape == (10, 20, 30, 4)
    assert layout.indices_offset == (0, 10, 30, 60)
    assert layout.tensor_shape == (4 * 30, 32)
    assert layout.tensor_map == (0, -1)


def test_a_manual_split_is_read_back_from_mindspore_s_file(tmp_path: Path) -> None:
    split = manual_split((10, 20, 30, 4))
    found = autopar.shard(embedding(), CHIP, devices=4, method="dp", strategies=[split])
    file = tmp_path / "split.json"
    file.write_bytes(json_bytes(strategy_file(found)))
    assert fixed_strategies(read(file), embedding(), "split.json") == (split,)


@pytest.mark.parametrize(
    ("rows", "error"),
    [((10, 20, 30, 5), "make up the table's 64 rows"), ((32, 0, 16, 16), "must be positive")],
)
def test_rows_that_do_not_make_up_a_table_are_refused(rows: tuple[int, ...], error: str) -> None:
    with pytest.raises(SpecError, match=error):
        autopar.shard(embedding(), CHIP, devices=4, strategies=[manual_split(rows)])


MODELS = (
    "mixtral-8x7b",
    "deepseek-moe-16b",
    "qwen2-57b-a14b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "llama4-scout",
    "mistral-7b",
    "gemma2-9b",
)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_has_the_parameters_of_its_model(name: str) -> None:
    unpadded = replace(catalog.framework("megatron-core").framework, vocab_multiple=1)
    graph = autopar.model_graph(name, batch=1, sequence_length=512, framework=unpadded)
    weights = [tensor.shape for tensor in graph.tensors if tensor.role == "parameter"]
    facts = planner.model_facts(catalog.model(name).model)
    assert sum(math.prod(shape) for shape in weights) == facts.parameters


def test_experts_are_divided_and_reached_by_all_to_all() -> None:
    graph = autopar.model_graph("mixtral-8x7b", batch=8, sequence_length=4096, layers=2)
    found = autopar.shard(graph, "a800", devices=8, method="dp")
    assert found.proof.exact
    up = next(o for o in found.operators if o.name == "layers.0.mlp.experts.gate_up")
    steps = {step.operation for each in found.reshards for step in each.forward}
    # Every device with an expert of its own needs no copy of their weights, nor of their gradients.
    assert up.inputs == ((8, 1, 1), (8, 1, 1))
    assert "all_to_all" in steps
