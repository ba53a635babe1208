"""The model that a row of measured runs trained."""

from dataclasses import replace

import pytest

from autopar import catalog
from autopar.errors import SpecError
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf, kin
from autopar.spec import Mla, Window
from stated import run_of


def test_a_row_may_name_a_model_and_leave_its_shape_out(shelf: Shelf) -> None:
    shape = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "gated_mlp")
    known = setup(run_of(model="mixtral-8x7b", ep="2", **dict.fromkeys(shape, "")), shelf)
    assert known.problem.model.moe == catalog.model("mixtral-8x7b").model.moe


def test_a_mixture_of_which_the_row_gives_the_width_of_an_expert(shelf: Shelf) -> None:
    # Qwen2-57B-A14B: 64 experts of width 2560, and shared ones that only the catalog knows.
    cells = {"model": "Qwen2-57B-A14B", "layers": "28", "hidden": "3584", "ffn_hidden": "2560"}
    more = {"heads": "28", "kv_heads": "4", "vocab": "151936", "experts": "64", "topk": "8"}
    model = setup(run_of(**cells, **more, ep="4"), shelf).problem.model
    assert model.moe == catalog.model("qwen2-57b-a14b").model.moe
    assert model.ffn_hidden == catalog.model("qwen2-57b-a14b").model.ffn_hidden


def test_a_mixture_that_the_catalog_lacks_has_experts_of_the_row_s_width(shelf: Shelf) -> None:
    cells = {"model": "home-made", "experts": "16", "topk": "2", "ffn_hidden": "1024", "ep": "4"}
    moe = setup(run_of(**cells), shelf).problem.model.moe
    assert moe is not None
    assert (moe.experts, moe.topk, moe.expert_ffn, moe.shared_ffn) == (16, 2, 1024, 0)


def test_a_shortened_model_keeps_the_details_of_the_whole_one(shelf: Shelf) -> None:
    whole = catalog.model("deepseek-v2").model
    cells = {"model": "DeepSeek-V2 with 4 layers", "layers": "4", "dense_layers": "1"}
    shape = {key: str(getattr(whole, key)) for key in ("hidden", "ffn_hidden", "heads", "kv_heads")}
    mixture = {"vocab": str(whole.vocab), "experts": "160", "topk": "6", "ep": "4"}
    model = setup(run_of(**cells, **shape, **mixture), shelf).problem.model
    assert whole.moe is not None
    assert (model.layers, model.mla, model.head_dim) == (4, whole.mla, whole.head_dim)
    assert model.moe == replace(whole.moe, first_dense=1)


def test_a_plain_model_without_kin_is_that_of_gpt2(shelf: Shelf) -> None:
    known = setup(run_of(model="ours", gated_mlp="0", vocab=""), shelf)
    model = known.problem.model
    assert (model.norm, model.position, model.position_rows) == ("layernorm", "learned", 4096)
    assert (model.activation, model.mlp_bias, model.tied_embeddings) == ("gelu", True, True)
    assert known.assumed == ("vocab=50257",)


@pytest.mark.parametrize(
    ("name", "parallel", "norms", "qk_norm"),
    [
        ("Pythia-410M", True, 2, "none"),
        ("GPT-NeoX-6.7B", True, 2, "none"),
        ("GPT-J-6B", True, 1, "none"),
        # EleutherAI's GPT-Neo is a GPT-2 with windows: its letters are not those of NeoX.
        ("GPT-Neo-2.7B", False, 2, "none"),
        ("GPT 2.7B", False, 2, "none"),
        ("Apertus-8B", False, 2, "head"),
    ],
)
def test_a_plain_model_has_the_block_of_its_family(
    name: str, parallel: bool, norms: int, qk_norm: str, shelf: Shelf
) -> None:
    model = setup(run_of(model=name, gated_mlp="0"), shelf).problem.model
    assert (model.parallel_block, model.norms_per_layer, model.qk_norm) == (
        parallel,
        norms,
        qk_norm,
    )
    assert (model.position == "rope") == (parallel or qk_norm == "head")


