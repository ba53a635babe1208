"""The loss of one measured run by the words of its row: its kernels, and the logits it holds."""

import re
from dataclasses import replace

from autopar.entries import FrameworkEntry
from autopar.framework import Framework
from autopar.runs import operators
from autopar.runs.anatomy import noted
from autopar.runs.rows import Run
from autopar.runs.said import HF, said

NARROW_SOFTMAX = r"softmax in (fp16|bf16|16 bits)\b"


def softmax(framework: Framework, run: Run) -> Framework:
    """Softmax in separate operators: as wide as what it reads where nothing casts it."""
    if _casts_nothing(framework, run) or said(run, NARROW_SOFTMAX):
        return replace(framework, softmax_in_fp32=False)
    return framework


def _casts_nothing(framework: Framework, run: Run) -> bool:
    """Whether softmax, of attention and of the loss, is as wide as what it reads.

    PyTorch's own attention, which fairseq calls, casts nothing, nor does Hugging Face's GPT-2, as
    its Llama, OPT and BLOOM do; automatic mixed precision, whose weights are in 32 bits, does too.
    """
    code = re.search(r"fairseq|GPT-?2\b", f"{run.framework} {run.model}", re.I)
    return bool(code) and framework.bytes.parameter == 2 and "megatron" not in framework.name


def loss(framework: Framework, entry: FrameworkEntry, run: Run) -> Framework:
    """The loss: in one kernel as a row says, else in separate operators where that was usual.

    One kernel reads 16-bit logits and makes gradients as wide, which Transformer Engine's and
    Liger's write into their place. Hugging Face's models made logits of 32 bits and shifted them
    into another copy first. What Megatron calls fused is not one: the compiler joined it.
    """
    usual = entry.run
    apart = said(run, r"loss in separate operators\b")
    in_place = not apart and said(run, LOSS_IN_PLACE)
    listed = operators.listed_kernels(run)
    kernel = said(run, LOSS_KERNEL) or re.search("cross[- ]?entropy", listed, re.I)
    if said(run, LIGER_PLAIN_LOSS):
        return _with_loss(framework, True, 8, 0)
    if said(run, NARROW_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=True), False, 8, 0)
    if said(run, WIDE_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=False), False, 14, 0)
    fused = said(run, FUSED_LOSS)
    compiled = usual.loss_bytes or framework.fused.cross_entropy
    if in_place or kernel or (fused and not compiled):
        shifted = run.month < HF_LOSS_SINCE and said(run, HF)
        width = 2 if in_place else 8 if shifted else 4
        return _with_loss(replace(framework, loss_in_16_bits=True), True, width, 0)
    if fused:
        return framework
    if usual.loss_bytes:
        return _with_loss(framework, False, usual.loss_bytes, usual.cached_loss_bytes)
    if compiled:
        return framework
    if _casts_nothing(framework, run):
        # Logits, a shifted copy, its log-softmax and a gradient, 2 bytes each. Of a loss outside of
        # the model nobody holds the logits once it is known.
        return _with_loss(framework, False, 6 if said(run, LOSS_OUTSIDE) else 8, 0)
    if run.month >= HF_UNSHIFTED_SINCE and said(run, HF):
        # Nobody holds the logits once the loss is known: their block is free then, but small beside
        # those of 32 bits where they had 16.
        return _with_loss(framework, False, 12, 4 if all_wide(run) else 2)
    return framework


def _with_loss(framework: Framework, joined: bool, width: int, cached: int) -> Framework:
    """Returns a framework whose loss is joined or not and holds so many bytes of a logit."""
    held = replace(
        framework.held,
        logit_bytes=width,
        split_logit_bytes=width,
        cached_logit_bytes=cached,
    )
    return replace(framework, fused=replace(framework.fused, cross_entropy=joined), held=held)


