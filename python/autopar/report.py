"""What is answered, as frozen dataclasses: plans, estimates, reports.

The fields are those of the Rust core, name by name; a contract test holds the two together. Times
are whole picoseconds (`_ps`), amounts of memory whole bytes unless the key says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from autopar.spec import Problem, Schedule

# What the search chooses of (`autopar.spec.Granularity`), and what only files and networks say.
Again: TypeAlias = Literal["none", "selective", "block", "uniform", "parts"]
StopReason: TypeAlias = Literal["complete", "time", "interrupted"]
Work: TypeAlias = Literal["model", "hardware", "6n", "8n"]
Counted: TypeAlias = Literal["full", "causal", "none"]
Cut: TypeAlias = Literal[
    "options",
    "model-shape",
    "sequence",
    "batch",
    "layers",
    "micro-batches",
    "placement",
    "limits",
    "memory",
    "bound",
    "unreached",
]


@dataclass(frozen=True, slots=True)
class NamedLayers:
    """In how many layers of a stage operators are computed again by themselves.

    A count is dealt out to the chunks of the stage in turn, and is of the first layers of each.

    Attributes:
        norm: Norms before sub-layers; the operators are those of `autopar.framework.Named`.
        gather: Gathering the norms' results over the tensor-parallel group, where sequence parallel
            keeps them gathered.
        projections: Products that make queries, keys and values, with their rotation.
        attention: The core of attention.
        expansion: Products that open an MLP.
        activation: The nonlinearity of an MLP with its gate.
    """

    norm: int = 0
    gather: int = 0
    projections: int = 0
    attention: int = 0
    expansion: int = 0
    activation: int = 0


@dataclass(frozen=True, slots=True)
class Recompute:
    """What a stage computes again in the backward pass instead of keeping it.

    Attributes:
        granularity: Nothing, the framework's selection of operators, the first layers of each
            chunk, groups of layers, or parts: so many layers, and operators of so many.
        layers: Recomputed layers of a chunk (block), of a stage, dealt out to its chunks in turn
            (parts), or layers a group (uniform); else absent.
        regathers: Of parts, whether what ZeRO shards of the parameters of recomputed layers is
            gathered for each of their passes, not once a step; else absent.
        operators: Of parts, the layers in which operators are computed again by themselves; else
            absent.

    Example:
        >>> Recompute("parts", 2, regathers=False, operators=NamedLayers(activation=10)).layers
        2
    """

    granularity: Again = "none"
    layers: int | None = field(default=None, metadata={"absent": True})
    regathers: bool | None = field(default=None, metadata={"absent": True})
    operators: NamedLayers | None = field(default=None, metadata={"absent": True})


def chunk_layers(layers: Sequence[int], vpp: int, index: int) -> list[int]:
    """Returns the layers of each chunk of a stage.

    All chunks are equal, but the embedding may stand in the first of the first stage for layers,
    and the head in the last of the last stage.

    Args:
        layers: Layers of each stage.
        vpp: Chunks of a stage.
        index: The stage.

    Example:
        >>> chunk_layers((5, 6), 2, 0), chunk_layers((5, 6), 2, 1)
        ([2, 3], [3, 3])
    """
    chunks = [-(-layers[index] // vpp)] * vpp
    chunks[0 if index == 0 else -1] -= sum(chunks) - layers[index]
    return chunks


def dealt(count: int, vpp: int) -> list[int]:
    """Returns how many of so many layers each of a stage's chunks is dealt, in turn.

    Example:
        >>> dealt(7, 3)
        [3, 2, 2]
    """
    return [(count + vpp - 1 - chunk) // vpp for chunk in range(vpp)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage.

    Attributes:
        chip: Index of its kind of chip in the cluster's groups.
        layers: Transformer layers; the first stage also holds the embedding, the last the head, and
            either may hold nothing else.
        recompute: What it computes again in the backward pass.
        offload: Layers whose activations wait in host memory.
    """

    chip: int = 0
    layers: int
    recompute: Recompute = Recompute()
    offload: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete way to train.

    The devices used are `dp` x `cp` times the tensor-parallel degrees of all stages: `dp` x `tp` x
    `cp` x `pp` where there is one degree.

    Attributes:
        dp: Data-parallel replicas.
        tp: Tensor-parallel degree; where kinds of chip differ in it, the largest.
        tp_of_kind: Where they differ, the degree of each kind in the cluster's list, 0 for kinds
            that hold no stage; otherwise empty.
        sp: Sequence parallel: norms and residuals are split over the tensor-parallel group too.
        cp: Context-parallel degree (ring attention).
        ep: Expert-parallel degree; its group lies inside tp x cp x dp.
        etp: Tensor-parallel degree inside an expert: 1, or `tp`, which then is each kind's own.
        pp: Pipeline stages.
        vpp: Model chunks that a stage holds (interleaved schedules).
        mbs: Sequences in one micro-batch.
        zero: 0 shards nothing, 1 optimizer state, 2 gradients too, 3 parameters too (FSDP).
        shard_group: Ranks over which ZeRO shards; at most dp x cp.
        schedule: Order of forward and backward passes.
        optimizer_offload: Optimizer state and step on the host.
        stages: One entry a pipeline stage, first to last.
    """

    dp: int = 1
    tp: int = 1
    tp_of_kind: tuple[int, ...] = ()
    sp: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1
    pp: int = 1
    vpp: int = 1
    mbs: int = 1
    zero: int = 0
    shard_group: int = 1
    schedule: Schedule = "1f1b"
    optimizer_offload: bool = False
    stages: tuple[Stage, ...]

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        if not self.tp_of_kind:
            return self.devices_per_stage(0) * self.pp
        return sum(self.devices_per_stage(stage.chip) for stage in self.stages)

    def tp_of(self, kind: int) -> int:
        """Returns the tensor-parallel degree of the stages on a kind of chip."""
        return self.tp_of_kind[kind] if kind < len(self.tp_of_kind) else self.tp

    def etp_of(self, kind: int) -> int:
        """Returns the tensor-parallel degree inside an expert on a kind of chip."""
        return 1 if self.etp == 1 else self.tp_of(kind)

    def devices_per_stage(self, kind: int) -> int:
        """Returns the devices of a stage on a kind of chip."""
        return self.dp * self.cp * self.tp_of(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Which operations of a step a published rate counts.

    Attributes:
        work: Products with weights: each forward and backward (`model`), those that are run again
            too (`hardware`), or six or eight a parameter that a token meets.
        attention: Products of attention: each query with every key, half of them, or none.
    """

    work: Work = "model"
    attention: Counted = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast a run was, as its publisher says it.

    Attributes:
        unit: What the figure counts.
        value: The figure.
        convention: Which operations it counts, where it counts any.
    """

    unit: Literal["step_s", "tokens_per_s_per_device", "tflops_per_device", "mfu"]
    value: float
    convention: Convention | None = field(default=None, metadata={"absent": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeItems:
    """Where a step goes, in picoseconds. The parts add up to the step.

    Attributes:
        compute_ps: Forward and backward passes of the layers, embedding and head.
        recompute_ps: Forward passes that run a second time.
        tensor_ps: Tensor-parallel communication that is not hidden.
        context_ps: Context-parallel communication that is not hidden.
        expert_ps: Expert all-to-all that is not hidden.
        shard_ps: Sharded parameters in every micro-batch, and offload, not hidden.
        pipeline_ps: Pipeline sends on the device's own time line.
        bubble_ps: Waiting for other stages.
        data_ps: Gradient reduction and parameter gathering that is not hidden.
        optimizer_ps: Gradient norm and optimizer step.
    """

    compute_ps: int
    recompute_ps: int
    tensor_ps: int
    context_ps: int
    expert_ps: int
    shard_ps: int
    pipeline_ps: int
    bubble_ps: int
    data_ps: int
    optimizer_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItems:
    """Memory of one device of a stage at its peak, in bytes; 0 for what is not there then.

    Attributes:
        parameters: Parameters.
        gradients: Gradients.
        optimizer: Optimizer state.
        activations: Activations kept for the backward pass, of all micro-batches in flight.
        logits: Logits and loss (last stage).
        working_set: Activations that exist only while one layer is computed (again).
        buffers: Gathered parameters, gradient buckets, pipeline sends.
        update: Copies of parameters and gradients, and roots of moments, that live only during the
            optimizer's step.
        cached: Freed memory that the allocator keeps: other streams and larger tensors than those
            that it held cannot use it, and what they need lies beside it.
        context: Device context, communicators and libraries, outside the allocator.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    working_set: int
    buffers: int
    update: int
    cached: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """What one pipeline stage costs.

    Attributes:
        forward_ps: Forward pass of one micro-batch through all chunks, in picoseconds.
        backward_ps: Backward pass of one micro-batch with its recompute, in picoseconds.
        memory: Memory by item.
        memory_bytes: What the driver shows at the peak: the items, but only the larger of `logits`
            and `working_set`, which do not meet.
        reserved_bytes: The same without `context`: what the framework's allocator has taken.
        allocated_bytes: The same without `cached`: what it hands out.
        capacity_bytes: What the allocator may hand out on this chip: its memory without `context`,
            margin taken off.
    """

    forward_ps: int
    backward_ps: int
    memory: MemoryItems
    memory_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Money, in the currency of the chips' prices.

    Attributes:
        step: Of one step.
        trillion_tokens: Of training on 10^12 tokens.
    """

    step: float
    trillion_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one step of a plan costs.

    Attributes:
        step_ps: Time of one step, in picoseconds.
        step_s: The same in seconds.
        tokens_per_s: Tokens of the whole cluster in a second.
        mfu: Model FLOPs (no recompute, full attention) over the 16-bit peak of the devices used.
        money: What it costs in money; none unless each chip that the plan uses has a price.
        time: Where the step goes, seen from its slowest stage.
        stages: One entry a pipeline stage.
        violations: Why it does not fit in memory; empty for a plan that runs.
    """

    step_ps: int
    step_s: float
    tokens_per_s: float
    mfu: float
    money: Money | None = None
    time: TimeItems
    stages: tuple[StageEstimate, ...]
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Classes of candidates: considered = estimated + the sum of all cuts.

    Attributes:
        considered: Size of the space.
        estimated: Classes whose best plan was estimated.
        cut: Classes cut, by reason.
        estimates: Plans estimated.
        bounds: Lower bounds computed.
    """

    considered: int
    estimated: int
    cut: dict[Cut, int]
    estimates: int
    bounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A plan with its estimate.

    Attributes:
        plan: The plan.
        estimate: What it costs.
    """

    plan: Plan
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """Nothing fits in memory.

    Attributes:
        kind: Tag of this answer.
        nearest: The plan that comes nearest.
        stage: Its stage that lacks most, counted from 0.
        lacks_gib: What that stage lacks, in GiB.
    """

    kind: Literal["memory"] = "memory"
    nearest: Ranked
    stage: int
    lacks_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShortage:
    """The limits cannot give the devices.

    Attributes:
        kind: Tag of this answer.
        asked: Devices asked for.
        available: Devices within the limits, whole nodes.
        cure: What to change.
    """

    kind: Literal["devices"] = "devices"
    asked: int
    available: int
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFactorisation:
    """No degrees multiply to the device count and divide the batch, sequence and model.

    Attributes:
        kind: Tag of this answer.
        nearest_devices: The nearest device count that has some.
        nearest_batch: The nearest global batch that has some on the devices asked for.
    """

    kind: Literal["factorisation"] = "factorisation"
    nearest_devices: int | None
    nearest_batch: int | None


