"""The model that a measured run trained: its columns, then the catalog's of its name or shape."""

import re
from dataclasses import replace
from typing import Any

from autopar.errors import SpecError, shown
from autopar.runs import anatomy, rx
from autopar.runs.anatomy import noted
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK, said
from autopar.runs.shelf import GATED, Shelf, kin
from autopar.spec import Model, Moe, Window

VOCAB = 50257  # of GPT-2, for rows that give none

# State-space and linear-attention layers, whole models or among layers of attention.
RECURRENT = (
    r"(?<![a-z])(Nemotron[- ]?(H|3[- ]?(Nano|Super|Ultra)|Nano[- ]?(v?2|9B|12B))|Mamba\w*|Jamba"
    r"|Zamba\w*|RWKV\w*|Qwen3[-. ]?(Next|5)|Kimi[- ]?Linear|Granite[- ]?4\S*[- ]?H|Falcon[- ]?H1"
    r"|RecurrentGemma|Hymba)(?![a-z])"
)
RECURRENT_LAYERS = (
    r"(gated[- ]?)?delta[- ]?net layers?|(linear[- ]attention|state[- ]space|Mamba|SSM) layers?\b"
)
# Projected down before them and up behind them.
LATENT_EXPERTS = r"experts?\b[^.;]{0,40}\bon a latent\b|latent[- ]?(MoE|experts)\b"


