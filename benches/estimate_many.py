"""Times `estimate_many`: plans a second on one core, over every legal pipeline of a large job.

Prints how many plans there are, how many fit, and the rates. It asserts nothing. It needs autopar
and NumPy.

    python benches/estimate_many.py [repeats]
"""

import itertools
import platform
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arguments import parser
from autopar import bulk, planner
from autopar.spec import Problem

DEGREES = (1, 2, 4, 8, 16, 32)
RECOMPUTE = [(0, 0), (1, 0), *((kind, n) for kind in (2, 3) for n in (1, 2, 3, 4, 5))]


def table(problem: Problem, pp: tuple[int, ...], **fixed: int) -> NDArray[Any]:
    """Returns the legal plans with the given depths, all shardings and recompute of a problem."""
    every = itertools.product(DEGREES[:4], DEGREES[:3], pp, DEGREES, range(4), RECOMPUTE)
    names = ("tp", "cp", "pp", "mbs", "zero", "recompute", "recompute_layers", *fixed)
    found = np.array(
        [(*head, *recompute, *fixed.values()) for *head, recompute in every],
        dtype=[(name, np.int32) for name in names],
    )
    illegal = [0 < code < 32 for code in range(256)]
    return found[~np.array(illegal)[planner.estimate_many(problem, found)["violation"]]]


def show(name: str, problem: Problem, plans: NDArray[Any], repeats: int, **more: Any) -> None:
    """Prints the rate over `size` rows of a table at random; for no size, over each of its rows."""
    size = more.pop("size", 1_000_000)
    order = np.random.default_rng(0).integers(len(plans), size=size) if size else slice(None)
    plans, more = plans[order], {key: value[order] for key, value in more.items()}
    runs = []
    for _ in range(repeats):
        start = time.process_time()
        costs = planner.estimate_many(problem, plans, **more)
        runs.append(time.process_time() - start)
    start = time.process_time()
    bulk.rows(problem, plans)
    filled = time.process_time() - start
    least = min(runs)
    print(f"{name}\n  plans: {len(plans):,}, of which {int(costs['fits'].sum()):,} fit")
    print(
        f"  {len(plans) / least:,.0f} plans a second, {least / len(plans) * 1e6:.3f} us a plan,",
        end=" ",
    )
    print(f"of which {filled / len(plans) * 1e6:.3f} us to lay out the columns")


def main() -> None:
    """Times equal stages, interleaved ones, and uneven ones."""
    count = parser(__doc__, 3).parse_args().repeats
    print(
        f"autopar {planner.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    problem = planner.problem(
        "llama2-70b", "h800:5120", global_batch_size=5120, sequence_length=4096
    )
    for pp in ((1,), (2, 4, 8, 16), (8,), (10, 20, 40, 80)):
        depths = ", ".join(map(str, pp))
        show(f"equal stages, 1f1b, pp {depths}", problem, table(problem, pp), count)
    show(
        "equal stages, interleaved, pp 8, vpp 2",
        problem,
        table(problem, (8,), vpp=2),
        count,
        size=1_000_000,
    )
    once = [table(problem, (2, 4, 8, 16), vpp=chunks) for chunks in (2, 5)]
    show(
        "equal stages, interleaved, pp 2, 4, 8, 16, vpp 2, 5: each plan once",
        problem,
        np.concatenate(once),
        count,
        size=0,
    )
    show(
        "equal stages, gpipe, pp 8",
        problem,
        table(problem, (8,), schedule=2),
        count,
        size=100_000,
    )
    plans = table(problem, (8,))
    layers = np.tile([9, 10, 10, 11, 11, 10, 10, 9], (len(plans), 1))
    show("uneven stages, 1f1b, pp 8", problem, plans, count, layers=layers, size=100_000)


if __name__ == "__main__":
    main()
