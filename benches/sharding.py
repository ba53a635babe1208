"""Times the operator level: the whole training graph of GPT-3 175B, 96 layers, on three meshes.

For each mesh and method, without a memory limit and with one half-way between the least memory of
any plan and that of the fastest, it prints the seconds of all processors together and those of the
clock, the cost and the certified gap. It asserts nothing. The seconds are those of the core and the
solver; documents read and written in Python take 0.2 s more. Processors share the tables of
reshards alone. Each operator takes an axis of the mesh whole or not at all; with
`--refine` an axis is also divided among several, by its prime factors.

    python benches/sharding.py [--refine] [dp|ilp ...]
"""

import argparse
import platform
import time
from dataclasses import replace

from autopar import _core, catalog, ilp, planner, wire
from autopar.sharding import Method, Sharding, ShardingOptions, ShardingProblem

MODEL, CHIP = "gpt3-175b", "a800"
MESHES: tuple[tuple[int, ...], ...] = ((8,), (8, 128), (4, 16))
# Seconds after which integer programming returns the best so far.
LIMIT_S = 60.0


def problem(mesh: tuple[int, ...], refine: bool) -> ShardingProblem:
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
        options=ShardingOptions(method="dp", mesh=mesh, refine=refine),
    )


def solved(asked: ShardingProblem) -> tuple[Sharding, float, float]:
    """Returns the answer and the seconds of processors and clock in the core and the solver."""
    text = wire.dumps(asked)
    start, clock = time.process_time(), time.perf_counter()
    if asked.options.method == "ilp" and (program := _core.sharding_program(text)) is not None:
        choice = ilp.solve(ilp.program(program.arrays()), time_limit_s=LIMIT_S)
        answer = program.chosen(choice.columns, choice.bound)
    else:
        answer = _core.shard(text)
    seconds, clock = time.process_time() - start, time.perf_counter() - clock
    return wire.loads(Sharding, answer), seconds, clock


def timed(asked: ShardingProblem, method: Method, memory_gib: float, text: str) -> Sharding:
    """Solves a problem within a memory limit and prints a line."""
    options = replace(asked.options, method=method, memory_gib=memory_gib)
    found, seconds, clock = solved(replace(asked, options=options))
    gap = "not proved" if found.proof.gap is None else f"gap {found.proof.gap:.2e}"
    proof = "exact" if found.proof.exact else gap
    memory = found.cost.memory_bytes / 2**30
    cost = found.cost.total_ps / 1e12
    line = f"  {f'{method}, {text}':18} {seconds:8.2f} s, {clock:6.2f} s on the clock"
    print(f"{line}  {cost:10.6f} s a step, {memory:8.1f} GiB  {proof}", flush=True)
    return found


def main() -> None:
    """Times each mesh with each method."""
    parser = argparse.ArgumentParser(description="times of the operator level")
    parser.add_argument("methods", nargs="*", choices=["dp", "ilp", []], metavar="METHOD")
    parser.add_argument("--refine", action="store_true", help="divide axes of the mesh")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for mesh in MESHES:
        asked = problem(mesh, arguments.refine)
        print(f"{' x '.join(map(str, mesh))}: {len(asked.graph.operators):,} operators")
        tight = replace(asked, options=replace(asked.options, memory_gib=1e-9))
        least = solved(tight)[0].cost.memory_bytes / 2**30
        for method in arguments.methods or ("dp", "ilp"):
            free = timed(asked, method, 1e6, "no limit")
            limit = (least + free.cost.memory_bytes / 2**30) / 2
            timed(asked, method, limit, "with a limit")


if __name__ == "__main__":
    main()
