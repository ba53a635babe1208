"""The best split of layers and choice of recompute, found once more as an integer program by HiGHS.

Degrees and the order of the chips are fixed. Which layers and which recompute each stage takes is
a choice of binary variables, and when each pass of 1F1B starts is a continuous one. The program
shares with the search what a stage costs, which it reads off the estimates of plans, and nothing of
how stages make up a step. `AUTOPAR_MILP_PROBLEMS=60` tries more problems than a normal run.
"""

import dataclasses
import itertools
import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import highspy
import pytest

import autopar
from autopar import Options, Plan, Problem, Recompute, Stage, catalog
from autopar.spec import Granularity

MODELS = ("llama2-7b", "qwen2.5-14b", "gpt3-6.7b", "mixtral-8x7b")
# Nodes of eight devices each, so that any stage of eight is a node.
CHIPS = ("a800", "h800", "ascend_910b", "a100_80", "h20")
FRAMEWORKS = ("megatron-core", "mindspeed", "deepspeed", "mindformers")
STAGE_DEVICES = 8
# Block and uniform bring a setting for each number of layers; selective is tried without uniform.
RECOMPUTE: tuple[Sequence[Granularity], ...] = (
    ("none", "selective", "block"),
    ("none", "block", "uniform"),
)

Variable = highspy.highs.highs_var


class Holding(NamedTuple):
    """What a stage may hold: so many layers under this recompute."""

    stage: int
    layers: int
    recompute: Recompute


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a stage costs: picoseconds of a pass with its send, and of the end of its step."""

    forward: int
    backward: int
    tail: int
    fits: bool


def drawn(seed: int) -> tuple[Problem, Plan]:
    """Returns a problem and a plan that just fits, whose degrees and chips are the question's."""
    rng = random.Random(seed)
    pp = rng.randint(2, 5)
    layers = pp + rng.randint(2, 6)
    kinds = min(pp, rng.choice((1, 2, 2, 2, 3)))
    borders = sorted(rng.sample(range(1, pp), kinds - 1))
    counts = [end - start for start, end in itertools.pairwise([0, *borders, pp])]
    tp = rng.choice((1, 2, 4, 8))
    dp = STAGE_DEVICES // tp
    mbs = rng.choice((1, 2))
    zero = rng.choice((0, 1)) if dp > 1 else 0
    chips = rng.sample(CHIPS, kinds)
    roomy = autopar.problem(
        dataclasses.replace(catalog.model(rng.choice(MODELS)).model, layers=layers),
        ",".join(f"{c}:{n * STAGE_DEVICES}" for c, n in zip(chips, counts, strict=True)),
        global_batch_size=dp * mbs * rng.randint(2, 10),
        sequence_length=rng.choice((2048, 4096)),
        framework=rng.choice(FRAMEWORKS),
        # A class of plans for each order of the kinds.
        top=math.factorial(kinds),
        memory_margin=0.0,
        tp=[tp],
        pp=[pp],
        dp=[dp],
        vpp=[1],
        cp=[1],
        ep=[1],
        mbs=[mbs],
        sp=[tp > 1],
        zero=[zero],
        schedules=["1f1b"],
        recompute=rng.choice(RECOMPUTE),
        partial_shard_groups=False,
        activation_offload=False,
        optimizer_offload=False,
    )
    split = rng.choice(list(splits(layers, pp)))
    order = [kind for kind, count in enumerate(counts) for _ in range(count)]
    wanted = [rng.choice(settings(roomy.options, layers - pp + 1)) for _ in chips]
    plan = autopar.plan(
        roomy,
        tp=tp,
        pp=pp,
        mbs=mbs,
        zero=zero,
        chips=order,
        layers=split,
        recompute=within(wanted, order, split),
    )
    return tightened(roomy, plan, rng), plan


