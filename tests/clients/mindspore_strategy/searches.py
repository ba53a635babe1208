"""Holds autopar's plans against those of the real MindSpore: tests/clients/run mindspore_searches.

Each of 20 compilations, with --all of all, must choose what the data file says, and its plan is
priced by autopar's estimate beside those of dynamic and of integer programming. Each runs in a
process of its own, as what MindSpore propagates depends on what it compiled before. With --write
the data file is written anew: `tests/data/mindspore_searches_2.10.jsonl`, which is tested without
MindSpore by `tests/test_mindspore_plans.py`. MindSpore runs in the Python that is given.
"""

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from check import Case, answer, by_operator
from networks import FIXED_FIRST, graph_of
from plans import DATA, HEADER, row

DYNAMIC = "dynamic_programming"
MODES = ("recursive_programming", "sharding_propagation", DYNAMIC)
DEVICES = (2, 4, 8, 64)
NETWORKS = ("two_matmuls", "mlp", "attention", "block")
# Rows, width and inner width at which the searches of two products part.
SIZES = ((8, 4096, 16384), (64, 4096, 16384), (4096, 8192, 28672), (2048, 1024, 4096))
CHECKED = 20


def cases() -> list[Case]:
    """Returns every case: a network, devices and a search."""
    found: list[Case] = []
    for mode in MODES:
        for devices in DEVICES:
            for network in NETWORKS:
                if (mode, devices) == (DYNAMIC, 64) and network in ("attention", "block"):
                    # The compiler is not done with these within ten minutes.
                    continue
                case: Case = {"network": network, "devices": devices, "mode": mode, "train": True}
                if mode == "sharding_propagation":
                    case["cuts"] = {FIXED_FIRST[network]: [[2, 1], [1, devices // 2]]}
                found.append(case)
            stages = {"network": "two_stages", "devices": devices, "mode": mode, "train": True,
                      "stages": 2}  # fmt: skip
            found += [stages | {"rank": rank} for rank in (0, devices - 1)]
    for rows, hidden, inner in SIZES:
        sizes = {"rows": rows, "hidden": hidden, "inner": inner}
        found += [
            {"network": "two_matmuls", "devices": devices, "mode": mode, "train": False} | sizes
            for mode, devices in ((MODES[0], 8), (MODES[0], 64), (DYNAMIC, 8))
        ]
    return found


def outcome(python: str, case: Case) -> dict[str, Any]:
    """Returns the line of the data file for a case: what the real compiler answers."""
    said = answer(python, case)
    if "raises" in said:
        return case | {"raises": said["raises"]}
    return case | {"strategies": by_operator(said["strategies"], graph_of(case))}


def main() -> None:
    parser = argparse.ArgumentParser(description="plans and the real MindSpore's searches")
    parser.add_argument("--all", action="store_true", help="every case of the data file")
    parser.add_argument("--write", action="store_true", help="write the data file")
    parser.add_argument("--python", required=True, help="Python that has MindSpore")
    arguments = parser.parse_args()
    asked = cases()
    if not (arguments.all or arguments.write):
        asked = asked[:: len(asked) // CHECKED][:CHECKED]
    # Each waits for a process of its own, which keeps one processor busy.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        lines = list(pool.map(lambda case: outcome(arguments.python, case), asked))
    if arguments.write:
        DATA.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    known = [json.loads(line) for line in DATA.read_text().splitlines()]
    for line in lines:
        assert line in known, f"MindSpore chooses otherwise than {DATA.name}: {line}"
    print(HEADER)
    compared = [row(line) for line in lines if "strategies" in line]
    for each in compared:
        print(each)
        theirs = each.theirs.cost.total_ps
        for plan in each.ours.values():
            assert plan.cost.total_ps <= theirs * (1 + 1e-9), each.line
    equal = sum(bool(each.equal) for each in compared)
    print(
        f"{len(lines)} compilations: MindSpore chooses as {DATA.name} says; "
        f"of {len(compared)} plans {equal} cost what autopar's do, the others more"
    )


if __name__ == "__main__":
    main()
