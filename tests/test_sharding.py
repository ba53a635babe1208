"""Sharding: integer programming, dynamic programming and brute force on the same graphs."""

import dataclasses
import itertools
import math
import os
import random
from pathlib import Path

import numpy as np
import pytest

import autopar
from autopar import SpecError, _core, ilp, planner, wire
from autopar.cli import main
from autopar.graph import Elementwise, Graph, MatMul, Operator, Softmax, Tensor
from autopar.sharding import FixedStrategy, Sharding, ShardingProblem

CHIP = "a800"
LISTED = 1 << 20
"""Choices that brute force adds up."""


def random_graph(seed: int, operators: int) -> Graph:
    """Returns square matrices through products, sums and softmaxes, some read more than once."""
    rng = random.Random(seed)
    shape = (rng.choice([64, 1024, 4096]),) * 2
    tensors = [
        Tensor("x", shape, "bfloat16", "input"),
        Tensor("shared", shape, "bfloat16", "parameter"),
    ]
    results = ["x"]
    made = []
    for i in range(operators):
        first, second = rng.choice(results[-3:]), rng.choice(results[-3:])
        kind = rng.randrange(5)
        inputs: tuple[str, ...]
        form: MatMul | Elementwise | Softmax
        if kind == 0:
            tensors.append(Tensor(f"w{i}", shape, "bfloat16", "parameter"))
            form, inputs = MatMul(), (first, f"w{i}")
        elif kind == 1:
            form, inputs = MatMul(transpose_b=True), (first, second)
        elif kind == 2:
            form, inputs = Elementwise(), (first, second)
        elif kind == 3:
            form, inputs = Softmax(axes=(1,)), (first,)
        else:
            form, inputs = MatMul(), (first, "shared")
        tensors.append(Tensor(f"t{i}", shape, "bfloat16"))
        made.append(Operator(name=f"op{i}", form=form, inputs=inputs, outputs=(f"t{i}",)))
        results.append(f"t{i}")
    gradients = rng.choice(["none", "implied"])
    return Graph(
        name=f"random {seed}",
        gradients=gradients,  # type: ignore[arg-type]
        tensors=tuple(tensors),
        operators=tuple(made),
    )


def least_memory_gib(graph: Graph, **options: object) -> float:
    """Returns the memory of the answer where nothing fits, which is the least there is."""
    found = autopar.shard(graph, CHIP, method="dp", memory_gib=1e-9, **options)  # type: ignore[arg-type]
    assert not found.fits
    return found.cost.memory_bytes / 2**30


def least_of_all(program: ilp.Program) -> float:
    """Returns the least cost of all choices of an integer program, each of them added up.

    The costs are read from the program's rows: of a node's columns one is chosen, and a column of
    an edge counts where both of its rows' strategies are.
    """
    rows = [
        dict(zip(program.index[a:b].tolist(), program.value[a:b].tolist(), strict=True))
        for a, b in itertools.pairwise(program.start.tolist())
    ]
    nodes = [list(row) for row, least in zip(rows, program.row_lower, strict=True) if least == 1]
    place = {column: (n, i) for n, node in enumerate(nodes) for i, column in enumerate(node)}
    sizes = [len(node) for node in nodes]
    time, memory = np.zeros(sizes), np.zeros(sizes)
    ends: dict[int, list[list[int]]] = {}
    for row in rows[len(nodes) :]:
        strategies = [column for column, value in row.items() if value == -1]
        for column in row.keys() - strategies if strategies else ():
            ends.setdefault(column, []).append(strategies)
    chosen = np.ogrid[tuple(slice(size) for size in sizes)]
    for column, (node, at) in place.items():
        time += program.cost[column] * (chosen[node] == at)
    for column, both in ends.items():
        taken = [np.isin(chosen[place[s[0]][0]], [place[column][1] for column in s]) for s in both]
        time += program.cost[column] * (taken[0] & taken[1])
    if not np.isfinite(program.row_lower[-1]):
        for column, value in rows[-1].items():
            node, at = place[column]
            memory += value * (chosen[node] == at)
        time[memory > program.row_upper[-1] + 1e-12] = np.inf
    return float(time.min())


