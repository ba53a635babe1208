"""What notes tell of a model's parts."""

import re

import pytest

from autopar.runs import anatomy
from autopar.spec import Mla, Window


@pytest.mark.parametrize(
    ("notes", "tied"),
    [
        ("tied embeddings", True),
        ("wte tied to lm_head", True),
        ("tie_word_embeddings: true", True),
        ("weight tying", True),
        ("input/output embeddings shared", True),
        ("word embeddings shared with the head", True),
        ("embedding shared with the output head", True),
        ("Shared embedding/head weights", True),
        ("--share-embeddings-and-output-weights", True),
        ("lm_head untied", False),
        ("embeddings not tied", False),
        ("no-weight-tying", False),
        ("--untie-embeddings-and-output-weights", False),
        ("tie_word_embeddings=False", False),
        ("separate LM head (not tied)", False),
        ("tied or untied output: unknown", None),
        ("whether the head is tied is not told", None),
        ("rounded up to a multiple of 128; one shared expert", None),
        ("", None),
    ],
)
def test_ends_are_tied_apart_or_untold(notes: str, tied: bool | None) -> None:
    assert anatomy.tied(notes) is tied


@pytest.mark.parametrize(
    ("notes", "width"),
    [
        ("head_dim 128", 128),
        ("16 heads x head_dim 256 instead of 32 x 128", 256),
        ("48 heads of 128", 128),
        ("head size 64, gated silu", 64),
        ("d_head=80", 80),
        ("v_head_dim 128", None),
        ("32 heads", None),
    ],
)
def test_the_width_of_a_head_is_read_of_words(notes: str, width: int | None) -> None:
    assert anatomy.noted(anatomy.HEAD_DIM, notes) == width


@pytest.mark.parametrize(
    ("notes", "query"),
    [
        ("MLA of q rank 1536 (kv rank 512, 128+64, v 128)", 1536),
        ("MLA without q rank (kv rank 512, 128+64, v 128)", 0),
        ("MLA: q_lora 1536, kv_lora 512, qk 128 nope+64 rope, v_head 128", 1536),
        ("MLA (q not low-rank; kv_lora_rank 512, qk 128 nope + 64 rope, v 128).", 0),
        ("MLA lacking q-LoRA: kv_lora_rank 512, qk nope 128 + rope 64, v_head 128", 0),
        ("MLA with q_lora_rank 0, kv_lora_rank 512, qk 128 nope/64 rope, v_head_dim 128", 0),
        (
            "MLA q_lora_rank 1536 kv_lora_rank 512 qk_nope_head_dim 128 qk_rope_head_dim 64 v 128",
            1536,
        ),
    ],
)
def test_latent_attention_is_read_of_words(notes: str, query: int) -> None:
    assert anatomy.latent(notes) == Mla(
        q_lora_rank=query, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128
    )


def test_latent_attention_without_its_widths_is_not_read() -> None:
    assert anatomy.latent("MLA, 61 layers, v3.0") is None
    assert anatomy.latent("no MLA; kv 512, 128+64, v 128") is None


@pytest.mark.parametrize(
    ("notes", "size", "every"),
    [
        ("sliding window of 4096", 4096, 0),
        ("SWA 128 on alternating layers", 128, 2),
        ("SWA 2048, with full attention only on each 4th layer and the final one", 2048, 4),
        ("three layers in four have a sliding window of 2048", 2048, 4),
        ("5:1 local attention window 1024", 1024, 6),
        ("sliding window attention (4k)", 4096, 0),
        ("a 512-token sliding window", 512, 0),
        ("sliding window of 512 except full attention in every 5th layer", 512, 5),
        ("FlexAttention: SWA-512, global in each fifth layer", 512, 5),
        ("flex_attention: window 512, and every fifth layer attends fully", 512, 5),
        ("flex_attention with SWA 512, 1 in 5 layers global", 512, 5),
        ("windows of 2,048 with full attention in every fourth layer", 2048, 4),
        ("windows of 2,048 tokens", 2048, 0),
        # Of 4,096 tokens half.
        ("windows of half the length in three layers of four", 2048, 4),
        ("window pattern SSSL (three of four layers see half the context)", 2048, 4),
    ],
)
def test_windows_are_read_of_words(notes: str, size: int, every: int) -> None:
    assert anatomy.window(notes, 4096, "2026-01") == Window(size=size, global_every=every)


@pytest.mark.parametrize(
    "notes",
    [
        "no sliding window",
        "SWA on 3 of 4 layers",
        "sliding window 4096 not used",
        "means over windows of 50 steps",
    ],
)
def test_windows_that_are_off_or_of_no_size_are_none(notes: str) -> None:
    assert anatomy.window(notes, 4096, "2026-01") is None


