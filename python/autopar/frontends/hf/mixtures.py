"""Mixtures of experts."""

from autopar.frontends.hf import llamas
from autopar.frontends.hf.config import Config, Fields
from autopar.frontends.hf.parts import (
    attention_bias,
    biases,
    decoder,
    experts,
    latent,
    qwen_window,
    routed,
    sparse_layers,
    unclipped,
    window,
)


def mixtral(config: Config) -> Fields:
    moe = experts(config, "num_local_experts", ffn="intermediate_size")
    return {**decoder(config), **window(config), "moe": moe}


def qwen2_moe(config: Config) -> Fields:
    moe = experts(
        config,
        "num_experts",
        ffn="moe_intermediate_size",
        shared_ffn=config.count("shared_expert_intermediate_size", least=0),
        shared_gate=True,
        **sparse_layers(config),
    )
    bias = {"qkv_bias": config.flag("qkv_bias", True)}
    return {**decoder(config), **qwen_window(config), **bias, "moe": moe}


def qwen3_moe(config: Config) -> Fields:
    moe = experts(
        config,
        "num_experts",
        "num_local_experts",
        ffn="moe_intermediate_size",
        **sparse_layers(config),
    )
    fields = decoder(config)
    return {
        **fields, **qwen_window(config), **attention_bias(config), "qk_norm": "head", "moe": moe,
    }  # fmt: skip


def deepseek_v2(config: Config) -> Fields:
    return latent(config, router_bias=False)


def deepseek_v3(config: Config) -> Fields:
    return latent(config, router_bias=True)


def glm4_moe(config: Config) -> Fields:
    moe = routed(config, router_bias=True)
    fields = decoder(config) | {"head_dim": config.count("head_dim", default=128)}
    return {
        **fields,
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": "head" if config.flag("use_qk_norm", False) else "none",
        "moe": moe,
    }


def phimoe(config: Config) -> Fields:
    moe = experts(config, "num_local_experts", ffn="intermediate_size")
    return {
        **decoder(config),
        **window(config),
        **attention_bias(config),
        "norm": "layernorm",
        "norm_bias": True,
        "head_bias": config.flag("lm_head_bias", False),
        "moe": moe,
    }


def olmoe(config: Config) -> Fields:
    unclipped(config)
    return {**llamas.olmo2(config), "moe": experts(config, "num_experts", ffn="intermediate_size")}


def granitemoe(config: Config) -> Fields:
    moe = experts(config, "num_local_experts", ffn="intermediate_size")
    return {**decoder(config), **attention_bias(config), "moe": moe}


def dots1(config: Config) -> Fields:
    layers = config.count("num_hidden_layers")
    if config.has("sliding_window") and config.count("max_window_layers", default=62) < layers:
        raise config.refuse("max_window_layers", "windows in only the last layers")
    return {
        **decoder(config),
        **attention_bias(config),
        "qk_norm": "head",
        "moe": routed(config, router_bias=True),
    }


def minimax_m2(config: Config) -> Fields:
    width = {"head_dim": config.count("head_dim", default=128)}
    moe = experts(config, "num_local_experts", ffn="intermediate_size", router_bias=True)
    return {**decoder(config), **width, "qk_norm": "full", "moe": moe}


def ernie4_5_moe(config: Config) -> Fields:
    layers = config.count("num_hidden_layers")
    last = config.table.get("moe_layer_end_index", -1)
    if last not in (-1, layers - 1):
        raise config.refuse("moe_layer_end_index", "must be the last layer")
    bias = config.flag("use_bias", False)
    width = config.count("moe_intermediate_size")
    moe = {
        "experts": config.count("moe_num_experts"),
        "topk": config.count("moe_k"),
        "expert_ffn": width,
        "shared_ffn": width * config.count("moe_num_shared_experts", default=2, least=0),
        "first_dense": config.count("moe_layer_start_index", default=1, least=0),
        "every": config.count("moe_layer_interval", default=1),
        "router_bias": True,
    }
    return {**decoder(config, tied=True), **biases(bias), "head_bias": bias, "moe": moe}


def gpt_oss(config: Config) -> Fields:
    rotation = config.table.get("rope_parameters", config.table.get("rope_scaling", YARN))
    kind = rotation.get("rope_type", "default") if isinstance(rotation, dict) else "default"
    moe = experts(
        config,
        "num_local_experts",
        ffn="intermediate_size",
        router_bias=True,
        expert_bias=True,
    )
    bias = config.flag("attention_bias", True)
    return {
        **decoder(config),
        **window(config.beside({"sliding_window": 128}), 2),
        "head_dim": config.count("head_dim", default=64),
        "qkv_bias": bias,
        "o_bias": bias,
        "attention_sinks": True,
        "scaled_rotation": kind == "yarn",
        "activation": "clamped_swiglu",
        "moe": moe,
    }


YARN = {"rope_type": "yarn"}


def llama4(config: Config) -> Fields:
    """Returns Llama 4's text; what attends within chunks has a window as wide as they are.

    Its norms of queries and keys have no weights and are left out.
    """
    step = config.count("interleave_moe_layer_step", default=1)
    if named := config.items("moe_layers"):
        layers = config.count("num_hidden_layers")
        each = (n for n in range(1, layers + 1) if named == list(range(n - 1, layers, n)))
        if not (step := next(each, 0)):
            raise config.refuse("moe_layers", "must be every n-th layer")
    width = config.count("intermediate_size")
    moe = experts(
        config, "num_local_experts", ffn="intermediate_size", shared_ffn=width, every=step
    )
    chunk = config.count("attention_chunk_size", default=8192)
    return {
        **decoder(config),
        **attention_bias(config),
        "ffn_hidden": config.count("intermediate_size_mlp"),
        "head_dim": config.count("head_dim", default=128),
        "window": {
            "size": chunk,
            "global_every": config.count("no_rope_layer_interval", default=4),
        },
        "moe": moe,
    }