def programmed(problem: ShardingProblem) -> ilp.Program:
    """Returns a problem as an integer program."""
    program = _core.sharding_program(wire.dumps(problem))
    assert program is not None
    return ilp.program(program.arrays())


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    autopar.shard(random_graph(1, 3), CHIP, devices=2, method="ilp")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("seed", range(int(os.environ.get("AUTOPAR_ORACLE_GRAPHS", "25"))))
def test_integer_programming_finds_what_brute_force_finds(seed: int) -> None:
    rng = random.Random(5000 + seed)
    operators, zero = rng.randrange(2, 8), rng.randrange(4)
    # The most devices for which all choices can be listed.
    for devices in (8, 6, 4, 2):
        graph = random_graph(seed, operators)
        options = {"devices": devices, "zero": zero, "method": "ilp"}
        free = autopar.shard(graph, CHIP, **options)  # type: ignore[arg-type]
        program = programmed(free.problem)
        rows = np.diff(program.start)[program.row_lower == 1]
        if math.prod(rows.tolist()) <= LISTED:
            break
    limits: list[float | None] = [None]
    most = free.cost.memory_bytes / 2**30
    if most > 0 and (least := least_memory_gib(graph, devices=devices, zero=zero)) < most:
        limits.append(least + (most - least) * rng.random())
    for limit in limits:
        found = autopar.shard(graph, CHIP, memory_gib=limit, **options)  # type: ignore[arg-type]
        assert found.proof.exact
        least_ns = least_of_all(programmed(found.problem))
        assert found.cost.total_ps / 1e3 == pytest.approx(least_ns, rel=1e-9)


@pytest.mark.parametrize("seed", range(int(os.environ.get("AUTOPAR_ORACLE_GRAPHS", "25"))))
def test_integer_programming_agrees_with_dynamic_programming(seed: int) -> None:
    rng = random.Random(1000 + seed)
    graph = random_graph(seed, rng.randrange(2, 8))
    options = {"devices": rng.choice([2, 4, 6, 8]), "zero": rng.randrange(4)}
    free = autopar.shard(graph, CHIP, method="dp", **options)  # type: ignore[arg-type]
    limits: list[float | None] = [None]
    most = free.cost.memory_bytes / 2**30
    if most > 0 and (least := least_memory_gib(graph, **options)) < most:
        limits.append(least + (most - least) * rng.random())
    for limit in limits:
        dp = autopar.shard(graph, CHIP, method="dp", memory_gib=limit, **options)  # type: ignore[arg-type]
        solved = autopar.shard(graph, CHIP, method="ilp", memory_gib=limit, **options)  # type: ignore[arg-type]
        assert dp.fits
        assert solved.fits
        assert solved.proof.exact
        assert dp.proof.exact
        assert dp.cost.total_ps <= solved.cost.total_ps <= dp.cost.total_ps * (1 + 1e-9)


@pytest.mark.parametrize("share", [None, 0.5])
def test_what_a_bound_leaves_of_a_large_graph_holds_its_best_plan(share: float | None) -> None:
    # Eight layers are too many for the program to be whole: 183 operators.
    graph = autopar.model_graph("gpt3-6.7b", batch=8, sequence_length=2048, layers=8)
    options = {"devices": 8, "mesh": [2, 4]}
    limit = None
    if share is not None:
        free = autopar.shard(graph, CHIP, method="dp", memory_gib=1e6, **options)  # type: ignore[arg-type]
        least = least_memory_gib(graph, **options)
        limit = least + share * (free.cost.memory_bytes / 2**30 - least)
    dp = autopar.shard(graph, CHIP, method="dp", memory_gib=limit or 1e6, **options)  # type: ignore[arg-type]
    asked = dataclasses.replace(
        dp.problem, options=dataclasses.replace(dp.problem.options, method="ilp")
    )
    program = programmed(asked)
    assert 0 < len(program.known) < program.whole < dp.strategies
    solved = planner.solve_sharding(asked, time_limit_s=2)
    assert dp.proof.exact
    assert solved.cost.total_ps == dp.cost.total_ps