Infeasible: TypeAlias = MemoryShortage | DeviceShortage | NoFactorisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to a problem, with the problem itself, so that it can be run again.

    Attributes:
        schema: Kind and version of the document.
        problem: The question.
        ranked: The best plans, fastest first; at most `options.top`.
        stop: Why the search ended.
        proved: Whether the list is proved to be the best of the whole space.
        gap: Most by which the best plan could still be beaten, as a share of its step time.
        counters: What happened to every class of candidates.
        infeasible: Why there is no plan, if there is none.
        notes: Limits, roundings and warnings that bear on the result.
    """

    schema: Literal["autopar.report/1"] = "autopar.report/1"
    problem: Problem
    ranked: tuple[Ranked, ...]
    stop: StopReason
    proved: bool
    gap: float | None
    counters: Counters
    infeasible: Infeasible | None
    notes: tuple[str, ...]


# All counts; those that no other beats in both time and money; the fastest or the cheapest alone.
Wanted: TypeAlias = Literal["every", "frontier", "fastest", "cheapest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A device count with its best plan.

    Attributes:
        devices: Devices that the plan uses.
        best: The fastest plan.
        frontier: Whether no other size is better in time or money and as good in the other; false
            unless every device-hour has one price.
    """

    devices: int
    best: Ranked
    frontier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The best plans of the device counts up to a limit.

    Attributes:
        schema: Kind and version of the document.
        problem: The question; its device count is the limit.
        wanted: Which counts `sizes` lists.
        considered: Device counts to which some degrees multiply.
        proved: Whether all of them were searched to the end.
        sizes: Counts at which a plan fits, ascending; of them those that were wanted.
        fastest: Index of the fastest; the one with the fewest devices of several. None where the
            cheapest alone was wanted.
        cheapest: Index of the one that costs least money; none unless every device-hour has one
            price, nor where the fastest alone was wanted.
    """

    schema: Literal["autopar.sizes/2"] = "autopar.sizes/2"
    problem: Problem
    wanted: Wanted
    considered: int
    proved: bool
    sizes: tuple[Size, ...]
    fastest: int | None
    cheapest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One piece of work on a stage's time line.

    A stage waits for its own sends where the schedule blocks on them (1F1B, GPipe); otherwise they
    run beside its passes. What passes hide of other communication is part of them.

    Attributes:
        stage: Pipeline stage, counted from 0.
        chunk: Model chunk of the stage, counted from 0; 0 for `data` and `optimizer`.
        micro_batch: Micro-batch, counted from 0; 0 for `data` and `optimizer`.
        kind: What is done: a pass, the send of its result, reducing gradients and gathering
            parameters as far as nothing hides it, or gradient norm and optimizer step.
        start_ps: When it starts, in picoseconds from the start of the step.
        duration_ps: How long it takes, in picoseconds.
    """

    stage: int
    chunk: int
    micro_batch: int
    kind: Literal["forward", "backward", "weight", "send", "data", "optimizer"]
    start_ps: int
    duration_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The events of one step. Unless truncated, the last of them ends with the step.

    Attributes:
        schema: Kind and version of the document.
        events: The events, by start and stage.
        truncated: Whether a step of fewer micro-batches is shown, or its end left out, for size.
    """

    schema: Literal["autopar.timeline/1"] = "autopar.timeline/1"
    events: tuple[Event, ...]
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Parameter counts of a model.

    Attributes:
        parameters: All parameters, tied weights counted once.
        active_parameters: Parameters that one token meets.
        layer_parameters: Parameters of each layer.
        embedding_parameters: Tokens, learned positions and the norm after them.
        head_parameters: Final norm and an untied output head.
    """

    parameters: int
    active_parameters: int
    layer_parameters: tuple[int, ...]
    embedding_parameters: int
    head_parameters: int
