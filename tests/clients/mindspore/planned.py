"""Plans of many kinds that MindFormers can say, for the real clients to take."""

from typing import Any

import autopar
from autopar import Plan, Problem
from autopar.compat.plans import reasons

# Model, devices, limits of the search. Each kind of plan has a search of its own.
SEARCHES: tuple[tuple[str, int, Any], ...] = (
    ("llama2-7b", 32, {"schedules": ["1f1b"]}),
    ("llama2-7b", 32, {"pp": [2, 4], "schedules": ["interleaved"]}),
    ("llama2-7b", 24, {"pp": [3, 6], "schedules": ["1f1b"]}),
    ("llama2-7b", 32, {"pp": [4, 8], "recompute": ["block"]}),
    ("llama2-7b", 32, {"pp": [2], "schedules": ["gpipe", "zb-v"]}),
    ("llama2-7b", 32, {"cp": [2, 4], "schedules": ["1f1b"]}),
    ("llama2-7b", 32, {"zero": [2, 3], "schedules": ["1f1b"]}),
    ("llama2-7b", 32, {"recompute": ["uniform"]}),
    ("mixtral-8x7b", 32, {"ep": [2, 4, 8]}),
)
A_SEARCH = 30


def plans() -> list[tuple[Problem, Plan]]:
    """Returns the fastest plans of each search that configuration and context can say."""
    found = []
    for model, devices, limits in SEARCHES:
        question = autopar.problem(
            model,
            f"ascend_910b:{devices}",
            global_batch_size=192 if devices % 3 == 0 else 128,
            sequence_length=4096,
            framework="mindformers",
            expert_tensor_parallel=True,
            activation_offload=False,
            optimizer_offload=False,
            top=300,
            **limits,
        )
        said = [
            ranked.plan
            for ranked in autopar.solve(question).ranked
            if not reasons(question, ranked.plan)
        ]
        found += [(question, plan) for plan in said[:A_SEARCH]]
    return found


def kinds(found: list[tuple[Problem, Plan]]) -> str:
    """Returns how many plans there are of each kind."""
    counts = {
        "vpp": sum(plan.vpp > 1 for _, plan in found),
        "uneven stages": sum(len({stage.layers for stage in plan.stages}) > 1 for _, plan in found),
        "ep": sum(plan.ep > 1 for _, plan in found),
        "cp": sum(plan.cp > 1 for _, plan in found),
        "partial recompute": sum(
            any(stage.recompute.granularity == "block" for stage in plan.stages)
            for _, plan in found
        ),
        "sharded optimizer": sum(plan.zero > 0 for _, plan in found),
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
