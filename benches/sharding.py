"""Times the operator level: the whole training graph of GPT-3 175B, 96 layers, on three meshes.

For each mesh and method, without a memory limit and with one half-way between the least memory of
any plan and that of the fastest, it prints the seconds of the processor, the cost and the certified
gap. It asserts nothing. Documents read and written are in the seconds.

    python benches/sharding.py [dp|ilp ...]
"""

import platform
import sys
import time
from dataclasses import replace

from autopar import catalog, planner
from autopar.sharding import Method, Sharding, ShardingOptions, ShardingProblem

MODEL, CHIP = "gpt3-175b", "a800"
MESHES: tuple[tuple[int, ...], ...] = ((8,), (8, 128), (4, 16))
# Seconds after which integer programming returns the best so far.
LIMIT_S = 60.0


def problem(mesh: tuple[int, ...], method: Method) -> ShardingProblem:
    """Returns the question of a mesh."""
    devices = 1
    for size in mesh:
        devices *= size
    graph = planner.model_graph(MODEL, batch=devices, sequence_length=2048)
    return ShardingProblem(
        version=planner.__version__,
        catalog="",
        graph=graph,
        cluster=planner.cluster_of(catalog.cluster(CHIP), devices),
        options=ShardingOptions(method=method, mesh=mesh, memory_gib=1e6),
    )


def timed(asked: ShardingProblem, memory_gib: float, text: str) -> Sharding:
    """Solves a problem within a memory limit and prints a line."""
    limited = replace(asked, options=replace(asked.options, memory_gib=memory_gib))
    start = time.process_time()
    found = planner.solve_sharding(limited, time_limit_s=LIMIT_S)
    seconds = time.process_time() - start
    gap = "not proved" if found.proof.gap is None else f"gap {found.proof.gap:.2e}"
    proof = "exact" if found.proof.exact else gap
    memory = found.cost.memory_bytes / 2**30
    cost = found.cost.total_ps / 1e12
    print(f"  {text:22} {seconds:8.2f} s  {cost:10.6f} s a step, {memory:8.1f} GiB  {proof}")
    return found


def main() -> None:
    """Times each mesh with each method."""
    methods: tuple[Method, ...] = tuple(sys.argv[1:]) or ("dp", "ilp")  # type: ignore[assignment]
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for mesh in MESHES:
        asked = problem(mesh, "dp")
        print(f"{' x '.join(map(str, mesh))}: {len(asked.graph.operators):,} operators")
        tight = replace(asked, options=replace(asked.options, memory_gib=1e-9))
        least = planner.solve_sharding(tight).cost.memory_bytes / 2**30
        for method in methods:
            asked = replace(asked, options=replace(asked.options, method=method))
            free = timed(asked, 1e6, f"{method}, no limit")
            timed(asked, (least + free.cost.memory_bytes / 2**30) / 2, f"{method}, with a limit")


if __name__ == "__main__":
    main()
