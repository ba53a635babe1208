"""Holds the drop-ins of `autopar.compat.mindformers` against the real MindFormers 1.3.2.

`tests/clients/run mindformers_classes` starts it. Checked are the cases of the golden file, the
configurations of plans, which must be taken, and cases drawn at random.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import compare
import planned

from autopar.compat.plans import config_of
from config_outcomes import GOLDEN, Case, outcome

ORIGIN = "recorded from mindformers 1.3.2 by tests/clients/mindspore/check_classes.py --write"
# A number type of MindSpore is known here by its name.
SPELLED = {"mindspore.float32": "'float32'", "mindspore.bfloat16": "'bfloat16'"}

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


def ours(case: Case, real: compare.Outcome) -> compare.Outcome:
    """Returns what a case does here; what MindFormers cannot write is not compared."""
    here = outcome(*case)
    return here | {"dict": None} if real["dict"] is None else here


def main() -> int:
    asked = compare.asked(__doc__)
    kept: list[Case] = [tuple(case) for case in compare.kept(GOLDEN, "case")]
    plans = planned.plans()
    configs = [config_of(problem, plan).to_diff_dict() for problem, plan in plans]
    written: list[Case] = [("TransformerOpParallelConfig", config, []) for config in configs]
    cases = [*kept, *written, *drawn(asked.cases, asked.seed)]
    found = compare.real_outcomes(asked.python, "oracle_classes.py", cases, SPELLED)
    if asked.write:
        recorded = [
            json.dumps({"case": repr(case), **real})
            for case, real in zip(kept, found, strict=False)
        ]
        text = "\n".join([json.dumps({"origin": ORIGIN}), *recorded])
        GOLDEN.write_text(f"{text}\n", "utf-8")
    return compare.report(cases, found, ours, len(kept), len(plans), planned.kinds(plans))


if __name__ == "__main__":
    sys.exit(main())
