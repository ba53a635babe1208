"""Decoders with a plain MLP: GPT-2 and what came of it."""

from autopar.frontends.hf.config import Config, Fields
from autopar.frontends.hf.parts import (
    attention_bias,
    decoder,
    gpt_sizes,
    layer_norms,
    plain,
    window,
)


def gpt2(config: Config) -> Fields:
    if config.flag("add_cross_attention", False):
        raise config.refuse("add_cross_attention", "must be false")
    sizes = gpt_sizes(config, positions=1024, tied=True)
    learned: Fields = {"position": "learned", "position_rows": sizes["max_positions"]}
    return {**layer_norms(), **sizes, **learned}


def gptj(config: Config) -> Fields:
    return {
        **layer_norms(),
        **gpt_sizes(config, positions=2048, tied=False),
        "qkv_bias": False,
        "o_bias": False,
        "norms_per_layer": 1,
        "head_bias": True,
        "parallel_block": True,
    }


def gpt_neox(config: Config) -> Fields:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    bias = config.flag("attention_bias", True)
    return {
        **layer_norms(),
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
        "activation": plain(config, "hidden_act", "gelu"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "parallel_block": config.flag("use_parallel_residual", True),
    }


def opt(config: Config) -> Fields:
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
        **layer_norms(config.flag("enable_bias", True)),
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
        "activation": plain(config, "activation_function", "relu"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def bloom(config: Config) -> Fields:
    hidden = config.count("hidden_size", "n_embed")
    heads = config.count("n_head", "num_attention_heads")
    return {
        **layer_norms(),
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


def falcon(config: Config) -> Fields:
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
        **layer_norms(config.flag("bias", False)),
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
        "activation": plain(config, "activation", "gelu"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "parallel_block": parallel,
    }


def phi(config: Config) -> Fields:
    if config.flag("qk_layernorm", False):
        raise config.refuse("qk_layernorm", "must be false")
    return {
        **decoder(config, activation=plain(config, "hidden_act", "gelu_new")),
        **layer_norms(),
        "norms_per_layer": 1,
        "head_bias": True,
        "parallel_block": True,
    }


def gpt_bigcode(config: Config) -> Fields:
    one = config.flag("multi_query", True)
    return {**gpt2(config), **({"kv_heads": 1} if one else {})}


def mpt(config: Config) -> Fields:
    attention = config.table.get("attn_config", {})
    if not isinstance(attention, dict):
        raise config.refuse("attn_config", "must be a table")
    for key in ("clip_qkv", "qk_ln", "prefix_lm"):
        if attention.get(key):
            raise config.refuse("attn_config", f"{key} must not be set")
    if not attention.get("alibi", True) or attention.get("attn_type", MANY) != MANY:
        raise config.refuse("attn_config", f"must have alibi and {MANY}")
    if not config.flag("no_bias", True):
        raise config.refuse("no_bias", "must be true")
    hidden, heads = config.count("d_model"), config.count("n_heads")
    return {
        "layers": config.count("n_layers"),
        "hidden": hidden,
        "ffn_hidden": config.count("expansion_ratio", default=4) * hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": config.count("vocab_size"),
        "max_positions": config.count("max_seq_len", default=2048),
        "norm": "layernorm",
        "position": "alibi",
        "activation": "gelu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


MANY = "multihead_attention"


def starcoder2(config: Config) -> Fields:
    activation = plain(config, "hidden_act", "gelu_pytorch_tanh")
    return {
        **decoder(config, tied=True, activation=activation),
        **window(config),
        **layer_norms(config.flag("use_bias", True)),
    }


def nemotron(config: Config) -> Fields:
    return {
        **decoder(config, activation=plain(config, "hidden_act", "relu2")),
        **layer_norms(False),
        **attention_bias(config),
        "mlp_bias": config.flag("mlp_bias", False),
    }


def arcee(config: Config) -> Fields:
    return {
        **decoder(config, activation=plain(config, "hidden_act", "relu2")),
        **attention_bias(config),
        "mlp_bias": config.flag("mlp_bias", False),
    }
