"""Mixtures of experts."""

from autopar.frontends.hf import llamas
from autopar.frontends.hf.config import Config, Fields
from autopar.frontends.hf.parts import (
    attention_bias,
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
