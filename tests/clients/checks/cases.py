"""What every check of a client does: reads cases, applies one function to each, counts.

Runs in the client's own environment, in which autopar is not installed: a case is a folder with the
exported files and with `case.json`, the problem and the plan.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def layers_of(case: Case) -> list[int]:
    """Returns the layers of each stage of the plan."""
    return [stage["layers"] for stage in case["plan"]["stages"]]


def stage_layers(state: Any, block: Any, config: Any, plan: Case) -> list[int]:
    """Returns the layers that Megatron builds on each stage, asked as if on a rank of it.

    Args:
        state: Its module `core.parallel_state`.
        block: Its module `core.transformer.transformer_block`.
        config: Its configuration of the model.
        plan: The plan.
    """
    several = plan["vpp"] > 1
    state.set_virtual_pipeline_model_parallel_world_size(plan["vpp"] if several else None)
    chunks = range(plan["vpp"]) if several else [None]
    stages = []
    for stage in range(plan["pp"]):
        state.set_pipeline_model_parallel_rank(stage)
        stages.append(sum(block.get_num_layers_to_build(config, chunk, stage) for chunk in chunks))
    return stages


def expect(found: object, wanted: object, what: str) -> None:
    """Fails with both values unless what the client understood is what the plan says."""
    if found != wanted:
        raise AssertionError(f"{what}: the client has {found!r}, the plan {wanted!r}")


def run(check: Callable[[Path, Case], None]) -> None:
    """Applies a check to each case of the folder on the command line; exits 1 if one fails."""
    folders = sorted(Path(sys.argv[1]).iterdir())
    failed = 0
    for folder in folders:
        case = json.loads((folder / "case.json").read_text())
        try:
            check(folder, case)
        # A client also exits, or raises what is no Exception.
        except BaseException as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            print(
                f"FAIL {folder}: {type(error).__name__}: {text} ({where.filename}:{where.lineno})"
            )
    print(f"{len(folders) - failed} of {len(folders)} accepted")
    sys.exit(failed > 0)
