"""What the core answers on whole jobs: the best plans, what one costs, its time line."""

import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, get_args

from autopar import _core, bulk, files, wire
from autopar.cluster import Cluster
from autopar.errors import SpecError, shown
from autopar.framework import Framework
from autopar.planner.question import Limits, Name, check_one_price, model_of, problem
from autopar.report import Estimate, ModelFacts, Plan, Report, Sizes, Timeline, Wanted
from autopar.sharding import Communications
from autopar.spec import Attention, Model, Precision, Problem

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

log = logging.getLogger("autopar")

Progress = Callable[[int, int], object]
Answer = TypeVar("Answer", Report, Sizes)


def search(
    model: Name | Model,
    cluster: Name | Cluster,
    *,
    global_batch_size: int,
    sequence_length: int,
    devices: int | None = None,
    precision: Precision = "bf16",
    framework: Name | Framework = "megatron-core",
    attention: Attention = "flash",
    dropout: bool = False,
    expert_load_variation: float = 0.0,
    threads: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    **limits: Unpack[Limits],
) -> Report:
    """Returns the fastest plans that fit in memory, proved to be the best of the whole space.

    Args:
        model: Name or alias in the catalog, path to a TOML file or to a Hugging Face
            `config.json` or its folder, or a `Model`.
        cluster: Chips with their limits (`a800:128,h800:160`), a cluster's name or path, or a
            `Cluster`.
        global_batch_size: Sequences in one step over the whole cluster.
        sequence_length: Tokens in one sequence.
        devices: Devices to use; all listed unless given.
        precision: Number format of the matrix products.
        framework: Name in the catalog, path to a TOML file, or a `Framework`.
        attention: One fused kernel, or separate operators that store the scores.
        dropout: Whether hidden states and attention weights pass through dropout.
        expert_load_variation: Standard deviation of the experts' loads over their mean: 0 where
            tokens are spread at random, about 0.3 for a router that balances well, 1 for a bad one.
        threads: Threads of the search; 0 takes every core. The answer does not depend on it.
        time_limit_s: Seconds after which the best plans so far are returned, unproved.
        progress: Called now and then with the classes of candidates done and in all.
        **limits: The fields of `Options`, as `top=3, tp=[1, 2, 4, 8], memory_margin=0.1`.

    Raises:
        SpecError: An input is wrong; the error says where, what and how to cure it.
        KeyboardInterrupt: Ctrl-C ended the search.

    Example:
        >>> import autopar
        >>> report = autopar.search(
        ...     "llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096, top=1
        ... )
        >>> best = report.ranked[0]
        >>> best.plan.dp * best.plan.tp * best.plan.cp * best.plan.pp
        8
        >>> report.proved
        True
    """
    question = problem(
        model,
        cluster,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        devices=devices,
        precision=precision,
        framework=framework,
        attention=attention,
        dropout=dropout,
        expert_load_variation=expert_load_variation,
        **limits,
    )
    return solve(question, threads=threads, time_limit_s=time_limit_s, progress=progress)


