"""Words of a row that are taken back, that compare, or that are said of something else."""

import pytest

from autopar.errors import SpecError
from autopar.report import Recompute
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from autopar.spec import Window
from stated import run_of

ALONE = {"gpus": "8", "dp": "8", "tp": "1", "pp": "1", "zero": "0"}
MIXTURE = {"model": "home-made", "experts": "16", "topk": "2", "ffn_hidden": "1024", "ep": "4"}


@pytest.mark.parametrize(
    ("notes", "window"),
    [
        ("sliding window 4096", Window(size=4096)),
        ("sliding window size 4096", Window(size=4096)),
        ("a sliding window of size 4,096", Window(size=4096)),
        ("sliding-window=1k", Window(size=1024)),
        ("sliding window of 512; checkpoints of every other layer", Window(size=512)),
        ("checkpoints of every other layer, sliding window of 512", Window(size=512)),
        ("sliding window of 512 on every other layer", Window(size=512, global_every=2)),
        ("no sliding window of 4096", None),
        ("without sliding window 4096", None),
        ("without a sliding window of 4096", None),
        ("sliding window disabled", None),
        ("sliding window of 4096 disabled", None),
    ],
)
def test_a_window_is_one_that_its_own_clause_tells(
    notes: str, window: Window | None, shelf: Shelf
) -> None:
    model = setup(run_of(model="ours", gated_mlp="1", notes=notes), shelf).problem.model
    assert model.window == window


@pytest.mark.parametrize("name", ["ours", "llama2-7b"])
@pytest.mark.parametrize(
    ("notes", "norms"),
    [
        ("sandwich norms", 4),
        ("hybrid (extra) norms", 4),
        ("hybrid-norm", 4),
        ("hybrid shard, norms in fp32", 2),
        ("hybrid FSDP, norms", 2),
        ("no hybrid norms", 2),
        ("without sandwich norms", 2),
    ],
)
def test_norms_are_called_hybrid_themselves(
    name: str, notes: str, norms: int, shelf: Shelf
) -> None:
    said = run_of(model=name, gated_mlp="1", vocab="32000", notes=notes)
    assert setup(said, shelf).problem.model.norms_per_layer == norms


@pytest.mark.parametrize(
    ("notes", "width"),
    [
        ("shared experts of 1000 steps", 0),
        ("no shared expert of 2048", 0),
        ("without shared expert ffn 2048", 0),
        ("a shared expert of 2048, 1000 steps", 2048),
    ],
)
def test_a_shared_expert_that_there_is_has_a_width(notes: str, width: int, shelf: Shelf) -> None:
    moe = setup(run_of(**MIXTURE, notes=notes), shelf).problem.model.moe
    assert moe is not None
    assert moe.shared_ffn == width


def test_megatron_s_module_mlp_is_of_dense_layers(shelf: Shelf) -> None:
    def again(recompute: str, framework: str, **cells: str) -> Recompute:
        run = run_of(recompute=recompute, framework=framework, **cells)
        return setup(run, shelf).plan.stages[0].recompute

    megatron = ("Megatron-Core 0.16", "Megatron-Bridge 26.04", "NeMo 2.5", "MindSpeed")
    assert {
        again(words, name, **MIXTURE) for words in ("mlp", "selective: mlp") for name in megatron
    } == {Recompute()}
    moe_act = again("mlp, moe_act", "Megatron-Core 0.16", **MIXTURE)
    assert moe_act == again("moe_act", "Megatron-Core 0.16", **MIXTURE)
    refused = [
        ("mlp", "FSDP", MIXTURE),
        ("selective: mlp", "FSDP", MIXTURE),
        ("mlp", "NeMo AutoModel", MIXTURE),
        ("mlp, moe", "Megatron-Core 0.16", MIXTURE),
        ("moe", "Megatron-Core 0.16", MIXTURE),
        ("selective: shared_experts", "Megatron-Core 0.16", MIXTURE),
        ("mlp", "Megatron-Core 0.16", {}),
        ("selective: mlp", "Megatron-Core 0.16", {}),
        ("selective (mlp, core_attn)", "Megatron-Core 0.16", {}),
    ]
    for words, name, cells in refused:
        with pytest.raises(SpecError, match="recompute: no estimate"):
            again(words, name, **cells)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("every second layer", 16),
        ("every second layer not recomputed", 16),
        ("every fourth layer", 8),
        ("every fourth layer is kept", 24),
        ("all but every 4th layer", 24),
        ("all but attention of every 4th layer", 8),
        ("every 4th layer, no offload", 8),
    ],
)
def test_layers_that_are_spared_leave_the_others(text: str, layers: int, shelf: Shelf) -> None:
    known = setup(run_of(recompute=text), shelf)
    assert known.plan.stages[0].recompute == Recompute("block", layers)