def choices(graph: Graph, devices: int) -> list[list[FixedStrategy]]:
    """Returns every strategy of each operator, those it refuses too: any cuts of its dimensions."""
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]

    def cuts(names: tuple[str, ...]) -> list[tuple[tuple[int, ...], ...]]:
        single = [list(itertools.product(divisors, repeat=len(shapes[name]))) for name in names]
        return list(itertools.product(*single))

    return [
        [
            FixedStrategy(operator=operator.name, inputs=inputs, outputs=outputs)
            for inputs in cuts(operator.inputs)
            for outputs in cuts(operator.outputs)
        ]
        for operator in graph.operators
    ]


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_that_can_be_set_by_hand_is_faster(seed: int) -> None:
    # Two products with a function between: each plan is set whole and priced by itself.
    shape = (1024, 1024)
    tensors = (
        Tensor("x", shape, "bfloat16", "input"),
        Tensor("w", shape, "bfloat16", "parameter"),
        Tensor("v", shape, "bfloat16", "parameter"),
        Tensor("a", shape, "bfloat16"),
        Tensor("b", shape, "bfloat16"),
    )
    first = Operator(name="first", form=MatMul(), inputs=("x", "w"), outputs=("a",))
    second = Operator(
        name="second", form=MatMul(transpose_b=bool(seed % 2)), inputs=("a", "v"), outputs=("b",)
    )
    graph = Graph(
        name="two",
        gradients="implied" if seed < 2 else "none",
        tensors=tensors,
        operators=(first, second),
    )
    allowed = []
    for operator in choices(graph, 2):
        kept = []
        for strategy in operator:
            try:
                autopar.shard(graph, CHIP, devices=2, method="dp", strategies=[strategy])
            except SpecError:
                continue
            kept.append(strategy)
        allowed.append(kept)
    # Cuts m, n, k or nothing; the summands of a cut k go to all, to rows or to columns.
    assert [len(kept) for kept in allowed] == [6, 6]
    times = [
        autopar.shard(graph, CHIP, devices=2, method="dp", strategies=plan).cost.total_ps
        for plan in itertools.product(*allowed)
    ]
    for method in ("dp", "ilp"):
        best = autopar.shard(graph, CHIP, devices=2, method=method)  # type: ignore[arg-type]
        assert best.cost.total_ps == min(times)


def check_parts(found: Sharding) -> None:
    cost = found.cost
    parts = (
        cost.compute_ps,
        cost.communication_ps,
        cost.reshard_ps,
        cost.gradient_ps,
        cost.optimizer_ps,
    )
    assert cost.total_ps == sum(parts)
    assert cost.reshard_ps == sum(reshard.time_ps for reshard in found.reshards)


def two_products() -> Graph:
    return dataclasses.replace(
        random_graph(0, 1),
        tensors=(
            Tensor("x", (64, 256), "bfloat16", "input"),
            Tensor("w", (256, 512), "bfloat16", "parameter"),
            Tensor("v", (512, 256), "bfloat16", "parameter"),
            Tensor("a", (64, 512), "bfloat16"),
            Tensor("b", (64, 256), "bfloat16"),
        ),
        operators=(
            Operator(name="up", form=MatMul(), inputs=("x", "w"), outputs=("a",)),
            Operator(name="down", form=MatMul(), inputs=("a", "v"), outputs=("b",)),
        ),
        gradients="implied",
    )


