"""The model that Megatron-LM's arguments spell out."""

import re
from typing import Any

from autopar import wire
from autopar.errors import shown
from autopar.frontends.megatron_arguments import Arguments
from autopar.frontends.places import keys
from autopar.spec import Model

FREQUENCY = "Write 1, or a list as ([0]*3+[1]*29)."
# Where arguments say what of a model.
FIELDS = {
    "model": keys("vocab-size"),
    "model.layers": keys("num-layers"),
    "model.hidden": keys("hidden-size"),
    "model.ffn_hidden": keys("ffn-hidden-size", "hidden-size"),
    "model.heads": keys("num-attention-heads"),
    "model.kv_heads": keys("num-query-groups", "num-attention-heads"),
    "model.head_dim": keys("kv-channels", "hidden-size", "num-attention-heads"),
    "model.vocab": keys("vocab-size", "padded-vocab-size"),
    "model.max_positions": keys("max-position-embeddings"),
    "model.mla": keys("multi-latent-attention"),
    "model.mla.kv_lora_rank": keys("kv-lora-rank"),
    "model.mla.qk_nope_dim": keys("qk-head-dim"),
    "model.mla.v_dim": keys("v-head-dim"),
    "model.moe": keys("num-experts"),
    "model.moe.topk": keys("moe-router-topk"),
    "model.moe.expert_ffn": keys("moe-ffn-hidden-size", "ffn-hidden-size"),
    "model.moe.first_dense": keys("moe-layer-freq"),
    "model.window": keys("window-size"),
}


def model(given: Arguments) -> Model:
    hidden, heads = given.count("hidden-size"), given.count("num-attention-heads")
    gated = "swiglu" in given
    # Megatron's own default: two thirds of four times the width, in steps of 64.
    width = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    kinds = ("learned_absolute", "rope", "yarn")
    position = given.word("position-embedding-type", kinds, "learned_absolute")
    rotary = position != "learned_absolute" or "use-rotary-position-embeddings" in given
    layer_norm = given.word("normalization", ("LayerNorm", "RMSNorm"), "LayerNorm") == "LayerNorm"
    rows = given.count("max-position-embeddings")
    bias = "disable-bias-linear" not in given
    latent = "multi-latent-attention" in given
    nope, rope = given.count("qk-head-dim", 128), given.count("qk-pos-emb-head-dim", 64)
    if heads and hidden % heads and "kv-channels" not in given:
        what = f"{heads} heads do not divide --hidden-size {hidden}"
        raise given.error("num-attention-heads", what, "Give --kv-channels.")
    fields: dict[str, Any] = {
        "name": given.file,
        "layers": given.count("num-layers"),
        "hidden": hidden,
        "ffn_hidden": given.count("ffn-hidden-size", width),
        "heads": heads,
        "kv_heads": given.count("num-query-groups", 1)
        if "group-query-attention" in given
        else heads,
        "head_dim": nope + rope if latent else given.count("kv-channels", hidden // heads),
        "vocab": given.count("vocab-size", given.count("padded-vocab-size", 0, least=0)),
        "max_positions": rows,
        "norm": "layernorm" if layer_norm else "rmsnorm",
        "norm_bias": layer_norm,
        "position": "rope" if rotary else "learned",
        "position_rows": 0 if rotary else rows,
        "activation": "swiglu" if gated else "relu2" if "squared-relu" in given else "gelu",
        "tied_embeddings": "untie-embeddings-and-output-weights" not in given,
        "qkv_bias": bias or "add-qkv-bias" in given,
        "o_bias": bias,
        "mlp_bias": bias,
        "qk_norm": "head" if "qk-layernorm" in given and not latent else "none",
        "attention_sinks": given.text("softmax-type") == "learnable",
        # The factors of latent attention cancel, as DeepSeek's do.
        "scaled_rotation": position == "yarn" and not latent,
    }
    if latent:
        fields["mla"] = {
            "q_lora_rank": given.count("q-lora-rank", 0, least=0),
            "kv_lora_rank": given.count("kv-lora-rank", 32),
            "qk_nope_dim": nope,
            "qk_rope_dim": rope,
            "v_dim": given.count("v-head-dim", 128),
        }
    if (size := given.text("window-size")) is not None:
        left = re.match(r"\(?(\d{1,9}),", size)
        if left is None:
            what = f"must be left,right, found {shown(size)}"
            raise given.error("window-size", what, "Give two counts of tokens.")
        every = given.count("window-attn-skip-freq", 0, least=0)
        fields["window"] = {"size": int(left[1]) + 1, "global_every": every}
    if "num-experts" in given:
        fields["moe"] = _experts(given, bias)
    return wire.read(Model, fields, f"{given.file}: model")


def _experts(given: Arguments, bias: bool) -> dict[str, Any]:
    layers = given.count("num-layers")
    pattern = given.text("moe-layer-freq") or "1"
    if pattern.isdecimal() and int(pattern) > 0:
        # Megatron counts from the first layer: with 2 the layers 0, 2, 4 have experts.
        sparse = [layer % int(pattern) == 0 for layer in range(layers)]
    else:
        sparse = _pattern(given, pattern)
    if len(sparse) != layers:
        what = f"lists {len(sparse)} of {layers} layers"
        raise given.error("moe-layer-freq", what, "List each layer.")
    first = next((layer for layer, has in enumerate(sparse) if has), layers)
    for dense, every in [(first, 1), *((0, n) for n in range(2, layers + 1))]:
        if sparse == [i >= dense and (i + 1) % every == 0 for i in range(layers)]:
            break
    else:
        what = "must be dense layers first, or experts in every n-th layer"
        raise given.error("moe-layer-freq", f"{what}, found {shown(pattern)}", FREQUENCY)
    # Without padding an expert that few tokens chose is done sooner.
    padded = "moe-pad-expert-input-to-capacity" in given
    return {
        "experts": given.count("num-experts"),
        "topk": given.count("moe-router-topk", 2),
        "expert_ffn": given.count("moe-ffn-hidden-size", given.count("ffn-hidden-size", 1)),
        "shared_ffn": given.count("moe-shared-expert-intermediate-size", 0, least=0),
        "first_dense": dense if every == 1 else 0,
        "every": every,
        "router_bias": "moe-router-enable-expert-bias" in given,
        "expert_bias": bias,
        "capacity_factor": given.number("moe-expert-capacity-factor", 0.0) if padded else 0.0,
    }


def _pattern(given: Arguments, pattern: str) -> list[bool]:
    """Returns the layers that a sum of repeated lists marks, as ([0]*3+[1]*58)."""
    text = re.sub(r"\s", "", pattern)
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    marks: list[bool] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\(?\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\)?", part)
        if match is None:
            what = f"no list of 0 and 1, found {shown(pattern)}"
            raise given.error("moe-layer-freq", what, FREQUENCY)
        marks += [mark == "1" for mark in match[1].split(",")] * int(match[2] or 1)
    return marks