def tightened(problem: Problem, plan: Plan, rng: random.Random) -> Problem:
    """Returns the problem on chips with little more memory than the plan takes."""
    estimate = autopar.estimate(problem, plan)
    groups = list(problem.cluster.groups)
    for kind, group in enumerate(groups):
        needed = max(
            cost.memory_bytes
            for stage, cost in zip(plan.stages, estimate.stages, strict=True)
            if stage.chip == kind
        )
        gib = needed / 2**30 * rng.uniform(1.001, 1.05)
        groups[kind] = dataclasses.replace(
            group, chip=dataclasses.replace(group.chip, memory_gib=gib)
        )
    cluster = dataclasses.replace(problem.cluster, groups=tuple(groups))
    return dataclasses.replace(problem, cluster=cluster)


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yields every way to share out layers so that each stage has one."""
    for borders in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(end - start for start, end in itertools.pairwise([0, *borders, layers]))


def settings(options: Options, most: int) -> list[Recompute]:
    """Returns what stages of at most so many layers may recompute."""
    found = []
    for granularity in options.recompute:
        if granularity in ("none", "selective"):
            found.append(Recompute(granularity))
        else:
            found += [Recompute(granularity, count) for count in range(1, most + 1)]
    return found


def within(wanted: list[Recompute], order: list[int], split: tuple[int, ...]) -> list[Recompute]:
    """Returns each kind's recompute, of at most as many layers as its largest stage has."""
    found = []
    for kind, recompute in enumerate(wanted):
        most = max(count for chip, count in zip(order, split, strict=True) if chip == kind)
        count = None if recompute.layers is None else min(recompute.layers, most)
        found.append(dataclasses.replace(recompute, layers=count))
    return found


def costs(problem: Problem, plan: Plan) -> dict[Holding, Cost]:
    """Returns what each stage costs with each number of layers and each recompute.

    It is read off the first plan that has the stage so; that other stages do not matter is shown
    where the best plan is estimated.
    """
    order = [stage.chip for stage in plan.stages]
    layers, kinds = problem.model.layers, len(problem.cluster.groups)
    found: dict[Holding, Cost] = {}
    for recompute in settings(problem.options, layers - plan.pp + 1):
        for split in splits(layers, plan.pp):
            taken = within([recompute] * kinds, order, split)
            held = [Holding(i, split[i], taken[order[i]]) for i in range(plan.pp)]
            if not all(holding in found for holding in held):
                stages = staged(plan, held)
                for holding, cost in zip(held, stage_costs(problem, stages), strict=True):
                    found.setdefault(holding, cost)
    return found


def staged(plan: Plan, held: list[Holding]) -> Plan:
    """Returns the plan with other layers and recompute on its stages."""
    stages = tuple(
        Stage(chip=stage.chip, layers=holding.layers, recompute=holding.recompute)
        for stage, holding in zip(plan.stages, held, strict=True)
    )
    return dataclasses.replace(plan, stages=stages)


def stage_costs(problem: Problem, plan: Plan) -> list[Cost]:
    """Returns what each stage of a plan costs.

    Passes and memory are the estimate's; sends and the end of the step, which it does not list,
    are the time line's.
    """
    timeline = autopar.timeline(problem, plan)
    assert not timeline.truncated
    ends: dict[tuple[int, int, int], str] = {}
    tails = [0] * plan.pp
    sends: dict[tuple[int, str], int] = {}
    for event in timeline.events:
        if event.kind in ("data", "optimizer"):
            tails[event.stage] += event.duration_ps
        elif event.kind == "send":
            # A stage sends what the pass that just ended has made.
            sent = ends[event.stage, event.micro_batch, event.start_ps]
            sends[event.stage, sent] = event.duration_ps
        else:
            end = event.start_ps + event.duration_ps
            ends[event.stage, event.micro_batch, end] = event.kind
    return [
        Cost(
            forward=stage.forward_ps + sends.get((i, "forward"), 0),
            backward=stage.backward_ps + sends.get((i, "backward"), 0),
            tail=tails[i],
            fits=stage.allocated_bytes <= stage.capacity_bytes,
        )
        for i, stage in enumerate(autopar.estimate(problem, plan).stages)
    ]


def passes(stage: int, pp: int, micro_batches: int) -> list[tuple[str, int]]:
    """Returns a stage's passes in the order of 1F1B (arXiv:2104.04473, section 2.2).

    As many forward passes as there are stages behind it, then one forward and one backward pass in
    turn, then the backward passes that are left.
    """
    warm = min(pp - 1 - stage, micro_batches)
    order = [("forward", n) for n in range(warm)]
    for n in range(micro_batches - warm):
        order += [("forward", warm + n), ("backward", n)]
    return order + [("backward", n) for n in range(micro_batches - warm, micro_batches)]


