"""What is computed again as people write it."""

from dataclasses import replace

import pytest

from autopar.errors import SpecError
from autopar.report import Recompute
from autopar.runs.checkpoints import in_known_words, meant
from autopar.runs.recompute import recompute_of
from autopar.runs.remat import kept
from autopar.runs.shelf import Shelf, framework
from autopar.runs.stored import offloads_checkpoints
from stated import run_of


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("not reported", ""),
        ("unclear", ""),
        ("no activation checkpointing", "none"),
        ("AC off", "none"),
        ("gradient checkpointing: disabled", "none"),
        ("none (save all)", "none"),
        ("everything except attention", "all but attention"),
        ("custom: all but the attention", "all but attention"),
        ("full except attention output (context) saved", "all but attention"),
        ("full, attention output kept", "all but attention"),
        ("per layer, saves q/k/v/o projections", "all but attention's projections"),
        ("everything but the attention projections", "all but attention's projections"),
        ("all except attn projections (qkvo outputs saved)", "all but attention's projections"),
        ("MLP only", "mlp alone"),
        ("FFN recomputed", "mlp alone"),
        ("moe_act + layernorm modules", "norm, act"),
        ("only RMSNorm and SwiGLU recomputed", "norm, act"),
        ("activation function only, 21 of 80 layers", "act"),
        ("activation function (2 layers/chunk)", "act"),
        (
            "default remat: keep attention's qkv/o projection outputs, redo everything else",
            "all but attention's projections",
        ),
        ("activation checkpointing on one block out of 6", "1 of 6 layers"),
        ("block method, 1 layer in every virtual chunk", "block 1"),
        ("everything except the outputs of weight matmuls", "minimal"),
        ("selective: layernorm", "norm"),
        ("activation functions only, 10/8/6/4 layers by stage", "act"),
        ("full, block method, 1 layer per PP stage", "block 1"),
        ("recompute-method block, recompute-num-layers 4", "block 4"),
        ("full, first 8 layers", "block 8"),
        ("5 layers of 48 (block)", "5 of 48 layers"),
        ("selective AC, 1 layer in 2", "1 of 2 layers"),
        ("half of the layers", "1/2 of the layers"),
        ("selective_ac_option=2", "every 2th layer"),
        *((same, same) for same in ("full", "selective", "mla_up_proj", "minimal", "core_attn")),
        *((same, same) for same in ("full, uniform 1", "moe, layernorm", "every 2nd layer")),
        *((same, same) for same in ("activations", "selective (attention only)", "layer-partial")),
    ],
)
def test_words_for_recompute_are_known_ones_or_stay(text: str, known: str) -> None:
    assert meant(text) == known


@pytest.mark.parametrize(
    ("text", "granularity"),
    [
        ("gradient checkpointing", "uniform"),
        ("checkpoint_activations: true", "uniform"),
        ("each transformer block", "uniform"),
        ("full, attention included", "uniform"),
        ("core attention", "selective"),
        ("all but attention of every 4th layer", "block"),
        ("SAC", "selective"),
        ("recompute_granularity=selective", "selective"),
    ],
)
def test_whole_layers_and_selected_operators_are_told_apart(text: str, granularity: str) -> None:
    entry, _ = framework(run_of(), Shelf())
    assert recompute_of(meant(text), "", entry, 8).granularity == granularity


def test_a_count_of_layers_is_of_each_chunk() -> None:
    entry, _ = framework(run_of(), Shelf())
    assert recompute_of(meant("12 layers of 24"), "", entry, 8) == Recompute("block", 4)
    assert recompute_of(meant("half of all layers"), "", entry, 8) == Recompute("block", 4)


def test_words_that_say_nothing_have_no_estimate() -> None:
    entry, _ = framework(run_of(), Shelf())
    with pytest.raises(SpecError, match="no estimate"):
        recompute_of(meant("somewhat"), "", entry, 8)


@pytest.mark.parametrize(
    ("column", "notes", "named", "on_host"),
    [
        (
            "custom: qkv/out projections + layer input to host, remainder rematerialized",
            "",
            {"projections", "output"},
            {"projections", "output", "input"},
        ),
        (
            "full",
            "remat_policy=custom; decoder_layer_input, query/key/value_proj = offload (host)",
            {"projections"},
            {"projections", "input"},
        ),
        (
            "selective",
            "custom remat: layer input, out, query, key and value projections OFFLOADED to host",
            {"projections", "output"},
            {"projections", "output", "input"},
        ),
        (
            "full",
            "custom remat: layer input and attention output projection offloaded to host",
            {"output"},
            {"output", "input"},
        ),
        (
            "full",
            "remat custom: context, qkv_proj =device",
            {"attention", "projections"},
            (),
        ),
        ("full", "custom remat, attention out stays in HBM", {"attention"}, ()),
        ("saves qkv projections", "", {"projections"}, ()),
    ],
)
def test_a_policy_of_ones_own_names_what_it_keeps(
    column: str, notes: str, named: set[str], on_host: set[str]
) -> None:
    policy = kept(replace(run_of(), recompute=column, notes=notes))
    assert policy is not None
    assert (policy.named, policy.on_host) == (frozenset(named), frozenset(on_host))


@pytest.mark.parametrize(
    ("column", "notes"),
    [
        ("full", "remat_policy=custom, decoder_layer_input=offload out_proj=remat"),
        ("custom remat: layer inputs offloaded, everything else recomputed", ""),
        ("full", "queries, keys and values kept in the cache"),
    ],
)
def test_a_policy_that_keeps_inputs_alone_names_nothing(column: str, notes: str) -> None:
    assert kept(replace(run_of(), recompute=column, notes=notes)) is None


@pytest.mark.parametrize(
    ("column", "waits"),
    [
        ("full, with layer inputs in host memory", True),
        ("full, decoder input offloaded", True),
        ("full with CPU offload", True),
        ("full, no offload", False),
        ("full", False),
    ],
)
def test_a_column_may_say_that_checkpoints_wait_on_the_host(column: str, waits: bool) -> None:
    run = in_known_words(replace(run_of(), recompute=column))
    assert offloads_checkpoints(run) == waits