@pytest.mark.parametrize(
    ("notes", "tokens"),
    [
        ("packed documents of about 180 tokens", 180),
        ("packed_sequence_specs (docs ~180 tokens each)", 180),
        ("document block masks: wikitext-2 lines packed, ~110 tok each", 110),
        ("packed to 4096 tokens, how long the documents are is not told", None),
        ("samples packed into 4096 tokens", None),
        ("samples packed to 8,192 tokens", None),
        ("documents of 300 tokens, padded", None),
    ],
)
def test_packed_documents_are_as_long_as_notes_say(notes: str, tokens: int | None) -> None:
    assert anatomy.documents(notes, 4096) == tokens


@pytest.mark.parametrize(
    ("notes", "dense"),
    [
        ("first_k_dense_replace 3", 3),
        ("3 dense layers then 58 MoE", 3),
        ("First 3 layers dense, remaining 58 MoE", 3),
        ("one dense layer", 1),
        ("3 leading dense layers", 3),
        ("layers 0-2 dense FFN 18432", 3),
        ("first layer dense", 1),
        ("Layer 0 dense (1536), then experts", 1),
        ("dense layers computed in fp8", None),
    ],
)
def test_leading_dense_layers_are_read_of_words(notes: str, dense: int | None) -> None:
    assert anatomy.dense_layers(notes) == dense


@pytest.mark.parametrize(
    ("notes", "routed", "shared"),
    [
        ("192 experts of 1536, one 1536-wide shared expert", 1536, 1536),
        ("routed and shared experts 1536 each", None, 1536),
        ("experts 1280, shared 2560", 1280, 2560),
        ("Besides routed experts a 2560-wide shared one", None, 2560),
        ("experts 512 wide + 1 shared (512)", 512, 512),
        ("others 1 shared + 8 routed experts, all 512 wide", 512, 512),
        ("expert + shared expert width 512 (one shared)", 512, 512),
        ("expert width 2048, one shared expert also 2048", 2048, 2048),
        ("moe_ffn_hidden_size=1408, 2 shared experts", 1408, 2816),
        ("--moe-shared-expert-intermediate-size 5632", None, 5632),
        ("MoE: 8 experts x 4096", 4096, None),
        ("experts 192, top 8", None, None),
        ("no shared experts", None, None),
    ],
)
def test_widths_of_experts_are_read_of_words(
    notes: str, routed: int | None, shared: int | None
) -> None:
    assert anatomy.expert_ffn(notes, 192) == routed
    assert anatomy.shared_ffn(notes, routed or 0) == shared


@pytest.mark.parametrize(
    ("notes", "rotary"),
    [
        ("rotary embedding", True),
        ("RoPE", True),
        ("Rotary, dropout on", True),
        ("rotary_pct 0.25", False),
        ("rotary positions on a quarter of each head", False),
        ("no RoPE", False),
    ],
)
def test_rotary_positions_are_those_of_whole_heads(notes: str, rotary: bool) -> None:
    assert bool(re.search(anatomy.ROTARY, notes, re.I)) == rotary


@pytest.mark.parametrize("notes", ["--moe-expert-capacity-factor 1.25", "expert capacity of 1.25"])
def test_a_capacity_is_read_as_a_switch_or_in_words(notes: str) -> None:
    found = re.search(anatomy.CAPACITY, notes, re.I)
    assert found is not None
    assert found[1] == "1.25"


@pytest.mark.parametrize(
    ("notes", "every"),
    [
        ("8 experts in every second layer", 2),
        ("experts in every other layer only", 2),
        ("every other layer is a MoE", 2),
        ("MoE layers at every 4th block", 4),
        ("mixtures in each third layer", 3),
        ("--expert-interval 2", 2),
        ("interleave_moe_layer_step=2", 2),
        ("alternating dense and MoE layers", 2),
        ("MoE in every layer", None),
        ("sliding window on every other layer; 8 experts", None),
        ("moe-layer-freq ([0]*3+[1]*58)", None),
    ],
)
def test_every_how_many_layers_one_has_experts(notes: str, every: int | None) -> None:
    assert anatomy.experts_every(notes) == every


def test_figures_may_have_their_thousands_apart() -> None:
    assert anatomy.figures("width 6,144 of 1,234,567; stages of 5,6,6") == (
        "width 6144 of 1234567; stages of 5,6,6"
    )
    assert anatomy.expert_ffn(anatomy.figures("12 experts of width 4,096 with top 1"), 12) == 4096
