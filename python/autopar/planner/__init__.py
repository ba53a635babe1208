"""The verbs: ask for the best plans, estimate one, cut a graph. The only caller of the core.

Every function is safe to call from several threads and after a fork; the core frees the GIL and
answers Ctrl-C with `KeyboardInterrupt`. Wrong input raises `SpecError`; that nothing fits is an
answer (`Report.infeasible`).
"""

from autopar.planner.answers import (
    Progress,
    estimate,
    estimate_json,
    estimate_many,
    fastest,
    model_facts,
    rerun,
    search,
    sizes,
    solve,
    solve_json,
    stage_communications,
    timeline,
)
from autopar.planner.measured import (
    calibrate,
    measured_seconds,
    operator_seconds,
)
from autopar.planner.operators import (
    Recovered,
    Sharded,
    best_sharding,
    check_graph,
    model_graph,
    placed,
    read_graph,
    servers,
    shard,
    slices,
    solve_sharding,
)
from autopar.planner.plans import (
    devices_of,
    launched,
    plan,
)
from autopar.planner.question import (
    Limits,
    Name,
    __version__,
    check_one_price,
    cluster_of,
    model_of,
    problem,
)

__all__ = [
    "Limits",
    "Name",
    "Progress",
    "Recovered",
    "Sharded",
    "__version__",
    "best_sharding",
    "calibrate",
    "check_graph",
    "check_one_price",
    "cluster_of",
    "devices_of",
    "estimate",
    "estimate_json",
    "estimate_many",
    "fastest",
    "launched",
    "measured_seconds",
    "model_facts",
    "model_graph",
    "model_of",
    "operator_seconds",
    "placed",
    "plan",
    "problem",
    "read_graph",
    "rerun",
    "search",
    "servers",
    "shard",
    "sizes",
    "slices",
    "solve",
    "solve_json",
    "solve_sharding",
    "stage_communications",
    "timeline",
]