def test_the_user_s_strategies_are_kept_and_the_rest_is_data_parallel() -> None:
    fixed = FixedStrategy(operator="down", inputs=((2, 4), (4, 1)))
    found = autopar.shard(
        two_products(), CHIP, devices=8, strategies=[fixed], others="data_parallel"
    )
    up, down = found.operators
    assert up.inputs == ((8, 1), (1, 1))
    assert up.outputs == ((8, 1),)
    assert down.inputs == fixed.inputs
    assert down.summands == "all_reduce"
    # Eight rows' parts become 2 x 4: the two innermost primes go from the rows to the columns.
    assert [(s.operation, s.axes) for s in found.reshards[0].forward] == [("all_to_all", (1, 2))]
    check_parts(found)


def test_an_output_strategy_scatters_the_summands() -> None:
    fixed = FixedStrategy(operator="down", inputs=((1, 4), (4, 1)), outputs=((4, 1),))
    found = autopar.shard(two_products(), CHIP, devices=4, strategies=[fixed])
    assert found.operators[1].summands == "reduce_scatter"


def test_zero_trades_memory_for_communication() -> None:
    fixed = [FixedStrategy(operator="up", inputs=((8, 1), (1, 1)))]
    found = [
        autopar.shard(
            two_products(), CHIP, devices=8, strategies=fixed, others="data_parallel", zero=zero
        )
        for zero in range(4)
    ]
    # 256 x 512 weights in 2 bytes, gradients in 4, state in 12; activations: x and a, 1/8 each.
    weights = 2 * 256 * 512
    kept = 2 * 64 * (256 + 512) // 8
    expected = [
        weights * (2 + 4 + 12) + kept,
        weights * (2 + 4) + weights * 12 // 8 + kept,
        weights * 2 + weights * (4 + 12) // 8 + kept,
        weights * (2 + 4 + 12) // 8 + kept,
    ]
    assert [one.cost.memory_bytes for one in found] == expected
    assert found[3].cost.gradient_ps > found[2].cost.gradient_ps == found[1].cost.gradient_ps


def test_without_all_to_all_a_cut_moves_by_gathering_and_slicing() -> None:
    fixed = FixedStrategy(operator="down", inputs=((2, 4), (4, 1)))
    found = autopar.shard(
        two_products(),
        CHIP,
        devices=8,
        strategies=[fixed],
        others="data_parallel",
        all_to_all=False,
    )
    steps = [step.operation for step in found.reshards[0].forward]
    assert steps == ["all_gather", "slice"]


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        (("gone", ((1, 1), (1, 1))), 'there is no operator "gone"'),
        (("up", ((3, 1), (1, 1))), "dimension 0 of input 0, of size 64, does not divide into 3"),
        (("up", ((2, 2), (4, 1))), "dimension 0 of input 1 is cut into 4, and 2 where it meets"),
        (("up", ((16, 1), (1, 1))), "together 16, cannot be laid on 8 devices"),
        (("up", ((2, 1),)), "do not have a number for each dimension"),
    ],
)
def test_an_impossible_strategy_is_refused(
    strategy: tuple[str, tuple[tuple[int, ...], ...]], error: str
) -> None:
    fixed = FixedStrategy(operator=strategy[0], inputs=strategy[1])
    with pytest.raises(SpecError) as raised:
        autopar.shard(two_products(), CHIP, devices=8, strategies=[fixed])
    assert error in str(raised.value)