def solve(
    problem: Problem,
    *,
    threads: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Returns the report on a problem; `search` with the question spelled out.

    Args:
        problem: What is trained, on what, and what may be chosen.
        threads: Threads of the search; 0 takes every core. The answer does not depend on it.
        time_limit_s: Seconds after which the best plans so far are returned, unproved.
        progress: Called now and then with the classes that are done and all classes.

    Raises:
        SpecError: The problem is wrong, or its steps take over 213 days, which no time tells.
        KeyboardInterrupt: Ctrl-C ended the search.

    Example:
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> found = solve(question)
        >>> found.proved, found == rerun(found)
        (True, True)
    """
    text = solve_json(problem, threads=threads, time_limit_s=time_limit_s, progress=progress)
    return wire.loads(Report, text)


def solve_json(
    problem: Problem,
    *,
    threads: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> str:
    """Returns the report on a problem as the JSON text of the core; otherwise as `solve`."""
    question = wire.spelled(Problem, problem, "problem")
    log.info("problem: catalog %s, %d devices", problem.catalog, problem.cluster.devices)
    text = _core.search(question, threads=threads, time_limit_s=time_limit_s, progress=progress)
    log.info("report: %d characters", len(text))
    return text


def sizes(
    problem: Problem,
    wanted: Wanted = "every",
    *,
    threads: int = 0,
    time_limit_s: float | None = None,
) -> Sizes:
    """Returns the best plan of every device count up to the problem's, as if others were idle.

    Each count is searched to its end, so the fastest of them is the fastest plan that uses any
    number of devices within the limit. Where every device-hour has one price, money at a count is
    proportional to time; then the cheapest of all plans and those that no plan beats in both time
    and money are among them too. With several prices that does not follow and is not claimed.

    Args:
        problem: What is trained, on what; at most its devices are used.
        wanted: `every` count, those on the `frontier` that no other beats in both time and money,
            or the `fastest` or the `cheapest` alone: the fewer, the sooner, as the search of a
            count ends where another has beaten it.
        threads: Threads of the search; 0 takes every core. The answer does not depend on it.
        time_limit_s: Seconds after which the counts so far are returned, unproved.

    Raises:
        SpecError: The problem is wrong, a step takes over 213 days, or money is asked for and
            chips have no price or several.
        KeyboardInterrupt: Ctrl-C ended the search.

    Example:
        >>> question = problem("llama2-7b", "a800", global_batch_size=10, sequence_length=4096,
        ...                    devices=16, pp=[1], cp=[1])
        >>> [size.devices for size in sizes(question).sizes]
        [1, 2, 4, 5, 8, 10, 16]
        >>> [size.devices for size in sizes(question, "fastest").sizes]
        [16]
    """
    question = wire.spelled(Problem, problem, "problem")
    if wanted not in get_args(Wanted):
        what = f"must be one of {', '.join(get_args(Wanted))}, found {shown(wanted)}"
        raise SpecError("wanted", what, "Write one of them in quotes.")
    if wanted in ("frontier", "cheapest"):
        check_one_price(problem)
    text = _core.sizes(question, json.dumps(wanted), threads=threads, time_limit_s=time_limit_s)
    return wire.loads(Sizes, text)


def rerun(report: Answer, *, threads: int = 0) -> Answer:
    """Returns the answer to a report's own problem, found again.

    A report of a search that ran to its end comes out equal, by the same version of this package.

    Args:
        report: The report, or the sizes; of their answers nothing is used.
        threads: Threads of the search; 0 takes every core.

    Raises:
        SpecError: The report's problem is wrong.
        KeyboardInterrupt: Ctrl-C ended the search.
    """
    if isinstance(report, Sizes):
        return sizes(report.problem, report.wanted, threads=threads)
    if not isinstance(report, Report):
        what = f"must be a Report or Sizes, found {shown(report)}"
        raise SpecError("report", what, "Give what a search returned.")
    return solve(report.problem, threads=threads)


def estimate(problem: Problem, plan: Plan) -> Estimate:
    """Returns what a plan costs: time in picoseconds and memory in bytes, item by item.

    Args:
        problem: What is trained, on what.
        plan: The plan; that it does not fit in memory, `Estimate.violations` says.

    Raises:
        SpecError: A document is wrong, or the plan breaks a rule as that tp divides the heads.

    Example:
        >>> from autopar.planner import plan
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> cost = estimate(question, plan(question, tp=2, zero=1))
        >>> sum(wire.write(cost.time).values()) == cost.step_ps
        True
    """
    return wire.loads(Estimate, estimate_json(problem, plan))


def estimate_json(problem: Problem, plan: Plan) -> str:
    """Returns what a plan costs as the JSON text that the core wrote."""
    return _core.estimate(*_asked(problem, plan))


def estimate_many(
    problem: Problem,
    plans: "NDArray[Any]",
    *,
    layers: "ArrayLike | None" = None,
    chips: "ArrayLike | None" = None,
) -> "NDArray[Any]":
    """Returns what many plans of one problem cost, equal to `estimate` to the last bit.

    No Python object is made for a plan, the GIL is free meanwhile, and Ctrl-C ends it. Plans that
    are sharded alike share their prices: a table of few shardings and many pipelines is fastest.

    Args:
        problem: What is trained, on what.
        plans: Structured array of one dimension, a plan an entry. Its columns are whole numbers of
            any width: `dp`, `tp`, `sp` (0 or 1), `cp`, `ep`, `etp`, `pp`, `vpp`, `mbs`, `zero`,
            `shard_group`; `schedule` (0 1f1b, 1 interleaved, 2 gpipe, 3 zb-h1, 4 zb-v);
            `recompute` (0 none, 1 selective, 2 block, 3 uniform) and `recompute_layers`, of every
            stage; `offload`, layers a stage; `optimizer_offload` (0 or 1); `chip`, the index of
            the kind that all stages run on. A column that is left out has `plan`'s default.
        layers: Layers of each stage, an array of plans by stages; entries after a plan's `pp` are
            not looked at. Equal shares unless given.
        chips: Index of each stage's kind of chip, shaped like `layers`, in place of `chip`.

    Returns:
        Structured array, an entry a plan: `step_ps` (uint64), `step_s`, `tokens_per_s` and `mfu`
        (float64); `allocated_bytes` and `capacity_bytes` (uint64) of the `stage` (int32) with the
        least memory to spare; `fits` (bool): the plan runs; `violation` (uint8): 0, or why it does
        not, as `VIOLATIONS` names it. The cost of an illegal plan is 0 and NaN.

    Raises:
        SpecError: The problem is wrong, or a column is unknown, not whole or holds an unknown code.
        KeyboardInterrupt: Ctrl-C ended it.

    Example:
        >>> import numpy
        >>> from autopar import VIOLATIONS
        >>> from autopar.planner import plan
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> columns = [("tp", int), ("pp", int), ("zero", int)]
        >>> table = numpy.array([(1, 1, 0), (2, 2, 1), (3, 1, 0)], dtype=columns)
        >>> costs = estimate_many(question, table)
        >>> costs["fits"].tolist(), [VIOLATIONS[code] for code in costs["violation"].tolist()]
        ([False, True, False], ['memory', '', 'devices'])
        >>> cost = estimate(question, plan(question, tp=2, pp=2, zero=1))
        >>> int(costs["step_ps"][1]) == cost.step_ps
        True
    """
    if chips is not None and layers is None:
        raise SpecError("chips", "given without layers", "Give the layers of each stage too.")
    words = _core.estimate_many(
        wire.spelled(Problem, problem, "problem"),
        bulk.rows(problem, plans),
        layers=None if layers is None else bulk.lines(layers, "layers"),
        chips=None if chips is None else bulk.lines(chips, "chips"),
    )
    return bulk.answer(words)


def fastest(problem: Problem, choices: Iterable[Iterable[Plan]]) -> Plan:
    """Returns the fastest plan that fits; where none fits, the one that lacks least memory.

    Args:
        problem: What is trained, on what.
        choices: Plans in groups, the faster first in each: the first of a group that fits stands
            for the group. Illegal plans are passed over.

    Raises:
        SpecError: The problem is wrong, or no plan is legal.
    """
    question = wire.spelled(Problem, problem, "problem")
    best: tuple[bool, int] | None = None
    found: Plan | None = None
    refused: SpecError | None = None
    for group in choices:
        for plan in group:
            try:
                cost = json.loads(_core.estimate(question, wire.dumps(plan)))
            except SpecError as error:
                refused = error
                continue
            lacks = max(
                stage["allocated_bytes"] - stage["capacity_bytes"] for stage in cost["stages"]
            )
            key = (True, lacks) if lacks > 0 else (False, cost["step_ps"])
            if best is None or key < best:
                best, found = key, plan
            if lacks <= 0:
                break
    if found is None:
        raise refused or SpecError("plan", "no plan to choose from")
    return found


def stage_communications(
    problem: Problem, plan: Plan, *, reuse_limit: int = 1000
) -> tuple[Communications, ...]:
    """Returns what MindSpore compiles of each stage's communication operators.

    A stage's graph holds every micro-batch of a pipeline's step, without a pipeline one. What sends
    to other stages, and the fused exchanges of gradients and parameters, are left out: they are
    never replaced. Neither count changes a step's time.

    Args:
        problem: What is trained, on what.
        plan: The plan; it need not fit in memory.
        reuse_limit: Operators that may become calls of shared subgraphs (`MS_COMM_COMPILER_OPT`,
            whose -1 is 1,000).

    Raises:
        SpecError: A document is wrong, or the plan breaks a rule.

    Example:
        >>> from autopar.planner import plan
        >>> question = problem("llama2-7b", "ascend_910b:8", global_batch_size=64,
        ...                    sequence_length=4096, framework="mindformers")
        >>> found = stage_communications(question, plan(question, tp=2))
        >>> found[0].operators, found[0].compiled  # 8 a layer, 4 at the ends, 4 of the loss
        (264, 4)
    """
    limit = wire.integer(reuse_limit, "reuse_limit")
    text = _core.stage_communications(*_asked(problem, plan), limit)
    return tuple(wire.read(Communications, each) for each in json.loads(text))


def timeline(problem: Problem, plan: Plan) -> Timeline:
    """Returns the events of one step of a plan, in picoseconds from its start.

    Args:
        problem: What is trained, on what.
        plan: The plan; it need not fit in memory.

    Returns:
        Passes of each chunk and micro-batch, sends, the reduction of gradients and the optimizer
        step. Of a long step fewer micro-batches are shown, at most 200,000 events; `truncated`
        says so.

    Raises:
        SpecError: A document is wrong, or the plan breaks a rule.

    Example:
        >>> from autopar.planner import plan
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=8, sequence_length=4096)
        >>> events = timeline(question, plan(question, pp=2, dp=4)).events
        >>> sum(each.kind == "forward" for each in events)  # two stages of two micro-batches
        4
    """
    return wire.loads(Timeline, _core.timeline(*_asked(problem, plan)))


def model_facts(model: Name | Model) -> ModelFacts:
    """Returns a model's parameter counts.

    Raises:
        SpecError: There is no such model, or it is wrong.

    Example:
        >>> model_facts("llama2-7b").parameters
        6738415616
    """
    spec = model if isinstance(model, Model) else model_of(files.named(model, "model")).model
    return wire.loads(ModelFacts, _core.model_facts(wire.dumps(spec)))


def _asked(problem: Problem, plan: Plan) -> tuple[str, str]:
    """Returns a problem and a plan as the core reads them.

    Raises:
        SpecError: One is another thing.
    """
    return wire.spelled(Problem, problem, "problem"), wire.spelled(Plan, plan, "plan")
