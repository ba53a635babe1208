"""Makes MindFormers' real configurations and prints what came of it; started by `check_classes.py`.

Standard input: one case a line, class name, keywords and changes as Python writes them, where
changes are attributes set afterwards, in order. Standard output: one JSON object a line, with
`raises` (the exception of the call and of each change, or null), `dict` (what `to_dict` gives, null
where it fails) and `stages` (pipeline_stages of the context).
"""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "4")

# What MindSpore and MindFormers themselves print goes elsewhere.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

sys.path.insert(0, str(Path(__file__).parents[2]))

import mindspore  # noqa: E402
from mindformers.modules.transformer import (  # noqa: E402
    MoEConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
)
from mindformers.modules.transformer.op_parallel_config import OpParallelConfig  # noqa: E402

import outcomes  # noqa: E402

CLASSES = {
    one.__name__: one
    for one in (
        TransformerOpParallelConfig,
        TransformerRecomputeConfig,
        OpParallelConfig,
        MoEConfig,
    )
}


def outcome(name: str, keywords: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns what making a configuration and changing it does."""
    mindspore.reset_auto_parallel_context()
    made, raises = outcomes.made(CLASSES[name], keywords, changes)
    try:
        written = None if made is None else repr(made.to_dict())
    except AttributeError:
        # It cannot write a recompute that was set to a truth value.
        written = None
    stages = mindspore.get_auto_parallel_context("pipeline_stages")
    return {"raises": raises, "dict": written, "stages": stages}


for line in sys.stdin:
    print(json.dumps(outcome(*ast.literal_eval(line))), file=answers, flush=True)
