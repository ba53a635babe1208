"""Holds the drop-in `autopar.compat.mindspore` against the real MindSpore 2.10.0.

    python tests/clients/mindspore/check.py [--cases N] [--seed N] [--write]

Run with the Python that has autopar; MindSpore is installed into an environment of its own, which
is kept. Checked are the cases of the golden file, the keywords of plans, and N cases drawn at
random (2,000 unless given): after each the exceptions, every setting and the folders that were made
must be the same, and no plan's keywords may be refused. `--write` records the golden file anew from
the real one. Exit code 0 when all agree or MindSpore is not in the index, 1 otherwise.
"""

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import draw  # noqa: E402
import planned  # noqa: E402
from environment import AbsentError, environment  # noqa: E402

from autopar.compat.plans import keywords_of  # noqa: E402
from context_outcomes import GOLDEN, Calls, outcome  # noqa: E402

ORIGIN = "recorded from mindspore 2.10.0 by tests/clients/mindspore/check.py --write"


def real_outcomes(python: str, cases: list[Calls]) -> list[dict[str, Any]]:
    """Returns what each case does in the real MindSpore."""
    told = subprocess.run(
        [python, str(HERE / "oracle.py")],
        input="".join(f"{case!r}\n" for case in cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = [json.loads(line) for line in told.stdout.splitlines()]
    if len(found) != len(cases):
        raise SystemExit(f"MindSpore answered {len(found)} of {len(cases)} cases.")
    return found


def golden_cases() -> list[Calls]:
    """Returns the calls of the golden file."""
    _, *lines = GOLDEN.read_text("utf-8").splitlines()
    return [ast.literal_eval(json.loads(line)["calls"]) for line in lines]


def write(cases: list[Calls], found: list[dict[str, Any]], defaults: dict[str, str]) -> None:
    """Writes the golden file: of each state what is not at its default."""
    lines = [json.dumps({"origin": ORIGIN, "defaults": defaults})]
    for case, real in zip(cases, found, strict=True):
        changed = {key: text for key, text in real["state"].items() if text != defaults[key]}
        entry = {"calls": repr(case), "raises": real["raises"], "changed": changed}
        if real["folders"]:
            entry["folders"] = real["folders"]
        lines.append(json.dumps(entry, ensure_ascii=False))
    GOLDEN.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    """Compares, prints the differences and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    kept = golden_cases()
    plans = planned.plans()
    written: list[Calls] = [[keywords_of(problem, plan)] for problem, plan in plans]
    cases = [*kept, *written, *draw.calls(asked.cases, asked.seed)]
    try:
        python = environment(HERE / "requirements.txt", gigabytes=8)
    except AbsentError as reason:
        print(f"skipped: {reason}")
        return 0
    defaults, *found = real_outcomes(python, [[], *cases])
    if asked.write:
        write(kept, found[: len(kept)], defaults["state"])
    differing = 0
    for case, real in zip(cases, found, strict=True):
        ours = outcome(case)
        if ours != real:
            differing += 1
            print(f"differs: {case!r}")
            for part in ("raises", "folders"):
                if ours[part] != real[part]:
                    print(f"    {part}: MindSpore {real[part]}, here {ours[part]}")
            for key, text in real["state"].items():
                if ours["state"][key] != text:
                    print(f"    {key}: MindSpore {text}, here {ours['state'][key]}")
    refused = sum(any(real["raises"]) for real in found[len(kept) : len(kept) + len(plans)])
    raised = sum(any(real["raises"]) for real in found)
    print(
        f"mindspore 2.10.0: {len(plans)} plans, {refused} refused; {len(kept)} golden and "
        f"{asked.cases} drawn cases ({raised} raise), {differing} differ"
    )
    print(f"    plans: {planned.kinds(plans)}")
    return 1 if differing or refused else 0


if __name__ == "__main__":
    sys.exit(main())