def test_torchtitan_had_autocast_in_its_time_where_nothing_shards(shelf: Shelf) -> None:
    def casts(framework: str = "torchtitan", notes: str = "", **row: str) -> bool:
        run = run_of(framework=framework, notes=notes, **{**ALONE, **row})
        return setup(run, shelf).problem.framework.casts_weights

    assert casts(date="2025-06")
    assert casts(date="2026-03")
    assert not casts(date="2025-05")
    assert not casts(date="2024-10")
    assert not casts()
    assert casts(notes="computes under autocast")
    assert not casts(notes="no autocast")
    assert not casts(date="2026-03", precision="fp32")
    assert not casts("torchtitan FSDP2", date="2026-03")


def test_whose_embedding_is_in_16_bits(shelf: Shelf) -> None:
    def wide(framework: str, notes: str) -> bool:
        run = run_of(framework=framework, notes=notes, **ALONE)
        return setup(run, shelf).problem.framework.held.fp32_residual

    assert not wide("PyTorch DDP", "embedding in bf16")
    assert wide("PyTorch DDP", "rotary embedding in bf16")
    assert wide("PyTorch DDP", "rotary embeddings in bf16")
    assert wide("PyTorch DDP", "no residual stream in bf16")
    assert wide("HF Trainer DDP", "embedding in bf16")


def test_hugging_face_s_data_are_not_its_models(shelf: Shelf) -> None:
    def masked(framework: str, notes: str) -> bool:
        padded = f"padded to 4096 tokens; {notes}"
        run = run_of(framework=framework, attention="sdpa", notes=padded, date="2026-02")
        return "efficient_masked" in setup(run, shelf).problem.framework.attention_kernels

    assert masked("PyTorch FSDP", "Hugging Face's model")
    for notes in ("trained on an HF dataset", "HF weights converted", "Hugging Face tokenizer"):
        assert not masked("PyTorch FSDP", notes)
    for trainer in ("LLaMA-Factory", "Axolotl", "XTuner", "ms-swift"):
        assert masked(f"{trainer}, FSDP", "")


def test_masks_of_others_mask_nothing(shelf: Shelf) -> None:
    def masked(notes: str) -> bool:
        run = run_of(framework="PyTorch FSDP", attention="sdpa", notes=notes)
        return "efficient_masked" in setup(run, shelf).problem.framework.attention_kernels

    assert masked("attention masks are dense tensors")
    assert not masked("masks are dense tensors in the baseline only")
    assert not masked("masks are dense tensors in the baseline")


def test_a_switch_that_is_off_blocks_no_launch(shelf: Shelf) -> None:
    def waits(notes: str) -> bool:
        run = run_of(framework="HF Trainer", notes=notes)
        return setup(run, shelf).problem.framework.blocking_launches

    assert waits("CUDA_LAUNCH_BLOCKING=1")
    for state in ("unset", "=off", ": false", "is not set", "was disabled", " = 0"):
        assert not waits(f"CUDA_LAUNCH_BLOCKING {state}")
    assert not waits("unset CUDA_LAUNCH_BLOCKING")


def test_maxtext_s_own_spelling_of_tiles_is_read(shelf: Shelf) -> None:
    def pieces(notes: str) -> int:
        run = run_of(framework="MaxText", chip="TPU v5p", notes=notes)
        return setup(run, shelf).problem.framework.held.loss_pieces

    assert pieces("num_vocab_tiling=8") == pieces("vocabulary tiled by 8") == 8
    assert pieces("num_vocab_tiling: 1") == pieces("") == 1


def test_grug_is_what_a_framework_is_called(shelf: Shelf) -> None:
    def profile(framework: str, chip: str, notes: str = "") -> str:
        run = run_of(framework=framework, chip=chip, notes=notes)
        return setup(run, shelf).problem.framework.name

    assert profile("Grug (JAX)", "H100") == profile("Marin (Grug)", "H100") == "grug-gpu"
    assert profile("Grug (JAX)", "TPU v4") == profile("Levanter / Grug", "TPU v4") == "grug"
    assert profile("Levanter", "H100", "model from the Grug experiments") == "levanter-gpu"
    assert profile("Levanter", "TPU v4", "model from the Grug experiments") == "levanter"


@pytest.mark.parametrize(
    ("notes", "position"),
    [
        ("rotary embedding; distributed optimizer", "rope"),
        ("rotary positions on a quarter of each head", "learned"),
        ("rotary position embeddings", "rope"),
        ("without rotary embeddings", "learned"),
        ("no rotary positions", "learned"),
        ("learned positions", "learned"),
    ],
)
def test_a_plain_model_has_rotary_positions_where_its_notes_have_them(
    notes: str, position: str, shelf: Shelf
) -> None:
    model = setup(run_of(model="ours", gated_mlp="0", notes=notes), shelf).problem.model
    assert (model.position, model.position_rows > 0) == (position, position == "learned")


def test_whoever_asked_megatron_for_flash_attention_had_its_own_modules(shelf: Shelf) -> None:
    def framework(date: str, **row: str) -> str:
        told = run_of(framework="Megatron-LM", date=date, **row)
        return setup(told, shelf).problem.framework.name

    asked = {"attention": "flash attention 2"}
    assert framework("2024-01", **asked) == "megatron-2022"
    assert framework("2024-01", notes="Transformer Engine", **asked) == "megatron-core-2023"
    assert framework("2024-08", **asked) == "megatron-core-2023"