def trained(run: Run, shelf: Shelf, assumed: list[str]) -> Model:
    """Returns a run's model: its shape from the row, the rest from its kin in the catalog.

    A model without kin is as GPT-2 where its MLP is plain, and as Llama where it is gated. Those
    of races for the fastest GPT-2 have a block of their own.

    Args:
        run: The row.
        shelf: The catalog.
        assumed: What is assumed is added here, as `key=value`.

    Raises:
        SpecError: Layers, hidden or heads are missing, and no model of the name has them; or it has
            layers that no model here has.
    """
    if rx.search(RECURRENT, run.model, re.I) or said(run, RECURRENT_LAYERS):
        what = f"no estimate for layers of {shown(run.model or 'a model')} that are no attention"
        raise SpecError("model", what, "Leave the row out.")
    if said(run, LATENT_EXPERTS):
        raise SpecError("notes", "no estimate for experts of a latent width", "Leave the row out.")
    run = replace(run, notes=anatomy.figures(run.notes))
    like, exact = kin(run, shelf)
    if like and like.name == "grok-1" and rx.search(r"NeMo\b|Bridge\b", run.framework, re.I):
        like = replace(like, **GROK_OF_NEMO)
    if like and exact:
        run = _completed(run, like)
    layers, hidden, heads = run.layers or 0, run.hidden or 0, run.heads or 0
    for key in ("layers", "hidden", "heads"):
        if not getattr(run, key):
            raise SpecError(key, "missing, and the catalog has no model of that name and shape")
    wide = like if like and (like.hidden, like.heads) == (hidden, heads) else None
    gated = run.gated_mlp
    if gated is None:
        gated = like is None or like.activation in GATED
        assumed.append(f"gated_mlp={str(gated).lower()}")
    ffn = run.ffn_hidden or 4 * hidden
    if not run.ffn_hidden:
        assumed.append(f"ffn_hidden={ffn}")
    vocab = run.vocab
    if vocab is None:
        vocab = wide.vocab if wide and wide.layers == layers else VOCAB
        assumed.append(f"vocab={vocab}")
    positions = run.seq_len or 1
    shape: dict[str, Any] = {
        "name": run.model or "model",
        "layers": layers,
        "hidden": hidden,
        "ffn_hidden": ffn,
        "heads": heads,
        "kv_heads": run.kv_heads or heads,
        "head_dim": run.head_dim
        or noted(anatomy.HEAD_DIM, f"{run.model}; {run.notes}")
        or (wide.head_dim if wide else max(1, hidden // heads)),
        "vocab": vocab,
        "max_positions": positions,
        "moe": None,
    }
    if run.experts and run.experts > 1:
        matrices = 3 if gated else 2
        moe = _moe(run, wide, shape, matrices, assumed)
        shape["moe"] = replace(moe, capacity_factor=_capacity(run, assumed))
        if wide and wide.moe and ffn == wide.moe.expert_ffn:
            shape["ffn_hidden"] = wide.ffn_hidden  # The row gives the experts' width.
    tied = anatomy.tied(run.notes)
    named = rx.search(anatomy.RACED, f"{run.model}; {run.framework}", re.I)
    raced = named and not (gated or exact)
    if like is None or raced:
        block = LLAMA_BLOCK if gated else GPT_BLOCK | {"position_rows": positions}
        if raced:
            block = RACE_BLOCK
            tied = bool(tied)
        block = block | {"tied_embeddings": not gated if tied is None else tied}
        model = replace(
            Model(**shape, **block), window=anatomy.window(run.notes, run.seq_len or 1, run.month)
        )
        return _noted(model, run.notes)
    tied = like.tied_embeddings if tied is None else tied
    model = replace(like, **shape, tied_embeddings=tied)
    if not wide:
        model = replace(
            model, mla=None, window=anatomy.window(run.notes, run.seq_len or 1, run.month)
        )
    if model.position == "learned":
        model = replace(model, position_rows=positions)
    if document := anatomy.documents(run.notes, positions):
        # As many pairs as causal attention within documents has: half their length for a token.
        model = replace(model, window=Window(size=max(document // 2, 1)))
    return _noted(model, run.notes)


# NVIDIA/NeMo, scripts/performance/llm/pretrain_grok1_314b.py: Mixtral's configuration, resized, and
# Llama 3's vocabulary.
GROK_OF_NEMO: dict[str, Any] = {
    "norms_per_layer": 2,
    "tied_embeddings": False,
    "activation": "swiglu",
    "vocab": 128256,
}
LLAMA_BLOCK: dict[str, Any] = {"norm": "rmsnorm", "position": "rope", "activation": "swiglu"}
GPT_BLOCK: dict[str, Any] = {
    "norm": "layernorm",
    "norm_bias": True,
    "position": "learned",
    "activation": "gelu",
    "tied_embeddings": True,
    "qkv_bias": True,
    "o_bias": True,
    "mlp_bias": True,
}
# karpathy/nanochat, nanochat/gpt.py: rotation, a norm of each head and one behind the embedding, no
# weights in norms, no biases and a head of its own; openai/parameter-golf, train_gpt.py, alike.
# Embeddings of values on every second layer and scales of the residual stream are left out.
RACE_BLOCK: dict[str, Any] = {
    "norm": "rmsnorm",
    "norm_weight": False,
    "position": "rope",
    "activation": "relu2",
    "qk_norm": "head",
    "embedding_norm": True,
}


def _noted(model: Model, notes: str) -> Model:
    """Returns a model with the positions, and norms behind its sub-layers, that notes tell."""
    if "alibi" in notes.lower():
        model = replace(model, position="alibi", position_rows=0)
    if model.position == "learned" and rx.search(anatomy.ROTARY, notes, re.I):
        model = replace(model, position="rope", position_rows=0)
    if rx.search(anatomy.UNSCALED, notes, re.I):
        model = replace(model, scaled_rotation=False)
    if model.mla is None and (latent := anatomy.latent(notes)):
        model = replace(model, mla=latent)
    if model.qk_norm == "none" and rx.search(anatomy.HEADS_NORMED, notes, re.I):
        model = replace(model, qk_norm="head")
    if model.activation in ("gelu", "relu") and rx.search(anatomy.RELU_SQUARED, notes, re.I):
        model = replace(model, activation="relu2")
    if rx.search(anatomy.LAYER_NORMED, notes, re.I):
        model = replace(model, norm="layernorm")
    if rx.search(rf"{TAKEN_BACK}(hybrid|sandwich)( \(\w+\))?[- ]norms?\b", notes, re.I):
        return replace(model, norms_per_layer=4)
    return model


def _completed(run: Run, model: Model) -> Run:
    """Returns a run with the dimensions of its model where the row leaves them out."""
    known: dict[str, Any] = {
        key: getattr(model, key)
        for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
    }
    known["gated_mlp"] = model.activation in GATED
    if model.moe:
        known |= {"experts": model.moe.experts, "topk": model.moe.topk}
    return replace(run, **{key: value for key, value in known.items() if getattr(run, key) is None})


def _moe(
    run: Run, wide: Model | None, shape: dict[str, Any], matrices: int, assumed: list[str]
) -> Moe:
    """Returns a run's experts: by its columns and words, else as those of its kin of that width."""
    dense = run.dense_layers
    if dense is None:
        dense = anatomy.dense_layers(run.notes)
    told = f"{run.model}; {run.notes}"
    stated: dict[str, Any] = {
        "experts": run.experts,
        "topk": run.topk,
        "expert_ffn": run.expert_ffn or anatomy.expert_ffn(told, run.experts or 0),
        "shared_ffn": run.shared_ffn,
        "first_dense": dense,
        "every": anatomy.experts_every(run.notes),
    }
    if wide and wide.moe and wide.moe.experts == run.experts:
        stated["expert_ffn"] = run.expert_ffn
        known = {key: value for key, value in stated.items() if value is not None}
        moe = replace(wide.moe, **known)
        return replace(moe, first_dense=min(moe.first_dense, run.layers or 0))
    if not stated["expert_ffn"]:
        mixtures = ((run.layers or 0) - (dense or 0)) // (stated["every"] or 1)
        stated["expert_ffn"] = _expert_ffn(run, shape, matrices, mixtures, assumed)
    if run.shared_ffn is None:
        stated["shared_ffn"] = anatomy.shared_ffn(run.notes, stated["expert_ffn"])
    return Moe(**{"topk": 1} | {key: value for key, value in stated.items() if value is not None})


def _capacity(run: Run, assumed: list[str]) -> float:
    """Returns the capacity of a run's experts: 1 where tokens are dropped and it is not told."""
    if told := rx.search(anatomy.CAPACITY, run.notes, re.I):
        return float(told[1])
    if not rx.search(anatomy.DROPPED, run.notes, re.I):
        return 0.0
    assumed.append("capacity_factor=1")
    return 1.0


SIZE = re.compile(r"(?<![\dxa.])(\d+(?:\.\d+)?) ?([BT])\b", re.I)  # Of "295B-A21B" the first.


def _expert_ffn(
    run: Run, shape: dict[str, Any], matrices: int, mixtures: int, assumed: list[str]
) -> int:
    """Returns the width of an expert in so many layers where only that of an MLP is told.

    It is the same, unless the model's name tells how many parameters it has and such experts
    alone would be a quarter more: then the row gives a dense layer's, and the experts have what
    is left, in steps of 64. Of a model with fewer layers than its name's they come out too wide.
    A name as `1.3B + MoE-128` tells how large the model is that got the experts.
    """
    ffn: int = shape["ffn_hidden"]
    hidden, layers = shape["hidden"], shape["layers"]
    named = SIZE.search(run.model)
    if (
        not named
        or mixtures < 1
        or rx.search(r"\d ?[BT] ?(\+|with|and) ?(\d+ ?)?(MoE|experts)", run.model, re.I)
    ):
        return ffn
    size = float(named[1]) * (1e9 if named[2].upper() == "B" else 1e12)
    # Parameters of all experts for each unit of their width.
    a_width = mixtures * (run.experts or 0) * matrices * hidden
    heads = 2 * hidden * shape["head_dim"] * (shape["heads"] + shape["kv_heads"])
    others = (
        2 * shape["vocab"] * hidden + layers * heads + (layers - mixtures) * matrices * hidden * ffn
    )
    if a_width * ffn + others <= 1.25 * size:
        return ffn
    width: int = max(1, round((size - others) / a_width / 64)) * 64
    assumed.append(f"expert_ffn={width}")
    return width
