"""The operator level's problem and its answer, as frozen dataclasses.

A strategy is a list of cuts a tensor: `((2, 1), (1, 4))` cuts the rows of the first input of a
product into 2 parts and the columns of the second into 4. Its product divides the devices; over the
rest the work is repeated. Times are whole picoseconds, memory whole bytes of one device.

Devices are ranks 0 to n - 1, the mixed radix numbers of the mesh's prime axes, outermost first. A
cut takes prime axes of the mesh in the order of the operator's loop axes (`[batch.., m, k, n]` of a
product, the dimensions of the first input elsewhere): the outermost loop takes the outermost axis,
and over what is left, the innermost, the work is repeated. On one axis whose size is a power of two
this is the device matrix that MindSpore makes of the same cuts.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autopar.cluster import Cluster
from autopar.graph import Graph

Method: TypeAlias = Literal["ilp", "dp", "recursive", "propagate"]
CostModel: TypeAlias = Literal["estimate", "mindspore"]
Others: TypeAlias = Literal["search", "data_parallel"]
Summands: TypeAlias = Literal["none", "all_reduce", "reduce_scatter"]
GroupingMode: TypeAlias = Literal["auto", "size", "index", "best"]
Collective: TypeAlias = Literal["reduce_scatter", "all_reduce", "slice", "all_to_all", "all_gather"]
Cuts: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategy:
    """A strategy that the user has set.

    Attributes:
        operator: The operator.
        inputs: Cuts of each dimension of each input; an empty list for a scalar.
        outputs: Cuts of each dimension of each output, where the operator leaves a choice: a
            product whose inner axis is cut may add its summands up in parts.
        recompute: Whether it is recomputed in the backward pass; null leaves that to the options.
        rows: Rows of each part of an embedding's table, where they are unlike (`manual_split`).
    """

    operator: str
    inputs: Cuts
    outputs: Cuts | None = None
    recompute: bool | None = None
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedInput:
    """How a tensor of the dataset is cut, along any of its dimensions: batch, height, width.

    Attributes:
        tensor: The tensor.
        cuts: Cuts of each dimension.
    """

    tensor: str
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """Strategies of some operators, as `autopar shard --save` writes them and `--strategies` reads.

    Attributes:
        schema: Kind and version of the document.
        strategies: One entry an operator.
    """

    schema: Literal["autopar.strategies/1"] = "autopar.strategies/1"
    strategies: tuple[FixedStrategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How exchanges of one kind are grouped.

    Attributes:
        mode: By 64 MB, a size, places of parameters, or the size that exposes least of the powers
            of two from 1 MB to 1024 MB.
        mb: Megabytes (10^6 bytes) that close a group, with `size`.
        places: Places of parameters, in the order of the graph, at which a group begins, ascending,
            with `index`.
    """

    mode: GroupingMode = "auto"
    mb: int | None = None
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How exchanges are grouped, by kind, as MindSpore's `comm_fusion`.

    Attributes:
        all_reduce: Gradients that every device gets.
        all_gather: Parameters that were updated in parts (ZeRO 1 and 2).
        reduce_scatter: Gradients of which each device gets a part (ZeRO).
    """

    all_reduce: Grouping = Grouping()
    all_gather: Grouping = Grouping()
    reduce_scatter: Grouping = Grouping()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingOptions:
    """What may be chosen, and by which method.

    Attributes:
        method: Integer programming, dynamic programming, halving the devices again and again, or
            propagation from the operators that are set.
        cost_model: What the method compares: seconds, or, with `recursive`, the relative costs of
            MindSpore's search of that name. The answer is priced in seconds either way.
        mesh: Sizes of the mesh's one to three axes, outermost first; empty for one axis.
        strategies: Strategies that the user has set.
        others: What happens to operators without one: searched, or cut along the leading axis.
        dataset: How tensors of the dataset are cut; those that are not named lie as their readers
            want them.
        prefetch_mb: Buffer for weights that are gathered ahead of their use, in MB (10^6 bytes), 0
            for as large as is of use and memory has room for; null gathers none ahead. It acts
            where parameters are divided (`zero` 3).
        reuse_limit: Identical communication operators that may be replaced by calls of a shared
            subgraph: at most so many, 0 for no limit; null replaces none.
        fusion: How gradients are grouped to be exchanged behind the backward pass; null charges
            each exchange in full.
        recompute: Whether an operator is recomputed in the backward pass is chosen with its
            strategy; otherwise only those are that the user has set.
        use_all_devices: Only strategies that give each device work of its own.
        refine: An axis of the mesh may be divided among several axes of an operator, by its primes
            where a product can then be cut in 2,000 ways at most, or else among two (notes of the
            answer say so); otherwise each is taken whole or not at all.
        all_to_all: All-to-all may be used; otherwise it is an all-gather and a slice.
        zero: What is divided among the devices that hold equal parameters: nothing (0), optimizer
            state (1), gradients too (2), parameters too (3).
        optimizer_bytes: Bytes of optimizer state a parameter, its copy in 32 bits included.
        gradient_bytes: Bytes of a gradient as it is kept and summed.
        memory_gib: Memory that a plan may use on a device, in GiB; the chip's without it.
    """

    method: Method = "ilp"
    cost_model: CostModel = "estimate"
    mesh: tuple[int, ...] = ()
    strategies: tuple[FixedStrategy, ...] = ()
    others: Others = "search"
    dataset: tuple[FixedInput, ...] = ()
    prefetch_mb: int | None = None
    reuse_limit: int | None = None
    fusion: Fusion | None = None
    recompute: bool = False
    use_all_devices: bool = False
    refine: bool = True
    all_to_all: bool = True
    zero: int = 0
    optimizer_bytes: int = 12
    gradient_bytes: int = 4
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingProblem:
    """A graph to cut over devices.

    Attributes:
        schema: Kind and version of the document.
        version: Version of the package that wrote it.
        catalog: Date and hash of the catalog that its parts came from.
        graph: The operators.
        cluster: The devices, of one kind.
        options: What may be chosen.
    """

    schema: Literal["autopar.sharding-problem/1"] = "autopar.sharding-problem/1"
    version: str
    catalog: str
    graph: Graph
    cluster: Cluster
    options: ShardingOptions = ShardingOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How good the answer is known to be.

    Attributes:
        exact: No strategies cost less; by integer programming, none by more than one part in 10^9,
            the solver's arithmetic.
        bound_ps: No strategies cost less than this; null for methods that give no bound.
        gap: Share of the cost by which it could still be beaten; null without a bound.
    """

    exact: bool
    bound_ps: int | None
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedOperator:
    """An operator with its strategy.

    Attributes:
        name: The operator.
        inputs: Cuts of each dimension of each input.
        outputs: Cuts of each dimension of each output, after its summands are added.
        summands: What is done with the summands that a cut inner axis leaves.
        recompute: Its outputs are computed again in the backward pass.
        compute_ps: Computation, forward and backward.
        communication_ps: Communication inside the operator, forward and backward.
        recompute_ps: Its forward pass once more, with its communication, if it is recomputed.
        gradient_ps: Communication of its parameters and their gradients.
        optimizer_ps: Optimizer step of its parameters.
        memory_bytes: Memory of its parameters, gradients, optimizer state and of what is kept of
            its outputs.
    """

    name: str
    inputs: Cuts
    outputs: Cuts
    summands: Summands
    recompute: bool
    compute_ps: int
    communication_ps: int
    recompute_ps: int
    gradient_ps: int
    optimizer_ps: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTensor:
    """A tensor that no operator writes, with its layout.

    Attributes:
        name: The tensor.
        axes: The prime axes of the mesh that cut each dimension, outermost first.
        rows: Elements of each part of the first dimension, where they are unlike.
    """

    name: str
    axes: Cuts
    rows: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardStep:
    """One collective or copy of a reshard.

    Attributes:
        operation: What is done.
        axes: The prime axes of the mesh over which it is done.
        dimension: The dimension that is put together; of an all-to-all the one that was cut.
        cut: The dimension that is cut by it.
        bytes: Bytes of one device's result (gather) or operand (all others).
        time_ps: Its time.
    """

    operation: Collective
    axes: tuple[int, ...]
    dimension: int | None
    cut: int | None
    bytes: int
    time_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """A tensor that changes its layout between two operators.

    Attributes:
        tensor: The tensor.
        writer: The operator that writes it; null for an input, parameter or constant.
        reader: The operator that reads it.
        forward: What is done forward.
        backward: What is done backward: the tensor fetched again where the reader's gradient needs
            it, then its gradient.
        time_ps: Time of both.
    """

    tensor: str
    writer: str | None
    reader: str
    forward: tuple[ReshardStep, ...]
    backward: tuple[ReshardStep, ...]
    time_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communications:
    """Communication operators on one device in a step.

    Attributes:
        operators: All of them.
        replaced: Those that became calls of a subgraph.
        subgraphs: The subgraphs.
        compiled: What is left to compile: those that stayed, and the subgraphs.
    """

    operators: int
    replaced: int
    subgraphs: int
    compiled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExchange:
    """Parameters whose exchanges are one.

    Attributes:
        operation: What is done.
        axes: The prime axes of the mesh over which it is done.
        tensors: The parameters.
        bytes: Bytes of one device's result (gather) or operand (all others).
        time_ps: Its time.
    """

    operation: Collective
    axes: tuple[int, ...]
    tensors: tuple[str, ...]
    bytes: int
    time_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What runs beside computation.

    Attributes:
        buckets: Groups of exchanges, in the order in which they run.
        bucket_mb: Megabytes that close a group of gradients; null where none has a size.
        gradients_exposed_ps: Exchange of gradients that goes on after the backward pass.
        gathers_exposed_ps: Gathers of parameters that operators wait for.
        buffer_bytes: The most that is gathered ahead at a time.
    """

    buckets: tuple[SharedExchange, ...]
    bucket_mb: int | None
    gradients_exposed_ps: int
    gathers_exposed_ps: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingCost:
    """What a plan costs on one device; the parts add up to the total.

    Attributes:
        total_ps: Time of one step.
        compute_ps: Computation.
        communication_ps: Communication inside operators.
        recompute_ps: Forward passes once more of the operators that are recomputed.
        reshard_ps: Reshards between operators.
        gradient_ps: Communication of parameters and their gradients.
        optimizer_ps: Optimizer step.
        hidden_ps: What of the communication of parameters and gradients runs beside computation or
            is saved by grouping; the total is less by it.
        memory_bytes: Memory.
        limit_bytes: Memory that it may use.
    """

    total_ps: int
    compute_ps: int
    communication_ps: int
    recompute_ps: int
    reshard_ps: int
    gradient_ps: int
    optimizer_ps: int
    hidden_ps: int
    memory_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The strategies chosen, with what they cost.

    Attributes:
        schema: Kind and version of the document.
        problem: The question.
        proof: How good the answer is known to be.
        fits: Whether the plan fits in memory; if none does, this is one of the least memory.
        mesh: Sizes of the mesh's prime axes, outermost first.
        operators: One entry an operator, in the order of the graph.
        tensors: One entry a parameter, input or constant, in the order of the graph.
        reshards: The tensors that change their layout between two operators.
        communications: Communication operators on one device, before and after identical ones
            share a subgraph.
        overlap: What runs beside computation; null if nothing was asked to.
        cost: The whole.
        strategies: Strategies considered, all operators together.
        notes: Limits, replacements and assumptions that bear on the result.
    """

    schema: Literal["autopar.sharding/1"] = "autopar.sharding/1"
    problem: ShardingProblem
    proof: Proof
    fits: bool
    mesh: tuple[int, ...]
    operators: tuple[ShardedOperator, ...]
    tensors: tuple[ShardedTensor, ...]
    reshards: tuple[Reshard, ...]
    communications: Communications
    overlap: Overlap | None
    cost: ShardingCost
    strategies: int
    notes: tuple[str, ...]

    def chosen(self) -> Strategies:
        """Returns the strategies alone, in the form in which they can be set."""
        rows = {each.operator: each.rows for each in self.problem.options.strategies}
        return Strategies(
            strategies=tuple(
                FixedStrategy(
                    operator=each.name,
                    inputs=each.inputs,
                    outputs=each.outputs,
                    recompute=each.recompute,
                    rows=rows.get(each.name),
                )
                for each in self.operators
            )
        )