def test_generations_of_olmo_differ_in_their_norms(shelf: Shelf) -> None:
    def norms(name: str) -> tuple[str, bool, str]:
        model = setup(run_of(model=name), shelf).problem.model
        return model.norm, model.norm_weight, model.qk_norm

    assert norms("OLMo-1B") == ("layernorm", False, "none")
    assert norms("OLMo2 7B") == norms("OLMo-3-7B") == ("rmsnorm", True, "full")


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        ("nanochat d20", "PyTorch"),
        ("GPT 9L d512", "PyTorch DDP, torch.compile (nanoGPT speedrun style)"),
        ("autoresearch d8 (50.3M)", "PyTorch (torch.compile)"),
    ],
)
def test_a_model_of_a_race_has_the_block_of_nanochat(
    model: str, framework: str, shelf: Shelf
) -> None:
    # karpathy/nanochat, nanochat/gpt.py: no weight in a norm, no bias anywhere, a head of its own.
    found = setup(run_of(model=model, framework=framework, gated_mlp="0"), shelf).problem.model
    assert (found.norm, found.norm_weight, found.norm_bias) == ("rmsnorm", False, False)
    assert (found.position, found.position_rows, found.qk_norm) == ("rope", 0, "head")
    assert (found.activation, found.embedding_norm) == ("relu2", True)
    assert (found.qkv_bias, found.o_bias, found.mlp_bias) == (False, False, False)
    assert not found.tied_embeddings
    tied = run_of(model=model, framework=framework, gated_mlp="0", notes="tied embeddings")
    assert setup(tied, shelf).problem.model.tied_embeddings


def test_a_model_of_the_catalog_stays_what_it_is_in_a_racer_s_trainer(shelf: Shelf) -> None:
    whole = catalog.model("pythia-1b").model
    cells = {key: str(getattr(whole, key)) for key in ("layers", "hidden", "heads", "kv_heads")}
    sizes = {"ffn_hidden": str(whole.ffn_hidden), "vocab": str(whole.vocab), "gated_mlp": "0"}
    run = run_of(model="Pythia-1B", framework="nanochat (PyTorch)", **cells, **sizes)
    assert setup(run, shelf).problem.model.qk_norm == "none"


def test_a_race_s_name_elsewhere_changes_no_model(shelf: Shelf) -> None:
    plain = run_of(model="GPT-2-124M", framework="nanoGPT", gated_mlp="0", notes="as nanochat has")
    assert setup(plain, shelf).problem.model.position == "learned"
    gated = run_of(model="Llama-2-7B", framework="own trainer after modded-nanoGPT")
    assert setup(gated, shelf).problem.model == replace(
        catalog.model("llama2-7b").model, name="Llama-2-7B", max_positions=4096
    )


@pytest.mark.parametrize("words", ["squared ReLU", "ReLU squared", "relu^2 MLP", "ReLU² MLP"])
def test_a_squared_relu_is_read_of_words(words: str, shelf: Shelf) -> None:
    found = setup(run_of(model="ours", gated_mlp="0", notes=words), shelf).problem.model
    assert found.activation == "relu2"
    assert setup(run_of(model="ours", notes=words), shelf).problem.model.activation == "swiglu"


def test_latent_attention_of_a_model_without_kin_is_read_of_words(shelf: Shelf) -> None:
    def latent(notes: str) -> Mla | None:
        return setup(run_of(model="a small one", notes=notes), shelf).problem.model.mla

    small = Mla(q_lora_rank=0, kv_lora_rank=128, qk_nope_dim=48, qk_rope_dim=16, v_dim=64)
    assert latent("MLA without q rank (kv rank 128, 48+16, v 64), eager") == small
    told = latent("MLA of q rank 1536 (kv rank 128, 48+16, v 64)")
    assert told == replace(small, q_lora_rank=1536)
    assert latent("no MLA (kv rank 128, 48+16, v 64)") is None


def test_packed_documents_attend_within_themselves(shelf: Shelf) -> None:
    # Of d tokens each sees d / 2 on average, as in a window of d / 2 of a long sequence.
    run = run_of(seq_len="16384", notes="packed documents of about 180 tokens")
    model = setup(run, shelf).problem.model
    assert model.window is not None
    assert model.window.size == 90
    assert setup(run_of(seq_len="16384"), shelf).problem.model.window is None


@pytest.mark.parametrize(
    ("notes", "width"),
    [
        ("shared expert of 2560 besides the routed ones", 2560),
        ("1 shared expert ffn 2048", 2048),
        ("2 shared experts of the public config", 2048),
    ],
)
def test_the_width_of_shared_experts_is_read_of_words(notes: str, width: int, shelf: Shelf) -> None:
    mixture = {"model": "home-made", "experts": "16", "topk": "2", "ffn_hidden": "1024"}
    moe = setup(run_of(**mixture, notes=notes), shelf).problem.model.moe
    assert moe is not None
    assert moe.shared_ffn == width


@pytest.mark.parametrize(
    ("notes", "window"),
    [
        ("sliding window of 512", Window(size=512)),
        ("alternate layers have a sliding window of 128", Window(size=128, global_every=2)),
        ("three layers in four have a sliding window of 1024", Window(size=1024, global_every=4)),
        ("sliding window on every other layer", None),
    ],
)
def test_windows_of_a_model_without_kin_are_read_of_words(
    notes: str, window: Window | None, shelf: Shelf
) -> None:
    model = setup(run_of(model="ours", gated_mlp="1", notes=notes), shelf).problem.model
    assert model.window == window


