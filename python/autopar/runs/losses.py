"""The loss of one measured run by the words of its row: its kernels, and the logits it holds."""

import re
from dataclasses import replace

from autopar.entries import FrameworkEntry
from autopar.framework import Framework
from autopar.runs import operators, rx
from autopar.runs.anatomy import noted
from autopar.runs.formats import NARROW, WIDE
from autopar.runs.rows import Run
from autopar.runs.said import HF, on, said

# PyTorch's own attention without its kernels (aten/src/ATen/native/transformers/attention.cpp,
# _scaled_dot_product_attention_math).
MATH_KERNEL = r"\bmath (SDPA|kernel|attention|backend)\b|\bSDPA[- (]+math\b"
NARROW_SOFTMAX = r"softmax in (fp16|bf16|16 bits)\b|(fp16|bf16|16-bit) softmax\b"


def softmax(framework: Framework, run: Run) -> Framework:
    """Softmax in separate operators: as wide as what it reads where nothing casts it."""
    if framework.name.startswith("mindformers") and said(run, NARROW_SOFTMAX):
        # Whose graph has no cast to what scores are already.
        fused = replace(framework.fused, softmax="narrow")
        return replace(framework, fused=fused, softmax_in_fp32=False)
    by_math = rx.search(MATH_KERNEL, f"{run.attention}; {run.notes}", re.I)
    if _casts_nothing(framework, run) or said(run, NARROW_SOFTMAX) or by_math:
        return replace(framework, softmax_in_fp32=False)
    return framework


def _casts_nothing(framework: Framework, run: Run) -> bool:
    """Whether softmax, of attention and of the loss, is as wide as what it reads.

    PyTorch's own attention, which fairseq calls, casts nothing, nor does Hugging Face's GPT-2, as
    its Llama, OPT and BLOOM do; automatic mixed precision, whose weights are in 32 bits, does too.
    """
    code = rx.search(r"fairseq|GPT-?2\b", f"{run.framework} {run.model}", re.I)
    own = "megatron" in framework.name or framework.name.startswith("torchtitan")
    return bool(code) and framework.bytes.parameter == 2 and not own


