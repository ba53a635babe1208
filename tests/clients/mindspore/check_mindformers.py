"""Holds the drop-ins of `autopar.compat.mindformers` against the real MindFormers 1.3.2.

    python tests/clients/mindspore/check_mindformers.py [--cases N] [--seed N] [--write]

Run with the Python that has autopar; MindFormers is installed into an environment of its own, which
is kept. Checked are the cases of the golden file, the configurations of plans, which must be taken,
and N cases drawn at random (2,000 unless given).
`--write` records the golden file anew. Exit code 0 when all agree or a package is not in the index,
1 otherwise.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import planned  # noqa: E402
from environment import AbsentError, environment  # noqa: E402

from autopar.compat.plans import config_of  # noqa: E402
from config_outcomes import GOLDEN, Case, outcome  # noqa: E402

ORIGIN = "recorded from mindformers 1.3.2 by tests/clients/mindspore/check_mindformers.py --write"

DEGREES = (1, 2, 8, 0, -1, True, 2.0, "2", None)
FLAGS = (True, False, 1, "x", None)
LAYERS = (True, False, 1, [2, 1], [[1, 2], [3, 4]], "x", {"a": [1]})
RECOMPUTE = {
    "recompute": LAYERS,
    "select_recompute": LAYERS,
    "parallel_optimizer_comm_recompute": FLAGS,
    "select_comm_recompute": LAYERS,
    "mp_comm_recompute": FLAGS,
    "recompute_slice_activation": FLAGS,
}
KEYWORDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "TransformerRecomputeConfig": {**RECOMPUTE, "zz": (1,)},
    "OpParallelConfig": {
        "data_parallel": DEGREES,
        "model_parallel": DEGREES,
        "context_parallel": DEGREES,
        "use_seq_parallel": FLAGS,
        "select_recompute": LAYERS,
        "context_parallel_algo": ("colossalai_cp", "ulysses_cp", "hybird_cp", 1),
    },
    "TransformerOpParallelConfig": {
        "data_parallel": DEGREES,
        "model_parallel": DEGREES,
        "context_parallel": DEGREES,
        "expert_parallel": DEGREES,
        "pipeline_stage": DEGREES,
        "micro_batch_num": DEGREES,
        "recompute": (True, 3, None, {}, {"recompute": True}, {"mp_comm_recompute": 1}),
        "use_seq_parallel": FLAGS,
        "optimizer_shard": FLAGS,
        "gradient_aggregation_group": (1, 4, 65, 0, 1.0),
        "vocab_emb_dp": FLAGS,
        "context_parallel_algo": ("colossalai_cp", "ulysses_cp", "hybird_cp", "ring"),
        "ulysses_degree_in_cp": (1, 2, 3),
    },
    "MoEConfig": {
        "expert_num": (1, 8, 0, True, 8.0),
        "capacity_factor": (1.1, 0.5, "x"),
        "aux_loss_factor": (0.05, 0.0, 1.0, 1.5, -0.1, 0, True),
        "num_experts_chosen": (1, 2, 9, 0),
        "expert_group_size": (None, 64, 0, -1, 1.0),
        "group_wise_a2a": FLAGS,
        "comp_comm_parallel": FLAGS,
        "comp_comm_parallel_degree": (1, 0, True),
        "save_token_distribution": FLAGS,
        "cur_layer": (0, 3, -1, 1.0),
        "enable_cold_hot_expert": FLAGS,
        "update_step": (1, 0),
        "hot_expert_num": (0, 1, 2, -1),
        "cold_token_percent": (1.0, 0.5, 0.0, 1.5, 1, -0.5),
        "router_dense_type": ("float16", "float32", "bfloat16", "int8", 3),
        "shared_expert_num": (0, 2),
        "aux_loss_types": (None, ["expert"], ["x"], "expert", []),
        "aux_loss_factors": (None, [0.1], "x"),
        "zz": (1,),
    },
}


def drawn(count: int, seed: int) -> list[Case]:
    """Returns cases of up to three keywords, mostly, and up to two changes afterwards."""
    dice = random.Random(seed)
    cases: list[Case] = []
    for _ in range(count):
        name = dice.choice(list(KEYWORDS))
        choices = KEYWORDS[name]
        picked = dice.sample(list(choices), dice.choice((0, 1, 1, 2, 3)))
        keywords = {each: dice.choice(choices[each]) for each in picked}
        # After it was made MindFormers looks at fewer values, of which none is wrong in kind.
        later = [each for each in choices if each not in ("zz", "context_parallel_algo")]
        changes = [
            (each, dice.choice(choices[each]))
            for each in dice.sample(later, dice.choice((0, 1, 2)))
        ]
        changes = [] if name == "MoEConfig" else changes
        cases.append((name, keywords, changes))
    return cases


def real_outcomes(python: str, cases: list[Case]) -> list[dict[str, Any]]:
    """Returns what each case does in the real MindFormers."""
    told = subprocess.run(
        [python, str(HERE / "oracle_mindformers.py")],
        input="".join(f"{case!r}\n" for case in cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # A number type of MindSpore is known here by its name.
    text = told.stdout.replace("mindspore.float32", "'float32'")
    text = text.replace("mindspore.bfloat16", "'bfloat16'")
    found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    if len(found) != len(cases):
        raise SystemExit(f"MindFormers answered {len(found)} of {len(cases)} cases.")
    return found


def main() -> int:
    """Compares, prints the differences and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    _, *lines = GOLDEN.read_text("utf-8").splitlines()
    kept: list[Case] = [tuple(ast.literal_eval(json.loads(line)["case"])) for line in lines]
    plans = planned.plans()
    configs = [config_of(problem, plan).to_diff_dict() for problem, plan in plans]
    written: list[Case] = [("TransformerOpParallelConfig", config, []) for config in configs]
    cases = [*kept, *written, *drawn(asked.cases, asked.seed)]
    try:
        python = environment(HERE / "requirements-mindformers.txt", gigabytes=8)
    except AbsentError as reason:
        print(f"skipped: {reason}")
        return 0
    found = real_outcomes(python, cases)
    if asked.write:
        recorded = [
            json.dumps({"case": repr(case), **real})
            for case, real in zip(kept, found, strict=False)
        ]
        text = "\n".join([json.dumps({"origin": ORIGIN}), *recorded])
        GOLDEN.write_text(f"{text}\n", "utf-8")
    differing = 0
    for case, real in zip(cases, found, strict=True):
        ours = outcome(*case)
        if real["dict"] is None:
            ours["dict"] = None
        if ours != real:
            differing += 1
            print(f"differs: {case!r}\n    MindFormers {real}\n    here        {ours}")
    refused = sum(any(real["raises"]) for real in found[len(kept) : len(kept) + len(plans)])
    raised = sum(any(real["raises"]) for real in found)
    print(
        f"mindformers 1.3.2: {len(plans)} plans, {refused} refused; {len(kept)} golden and "
        f"{asked.cases} drawn cases ({raised} raise), {differing} differ"
    )
    print(f"    plans: {planned.kinds(plans)}")
    return 1 if differing or refused else 0


if __name__ == "__main__":
    sys.exit(main())
