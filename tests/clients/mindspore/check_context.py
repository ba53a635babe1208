"""Holds the drop-in `autopar.compat.mindspore` against the real MindSpore 2.10.0.

`tests/clients/run mindspore_context` starts it. Checked are the cases of the golden file, the
keywords of plans, and cases drawn at random: after each the exceptions, every setting and the
folders that were made must be the same, and no plan's keywords may be refused.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import compare
import draw_context
import planned

from autopar.compat.plans import keywords_of
from context_outcomes import GOLDEN, Calls, outcome

ORIGIN = "recorded from mindspore 2.10.0 by tests/clients/mindspore/check_context.py --write"


def write(cases: list[Calls], found: list[compare.Outcome], defaults: dict[str, str]) -> None:
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
    asked = compare.asked(__doc__)
    kept: list[Calls] = compare.kept(GOLDEN, "calls")
    plans = planned.plans()
    written: list[Calls] = [[keywords_of(problem, plan)] for problem, plan in plans]
    cases = [*kept, *written, *draw_context.calls(asked.cases, asked.seed)]
    defaults, *found = compare.real_outcomes(asked.python, "oracle_context.py", [[], *cases])
    if asked.write:
        write(kept, found[: len(kept)], defaults["state"])
    kinds = planned.kinds(plans)
    return compare.report(cases, found, lambda case, _: outcome(case), len(kept), len(plans), kinds)


if __name__ == "__main__":
    sys.exit(main())