def loss(framework: Framework, entry: FrameworkEntry, run: Run) -> Framework:
    """The loss: in one kernel as a row says, else in separate operators where that was usual.

    One kernel reads 16-bit logits and makes gradients as wide, which Transformer Engine's and
    Liger's write into their place. Hugging Face's models made logits of 32 bits and shifted them
    into another copy first. What Megatron calls fused is not one: the compiler joined it.
    """
    usual = entry.run
    apart = said(run, SEPARATE_LOSS)
    in_place = not apart and (said(run, LOSS_IN_PLACE) or _by_liger(run))
    listed = operators.listed_kernels(run)
    kernel = said(run, LOSS_KERNEL) or rx.search(CROSS_ENTROPY, listed, re.I)
    if _by_liger(run) is False and said(run, LIGER_PLAIN_LOSS):
        return _with_loss(framework, True, 8, 0)
    if said(run, NARROW_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=True), False, 8, 0)
    if said(run, WIDE_LOSS):
        return _with_loss(replace(framework, loss_in_16_bits=False), False, 14, 0)
    fused = not apart and on(f"{run.framework}; {run.notes}", FUSED_LOSS)
    compiled = usual.loss_bytes or framework.fused.cross_entropy
    if in_place or kernel or (fused and not compiled):
        shifted = run.month < HF_LOSS_SINCE and said(run, HF)
        width = 2 if in_place else 8 if shifted else 4
        return _with_loss(replace(framework, loss_in_16_bits=True), True, width, 0)
    if fused:
        return framework
    if framework.name == "ddp-compiled" and said(run, LOSS_ALONE):
        # Nobody holds the logits, and no gradient of theirs comes from outside.
        return _with_loss(framework, False, 4 if run.month < DONATES_SINCE else 2, 0)
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
CROSS_ENTROPY = r"(?:cross[-_ ]?entropy|(?<![a-z])CE\b|(?<![a-z])xent\b)"
FUSED_LOSS = (
    rf"fused[-_ ]{CROSS_ENTROPY}|{CROSS_ENTROPY}[-_ ](loss[-_ ])?(fusion|fused)\b|fused loss"
    r"|Pai-Megatron-Patch"
    # As one of a list of what is fused.
    r"|(fused|triton kernels (for|of))"
    r" ((rms|layer)?-?norms?|rope|rotary|swiglu|activations?|softmax|[,/&+ ]|and)+"
    rf"[ ,/&+]*{CROSS_ENTROPY}"
)
SEPARATE_LOSS = (
    rf"(loss|{CROSS_ENTROPY})( loss)?( is| was)?( in separate operators| unfused| not fused)\b"
    rf"|(unfused|non-fused) (loss|{CROSS_ENTROPY})"
)
# Release 4.46 of huggingface/transformers: the loss is a function of 16-bit logits since.
HF_LOSS_SINCE = "2024-11"
# Release 4.48 shifts labels in place of logits: as the backward pass begins, the log-softmax of a
# copy in 32 bits, its gradient and theirs lie there (pytorch/pytorch, derivatives.yaml:
# nll_loss_forward, _log_softmax).
HF_UNSHIFTED_SINCE = "2025-01"
TAKES = (
    rf"(loss|{CROSS_ENTROPY}) (is |was )?((applied|computed|taken|done|sits|lies) )?"
    r"(outside (of )?(the )?([\w-]+ )?(model|module),? )?(of|on|sees|gets"
    rf"|over|from|to)( the)?"
)
# F.cross_entropy of what the model returns, in separate operators: logits, their log-softmax, its
# gradient and theirs, 2 bytes each (Lightning-AI/lightning-thunder, benchmark_litgpt.py).
NARROW_LOSS = (
    rf"{TAKES} ({NARROW})[- ]logits\b|(?<![a-z])logits (are |were )?"
    rf"((kept|left|stay|remain)( in| as)?|in) ({NARROW})\b"
    rf"|keeps (the )?logits in ({NARROW})\b"
)
# F.cross_entropy of their copy in 32 bits, which is freed: the log-softmax of that, its gradient
# and theirs, 4 bytes each, beside the logits (duoan/picotron, tests/bench_tp.py and bench_cp.py).
WIDE_LOSS = (
    rf"{TAKES} ({WIDE})[- ]logits\b|{TAKES} logits (cast|upcast) to ({WIDE})\b"
    rf"|\blogits (are |were )?(cast|upcast|converted) to ({WIDE}) (for|before) (the )?"
    rf"(loss|{CROSS_ENTROPY})"
    rf"|logits\.float\(\) ?(->|=>|\u2192|into|then|before) ?(the )?(loss|{CROSS_ENTROPY})"
)
LOSS_OUTSIDE = (
    rf"(loss|criterion|{CROSS_ENTROPY})\b[^.;,]{{0,20}} outside\b"
    r"|(gives|returns|yields) (the )?(bare )?logits (alone|only)|only (gives|returns"
    r"|yields) (the )?logits"
)
# A compiled model that holds its loss, as karpathy/nanochat's: what its passes keep is for the
# compiler to write over, gradients of logits in their place (pytorch/pytorch,
# torch/_functorch/config.py: donated_buffer, on since PyTorch 2.6).
LOSS_ALONE = r"returns (the |its )?(bare )?loss (alone|only)|only returns (the |its )?loss|nanochat"
DONATES_SINCE = "2025-02"
# Dao-AILab/flash-attention, losses/cross_entropy.py.
LOSS_KERNEL = r"xentropy\b"


