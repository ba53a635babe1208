from collections.abc import Callable

__all__ = [
    "__version__",
    "canonical",
    "check_graph",
    "estimate",
    "measured_seconds",
    "model_facts",
    "operators",
    "search",
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
def estimate(problem: str, plan: str) -> str: ...
def measured_seconds(problem: str, plan: str, rate: str) -> str: ...
def timeline(problem: str, plan: str) -> str: ...
def canonical(kind: str, document: str) -> str: ...
def check_graph(graph: str) -> str: ...
def model_facts(model: str) -> str: ...
def operators(document: str) -> str: ...
