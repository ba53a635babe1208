"""Finds the fastest way to train a large language model on a cluster, and proves it.

Example:
    >>> import autopar
    >>> report = autopar.search(
    ...     "llama2-70b", "a800:256", global_batch_size=512, sequence_length=4096, top=3
    ... )
    >>> len(report.ranked), report.proved
    (3, True)
"""

from autopar.bulk import VIOLATIONS
from autopar.cluster import Chip, Cluster, DeviceGroup
from autopar.errors import AutoparError, SpecError
from autopar.framework import Framework
from autopar.planner import (
    __version__,
    estimate,
    estimate_many,
    model_facts,
    model_graph,
    plan,
    problem,
    read_graph,
    rerun,
    search,
    servers,
    shard,
    sizes,
    solve,
    timeline,
)
from autopar.report import Estimate, Plan, Ranked, Recompute, Report, Sizes, Stage, Timeline
from autopar.spec import Model, Options, Problem, Workload

__all__ = [
    "VIOLATIONS",
    "AutoparError",
    "Chip",
    "Cluster",
    "DeviceGroup",
    "Estimate",
    "Framework",
    "Model",
    "Options",
    "Plan",
    "Problem",
    "Ranked",
    "Recompute",
    "Report",
    "Sizes",
    "SpecError",
    "Stage",
    "Timeline",
    "Workload",
    "__version__",
    "estimate",
    "estimate_many",
    "model_facts",
    "model_graph",
    "plan",
    "problem",
    "read_graph",
    "rerun",
    "search",
    "servers",
    "shard",
    "sizes",
    "solve",
    "timeline",
]
