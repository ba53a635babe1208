"""Hugging Face: the `config.json` of a causal language model as a model.

Each family is read as its class in transformers builds it; `tests/clients` holds parameter counts
against those classes. A feature that a model here has no word for is refused, never dropped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autopar import files, texts, wire
from autopar.catalog import sha256
from autopar.entries import ModelEntry
from autopar.errors import shown
from autopar.frontends.hf_config import KEYS, Config, Fields
from autopar.spec import Model


def is_config(name: str) -> bool:
    """Returns whether a text that may be a name in the catalog is a configuration or its folder.

    Example:
        >>> is_config("llama2-7b"), is_config("config.json"), is_config("my.toml")
        (False, True, False)
    """
    folder = files.is_path(name) and not name.endswith(".toml") and files.is_folder(name)
    return folder or name.endswith(".json")


def model(name: str) -> ModelEntry:
    """Returns the model that a configuration describes.

    Args:
        name: Path of a `config.json`, or of the folder that holds it.

    Raises:
        SpecError: The file is wrong, its family is not known, or a model cannot say a feature.
    """
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    data = files.read_bytes(path)
    place = files.printable(path if Path(name).is_dir() else name)
    text = texts.parse_json(data, place, "Give config.json as the model came with it.")
    config = Config(text)
    family = config.text("model_type")
    if family not in FAMILIES and config.has("text_config"):
        what = f"{family} also has parts that do not read text, and no model can say those"
        hint = "Give the table of text_config alone, with its model_type, as a file."
        raise config.error("text_config", what, hint)
    if family not in FAMILIES:
        what = f"no family {shown(family)}"
        raise config.error("model_type", what, f"Known: {', '.join(sorted(FAMILIES))}.")
    stem = path.parent.resolve().name if path.name == "config.json" else path.stem
    fields = {"name": stem or family, **FAMILIES[family](config)}
    hidden, heads = fields["hidden"], fields["heads"]
    if not config.has("head_dim") and hidden % heads and fields["head_dim"] == hidden // heads:
        what = f"{heads} attention heads do not divide the hidden size {hidden}"
        raise config.error(config.key("heads"), what, "Give head_dim, or heads that divide it.")
    return ModelEntry(
        model=wire.read(Model, fields, f"{place}: "),
        family=family,
        source=place,
        text=text,
        keys={field: config.key(field) for field in KEYS},
        digest=sha256(data),
    )


def _gated(config: Config) -> str:
    """Returns the nonlinearity of a gated MLP."""
    act = config.text("hidden_act", "silu")
    if act in ("silu", "swish"):
        return "swiglu"
    if act.startswith("gelu"):
        return "geglu"
    raise config.refuse("hidden_act", "must be silu or gelu beside a gate")


def _plain(config: Config, key: str, default: str) -> str:
    """Returns the nonlinearity of an MLP without a gate."""
    act = config.text(key, default)
    if act.startswith("gelu"):
        return "gelu"
    if act in ("relu", "relu2"):
        return act
    raise config.refuse(key, "must be gelu, relu or relu2")


def _decoder(config: Config, *, tied: bool = False, activation: str | None = None) -> Fields:
    """Returns what the LLaMA-shaped families share; the activation is a gated one unless given."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.count("head_dim", default=hidden // heads)
    return {
        "layers": config.count("num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": config.count("intermediate_size"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", default=heads),
        "head_dim": head_dim,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("max_position_embeddings", default=2048),
        "activation": activation or _gated(config),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
    }


def _attention_bias(config: Config) -> Fields:
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias}


def _window(config: Config, pattern: int = 0) -> Fields:
    """Returns the sliding window, from the kinds of the layers or every how many one is whole."""
    size = config.count("sliding_window", default=0, least=0)
    kinds = config.items("layer_types")
    if kinds:
        whole = [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"]
        if len(whole) == len(kinds):
            return {}
        every = whole[0] if whole else 0
        regular = [n for n in range(1, len(kinds) + 1) if every and n % every == 0]
        known = all(kind in ("full_attention", "sliding_attention") for kind in kinds)
        if whole != regular or not known:
            raise config.refuse("layer_types", "must be whole attention in every n-th layer")
        pattern = every
    # One that is as long as any sequence hides nothing.
    seen = 0 < size < config.count("max_position_embeddings", default=size + 1)
    return {"window": {"size": size, "global_every": pattern}} if seen else {}


def _experts(config: Config, *keys: str, ffn: str, **more: Any) -> Fields:
    return {
        "experts": config.count(*keys),
        "topk": config.count("num_experts_per_tok"),
        "expert_ffn": config.count(ffn),
        **more,
    }


def _llama(config: Config) -> Fields:
    bias = config.flag("mlp_bias", False)
    return {**_decoder(config), **_attention_bias(config), "mlp_bias": bias}


def _mistral(config: Config) -> Fields:
    return {**_decoder(config), **_window(config)}


def _mixtral(config: Config) -> Fields:
    moe = _experts(config, "num_local_experts", ffn="intermediate_size")
    return {**_decoder(config), **_window(config), "moe": moe}


def _qwen_window(config: Config) -> Fields:
    """Returns the window of the layers from `max_window_layers` on, where it is in use."""
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", False):
        return {}
    first = config.count("max_window_layers", default=layers, least=0)
    if first >= layers:
        return {}
    if first > 0:
        raise config.refuse("max_window_layers", "windows in only the last layers")
    return _window(config)


def _qwen2(config: Config) -> Fields:
    return {**_decoder(config), **_qwen_window(config), "qkv_bias": True}


def _sparse_layers(config: Config) -> Fields:
    """Returns which layers hold experts: every so manieth, but for those that are named dense."""
    step = config.count("decoder_sparse_step", default=1)
    dense = config.items("mlp_only_layers")
    layers = range(config.count("num_hidden_layers"))
    sparse = [i for i in layers if (i + 1) % step == 0 and i not in dense]
    first = sparse[0] if sparse else len(layers)
    if sparse != [i for i in layers[first:] if (i + 1) % step == 0]:
        raise config.refuse("mlp_only_layers", "must be the first layers")
    return {"every": step, "first_dense": first if dense else 0}


def _qwen2_moe(config: Config) -> Fields:
    moe = _experts(
        config,
        "num_experts",
        ffn="moe_intermediate_size",
        shared_ffn=config.count("shared_expert_intermediate_size", least=0),
        shared_gate=True,
        **_sparse_layers(config),
    )
    bias = {"qkv_bias": config.flag("qkv_bias", True)}
    return {**_decoder(config), **_qwen_window(config), **bias, "moe": moe}


def _qwen3(config: Config) -> Fields:
    # Its class takes 128 where the file gives no width.
    fields = _decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {**fields, **_qwen_window(config), **_attention_bias(config), "qk_norm": "head"}


def _qwen3_moe(config: Config) -> Fields:
    moe = _experts(
        config,
        "num_experts",
        "num_local_experts",
        ffn="moe_intermediate_size",
        **_sparse_layers(config),
    )
    fields = _decoder(config)
    return {
        **fields, **_qwen_window(config), **_attention_bias(config), "qk_norm": "head", "moe": moe,
    }  # fmt: skip


def _routed(config: Config, *, router_bias: bool) -> Fields:
    """Returns experts beside shared ones, in all layers but the first."""
    width = config.count("moe_intermediate_size")
    return _experts(
        config,
        "n_routed_experts",
        ffn="moe_intermediate_size",
        shared_ffn=width * config.count("n_shared_experts", default=0, least=0),
        first_dense=config.count("first_k_dense_replace", default=0, least=0),
        router_bias=router_bias,
    )


def _latent(config: Config, *, router_bias: bool) -> Fields:
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim", least=0)
    moe = _routed(config, router_bias=router_bias)
    if config.count("n_group", default=1) > 1:
        moe["node_limit"] = config.count("topk_group", default=0, least=0)
    if config.count("moe_layer_freq", default=1) != 1:
        raise config.refuse("moe_layer_freq", "must be 1")
    return {
        **_decoder(config),
        **_attention_bias(config),
        "head_dim": nope + rope,
        "kv_heads": config.count("num_attention_heads"),
        "mla": {
            "q_lora_rank": config.count("q_lora_rank", default=0, least=0),
            "kv_lora_rank": config.count("kv_lora_rank"),
            "qk_nope_dim": nope,
            "qk_rope_dim": rope,
            "v_dim": config.count("v_head_dim"),
        },
        "moe": moe,
    }


def _deepseek_v2(config: Config) -> Fields:
    return _latent(config, router_bias=False)


def _deepseek_v3(config: Config) -> Fields:
    return _latent(config, router_bias=True)


def _glm(config: Config) -> Fields:
    fields = _decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {**fields, "qkv_bias": config.flag("attention_bias", True)}


def _glm4(config: Config) -> Fields:
    return {**_glm(config), "norms_per_layer": 4}


def _glm4_moe(config: Config) -> Fields:
    moe = _routed(config, router_bias=True)
    fields = _decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {
        **fields,
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": "head" if config.flag("use_qk_norm", False) else "none",
        "moe": moe,
    }


def _chatglm(config: Config) -> Fields:
    heads = config.count("num_attention_heads")
    grouped = config.flag("multi_query_attention", False)
    if not config.flag("rmsnorm", True) or config.flag("post_layer_norm", True) is False:
        raise config.refuse("rmsnorm", "must be true with a last norm")
    bias = config.flag("add_bias_linear", False)
    return {
        "layers": config.count("num_layers"),
        "hidden": config.count("hidden_size"),
        "ffn_hidden": config.count("ffn_hidden_size"),
        "heads": heads,
        "kv_heads": config.count("multi_query_group_num") if grouped else heads,
        "head_dim": config.count("kv_channels"),
        "vocab": config.count("padded_vocab_size"),
        "max_positions": config.count("seq_length"),
        "qkv_bias": bias or config.flag("add_qkv_bias", False),
        "o_bias": bias,
        "mlp_bias": bias,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _layer_norms(bias: bool = True) -> Fields:
    """Returns layer norms, and biases of every projection of a layer."""
    return {
        "norm": "layernorm",
        "norm_bias": True,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
    }


def _gpt_sizes(config: Config, positions: int, tied: bool) -> Fields:
    """Returns the dimensions of GPT-2 and GPT-J, and what both say by the same keys."""
    hidden, heads = config.count("n_embd"), config.count("n_head")
    return {
        "layers": config.count("n_layer"),
        "hidden": hidden,
        "ffn_hidden": config.count("n_inner", default=4 * hidden),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("n_positions", default=positions),
        "activation": _plain(config, "activation_function", "gelu_new"),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
    }


def _gpt2(config: Config) -> Fields:
    if config.flag("add_cross_attention", False):
        raise config.refuse("add_cross_attention", "must be false")
    sizes = _gpt_sizes(config, positions=1024, tied=True)
    learned: Fields = {"position": "learned", "position_rows": sizes["max_positions"]}
    return {**_layer_norms(), **sizes, **learned}


def _gptj(config: Config) -> Fields:
    return {
        **_layer_norms(),
        **_gpt_sizes(config, positions=2048, tied=False),
        "qkv_bias": False,
        "o_bias": False,
        "norms_per_layer": 1,
        "head_bias": True,
        "parallel_block": True,
    }


def _gpt_neox(config: Config) -> Fields:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    bias = config.flag("attention_bias", True)
    return {
        **_layer_norms(),
        "qkv_bias": bias,
        "o_bias": bias,
        "layers": config.count("num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": config.count("intermediate_size"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("max_position_embeddings", default=2048),
        "activation": _plain(config, "hidden_act", "gelu"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "parallel_block": config.flag("use_parallel_residual", True),
    }


def _opt(config: Config) -> Fields:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if config.count("word_embed_proj_dim", default=hidden) != hidden:
        raise config.refuse("word_embed_proj_dim", "must be hidden_size")
    if not config.flag("do_layer_norm_before", True):
        raise config.refuse("do_layer_norm_before", "must be true")
    if config.flag("_remove_final_layer_norm", False):
        raise config.refuse("_remove_final_layer_norm", "must be false")
    if not config.flag("layer_norm_elementwise_affine", True):
        raise config.refuse("layer_norm_elementwise_affine", "must be true")
    positions = config.count("max_position_embeddings", default=2048)
    return {
        **_layer_norms(config.flag("enable_bias", True)),
        "layers": config.count("num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": config.count("ffn_dim"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": positions,
        "position": "learned",
        # Its table starts two rows early.
        "position_rows": positions + 2,
        "activation": _plain(config, "activation_function", "relu"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _bloom(config: Config) -> Fields:
    hidden = config.count("hidden_size", "n_embed")
    heads = config.count("n_head", "num_attention_heads")
    return {
        **_layer_norms(),
        "layers": config.count("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "ffn_hidden": 4 * hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("seq_length", default=2048),
        "position": "alibi",
        "activation": "gelu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "embedding_norm": True,
    }


def _falcon(config: Config) -> Fields:
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", False)
    parallel = new or config.flag("parallel_attn", True)
    if new:
        kv_heads = config.count("num_kv_heads", "n_head_kv", default=heads)
        norms = config.count("num_ln_in_parallel_attn", default=2)
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
        norms = 1 if parallel else 2
    return {
        **_layer_norms(config.flag("bias", False)),
        "layers": config.count("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "ffn_hidden": config.count("ffn_hidden_size", default=4 * hidden),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("max_position_embeddings", default=2048),
        "norms_per_layer": norms,
        "position": "alibi" if config.flag("alibi", False) else "rope",
        "activation": _plain(config, "activation", "gelu"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "parallel_block": parallel,
    }


def _gemma(config: Config) -> Fields:
    width = {"head_dim": config.count("head_dim", default=256)}
    return {**_decoder(config, tied=True, activation="geglu"), **width, **_attention_bias(config)}


def _gemma2(config: Config) -> Fields:
    return {**_gemma(config), **_window(config, 2), "norms_per_layer": 4}


def _gemma3(config: Config) -> Fields:
    config = config.beside(GEMMA3)
    pattern = config.count("sliding_window_pattern", default=6, least=0)
    return {**_gemma(config), **_window(config, pattern), "norms_per_layer": 4, "qk_norm": "head"}


# What its class takes where a file gives nothing; the text parts of models that see give little.
GEMMA3 = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}


def _phi(config: Config) -> Fields:
    if config.flag("qk_layernorm", False):
        raise config.refuse("qk_layernorm", "must be false")
    return {
        **_decoder(config, activation=_plain(config, "hidden_act", "gelu_new")),
        **_layer_norms(),
        "norms_per_layer": 1,
        "head_bias": True,
        "parallel_block": True,
    }


def _phi3(config: Config) -> Fields:
    return {**_decoder(config), **_window(config)}


def _phimoe(config: Config) -> Fields:
    moe = _experts(config, "num_local_experts", ffn="intermediate_size")
    return {
        **_decoder(config),
        **_window(config),
        **_attention_bias(config),
        "norm": "layernorm",
        "norm_bias": True,
        "head_bias": config.flag("lm_head_bias", False),
        "moe": moe,
    }


def _unclipped(config: Config) -> None:
    if config.has("clip_qkv"):
        raise config.refuse("clip_qkv", "must be null")


def _olmo(config: Config) -> Fields:
    _unclipped(config)
    bare = {"norm": "layernorm", "norm_weight": False}
    return {**_decoder(config), **_attention_bias(config), **bare}


def _olmo2(config: Config) -> Fields:
    # Norms stand behind attention and MLP in place of before them, as many.
    return {**_decoder(config), **_attention_bias(config), "qk_norm": "full"}


def _olmo3(config: Config) -> Fields:
    return {**_olmo2(config), **_window(config, 4)}


def _olmoe(config: Config) -> Fields:
    _unclipped(config)
    return {**_olmo2(config), "moe": _experts(config, "num_experts", ffn="intermediate_size")}


FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "bloom": _bloom,
    "chatglm": _chatglm,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
