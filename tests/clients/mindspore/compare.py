"""What holds a drop-in against the real thing: the same cases to both, and every difference shown.

The real one runs in its own Python, as an oracle script that reads a case a line and answers with a
JSON object a line. A golden file keeps its answers for the tests that have no such Python.
"""

import argparse
import ast
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]
HERE = Path(__file__).parent
# Cases drawn at random: for a look, and with --all.
FEW, MANY = 200, 2000


@dataclass(frozen=True)
class Asked:
    """What the command line asks for.

    Attributes:
        python: The client's Python.
        cases: Cases to draw at random.
        seed: Where the draws start.
        write: Whether the golden file is recorded anew.
    """

    python: str
    cases: int
    seed: int
    write: bool


def asked(description: str | None) -> Asked:
    """Returns what the command line asks for."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--python", required=True, help="Python in which the client is installed")
    parser.add_argument("--all", action="store_true", help=f"{MANY:,} cases instead of {FEW}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="record the golden file anew")
    said = parser.parse_args()
    return Asked(said.python, MANY if said.all else FEW, said.seed, said.write)


def kept(golden: Path, key: str) -> list[Any]:
    """Returns the cases of a golden file, whose first line says where it comes from."""
    _, *lines = golden.read_text("utf-8").splitlines()
    return [ast.literal_eval(json.loads(line)[key]) for line in lines]


def real_outcomes(
    python: str, oracle: str, cases: list[Any], spelled: dict[str, str] | None = None
) -> list[Outcome]:
    """Returns what each case does in the real thing.

    Args:
        python: Its Python.
        oracle: The script beside this one that runs the cases.
        cases: As Python literals.
        spelled: Texts of its answers that are written otherwise here.
    """
    told = subprocess.run(
        [python, HERE / oracle],
        input="".join(f"{case!r}\n" for case in cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    text = told.stdout
    for real, here in (spelled or {}).items():
        text = text.replace(real, here)
    found: list[Outcome] = [json.loads(line) for line in text.splitlines()]
    if len(found) != len(cases):
        raise SystemExit(f"the client answered {len(found)} of {len(cases)} cases")
    return found


def report(
    cases: list[Any],
    real: list[Outcome],
    ours: Callable[[Any, Outcome], Outcome],
    golden: int,
    plans: int,
    kinds: str,
) -> int:
    """Prints the differences, then the counts in the last line; returns the exit code.

    Args:
        cases: The golden ones, those of plans, and those drawn at random, in this order.
        real: What each did in the client.
        ours: Returns what a case does here, given what it did there.
        golden: How many cases are golden.
        plans: How many are of plans; none of them may be refused.
        kinds: Counts of the plans by kind.
    """
    differing = 0
    for case, there in zip(cases, real, strict=True):
        here = ours(case, there)
        if here != there:
            differing += 1
            print(f"differs: {case!r}")
            for part in there:
                if here[part] != there[part]:
                    print(f"    {part}: there {there[part]}\n    {part}: here  {here[part]}")
    refused = sum(any(one["raises"]) for one in real[golden : golden + plans])
    raised = sum(any(one["raises"]) for one in real)
    drawn = len(cases) - golden - plans
    print(
        f"{plans} plans ({kinds}), {refused} refused; {golden} golden and {drawn} drawn cases,"
        f" {raised} raise, {differing} differ"
    )
    return int(differing > 0 or refused > 0)
