"""The verbs: ask for the best plans, estimate one, see its time line. The only caller of the core.

Every function is safe to call from several threads and after a fork; the core frees the GIL and
answers Ctrl-C with `KeyboardInterrupt`. Wrong input raises `SpecError`; that nothing fits is an
answer (`Report.infeasible`).
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from autopar import _core, bulk, catalog, wire
from autopar.errors import SpecError
from autopar.frontends import hf
from autopar.frontends.launch import Launch
from autopar.graph import Graph
from autopar.report import (
    Estimate,
    ModelFacts,
    Plan,
    Rate,
    Recompute,
    Report,
    Sizes,
    Stage,
    Timeline,
)
from autopar.sharding import (
    FixedStrategy,
    Method,
    Others,
    Sharding,
    ShardingOptions,
    ShardingProblem,
)
from autopar.spec import (
    Attention,
    Cluster,
    Framework,
    Granularity,
    Model,
    Options,
    Precision,
    Problem,
    Schedule,
    Workload,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from autopar.frontends.draft import Reading

__version__ = _core.__version__

log = logging.getLogger("autopar")

Name = str | PathLike[str]
Progress = Callable[[int, int], object]


class Limits(TypedDict, total=False):
    """What the search may choose, as keywords; `Options` explains them."""

    top: int
    memory_margin: float
    tp: Sequence[int]
    pp: Sequence[int]
    vpp: Sequence[int]
    cp: Sequence[int]
    ep: Sequence[int]
    dp: Sequence[int]
    mbs: Sequence[int]
    sp: Sequence[bool]
    zero: Sequence[int]
    schedules: Sequence[Schedule]
    recompute: Sequence[Granularity]
    shard_group: Sequence[int]
    partial_shard_groups: bool
    activation_offload: bool
    optimizer_offload: bool
    uneven_layers: bool
    expert_tensor_parallel: bool


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
        **limits,
    )
    return solve(question, threads=threads, time_limit_s=time_limit_s, progress=progress)


def problem(
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
    **limits: Unpack[Limits],
) -> Problem:
    """Returns the question as a document that holds all its inputs. The arguments are `search`'s.

    Raises:
        SpecError: A name is unknown, a file is wrong, or a value has the wrong type.

    Example:
        >>> question = problem("llama2-7b", "a800", global_batch_size=8, sequence_length=4096,
        ...                    devices=8)
        >>> question.cluster.groups[0].chip.name
        'a800'
    """
    digests: list[str] = []
    if not isinstance(model, Model):
        model_entry = model_of(fspath(model))
        model = model_entry.model
        digests.append(model_entry.digest)
    if not isinstance(framework, Framework):
        framework_entry = catalog.framework(fspath(framework))
        framework = framework_entry.framework
        digests.append(framework_entry.digest)
    if not isinstance(cluster, Cluster):
        cluster_entry = catalog.cluster(fspath(cluster))
        cluster = cluster_of(cluster_entry, devices)
        digests.extend(cluster_entry.digests)
    elif devices is not None:
        cluster = replace(cluster, devices=devices)
    workload = Workload(
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        precision=precision,
        attention=attention,
        dropout=dropout,
    )
    question = Problem(
        version=__version__,
        catalog=catalog.version(digests),
        model=model,
        cluster=cluster,
        workload=workload,
        framework=framework,
        options=wire.read(Options, limits, "options"),
    )
    # Arguments come from callers without a type checker too.
    return wire.read(Problem, wire.write(question))


def model_of(name: str) -> catalog.ModelEntry:
    """Returns the model of a name in the catalog, of a TOML file, or of a Hugging Face config.

    Raises:
        SpecError: There is no such model, or its file is wrong.
    """
    return hf.model(name) if hf.is_config(name) else catalog.model(name)


def cluster_of(entry: catalog.ClusterEntry, devices: int | None = None) -> Cluster:
    """Returns a cluster of which a job uses `devices`, or all that the limits name.

    Raises:
        SpecError: Neither `devices` nor a limit for each kind is given.
    """
    if devices is None:
        devices = entry.devices
    if devices is None:
        whole = 0
        for group in entry.groups:
            if group.limit is None:
                hint = f"Give devices, or a count as {group.chip.name}:256."
                raise SpecError("devices", f"{group.chip.name} has no limit to take all of", hint)
            whole += group.limit - group.limit % group.chip.devices_per_node
        devices = whole or sum(group.limit or 0 for group in entry.groups)
    return Cluster(
        groups=entry.groups,
        devices=devices,
        fabric=entry.fabric,
        between_kinds=entry.between_kinds,
    )


def launched(
    job: Launch, question: Mapping[str, Any], degrees: Mapping[str, Any]
) -> tuple[Problem, Plan]:
    """Returns the problem and the plan of a launcher's file, what it leaves open filled in.

    Args:
        job: The file as it was read.
        question: Arguments of `problem`; the cluster is needed, the model where the file has none.
        degrees: Arguments of `plan` that the file leaves open.

    Raises:
        SpecError: Something is given twice or by nobody, or the plan is not one.
    """
    for given, said in ((question, job.question), (degrees, job.plan)):
        if twice := sorted(given.keys() & said.keys()):
            name = twice[0].replace("_", "-")
            what = f"given beside {job.file}, which says {said[twice[0]]}"
            raise SpecError(f"--{name}", what, "Leave the flag out.")
    if "recompute" in degrees and job.recompute is not None:
        what = f"given beside {job.file}, which says it"
        raise SpecError("--recompute", what, "Leave the flag out.")
    asked: dict[str, Any] = {"framework": job.framework, "model": job.model}
    asked |= {**job.question, **question}
    for name in ("model", "cluster", "global_batch_size", "sequence_length"):
        if asked.get(name) is None:
            flag = name.replace("_", "-")
            raise SpecError(f"--{flag}", f"missing: {job.file} does not say it", "Give the flag.")
    spelled = {**job.plan, **degrees}
    if "dp" in spelled:
        product = math.prod(spelled.get(name, 1) for name in ("dp", "tp", "cp", "pp"))
        asked.setdefault("devices", product)
    given_problem = problem(**asked)
    framework = job.tuned(given_problem.framework)
    given_problem = wire.read(Problem, wire.write(replace(given_problem, framework=framework)))
    return given_problem, job.staged(plan(given_problem, **spelled))


def solve(
    problem: Problem,
    *,
    threads: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Returns the report on a problem; `search` with the question spelled out.

    Raises:
        SpecError: The problem is wrong.
        KeyboardInterrupt: Ctrl-C ended the search.
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
    """Returns the report on a problem as the JSON text that the core wrote."""
    log.info("problem: catalog %s, %d devices", problem.catalog, problem.cluster.devices)
    text = _core.search(
        wire.dumps(problem), threads=threads, time_limit_s=time_limit_s, progress=progress
    )
    log.info("report: %d characters", len(text))
    return text


def sizes(problem: Problem, *, threads: int = 0, time_limit_s: float | None = None) -> Sizes:
    """Returns the best plan of every device count up to the problem's, as if others were idle.

    Each count is searched to its end, so the fastest of them is the fastest plan that uses any
    number of devices within the limit. Where every device-hour has one price, money at a count is
    proportional to time; then the cheapest of all plans and those that no plan beats in both time
    and money are among them too. With several prices that does not follow and is not claimed.

    Args:
        problem: What is trained, on what; at most its devices are used.
        threads: Threads of the search; 0 takes every core. The answer does not depend on it.
        time_limit_s: Seconds after which the counts so far are returned, unproved.

    Raises:
        SpecError: The problem is wrong.
        KeyboardInterrupt: Ctrl-C ended the search.

    Example:
        >>> question = problem("llama2-7b", "a800", global_batch_size=10, sequence_length=4096,
        ...                    devices=16, pp=[1], cp=[1])
        >>> found = sizes(question)
        >>> [size.devices for size in found.sizes], found.sizes[found.fastest].devices
        ([1, 2, 4, 5, 8, 10, 16], 16)
    """
    text = _core.sizes(wire.dumps(problem), threads=threads, time_limit_s=time_limit_s)
    return wire.loads(Sizes, text)


def check_one_price(problem: Problem) -> None:
    """Refuses kinds of chip without a price, or with several.

    Raises:
        SpecError: Money at a device count is not proportional to time.
    """
    first = problem.cluster.groups[0].chip
    for i, group in enumerate(problem.cluster.groups):
        path = f"cluster.groups[{i}].chip.price_per_hour"
        if group.chip.price_per_hour is None:
            hint = "Give it in the chip's or the cluster's TOML file."
            raise SpecError(path, f'"{group.chip.name}" has no price', hint)
        if group.chip.price_per_hour != first.price_per_hour:
            what = f'"{group.chip.name}" has another price than "{first.name}"'
            hint = "Search each kind alone: with several prices the fastest need not be cheapest."
            raise SpecError(path, what, hint)


def rerun(report: Report, *, threads: int = 0) -> Report:
    """Returns the answer to a report's own problem, found again.

    A report of a search that ran to its end comes out equal, by the same version of this package.

    Raises:
        SpecError: The report's problem is wrong.
    """
    return solve(report.problem, threads=threads)


def estimate(problem: Problem, plan: Plan) -> Estimate:
    """Returns what a plan costs: time in picoseconds and memory in bytes, item by item.

    Args:
        problem: What is trained, on what.
        plan: The plan; that it does not fit in memory, `Estimate.violations` says.

    Raises:
        SpecError: A document is wrong, or the plan breaks a rule as that tp divides the heads.

    Example:
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> cost = estimate(question, plan(question, tp=2, zero=1))
        >>> sum(wire.write(cost.time).values()) == cost.step_ps
        True
    """
    return wire.loads(Estimate, estimate_json(problem, plan))


def estimate_json(problem: Problem, plan: Plan) -> str:
    """Returns what a plan costs as the JSON text that the core wrote."""
    return _core.estimate(wire.dumps(problem), wire.dumps(plan))


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
        wire.dumps(problem),
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
    question = wire.dumps(problem)
    best: tuple[bool, int] | None = None
    found: Plan | None = None
    refused: SpecError | None = None
    for group in choices:
        for plan in group:
            try:
                cost = wire.parse_json(_core.estimate(question, wire.dumps(plan)))
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


def measured_seconds(problem: Problem, plan: Plan, rate: Rate) -> float:
    """Returns the seconds that one step of a plan took, by a published rate.

    Raises:
        SpecError: A document is wrong, or the rate is not positive.

    Example:
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> rate = Rate(unit="tokens_per_s_per_device", value=4096.0)
        >>> measured_seconds(question, plan(question), rate)
        8.0
    """
    return float(_core.measured_seconds(wire.dumps(problem), wire.dumps(plan), wire.dumps(rate)))


def timeline(problem: Problem, plan: Plan) -> Timeline:
    """Returns the events of one step of a plan, in picoseconds from its start.

    Raises:
        SpecError: A document is wrong.
    """
    return wire.loads(Timeline, _core.timeline(wire.dumps(problem), wire.dumps(plan)))


def model_facts(model: Name | Model) -> ModelFacts:
    """Returns a model's parameter counts.

    Raises:
        SpecError: There is no such model, or it is wrong.

    Example:
        >>> model_facts("llama2-7b").parameters
        6738415616
    """
    spec = model if isinstance(model, Model) else model_of(fspath(model)).model
    return wire.loads(ModelFacts, _core.model_facts(wire.dumps(spec)))


def model_graph(
    model: Name | Model,
    *,
    batch: int,
    sequence_length: int,
    precision: Precision = "bf16",
    layers: int | None = None,
    training: bool = True,
    framework: Name | Framework = "megatron-core",
) -> Graph:
    """Returns the operators of a dense model.

    Args:
        model: Name or alias in the catalog, path to a TOML file, or a `Model`.
        batch: Sequences that all devices work on together.
        sequence_length: Tokens in one sequence.
        precision: Number format of weights and activations.
        layers: The first so many layers; all unless given.
        training: With the loss, and gradients priced beside the operators.
        framework: To whose multiple the vocabulary is padded.

    Raises:
        SpecError: There is no such model, or it has no graph (mixture of experts, for one).

    Example:
        >>> graph = model_graph("llama2-7b", batch=1, sequence_length=4096, layers=1)
        >>> len(graph.operators), graph.operators[-1].name
        (29, 'loss')
    """
    spec = model if isinstance(model, Model) else catalog.model(fspath(model)).model
    if not isinstance(framework, Framework):
        framework = catalog.framework(fspath(framework)).framework
    asked = {
        "model": wire.write(spec),
        "batch": batch,
        "sequence_length": sequence_length,
        "precision": precision,
        "layers": layers,
        "training": training,
        "vocab_multiple": framework.vocab_multiple,
    }
    return wire.loads(Graph, _core.model_graph(json.dumps(asked)))


class Sharded(TypedDict, total=False):
    """What `shard` may choose, as keywords; `ShardingOptions` explains them."""

    method: Method
    mesh: Sequence[int]
    strategies: Sequence[FixedStrategy]
    others: Others
    use_all_devices: bool
    refine: bool
    all_to_all: bool
    zero: int
    optimizer_bytes: int
    gradient_bytes: int
    memory_gib: float | None


def shard(
    graph: Graph,
    cluster: Name | Cluster,
    *,
    devices: int | None = None,
    time_limit_s: float | None = None,
    **options: Unpack[Sharded],
) -> Sharding:
    """Returns how the operators of a graph are best cut over devices.

    Args:
        graph: The operators.
        cluster: One kind of chip with its limit (`a800:8`), a cluster's name or path, or a
            `Cluster`.
        devices: Devices to use; all listed unless given.
        time_limit_s: Seconds after which integer programming returns the best so far.
        **options: The fields of `ShardingOptions`, as `method="dp", zero=1`.

    Raises:
        SpecError: An input is wrong; the error says where, what and how to cure it.
        SolverError: The solver found no choice in time.

    Example:
        >>> from autopar.graph import MatMul, Operator, Tensor
        >>> x = Tensor("x", (64, 256), role="input")
        >>> w = Tensor("w", (256, 512), role="parameter")
        >>> mm = Operator(name="mm", form=MatMul(), inputs=("x", "w"), outputs=("y",))
        >>> net = Graph(name="net", tensors=(x, w, Tensor("y", (64, 512))), operators=(mm,))
        >>> shard(net, "a800", devices=8, use_all_devices=True).proof.exact
        True
    """
    digests: tuple[str, ...] = ()
    if not isinstance(cluster, Cluster):
        entry = catalog.cluster(fspath(cluster))
        cluster, digests = cluster_of(entry, devices), entry.digests
    elif devices is not None:
        cluster = replace(cluster, devices=devices)
    problem = ShardingProblem(
        version=__version__,
        catalog=catalog.version(list(digests)),
        graph=graph,
        cluster=cluster,
        options=replace(ShardingOptions(), **{k: _frozen(v) for k, v in options.items()}),
    )
    return solve_sharding(problem, time_limit_s=time_limit_s)


def solve_sharding(problem: ShardingProblem, *, time_limit_s: float | None = None) -> Sharding:
    """Returns the answer to a sharding problem; `shard` gathers one from names.

    Raises:
        SpecError: The problem is wrong.
        SolverError: The solver found no choice in time.
    """
    text = wire.dumps(problem)
    if problem.options.method != "ilp" or (arrays := _core.sharding_program(text)) is None:
        return wire.loads(Sharding, _core.shard(text))
    from autopar import ilp

    program = ilp.program(arrays)
    choice = ilp.solve(program, time_limit_s=time_limit_s)
    found = wire.loads(Sharding, _core.sharding_chosen(text, choice.columns, choice.bound))
    if not found.fits:
        # The limit was missed by the solver's tolerance; the bound of the first run still holds.
        again = ilp.solve(program, time_limit_s=time_limit_s, tighten=10 * ilp.FEASIBILITY)
        found = wire.loads(Sharding, _core.sharding_chosen(text, again.columns, choice.bound))
    return found


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_graph(
    path: Name,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    inference: bool = False,
) -> "Reading":
    """Returns the graph of a file, and notes on what in it is not known.

    Args:
        path: An ONNX file (`.onnx`), a frozen TensorFlow graph (`.pb`), or a graph document
            (`.json`).
        input_shapes: Shapes of inputs with open dimensions.
        inference: No gradients are computed.

    Raises:
        SpecError: The file cannot be read as a graph, or a dimension is unknown.
    """
    from autopar.frontends import graph_file

    return graph_file.read(path, input_shapes, inference=inference)


def check_graph(graph: Graph) -> list[str]:
    """Returns the names of a graph's operators in an order in which they can run.

    Raises:
        SpecError: A tensor is missing, shapes do not match, or operators wait for each other.

    Example:
        >>> from autopar.graph import Elementwise, Operator, Tensor
        >>> relu = Operator(name="relu", form=Elementwise(), inputs=("x",), outputs=("y",))
        >>> tensors = (Tensor("x", (4, 8), role="input"), Tensor("y", (4, 8)))
        >>> check_graph(Graph(name="net", tensors=tensors, operators=(relu,)))
        ['relu']
    """
    names: list[str] = json.loads(_core.check_graph(wire.dumps(graph)))
    return names


def operator_seconds(
    chip: Name,
    *,
    precision: Precision = "bf16",
    kernels: Sequence[str] = ("fa2",),
    gemm: Sequence[tuple[int, int, int]] = (),
    attention: Sequence[tuple[int, int, int]] = (),
    collectives: Sequence[tuple[str, float, int]] = (),
) -> dict[str, list[Any]]:
    """Returns the seconds of single operators on a chip, to hold against measured points.

    Args:
        chip: Name or alias in the catalog, or path to a TOML file.
        precision: Number format of the products.
        kernels: Fused-attention kernels, best first; the first that the chip has is taken.
        gemm: Products `[m, k] x [k, n]` as (m, n, k).
        attention: Causal attention as (heads times sequences, head width, sequence length).
        collectives: `all_reduce`, `all_gather` or `all_to_all`, bytes, and neighbouring ranks.

    Returns:
        `gemm_s`; `attention_s`, forward and backward; `collective_s`.

    Raises:
        SpecError: There is no such chip, or a value is wrong.

    Example:
        >>> seconds = operator_seconds("a800", gemm=[(8192, 8192, 8192)])["gemm_s"][0]
        >>> 200e12 < 2 * 8192**3 / seconds < 312e12
        True
    """
    asked = {
        "chip": wire.write(catalog.chip(fspath(chip)).chip),
        "precision": precision,
        "kernels": list(kernels),
        "gemm": [list(shape) for shape in gemm],
        "attention": [
            {"heads": heads, "head_dim": width, "sequence": sequence}
            for heads, width, sequence in attention
        ],
        "collectives": [
            {"operation": operation, "bytes": float(size), "ranks": ranks}
            for operation, size, ranks in collectives
        ],
    }
    found: dict[str, list[Any]] = json.loads(_core.operators(json.dumps(asked)))
    return found


def plan(
    problem: Problem,
    *,
    dp: int | None = None,
    tp: int = 1,
    sp: bool | None = None,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    pp: int = 1,
    vpp: int = 1,
    mbs: int = 1,
    zero: int = 0,
    shard_group: int | None = None,
    schedule: Schedule | None = None,
    optimizer_offload: bool = False,
    chips: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    recompute: Recompute | Sequence[Recompute] | None = None,
    offload: int = 0,
) -> Plan:
    """Returns a plan with what was left out filled in; `estimate` refuses one that breaks a rule.

    Args:
        problem: What is trained, on what.
        dp: Data-parallel replicas; the devices that the other degrees leave unless given.
        tp: Tensor-parallel degree.
        sp: Sequence parallel; on with `tp` > 1 unless given.
        cp: Context-parallel degree.
        ep: Expert-parallel degree.
        etp: Tensor-parallel degree inside an expert; as `Options.expert_tensor_parallel` says.
        pp: Pipeline stages.
        vpp: Model chunks that a stage holds.
        mbs: Sequences in one micro-batch.
        zero: ZeRO stage, 0 to 3.
        shard_group: Ranks over which ZeRO shards; dp x cp, or 1 without ZeRO, unless given.
        schedule: Order of passes; 1f1b, or interleaved with `vpp` > 1, unless given.
        optimizer_offload: Optimizer state and step on the host.
        chips: Index of each stage's kind of chip; all the first kind unless given.
        layers: Layers of each stage; equal shares unless given.
        recompute: What every stage recomputes, or the stages on each kind of chip; else nothing.
        offload: Layers of each stage whose activations wait in host memory.

    Raises:
        SpecError: A share is not whole, or a list does not have one item a stage.

    Example:
        >>> question = problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
        >>> two = plan(question, pp=2, recompute=Recompute("block", 4))
        >>> two.dp, [stage.layers for stage in two.stages]
        (4, [16, 16])
    """
    kinds = len(problem.cluster.groups)
    if chips is None:
        chips = (0,) * pp
    if layers is None:
        share = _share(problem.model.layers, pp, "layers", "Give the layers of each stage.")
        layers = (share,) * pp
    for name, items in (("chips", chips), ("layers", layers)):
        if len(items) != pp:
            what = f"must have one item for each of {pp} stages, found {len(items)}"
            raise SpecError(name, what, "List the stages from first to last.")
    if recompute is None or isinstance(recompute, Recompute):
        recompute = (recompute or Recompute(),) * kinds
    if len(recompute) != kinds or not all(0 <= chip < kinds for chip in chips):
        what = f"must name each of {kinds} kinds of chip by its index and recompute"
        raise SpecError("chips", what, "Count the kinds from 0.")
    if dp is None:
        hint = "Give degrees that divide the devices."
        dp = _share(problem.cluster.devices, tp * cp * pp, "dp", hint)
    return Plan(
        dp=dp,
        tp=tp,
        sp=tp > 1 if sp is None else sp,
        cp=cp,
        ep=ep,
        etp=(tp if problem.options.expert_tensor_parallel else 1) if etp is None else etp,
        pp=pp,
        vpp=vpp,
        mbs=mbs,
        zero=zero,
        shard_group=shard_group or (dp * cp if zero else 1),
        schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"),
        optimizer_offload=optimizer_offload,
        stages=tuple(
            Stage(chip=chip, layers=count, recompute=recompute[chip], offload=offload)
            for chip, count in zip(chips, layers, strict=True)
        ),
    )


def _share(total: int, parts: int, path: str, hint: str) -> int:
    """Returns one of equal whole shares."""
    if parts < 1 or total % parts:
        raise SpecError(path, f"{total} does not divide into {parts} equal shares", hint)
    return total // parts
