"""Times the search of each document in `benches/problems` and prints the README's table of them.

    python benches/speed.py [repeats] [--write]

Seconds are of one search from Python: the document to JSON, the search on all cores, the report's
JSON. Two more tables are of device counts up to a limit: the best, as `--at-most` asks for it
before its search, and those of `--frontier`, with fewer repeats.
Counts are the program's, seconds the machine's: nothing is asserted. On a machine that others use
too the median tells how busy they were, and the least what the search takes. `--write` puts the
tables into the README.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from arguments import parser
from autopar import planner, wire
from autopar.spec import Problem

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"

# What each document asks, for a reader.
ASKED = {
    "llama2-70b-256-a800": "Llama2-70B, 256 A800",
    "llama2-70b-256-a800-h800": "Llama2-70B, 256 of 128 A800 and 160 H800",
    "llama2-70b-288-a800-h800": "Llama2-70B, all 288 of them",
    "llama2-70b-288-a800-h800-mixed-tp": "the same, with `--mixed-tp`",
    "llama2-70b-384-three-mixed-tp": "Llama2-70B, 128 of three kinds each, with `--mixed-tp`",
    "gpt3-175b-4096-a100": "GPT-3, 4,096 A100",
    "deepseek-v3-2048-h800": "DeepSeek-V3, 2,048 H800",
    "llama2-70b-8000-h800": "Llama2-70B, 8,000 H800",
    "llama-175b-25000-h800": "Llama-175B, 25,000 H800",
    "llama-1800b-1048576-h800": "Llama-1800B, 1,048,576 H800",
    "llama-540b-1048576-two": "Llama-540B, 1,048,576 of two kinds",
    "llama-540b-1048576-three": "Llama-540B, 1,048,576 of three kinds",
    "llama-540b-1048576-three-limited": "the same, at most 419,432 of each",
}

# Documents whose devices are also taken as a limit.
AT_MOST = (
    "llama2-70b-256-a800",
    "llama2-70b-288-a800-h800",
    "deepseek-v3-2048-h800",
    "llama-1800b-1048576-h800",
    "llama-540b-1048576-three",
)


def processor() -> str:
    """Returns the name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def power(number: int) -> str:
    """Returns a number in two digits, as 2.2e5."""
    digits, exponent = f"{number:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def document(name: str) -> Problem:
    """Returns the question of a document."""
    text = (ROOT / "benches" / "problems" / f"{name}.json").read_text(encoding="utf-8")
    return wire.loads(Problem, text)


def timed(asked: Callable[[], object], count: int) -> str:
    """Returns the median and the least seconds of so many calls, as two cells."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        asked()
        seconds.append(time.perf_counter() - start)
    return f"{statistics.median(seconds):.3f} | {min(seconds):.3f}"


def row(name: str, asked: str, count: int) -> str:
    """Returns a document's line of the table."""
    problem = document(name)
    counters = json.loads(planner.solve_json(problem))["counters"]
    return (
        f"| {asked} | {power(counters['considered'])} | {counters['bounds']:,} | "
        f"{counters['estimates']:,} | {timed(lambda: planner.solve_json(problem), count)} |"
    )


def counts_asked(name: str) -> str:
    """Returns what a document asks of device counts, for a reader."""
    return ASKED[name].replace("all 288 of them", "288 of 128 A800 and 160 H800")


def row_at_most(name: str, count: int) -> str:
    """Returns a document's line of the table of the best device count."""
    problem = document(name)
    found = planner.sizes(problem, "fastest")
    cells = timed(lambda: planner.sizes(problem, "fastest"), count)
    return f"| {counts_asked(name)} | {found.considered:,} | {found.sizes[0].devices:,} | {cells} |"


def row_frontier(name: str, count: int) -> str:
    """Returns a document's line of the table of counts that nothing beats in time and money."""
    problem = document(name)
    groups = tuple(
        replace(group, chip=replace(group.chip, price_per_hour=2.0))
        for group in problem.cluster.groups
    )
    priced = replace(problem, cluster=replace(problem.cluster, groups=groups))
    found = planner.sizes(priced, "frontier")
    cells = timed(lambda: planner.sizes(priced, "frontier"), count)
    return f"| {counts_asked(name)} | {found.considered:,} | {len(found.sizes)} | {cells} |"


def main() -> None:
    """Prints the table, or writes it."""
    arguments = parser(__doc__, 5)
    arguments.add_argument("--write", action="store_true", help="put the table into the README")
    asked = arguments.parse_args()
    lines = [
        f"On {os.cpu_count()} cores of {processor()}, {asked.repeats} repeats:",
        "",
        "| problem | classes of plans | bounds | plans estimated | median s | least s |",
        "|---|---:|---:|---:|---:|---:|",
        *(row(name, what, asked.repeats) for name, what in ASKED.items()),
        "",
        "| the best device count, `--at-most` | counts | best | median s | least s |",
        "|---|---:|---:|---:|---:|",
        *(row_at_most(name, asked.repeats) for name in AT_MOST),
        "",
        "| time against money, `--frontier` | counts | listed | median s | least s |",
        "|---|---:|---:|---:|---:|",
        *(row_frontier(name, max(asked.repeats // 6, 1)) for name in AT_MOST),
    ]
    table = "\n".join(lines)
    print(table)
    if asked.write:
        readme = ROOT / "README.md"
        text = readme.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        readme.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