def test_two_strategies_of_one_operator_are_refused() -> None:
    fixed = FixedStrategy(operator="up", inputs=((2, 1), (1, 1)))
    with pytest.raises(SpecError, match='operator "up" has a strategy already'):
        autopar.shard(two_products(), CHIP, devices=8, strategies=[fixed, fixed])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mesh": [2, 2]}, "options.mesh: must be one to three sizes whose product is 8"),
        ({"zero": 4}, "options.zero: must be from 0 to 3, found 4"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(SpecError) as raised:
        autopar.shard(two_products(), CHIP, devices=8, **options)  # type: ignore[arg-type]
    assert error in str(raised.value)


def test_propagation_follows_the_set_operator_without_reshards() -> None:
    # Columns of the first product meet rows of the second.
    fixed = FixedStrategy(operator="up", inputs=((2, 1), (1, 4)))
    found = autopar.shard(two_products(), CHIP, devices=8, method="propagate", strategies=[fixed])
    assert found.operators[1].inputs == ((2, 4), (4, 1))
    assert found.proof.exact is False
    assert found.proof.bound_ps is None


@pytest.mark.parametrize("method", ["recursive", "dp"])
def test_a_large_mesh_is_divided_among_two_uses_an_axis(method: str) -> None:
    # By primes a product of three loops could be cut in 20 x 120 ways, of four in 35 x 330.
    options = {"devices": 1024, "mesh": [8, 128], "method": method}
    notes = autopar.shard(two_products(), CHIP, **options).notes  # type: ignore[arg-type]
    assert any("an axis of the mesh has two uses at most" in note for note in notes)


@pytest.mark.parametrize("devices", [6, 12, 96])
def test_recursion_takes_any_device_count(devices: int) -> None:
    graph = autopar.model_graph("gpt3-6.7b", batch=devices, sequence_length=2048, layers=1)
    found = autopar.shard(graph, CHIP, devices=devices, method="recursive")
    product = next(each for each in found.operators if each.name == "layers.0.mlp.up")
    (rows, places, inner), (_, columns) = product.inputs
    assert devices % (rows * places * inner * columns) == 0
    assert rows * places * inner * columns > 1


def test_an_answer_can_be_asked_again_from_its_own_document() -> None:
    found = autopar.shard(two_products(), CHIP, devices=8, method="dp")
    assert planner.solve_sharding(found.problem) == found


def test_the_command_saves_strategies_that_it_reads_again(tmp_path: Path) -> None:
    saved, again = tmp_path / "s.json", tmp_path / "again.json"
    model = ["shard", "gpt3-6.7b", "--chip", CHIP, "--devices", "4", "--layers", "1"]
    assert main([*model, "--method", "dp", "--save", str(saved)]) == 0
    set_again = ["--strategies", str(saved), "--save", str(again)]
    assert main([*model, "--method", "propagate", *set_again]) == 0
    assert again.read_bytes() == saved.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.json", "s.json"]


def test_the_command_takes_a_graph_document_and_gives_a_sharding(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    net = tmp_path / "net.json"
    net.write_text(wire.dumps(two_products()), "utf-8")
    flags = ["--chip", CHIP, "--devices", "4", "--format", "json"]
    assert main(["shard", str(net), *flags]) == 0
    found = wire.loads(Sharding, capfd.readouterr().out)
    assert found == autopar.shard(two_products(), CHIP, devices=4)


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["llama2-7b", "--memory-gib", "0.001"], 1, "no strategies fit in memory: the least is"),
        (["gpt-oss-120b"], 2, '"gpt-oss-120b" has attention sinks'),
        (["llama2-7b", "--mesh", "2x3"], 2, "must be one to three sizes whose product is 4"),
        (["llama2-7b", "--mesh", "two"], 2, "is no mesh as 8 or 4x16"),
        (["llama2-7b", "--layers", "33"], 2, "must be at most the model's 32, found 33"),
        (["gone.json"], 2, "gone.json: no such file"),
    ],
)
def test_the_command_refuses_in_one_line_and_writes_nothing(
    arguments: list[str],
    code: int,
    error: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    saved = tmp_path / "s.json"
    flags = ["--chip", CHIP, "--devices", "4", "--save", str(saved)]
    if "--layers" not in arguments:
        flags += ["--layers", "1"]
    assert main(["shard", *arguments, *flags]) == code
    said = capfd.readouterr().err
    assert error in said
    assert said.count("\n") == 1
    assert not saved.exists()
