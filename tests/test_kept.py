"""What a layer keeps for the backward pass, held against PyTorch itself.

Layers have 256 channels with four heads of 64, 1,024 tokens and all numbers in 16 bits; what they
keep is counted in whole tensors of the stream, as the difference that one layer more makes.

`data/operators/compiled.csv` holds what PyTorch 2.15 planned, and nothing that was timed: reads and
writes of all kernels that are no product and no attention, as the scheduler of torch/_inductor
joins them where tensors are said to be an H100's (graphs were traced on a CPU, and its passes over
patterns were left out), and what its partition of the joint graph
(min_cut_rematerialization_partition) keeps.

`data/operators/kept.csv` holds what autograd saves of the classes of transformers 5.24, as
`benches/saved_tensors.py` prints it.
"""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar import catalog, estimate, planner
from autopar.framework import Framework, Projections
from autopar.spec import Model

HIDDEN, TOKENS = 256, 1024
FOLDER = Path(__file__).parent / "data/operators"


def rows(name: str) -> list[dict[str, str]]:
    """Returns the lines of a table."""
    return list(csv.DictReader((FOLDER / name).read_text("utf-8").splitlines()))


COMPILED = {
    row["layer"]: (int(row["ffn"]), int(row["kv_heads"]), float(row["kept"]))
    for row in rows("compiled.csv")
}
SAVED = {row["family"]: float(row["kept"]) for row in rows("kept.csv")}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "activation": "swiglu"}
RACE: dict[str, Any] = {"norm": "rmsnorm", "norm_weight": False, "activation": "relu2"}
LEARNED: dict[str, Any] = {"position": "learned", "position_rows": 256}
LAYERS: dict[str, tuple[dict[str, Any], Projections]] = {
    "norms without weight": (RACE | LEARNED, "apart"),
    "norms with weight": (RACE | LEARNED | {"norm_weight": True}, "apart"),
    "rotation": (RACE, "apart"),
    "rotation and norms of heads": (RACE | {"qk_norm": "head"}, "apart"),
    "llama apart": (LLAMA, "apart"),
    "llama packed": (LLAMA, "packed"),
    "qwen3": (LLAMA | {"qk_norm": "head"}, "apart"),
    "gpt2 packed": (LEARNED | {"norm": "layernorm", "activation": "gelu"}, "packed"),
}


BIASES = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
LAYER_NORM: dict[str, Any] = {"norm": "layernorm", "norm_bias": True, "activation": "gelu"}
PARALLEL: dict[str, Any] = LAYER_NORM | {"parallel_block": True}
# Of each family the model, its inner width and key heads, and what its code does.
FAMILIES: dict[str, tuple[dict[str, Any], int, int, dict[str, Any]]] = {
    "llama": (LLAMA, 680, 4, {}),
    "llama grouped": (LLAMA, 680, 2, {}),
    "qwen3": (LLAMA | {"qk_norm": "head"}, 680, 2, {}),
    "gpt2": (LAYER_NORM | LEARNED | BIASES, 1024, 4, {"projections": "packed", "gelu": False}),
    "gpt_neox": (PARALLEL | BIASES, 1024, 4, {"projections": "packed"}),
    "gptj": (PARALLEL | {"norms_per_layer": 1, "mlp_bias": True}, 1024, 4, {"gelu": False}),
    "olmo": (LLAMA | {"norm": "layernorm", "norm_weight": False}, 680, 4, {}),
    "opt": (LAYER_NORM | LEARNED | BIASES | {"activation": "relu"}, 1024, 4, {}),
    "falcon": (PARALLEL | {"norms_per_layer": 1}, 1024, 1, {"projections": "packed"}),
}


def kept(fields: dict[str, Any], ffn: int, kv_heads: int, framework: Framework) -> float:
    """Returns what a layer keeps, in tensors of the stream in 16 bits."""
    # In 16 bits all through, where the profile's users cast 32.
    held = replace(framework.held, fp32_residual=False)
    framework = replace(framework, casts_weights=False, held=held)

    def activations(layers: int) -> int:
        model = Model(
            name="layers", layers=layers, hidden=HIDDEN, ffn_hidden=ffn, heads=4,
            kv_heads=kv_heads, head_dim=64, vocab=512, max_positions=256, **fields,
        )  # fmt: skip
        asked = planner.problem(
            model, "h100", devices=1, global_batch_size=4, sequence_length=256, framework=framework
        )
        return estimate(asked, planner.plan(asked, mbs=4)).stages[0].memory.activations

    return (activations(4) - activations(3)) / (HIDDEN * TOKENS * 2)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_compiled_layer_keeps_what_pytorch_plans(layer: str) -> None:
    fields, projections = LAYERS[layer]
    ffn, kv_heads, planned = COMPILED[layer]
    entry = replace(catalog.framework("ddp-compiled").framework, projections=projections)
    # Sums of rows, a number of 4 bytes for each head and each norm, are not counted here.
    assert kept(fields, ffn, kv_heads, entry) == pytest.approx(planned, abs=0.15)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_in_operators_keeps_what_autograd_saves(family: str) -> None:
    fields, ffn, kv_heads, code = FAMILIES[family]
    entry = catalog.framework("pytorch-ddp").framework
    fused = replace(entry.fused, gelu=code.get("gelu", True))
    projections = code.get("projections", "apart")
    entry = replace(entry, fused=fused, projections=projections)
    # Tables of cosines and of positions, and sums of rows, are not counted here.
    assert kept(fields, ffn, kv_heads, entry) == pytest.approx(SAVED[family], abs=0.3)