def optimum(problem: Problem, plan: Plan) -> tuple[float, Plan]:
    """Returns the least picoseconds of a step by the integer program, and a plan as fast."""
    table = {holding: cost for holding, cost in costs(problem, plan).items() if cost.fits}
    # Times are shares of the longest pass, so that tolerances mean the same in every problem.
    unit = max(max(cost.forward, cost.backward) for cost in table.values())
    solver = exact_solver()
    holds = {holding: solver.addBinary() for holding in table}
    choose(solver, holds, problem, plan)
    takes = {}
    for stage, part in itertools.product(range(plan.pp), ("forward", "backward", "tail")):
        takes[stage, part] = solver.addVariable()
        spent = (
            getattr(cost, part) / unit * holds[holding]
            for holding, cost in table.items()
            if holding.stage == stage
        )
        solver.addConstr(solver.qsum(spent) == takes[stage, part])
    micro_batches = problem.workload.global_batch_size // (plan.dp * plan.mbs)
    solver.minimize(end_of_step(solver, takes, plan.pp, micro_batches))
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    # In the order of the stages, each of which holds one thing.
    held = sorted((h for h, x in holds.items() if solver.val(x) > 0.5), key=lambda h: h.stage)
    return solver.getInfo().objective_function_value * unit, staged(plan, held)


def exact_solver() -> highspy.Highs:
    """Returns a solver that leaves no gap."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    for name in ("mip_rel_gap", "mip_abs_gap"):
        solver.setOptionValue(name, 0.0)
    for name in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        solver.setOptionValue(name, 1e-9)
    return solver


def choose(
    solver: highspy.Highs, holds: dict[Holding, Variable], problem: Problem, plan: Plan
) -> None:
    """Adds what makes a choice of holdings a plan."""
    layers = problem.model.layers
    solver.addConstr(solver.qsum(h.layers * x for h, x in holds.items()) == layers)
    choices = settings(problem.options, layers - plan.pp + 1)
    for kind in range(len(problem.cluster.groups)):
        stages = [i for i, stage in enumerate(plan.stages) if stage.chip == kind]
        uses = {recompute: solver.addBinary() for recompute in choices}
        solver.addConstr(solver.qsum(uses.values()) == 1)
        for recompute, used in uses.items():
            # Each stage holds one number of layers, with the recompute of its kind.
            own = [h for h in holds if h.stage in stages and h.recompute == recompute]
            for i in stages:
                solver.addConstr(solver.qsum(holds[h] for h in own if h.stage == i) == used)
            # Recompute of so many layers is only said of a kind that has a stage of as many.
            enough = [h for h in own if h.layers >= (recompute.layers or 0)]
            solver.addConstr(solver.qsum(holds[h] for h in enough) >= used)


def end_of_step(
    solver: highspy.Highs, takes: dict[tuple[int, str], Variable], pp: int, micro_batches: int
) -> Variable:
    """Returns the end of all stages, after adding which pass waits for which.

    A stage waits for its own send, so the time that a pass takes holds the send of what it made.
    """
    end: Variable = solver.addVariable()
    orders = [passes(stage, pp, micro_batches) for stage in range(pp)]
    starts = {(i, *work): solver.addVariable() for i, order in enumerate(orders) for work in order}
    done = {(i, part, n): start + takes[i, part] for (i, part, n), start in starts.items()}
    for i, order in enumerate(orders):
        for before, after in itertools.pairwise(order):
            solver.addConstr(starts[i, *after] >= done[i, *before])
        solver.addConstr(end >= done[i, *order[-1]] + takes[i, "tail"])
    for (near, far), n in itertools.product(itertools.pairwise(range(pp)), range(micro_batches)):
        solver.addConstr(starts[far, "forward", n] >= done[near, "forward", n])
        solver.addConstr(starts[near, "backward", n] >= done[far, "backward", n])
    return end


@pytest.mark.parametrize("seed", range(int(os.environ.get("AUTOPAR_MILP_PROBLEMS", "12"))))
def test_integer_programming_and_the_search_agree_on_split_and_recompute(seed: int) -> None:
    problem, plan = drawn(seed)
    least, best = optimum(problem, plan)
    # The program's own plan is legal, fits, and takes as long as the program says.
    estimate = autopar.estimate(problem, best)
    assert not estimate.violations
    assert estimate.step_ps == pytest.approx(least, rel=1e-6)
    # So does what the search finds for the same degrees and chips.
    report = autopar.solve(problem, threads=1)
    assert report.proved
    order = [stage.chip for stage in plan.stages]
    (found,) = (
        ranked for ranked in report.ranked if [stage.chip for stage in ranked.plan.stages] == order
    )
    assert dataclasses.replace(found.plan, stages=()) == dataclasses.replace(best, stages=())
    assert found.estimate.step_ps == pytest.approx(least, rel=1e-6)
