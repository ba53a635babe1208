from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "__version__",
    "calibrate",
    "canonical",
    "check_graph",
    "estimate",
    "estimate_many",
    "measured_seconds",
    "model_facts",
    "model_graph",
    "operators",
    "search",
    "servers",
    "shard",
    "sharding_chosen",
    "sharding_program",
    "sizes",
    "timeline",
]

__version__: str

def search(
    problem: str,
    *,
    threads: int = 0,
    time_limit_s: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> str: ...
def sizes(problem: str, *, threads: int = 0, time_limit_s: float | None = None) -> str: ...
def calibrate(document: str, *, threads: int = 0) -> str: ...
def estimate(problem: str, plan: str) -> str: ...
def estimate_many(
    problem: str,
    plans: NDArray[np.int32],
    layers: NDArray[np.int32] | None = None,
    chips: NDArray[np.int32] | None = None,
) -> NDArray[np.uint64]: ...
def measured_seconds(problem: str, plan: str, rate: str) -> str: ...
def timeline(problem: str, plan: str) -> str: ...
def canonical(kind: str, document: str) -> str: ...
def check_graph(graph: str) -> str: ...
def model_graph(document: str) -> str: ...
def shard(problem: str) -> str: ...
def servers(problem: str) -> str: ...
def sharding_program(problem: str) -> dict[str, bytes | int] | None: ...
def sharding_chosen(problem: str, columns: list[int], bound: float | None = None) -> str: ...
def model_facts(model: str) -> str: ...
def operators(document: str) -> str: ...