# Who sets it in the scripts and configurations of examples: alibaba/Pai-Megatron-Patch,
# examples/qwen3/run_mcore_qwen3.sh; AMD-AGI/Primus, examples/megatron/configs.
FUSED_LOSS = (
    r"fused cross[- ]?entropy|cross[- ]?entropy (loss )?fusion|fused loss|Pai-Megatron-Patch"
)
# Release 4.46 of huggingface/transformers: the loss is a function of 16-bit logits since.
HF_LOSS_SINCE = "2024-11"
# Release 4.48 shifts labels in place of logits: as the backward pass begins, the log-softmax of a
# copy in 32 bits, its gradient and theirs lie there (pytorch/pytorch, derivatives.yaml:
# nll_loss_forward, _log_softmax).
HF_UNSHIFTED_SINCE = "2025-01"
# F.cross_entropy of what the model returns, in separate operators: logits, their log-softmax, its
# gradient and theirs, 2 bytes each (Lightning-AI/lightning-thunder, benchmark_litgpt.py).
NARROW_LOSS = r"loss of 16-bit logits"
# F.cross_entropy of their copy in 32 bits, which is freed: the log-softmax of that, its gradient
# and theirs, 4 bytes each, beside the logits (duoan/picotron, tests/bench_tp.py and bench_cp.py).
WIDE_LOSS = r"loss of 32-bit logits"
LOSS_OUTSIDE = r"loss outside (of )?the model"
# Dao-AILab/flash-attention, losses/cross_entropy.py.
LOSS_KERNEL = r"xentropy\b"


def pieces(framework: Framework, run: Run) -> Framework:
    """A loss in pieces has so many times fewer logits at its peak; one of several layers more."""
    held = framework.held
    if said(run, IN_PIECES):
        held = replace(held, loss_pieces=_pieces(run))
    if held.planned and (layers := said(run, MTP)):
        # Each predicts by the head, and its logits wait for the backward pass as the others do.
        several = 1 + (1 if layers["layers"].lower() == "one" else int(layers["layers"]))
        held = replace(held, logit_bytes=several * held.logit_bytes)
        held = replace(held, split_logit_bytes=several * held.split_logit_bytes)
    return replace(framework, held=held)


# Layers that predict further tokens, which are in no column.
MTP = r"(?P<layers>one|[1-9]) (MTP|multi-token[ -]prediction) layers?\b"


def _pieces(run: Run) -> int:
    """In how many pieces a loss is computed where a row says only that it is.

    As many as the vocabulary is wider than the model in Liger-Kernel
    (fused_linear_cross_entropy.py), of 256 tokens each in TRL (huggingface/trl pull request 5575),
    and eight where nobody says (torchtune, torchtitan).
    """
    words = f"{run.framework} {run.notes}"
    if pieces := noted(rf"loss in (\d+) (?:pieces|chunks)|{TILED}[ =:]*(\d+)", words):
        return pieces
    if rows := noted(r"loss in blocks of (\d+) of the vocabulary", words):
        return -(-(run.vocab or 0) // rows) or 8
    if said(run, LIGER_LOSS):
        return -(-(run.vocab or 0) // (run.hidden or 1)) or 8
    if said(run, r"TRL\b"):
        return max((run.mbs or 1) * (run.seq_len or 0) // ((run.cp or 1) * 256), 1)
    return 8


def all_wide(run: Run) -> bool:
    """Whether a run without ZeRO computed in 32 bits, which nothing casts."""
    return run.precision == "fp32" and run.zero == "0"


LIGER_LOSS = (
    r"liger(?! kernels (but not its loss|with its plain cross-entropy))"
    r"|fused linear cross-?entropy"
)
# linkedin/Liger-Kernel, ops/cross_entropy.py: gradients are written in the place of the logits,
# which huggingface/transformers casts to 32 bits for it (loss/loss_utils.py): 2 bytes, 4, and the
# gradient in 2.
LIGER_PLAIN_LOSS = r"liger kernels with its plain cross-entropy"
# karpathy/llm.c, llmc/fused_classifier.cuh, and IST-DASLab/llmq, src/kernels/fused_classifier.cu,
# write gradients over the logits that they read.
LOSS_IN_PLACE = (
    r"fused classifier|llm\.c\b|LLM\.Q\b"
    r"|(TE|Transformer Engine) (fused )?cross[- ]?entropy|cross[- ]?entropy of TE|Primus\b(?!-)|"
    + LIGER_LOSS
)
# AI-Hypercomputer/maxtext: num_vocab_tiling.
TILED = r"(?:vocabulary tiled by|num_vocab_tiling)"
IN_PIECES = (
    rf"loss in (\w+ (pieces|chunks)|blocks)|{TILED}|chunked (loss|cross-?entropy)|" + LIGER_LOSS
)
