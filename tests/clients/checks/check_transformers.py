"""transformers 5.23: each configuration's own class, built on the meta device, counted.

`check_transformers.py --print FILE` prints the counts of the configurations of a JSON file, which
is how `tests/data/hf_configs.json` got its own.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from cases import Case, expect, run
from transformers import AutoConfig, AutoModelForCausalLM


def parameters(config: dict[str, Any]) -> int:
    """Returns the parameters of a model, and the biases that its router keeps as a buffer."""
    family = dict(config)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        built = AutoConfig.for_model(family.pop("model_type"), **family)
        model = AutoModelForCausalLM.from_config(built)
    biases = sum(
        buffer.numel()
        for name, buffer in model.named_buffers()
        if name.endswith("e_score_correction_bias")
    )
    return sum(parameter.numel() for parameter in model.parameters()) + biases


def check(folder: Path, case: Case) -> None:
    expect(parameters(case["config"]), case["parameters"], "parameters")


if __name__ == "__main__":
    if sys.argv[1] == "--print":
        table = json.loads(Path(sys.argv[2]).read_text())
        for name, entry in table.items():
            print(name, parameters(entry.get("config", entry)))
    else:
        run(check)