def test_norms_of_queries_and_keys_are_read_of_words(shelf: Shelf) -> None:
    notes = ("", "no QK norm", "QK norms", "RMS norm of queries and keys")
    known = [setup(run_of(notes=each), shelf).problem.model.qk_norm for each in notes]
    assert known == ["none", "none", "head", "head"]


def test_norms_of_a_query_and_key_are_read_of_words(shelf: Shelf) -> None:
    run = run_of(model="ours", notes="per-head norms of query and key")
    assert setup(run, shelf).problem.model.qk_norm == "head"


def test_layer_norms_in_a_llama_are_read_of_words(shelf: Shelf) -> None:
    notes = ("", "norm_type layernorm", "LayerNorm instead of RMSNorm", "layernorm recomputed")
    cells = {"model": "Llama-3-8B", "gated_mlp": "1"}
    known = [setup(run_of(**cells, notes=each), shelf).problem.model.norm for each in notes]
    assert known == ["rmsnorm", "layernorm", "layernorm", "rmsnorm"]


def test_rotation_has_the_factor_of_the_model_but_where_a_note_leaves_it_out(shelf: Shelf) -> None:
    def scaled(name: str, notes: str = "") -> bool:
        shape = {"layers": "24", "hidden": "2880", "heads": "64", "kv_heads": "8", "head_dim": "64"}
        run = run_of(model=name, notes=notes, gated_mlp="1", **shape)
        return setup(run, shelf).problem.model.scaled_rotation

    assert scaled("gpt-oss-20b")
    assert not scaled("gpt-oss-20b", "rotary embedding without YaRN")
    assert not scaled("ours")


def test_norms_after_sub_layers_are_read_of_words(shelf: Shelf) -> None:
    known = [setup(run_of(notes=notes), shelf) for notes in ("", "hybrid (extra) norms")]
    assert [each.problem.model.norms_per_layer for each in known] == [2, 4]


@pytest.mark.parametrize("name", ["ours", "llama2-7b"])
@pytest.mark.parametrize(
    ("notes", "tied"),
    [("", False), ("flash; tied embeddings", True), ("Untied embeddings", False)],
)
def test_a_note_ties_the_embeddings(name: str, notes: str, tied: bool, shelf: Shelf) -> None:
    said = run_of(model=name, gated_mlp="1", vocab="32000", notes=notes)
    assert setup(said, shelf).problem.model.tied_embeddings is tied


def test_a_note_parts_the_embeddings_of_a_model_that_ties_them(shelf: Shelf) -> None:
    shape = {"layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "8", "gated_mlp": "1"}
    like = shape | {"model": "llama3.2-1b", "ffn_hidden": "8192", "vocab": "128256"}
    for notes, tied in (("", True), ("untied", False), ("embeddings not tied", False)):
        model = setup(run_of(**like, notes=notes), shelf).problem.model
        assert model.tied_embeddings is tied


# Qwen3-Coder-480B-A35B and GLM-4.5-Air as their published configurations have them: the width of a
# dense layer's MLP and of an expert.
CODER = {"layers": "62", "hidden": "6144", "heads": "96", "kv_heads": "8", "head_dim": "128"}
CODER |= {"vocab": "151936", "experts": "160", "topk": "8", "ffn_hidden": "8192", "ep": "4"}
AIR = {"layers": "46", "hidden": "4096", "heads": "96", "kv_heads": "8", "head_dim": "128"}
AIR |= {"vocab": "151552", "experts": "128", "topk": "8", "ffn_hidden": "10944", "ep": "4"}


@pytest.mark.parametrize(
    ("cells", "name", "notes", "width", "told"),
    [
        (CODER, "coder-480B-A35B", "", 2560, False),
        (AIR, "air 106B-A12B", "dense_layers=1", 1408, False),
        (CODER, "coder", "moe ffn 2560", 2560, True),
        (CODER, "coder", "expert intermediate size: 2560, shared-expert ffn 99", 2560, True),
        # What fits the name's size is the experts' own: 62 x 160 x 3 x 6144 x 8192 = 1.5e12.
        (CODER, "coder-1.5T", "", 8192, True),
        (CODER, "coder 160x9B", "", 8192, True),
        # No layer has experts, whose width then does not matter.
        (CODER, "coder-1B", "dense_layers=62", 8192, True),
    ],
)
def test_the_width_of_an_expert_that_no_column_tells(
    cells: dict[str, str], name: str, notes: str, width: int, told: bool, shelf: Shelf
) -> None:
    known = setup(run_of(**cells, model=name, notes=notes), shelf)
    moe = known.problem.model.moe
    assert moe is not None
    assert moe.expert_ffn == width
    assert (f"expert_ffn={width}" not in known.assumed) is told
    assert known.problem.model.ffn_hidden == int(cells["ffn_hidden"])


@pytest.mark.parametrize(
    ("notes", "ep", "width", "etp"),
    [
        ("", "2", "4096", 2),
        ("", "8", "4096", 1),  # Experts on all eight ranks: none is left to cut one over.
        ("", "2", "1024", 1),  # Narrower than the model.
        ("EP2 ETP1", "2", "4096", 1),
        ("expert TP = TP", "2", "1024", 2),
    ],
)
def test_over_how_many_ranks_an_expert_is_cut(
    notes: str, ep: str, width: str, etp: int, shelf: Shelf
) -> None:
    degrees = {"gpus": "8", "tp": "2", "dp": "4", "pp": "1", "ep": ep}
    mixture = {"experts": "8", "topk": "2", "ffn_hidden": width, "framework": "Megatron-Core"}
    known = setup(run_of(model="ours", **mixture, **degrees, notes=notes), shelf)
    assert known.plan.etp == etp


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("Llama 3.1 8B Instruct", "llama3.1-8b"),
        ("Llama-2-7B (SFT)", "llama2-7b"),
        ("Mixtral 8x7B (8 layers)", None),
    ],
)
def test_words_about_a_name_change_no_model(name: str, known: str | None, shelf: Shelf) -> None:
    shape = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    model, exact = kin(run_of(model=name, **shape), shelf)
    assert exact == (known is not None)
    if known:
        assert model == catalog.model(known).model


