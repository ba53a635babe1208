"""Kernels that give the same bits in each run, and whose norms they are, by the words of a row."""

import pytest

from autopar.framework import Framework
from autopar.runs.setups import setup
from autopar.runs.shelf import Shelf
from stated import run_of


def framework(shelf: Shelf, **said: str) -> Framework:
    return setup(run_of(**said), shelf).problem.framework


def test_what_gives_the_same_bits_sums_in_order_and_fills_new_tensors(shelf: Shelf) -> None:
    def kinds(name: str, date: str, notes: str) -> tuple[bool, bool]:
        found = framework(shelf, framework=name, date=date, notes=notes)
        return found.ordered_attention, found.fills_tensors

    assert kinds("Megatron-LM", "2025-06", "deterministic kernels") == (True, True)
    assert kinds("Megatron-LM", "2025-06", "--deterministic-mode") == (True, True)
    # Since September 2026 Megatron-LM has nothing filled, and PaddlePaddle never had.
    assert kinds("Megatron-LM", "2026-10", "deterministic kernels") == (True, False)
    assert kinds("PaddleNLP", "2024-12", "deterministic kernels") == (True, False)
    assert kinds("HF Trainer", "2025-03", "deterministic algorithms asked for") == (True, True)
    for plain in ("", "no deterministic mode", "nondeterministic kernels"):
        assert kinds("Megatron-LM", "2025-06", plain) == (False, False)


@pytest.mark.parametrize(
    ("chip", "model", "precision", "kernels"),
    [
        ("GB200", "DeepSeek-V3", "mxfp8", "absent"),
        ("GB300", "Kimi-K2", "mxfp8", "absent"),
        ("GB200", "DeepSeek-V3", "bf16", "cuda"),
        ("B200", "DeepSeek-V3", "mxfp8", "cuda"),
        ("GB300", "Llama-3.1-405B", "fp8", "absent"),
        ("GB300", "Llama-3.1-405B", "mxfp8", "cuda"),
        ("GB200", "GPT-OSS-120B", "mxfp8", "cuda"),
    ],
)
def test_megatron_bridge_has_norms_of_cudnn_where_its_recipes_keep_them(
    shelf: Shelf, chip: str, model: str, precision: str, kernels: str
) -> None:
    found = framework(
        shelf,
        framework="Megatron-Bridge",
        chip=chip,
        model=model,
        precision=precision,
        date="2026-02",
    )
    assert found.fused.general_norms == kernels


def test_norms_of_cudnn_are_read_from_words(shelf: Shelf) -> None:
    def kernels(notes: str) -> str:
        return framework(shelf, framework="Megatron-LM", notes=notes).fused.general_norms

    assert kernels("") == "cuda"
    for words in ("norms by cuDNN (NVTE_NORM_FWD_USE_CUDNN)", "cuDNN RMSNorm", "cudnn norms"):
        assert kernels(words) == "absent"
    assert kernels("no cuDNN norms") == "cuda"


def test_recipes_of_gpt_oss_in_16_bits_name_no_dispatcher(shelf: Shelf) -> None:
    def kind(model: str, precision: str, notes: str = "") -> str:
        stated = {"model": model, "precision": precision, "date": "2026-04", "notes": notes}
        return framework(shelf, framework="Megatron-Bridge", **stated).expert_dispatch

    assert kind("GPT-OSS-120B", "bf16") == "copies"
    assert kind("GPT-OSS-120B", "bf16", "HybridEP") == "once_a_node"
    assert kind("GPT-OSS-120B", "mxfp8") == kind("DeepSeek-V3", "bf16") == "once_a_node"
