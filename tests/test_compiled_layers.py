"""Layers as torch.compile makes them: what they keep for the backward pass.

`data/operators/compiled.csv` holds what PyTorch 2.15 planned for layers of 256 channels with four
heads of 64, 1,024 tokens and all numbers in 16 bits: reads and writes of all kernels that are no
product and no attention, as torch/_inductor joins them for an H100, and what its partition of the
joint graph (min_cut_rematerialization_partition) keeps, each counted of whole tensors of the
stream, as the difference that one layer more makes.
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar import catalog, estimate, planner
from autopar.spec import Model

HIDDEN, TOKENS = 256, 1024
FILE = Path(__file__).parent / "data/operators/compiled.csv"
KEPT = {
    row["layer"]: (int(row["ffn"]), int(row["kv_heads"]), float(row["kept"]))
    for row in csv.DictReader(FILE.read_text("utf-8").splitlines())
}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "activation": "swiglu"}
RACE: dict[str, Any] = {"norm": "rmsnorm", "norm_weight": False, "activation": "relu2"}
LEARNED: dict[str, Any] = {"position": "learned", "position_rows": 256}
LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "norms without weight": (RACE | LEARNED, "apart"),
    "norms with weight": (RACE | LEARNED | {"norm_weight": True}, "apart"),
    "rotation": (RACE, "apart"),
    "rotation and norms of heads": (RACE | {"qk_norm": "head"}, "apart"),
    "llama apart": (LLAMA, "apart"),
    "llama packed": (LLAMA, "packed"),
    "qwen3": (LLAMA | {"qk_norm": "head"}, "apart"),
    "gpt2 packed": (LEARNED | {"norm": "layernorm", "activation": "gelu"}, "packed"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_compiled_layer_keeps_what_pytorch_plans(layer: str) -> None:
    fields, projections = LAYERS[layer]
    ffn, kv_heads, kept = KEPT[layer]
    entry = catalog.framework("ddp-compiled").framework
    # In 16 bits all through, where the profile's users cast 32.
    held = replace(entry.held, fp32_residual=False)
    framework = replace(entry, projections=projections, casts_weights=False, held=held)

    def activations(layers: int) -> int:
        model = Model(
            name=layer, layers=layers, hidden=HIDDEN, ffn_hidden=ffn, heads=4, kv_heads=kv_heads,
            head_dim=64, vocab=512, max_positions=256, **fields,
        )  # fmt: skip
        asked = planner.problem(
            model, "h100", devices=1, global_batch_size=4, sequence_length=256, framework=framework
        )
        return estimate(asked, planner.plan(asked, mbs=4)).stages[0].memory.activations

    stream = HIDDEN * TOKENS * 2
    # Sums of rows, a number of 4 bytes for each head and each norm, are not counted here.
    assert (activations(4) - activations(3)) / stream == pytest.approx(kept, abs=0.15)