def pieces(framework: Framework, run: Run) -> Framework:
    """A loss in pieces has so many times fewer logits at its peak; one of several layers more."""
    held = framework.held
    if said(run, WHOLE):
        held = replace(held, loss_pieces=1)
    elif said(run, IN_PIECES) or _by_liger(run):
        held = replace(held, loss_pieces=_pieces(run))
        if on(f"{run.framework}; {run.notes}", LIGER):
            sums = 16 if run.month >= LIGER_WIDENS_SINCE else 4
            framework = replace(framework, piece_sum_bytes=sums)
    if held.planned and (layers := said(run, MTP)):
        # Each predicts by the head, and its logits wait for the backward pass as the others do.
        several = 1 + (int(layers["layers"]) if layers["layers"].isdigit() else 1)
        held = replace(held, logit_bytes=several * held.logit_bytes)
        held = replace(held, split_logit_bytes=several * held.split_logit_bytes)
    return replace(framework, held=held)


# Layers that predict further tokens, which are in no column.
MTP = (
    r"(?P<layers>one|an?|[1-9]) ((further|extra|more|additional) )?"
    r"(MTP|multi-token[ -]prediction) layers?\b"
)


def _pieces(run: Run) -> int:
    """In how many pieces a loss is computed where a row says only that it is.

    In Liger-Kernel pieces have a power of two of tokens, and are about as many as the vocabulary is
    wider than the model (fused_linear_cross_entropy.py); they have 256 tokens each in TRL
    (huggingface/trl pull request 5575), and are eight where nobody says (torchtune, torchtitan).
    """
    words = f"{run.framework} {run.notes}"
    if pieces := noted(
        rf"(?:loss|{CROSS_ENTROPY})[^.;,]{{0,20}} in (\d+) (?:pieces|chunks|tiles)"
        rf"|(?:{TILED}|num_output_chunks)[ =:]*(\d+)",
        words,
    ):
        return pieces
    if rows := noted(r"loss in blocks of (\d+) of the vocabulary", words):
        return -(-(run.vocab or 0) // rows) or 8
    if _by_liger(run):
        tokens = (run.mbs or 1) * (run.seq_len or 1) // (run.cp or 1)
        wider = -(-(run.vocab or 0) // (run.hidden or 1)) or 8
        return -(-tokens // (1 << (-(-tokens // wider) - 1).bit_length()))
    if said(run, r"TRL\b"):
        return max((run.mbs or 1) * (run.seq_len or 0) // ((run.cp or 1) * 256), 1)
    return 8


def all_wide(run: Run) -> bool:
    """Whether a run without ZeRO computed in 32 bits, which nothing casts."""
    return run.precision == "fp32" and run.zero == "0"


def _by_liger(run: Run) -> bool | None:
    """Returns whether a row's loss was Liger's, joined with the head; None where it had no Liger.

    Its switch in trainers turns on all that it has; kernels that are listed without a loss are all.
    """
    text = f"{run.framework}; {run.notes}"
    if said(run, FUSED_LINEAR):
        return True
    if not on(text, LIGER):
        return None
    if said(run, LIGER_PLAIN_LOSS) or said(run, LIGER_WITHOUT_LOSS):
        return False
    listed = rx.search(LIGER_LIST, text, re.I)
    return not listed or bool(rx.search(rf"{CROSS_ENTROPY}|loss|\ball\b|etc", listed[0], re.I))


# linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py: each piece's product is written (2), is
# cast to 32 bits (6) and added (8; issue 1232; pull request 1270: 28 % of the pass). Before its
# release 0.7 the product itself added its result to the sum (4).
LIGER_WIDENS_SINCE = "2026-02"
LIGER = r"(?<![a-z])liger"
FUSED_LINEAR = r"fused[-_ ]linear[-_ ]cross[-_ ]?entropy|F?LCE\b|fused[-_ ]linear[-_ ]CE\b"
LIGER_WITHOUT_LOSS = r"liger kernels but not its loss"
LIGER_LIST = (
    r"(?<![a-z])liger[-_ ]?(kernels? )?( ?for |: ?|\()[^.;)]*\b(norm"
    r"|rms_?norm|rope|swiglu)\b[^.;)]*"
)
PLAIN = r"(plain|ordinary|vanilla|regular|standard|stock|unfused|non-fused)"
# linkedin/Liger-Kernel, ops/cross_entropy.py: gradients are written in the place of the logits,
# which huggingface/transformers casts to 32 bits for it (loss/loss_utils.py): 2 bytes, 4, and the
# gradient in 2.
LIGER_PLAIN_LOSS = (
    rf"liger[^.;]*\b(with|but)( its| the| an?)* {PLAIN} (\([^)]*\) )?{CROSS_ENTROPY}"
    rf"|liger's {PLAIN} {CROSS_ENTROPY}|{CROSS_ENTROPY} is liger's {PLAIN}"
    rf"|liger[^.;]*\b{CROSS_ENTROPY} is the {PLAIN} one"
    rf"|liger[^.;]*\b{CROSS_ENTROPY} (unfused|apart|separate) from the head"
    rf"|liger \((its )?{PLAIN} {CROSS_ENTROPY}"
    r"|liger_cross_entropy[ =:]*true|fused_linear_cross_entropy[ =:]*false"
)
# karpathy/llm.c, llmc/fused_classifier.cuh, and IST-DASLab/llmq, src/kernels/fused_classifier.cu,
# write gradients over the logits that they read.
LOSS_IN_PLACE = (
    rf"fused classifier|llm\.c\b|LLM\.Q\b|Primus\b(?!-)"
    rf"|(TE|Transformer ?Engine)('s)? (fused )?{CROSS_ENTROPY}|{CROSS_ENTROPY} (of|from|by) TE\b"
    rf"|{CROSS_ENTROPY}[^.;,]{{0,25}}(with |through |via |by |\()(TE|Transformer ?Engine)\b"
    r"|cross[-_]entropy[-_]fusion[-_]impl[ =:\"']*te\b"
    r"|cross[-_]entropy[-_]loss[-_]fusion[`'\"]*,? (in its |in the )?\(?te\b"
)
# AI-Hypercomputer/maxtext: num_vocab_tiling.
TILED = r"(?:vocabulary tiled by|num_vocab_tiling)"
WHOLE = (
    rf"(loss|{CROSS_ENTROPY})[^.;,]{{0,25}} (un-?chunked|not chunked)\b"
    rf"|(loss|{CROSS_ENTROPY}) (over|of|on) (the )?(full|whole) logits\b"
    rf"|(loss|{CROSS_ENTROPY})[^.;,]{{0,25}} in (a single|one|1) (chunk|piece)\b"
    rf"|unchunked (loss|{CROSS_ENTROPY})"
    r"|(full|whole) logits (are |were )?materiali[sz]ed\b"
    r"|logits (are |were )?fully materiali[sz]ed\b"
    rf"|neither [^.;,]{{0,20}} nor (the )?(loss|{CROSS_ENTROPY}) chunked\b"
)
IN_PIECES = (
    r"(?<!before )(?<!before the )"
    rf"(loss in (\w+ (pieces|chunks)|blocks)|{TILED}|chunked[-_ ]?(loss|{CROSS_ENTROPY}|nll)"
    rf"|(loss|{CROSS_ENTROPY})[^.;,]{{0,20}} (in|over|by) (\d+ )?(chunks|pieces|tiles)\b"
    rf"|(loss|{CROSS_ENTROPY}) (is |was )?chunked\b"
    rf"|(loss|{CROSS_ENTROPY})[^.;,]{{0,20}} (\d+ tokens at a time|chunk-?wise|piece-?wise)\b"
    r"|CEWithChunkedOutputLoss|ChunkedCE(Loss)?\b|num_output_chunks)"
)
