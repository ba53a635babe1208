"""Training with parameter servers: the question and its answer, as frozen dataclasses.

The graph is that of one worker's mini-batch. A parameter that only look-ups read is a table, of
which the rows that are named travel; any other travels whole. Times are whole picoseconds, memory
whole bytes.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autopar.cluster import Cluster
from autopar.graph import Graph

Where: TypeAlias = Literal["all_reduce", "servers", "mixed"]
Limit: TypeAlias = Literal["workers", "push", "update", "pull"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersOptions:
    """Servers, what is kept where, and how a job recovers.

    Attributes:
        servers: Servers, each on a node of its own.
        server_memory_gib: Memory of a server, in GiB; no limit without it.
        memory_gib: Memory of a worker's device, in GiB; the chip's without it.
        optimizer_bytes: Bytes of optimizer state a parameter, its copy in 32 bits included.
        gradient_bytes: Bytes of a gradient as it travels and is summed.
        dynamic_workers: The job goes on while a lost worker is replaced (`enableDynamicWorker` of
            an MSJob); otherwise it stops and starts again.
        restart_s: Seconds until a lost process runs again.
        checkpoint_s: Seconds between two checkpoints.
        storage_gb_per_s: What one process reads of a checkpoint, 10^9 bytes a second.
    """

    servers: int = 1
    server_memory_gib: float | None = None
    memory_gib: float | None = None
    optimizer_bytes: int = 12
    gradient_bytes: int = 4
    dynamic_workers: bool = False
    restart_s: float = 60.0
    checkpoint_s: float = 1800.0
    storage_gb_per_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersProblem:
    """A graph to train with parameter servers.

    Attributes:
        schema: Kind and version of the document.
        version: Version of the package that wrote it.
        catalog: Date and hash of the catalog that its parts came from.
        graph: The operators of one worker's mini-batch.
        cluster: The workers, one a device, of one kind.
        options: Servers and recovery.
    """

    schema: Literal["autopar.servers-problem/1"] = "autopar.servers-problem/1"
    version: str
    catalog: str
    graph: Graph
    cluster: Cluster
    options: ServersOptions = ServersOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronous:
    """A step in which every worker waits for all; the parts add up to it.

    Attributes:
        step_ps: The step.
        compute_ps: Forward and backward passes of a mini-batch.
        reduce_ps: Sums of gradients among the workers.
        push_ps: Gradients on their way to the servers.
        update_ps: Sums and optimizer steps, on the servers and on the workers.
        pull_ps: Parameters on their way to the workers.
        batches_per_s: Mini-batches of all workers in a second.
    """

    step_ps: int
    compute_ps: int
    reduce_ps: int
    push_ps: int
    update_ps: int
    pull_ps: int
    batches_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous:
    """Workers that do not wait for one another.

    Attributes:
        round_ps: A worker's round where no other is in its way: pull, passes, push, update.
        batches_per_s: Mini-batches of all workers in a second.
        limit: What more workers would wait for; `workers` while they would not.
        staleness: Updates by others between a worker's pull and its push, where all are as fast.
    """

    round_ps: int
    batches_per_s: float
    limit: Limit
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one placement of the parameters costs.

    Attributes:
        parameters: Where they are: all on every worker, all on the servers, or tables on the
            servers and the rest on every worker.
        synchronous: Every worker waits for all gradients of a step.
        asynchronous: Every worker goes on with what the servers have; null where gradients are
            summed among workers.
        worker_bytes: Memory of a worker: parameters, gradients, optimizer state, kept activations.
        server_bytes: Memory of a server: parameters, sums of gradients, optimizer state.
        lost_worker_s: Seconds of the whole job that a lost worker costs, on average.
        lost_server_s: The same of a lost server; null without servers.
        violations: Why it does not fit; empty for a placement that runs.
    """

    parameters: Where
    synchronous: Synchronous
    asynchronous: Asynchronous | None
    worker_bytes: int
    server_bytes: int
    lost_worker_s: float
    lost_server_s: float | None
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What each placement costs.

    Attributes:
        schema: Kind and version of the document.
        problem: The question.
        tables: Parameters that only look-ups read, in the order of the graph.
        placements: All on every worker, all on the servers, tables on the servers.
        fastest: Which of them takes the shortest synchronous step of those that fit; null if none
            does.
        notes: Limits and assumptions that bear on the result.
    """

    schema: Literal["autopar.servers/1"] = "autopar.servers/1"
    problem: ServersProblem
    tables: tuple[str, ...]
    placements: tuple[Placement, ...]
    fastest: int | None
    notes: tuple[str, ...]
