"""What configurations of several families say alike."""

from typing import Any

from autopar.frontends.hf.config import Config, Fields


def gated(config: Config) -> str:
    """Returns the nonlinearity of a gated MLP."""
    act = config.text("hidden_act", "silu")
    if act in ("silu", "swish"):
        return "swiglu"
    if act.startswith("gelu"):
        return "geglu"
    raise config.refuse("hidden_act", "must be silu or gelu beside a gate")


def plain(config: Config, key: str, default: str) -> str:
    """Returns the nonlinearity of an MLP without a gate."""
    act = config.text(key, default)
    if act.startswith("gelu"):
        return "gelu"
    if act in ("relu", "relu2"):
        return act
    raise config.refuse(key, "must be gelu, relu or relu2")


def decoder(config: Config, *, tied: bool = False, activation: str | None = None) -> Fields:
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
        "activation": activation or gated(config),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
    }


def attention_bias(config: Config) -> Fields:
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias}


def biases(bias: bool) -> Fields:
    """Returns biases of every projection of a layer, or none."""
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": bias}


def window(config: Config, pattern: int = 0) -> Fields:
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


def qwen_window(config: Config) -> Fields:
    """Returns the window of the layers from `max_window_layers` on, where it is in use."""
    layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window", False):
        return {}
    first = config.count("max_window_layers", default=layers, least=0)
    if first >= layers:
        return {}
    if first > 0:
        raise config.refuse("max_window_layers", "windows in only the last layers")
    return window(config)


def experts(config: Config, *keys: str, ffn: str, **more: Any) -> Fields:
    return {
        "experts": config.count(*keys),
        "topk": config.count("num_experts_per_tok"),
        "expert_ffn": config.count(ffn),
        **more,
    }


def sparse_layers(config: Config) -> Fields:
    """Returns which layers hold experts: every so manieth, but for those that are named dense."""
    step = config.count("decoder_sparse_step", default=1)
    dense = config.items("mlp_only_layers")
    layers = range(config.count("num_hidden_layers"))
    sparse = [i for i in layers if (i + 1) % step == 0 and i not in dense]
    first = sparse[0] if sparse else len(layers)
    if sparse != [i for i in layers[first:] if (i + 1) % step == 0]:
        raise config.refuse("mlp_only_layers", "must be the first layers")
    return {"every": step, "first_dense": first if dense else 0}


def routed(config: Config, *, router_bias: bool) -> Fields:
    """Returns experts beside shared ones, in all layers but the first."""
    width = config.count("moe_intermediate_size")
    return experts(
        config,
        "n_routed_experts",
        ffn="moe_intermediate_size",
        shared_ffn=width * config.count("n_shared_experts", default=0, least=0),
        first_dense=config.count("first_k_dense_replace", default=0, least=0),
        router_bias=router_bias,
    )


def latent(config: Config, *, router_bias: bool) -> Fields:
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim", least=0)
    moe = routed(config, router_bias=router_bias)
    if config.count("n_group", default=1) > 1:
        moe["node_limit"] = config.count("topk_group", default=0, least=0)
    if config.count("moe_layer_freq", default=1) != 1:
        raise config.refuse("moe_layer_freq", "must be 1")
    return {
        **decoder(config),
        **attention_bias(config),
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


def layer_norms(bias: bool = True) -> Fields:
    """Returns layer norms, and biases of every projection of a layer."""
    return {
        "norm": "layernorm",
        "norm_bias": True,
        **biases(bias),
    }


def gpt_sizes(config: Config, positions: int, tied: bool) -> Fields:
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
        "activation": plain(config, "activation_function", "gelu_new"),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
    }


def unclipped(config: Config) -> None:
    if config.has("clip_qkv"):
        raise config.refuse("clip_qkv", "must be null")