@pytest.mark.parametrize(
    ("model", "notes"),
    [
        ("Nemotron-H 56B", ""),
        ("Nemotron 3 Nano 30B", ""),
        ("Qwen3-Next-80B-A3B", ""),
        ("Mamba2-2.7B", ""),
        ("OLMoE3 3.5B", "three of four are linear-attention layers"),
        ("Grug", "384 experts that work on a latent of half the width"),
    ],
)
def test_layers_that_no_model_here_has_are_refused(shelf: Shelf, model: str, notes: str) -> None:
    with pytest.raises(SpecError, match="no estimate for"):
        setup(run_of(model=model, notes=notes), shelf)


def test_a_model_that_got_experts_may_have_the_name_of_what_it_was(shelf: Shelf) -> None:
    # DeepSpeed-MoE: 1.3 billion parameters, of which every other MLP became 128 as wide.
    cells = {"layers": "24", "hidden": "2048", "ffn_hidden": "8192", "experts": "128", "topk": "1"}
    run = run_of(model="GPT 1.3B + MoE-128", notes="experts in every other layer", **cells, ep="2")
    mixture = setup(run, shelf).problem.model.moe
    assert mixture is not None
    assert (mixture.expert_ffn, mixture.every) == (8192, 2)


def test_grok_of_nvidia_s_recipes_is_a_mixtral(shelf: Shelf) -> None:
    def block(framework: str) -> tuple[int, bool, str, int]:
        row = {"model": "Grok-1", "layers": "64", "hidden": "6144", "heads": "48", "kv_heads": "8"}
        row |= {"ffn_hidden": "32768", "experts": "8", "topk": "2", "ep": "2", "vocab": ""}
        model = setup(run_of(**row, framework=framework), shelf).problem.model
        return model.norms_per_layer, model.tied_embeddings, model.activation, model.vocab

    assert block("NeMo 25.02") == (2, False, "swiglu", 128_256)
    assert block("MaxText") == (4, True, "geglu", 131_072)


def test_short_windows_of_nanochat_are_a_quarter_since_march_2026(shelf: Shelf) -> None:
    def size(date: str) -> Window | None:
        row = {"framework": "nanochat", "model": "d20", "gated_mlp": "0", "seq_len": "2048"}
        run = run_of(**row, notes="windows SSSL", date=date)
        return setup(run, shelf).problem.model.window

    assert size("2026-02") == Window(size=1024, global_every=4)
    assert size("2026-03") == Window(size=512, global_every=4)


def test_a_model_is_like_the_nearest_generation_of_its_family(shelf: Shelf) -> None:
    def block(model: str) -> tuple[str, bool, bool]:
        # The shape of Qwen-7B, which Qwen3-8B shares but for its layers and key heads.
        row = {"layers": "30", "hidden": "4096", "heads": "32", "kv_heads": "32", "vocab": ""}
        found = setup(run_of(model=model, **row), shelf).problem.model
        return found.qk_norm, found.qkv_bias, found.tied_embeddings

    assert block("Qwen-6B") == block("Qwen1.5-6B") == ("none", True, False)
    assert block("Qwen3-6B") == ("head", False, False)
