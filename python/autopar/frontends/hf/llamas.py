"""Decoders of the LLaMA kind: gated MLPs, rotary positions."""

from autopar.frontends.hf.config import Config, Fields
from autopar.frontends.hf.parts import (
    attention_bias,
    biases,
    decoder,
    qwen_window,
    unclipped,
    window,
)


def llama(config: Config) -> Fields:
    bias = config.flag("mlp_bias", False)
    return {**decoder(config), **attention_bias(config), "mlp_bias": bias}


def mistral(config: Config) -> Fields:
    return {**decoder(config), **window(config)}


def qwen2(config: Config) -> Fields:
    return {**decoder(config), **qwen_window(config), "qkv_bias": True}


def qwen3(config: Config) -> Fields:
    # Its class takes 128 where the file gives no width.
    fields = decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {**fields, **qwen_window(config), **attention_bias(config), "qk_norm": "head"}


def glm(config: Config) -> Fields:
    fields = decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {**fields, "qkv_bias": config.flag("attention_bias", True)}


def glm4(config: Config) -> Fields:
    return {**glm(config), "norms_per_layer": 4}


def chatglm(config: Config) -> Fields:
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


def gemma(config: Config) -> Fields:
    width = {"head_dim": config.count("head_dim", default=256)}
    return {**decoder(config, tied=True, activation="geglu"), **width, **attention_bias(config)}


def gemma2(config: Config) -> Fields:
    return {**gemma(config), **window(config, 2), "norms_per_layer": 4}


def gemma3(config: Config) -> Fields:
    config = config.beside(GEMMA3)
    pattern = config.count("sliding_window_pattern", default=6, least=0)
    return {**gemma(config), **window(config, pattern), "norms_per_layer": 4, "qk_norm": "head"}


def phi3(config: Config) -> Fields:
    return {**decoder(config), **window(config)}


def olmo(config: Config) -> Fields:
    unclipped(config)
    bare = {"norm": "layernorm", "norm_weight": False}
    return {**decoder(config), **attention_bias(config), **bare}


def olmo2(config: Config) -> Fields:
    # Norms stand behind attention and MLP in place of before them, as many.
    return {**decoder(config), **attention_bias(config), "qk_norm": "full"}


def olmo3(config: Config) -> Fields:
    return {**olmo2(config), **window(config, 4)}


def smollm3(config: Config) -> Fields:
    if config.flag("use_sliding_window", False):
        raise config.refuse("use_sliding_window", "must be false")
    bias = config.flag("mlp_bias", False)
    return {**decoder(config, tied=True), **attention_bias(config), "mlp_bias": bias}


def seed_oss(config: Config) -> Fields:
    return {
        **decoder(config),
        "head_dim": config.count("head_dim", default=128),
        "qkv_bias": config.flag("attention_bias", True),
        "o_bias": config.flag("attention_out_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }


def helium(config: Config) -> Fields:
    # Its class takes no bias behind attention.
    return {
        **decoder(config),
        "head_dim": config.count("head_dim", default=128),
        "qkv_bias": config.flag("attention_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }


def ernie4_5(config: Config) -> Fields:
    return {
        **decoder(config, tied=True),
        "head_dim": config.count("head_dim", default=128),
        **biases(config.flag("use_bias", False)),
    }


def hunyuan_v1_dense(config: Config) -> Fields:
    return {**decoder(config), **attention_bias(config), "qk_norm": "head"}


def exaone4(config: Config) -> Fields:
    # Norms stand behind attention and MLP in place of before them, as many.
    pattern = config.table.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if not pattern.endswith("G") or "G" in pattern[:-1]:
            what = "must be whole attention in every n-th layer"
            raise config.refuse("sliding_window_pattern", what)
        every = len(pattern)
    else:
        every = config.count("sliding_window_pattern", default=4, least=0)
    return {**decoder(config), **window(config, every), "qk_norm": "head"}


def cohere(config: Config) -> Fields:
    return {
        **decoder(config, tied=True),
        **attention_bias(config),
        "norm": "layernorm",
        "norms_per_layer": 1,
        "qk_norm": "full" if config.flag("use_qk_norm", False) else "none",
        "parallel_block": True,
    }


def cohere2(config: Config) -> Fields:
    pattern = config.count("sliding_window_pattern", default=4, least=0)
    return {**cohere(config), **window(config.beside({"sliding_window": 4096}), pattern)}


def stablelm(config: Config) -> Fields:
    parallel = config.flag("use_parallel_residual", False)
    return {
        **decoder(config),
        "norm": "layernorm",
        "norm_bias": True,
        "norms_per_layer": 1 if parallel else 2,
        "qkv_bias": config.flag("use_qkv_bias", False),
        "qk_norm": "full" if config.flag("qk_layernorm", False) else "none",
        "parallel_block": parallel,
    }


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
