"""Runs cases on the real MindSpore and prints what came of them; started by
`check_context.py`.

Standard input: one case a line, a Python list of calls, each a dictionary of keywords for
`set_auto_parallel_context`, or `None` for `reset_auto_parallel_context`. Standard output: one JSON
object a line, with `raises` (the exception of each call, or null), `state` (every key that can be
read, and the settings behind them, as `repr` writes them) and `folders` (what the calls created).
"""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "4")
sys.path.insert(0, str(Path(__file__).parents[2]))

import mindspore
from mindspore.parallel import _auto_parallel_context as real

import outcomes


def state() -> dict[str, str]:
    """Returns what can be read back: the public keys, and in parentheses what only has a method."""
    seen: dict[str, Any] = {
        name: mindspore.get_auto_parallel_context(name)
        for name in real._get_auto_parallel_context_func_map
    }
    hidden = real.auto_parallel_context()
    seen |= {
        "(gradient_accumulation_shard)": hidden.get_grad_accumulation_shard(),
        "(parallel_optimizer_threshold)": hidden.get_parallel_optimizer_threshold(),
        "(pipeline_segments)": hidden.get_pipeline_segments(),
        "(fusion)": [
            hidden.get_enable_all_reduce_fusion(),
            hidden.get_enable_all_gather_fusion(),
            hidden.get_enable_reduce_scatter_fusion(),
        ],
        "(fusion_mb)": [
            hidden.fusion_threshold_mb(),
            hidden.allgather_fusion_threshold_mb(),
            hidden.reducescatter_fusion_threshold_mb(),
        ],
    }
    return {name: repr(value) for name, value in seen.items()}


def outcome(calls: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Returns what a list of calls does to a context at its defaults."""
    mindspore.reset_auto_parallel_context()
    # A reset alone forgets neither a tuple given as dataset_strategy nor that one was given.
    mindspore.set_auto_parallel_context(dataset_strategy="data_parallel")
    mindspore.reset_auto_parallel_context()
    raises, folders = outcomes.called(
        calls, mindspore.set_auto_parallel_context, mindspore.reset_auto_parallel_context
    )
    return {"raises": raises, "state": state(), "folders": folders}


def main() -> None:
    """Answers every line of the standard input."""
    # What MindSpore itself prints goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(outcome(ast.literal_eval(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
