"""How a row says that attention was computed: in one kernel, or with scores that are stored."""

import re
from collections.abc import Iterator

from autopar.runs import rx
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK
from autopar.spec import Attention


def attention_said(run: Run) -> Attention | None:
    """Returns how a row says that attention was computed; None if it does not.

    A column of its own is believed before any other words. FlashAttention runs on neither Pascal
    nor Volta.
    """
    if stores_scores(run):
        return "unfused"
    if run.attention:
        fused = rx.search(rf"{FUSED}|{FUSED_BY_COLUMN}", run.attention, re.I)
        return "flash" if fused else None
    return "flash" if _in_one_kernel(run) else None


def stores_scores(run: Run) -> bool:
    """Returns whether a row says that attention was not fused, or names a chip that cannot."""
    if rx.search(r"(?<!BI-)\b[pv]100", run.chip, re.I):
        return True
    if not run.attention and rx.search(WRITTEN_OUT, f"{run.framework} {run.model}", re.I):
        return True
    if run.attention:
        alone = rx.fullmatch(rf"{WAY}|standard|torch", run.attention, re.I)
        return bool(alone or rx.search(f"{STORED}|{WITHOUT_FLASH}", run.attention, re.I))
    if any(rx.search(STORED, clause, re.I) for clause in _clauses(run)):
        return True
    without = any(rx.search(WITHOUT_FLASH, clause, re.I) for clause in _clauses(run))
    # Without the package of FlashAttention another kernel may have served: `no flash-attn, SDPA`.
    rest = (rx.sub(WITHOUT_FLASH, "", clause, flags=re.I) for clause in _clauses(run))
    return without and not any(rx.search(OTHER_KERNEL, clause, re.I) for clause in rest)


def kernel_words(run: Run) -> str:
    """Returns what may name the kernel of attention: the column, else all words."""
    return run.attention or f"{run.framework}; {run.notes}"


def by_flex_attention(run: Run) -> bool:
    """Whether PyTorch's FlexAttention is named; in the column `flex` alone names it."""
    name = rf"{TAKEN_BACK}flex([-_ ]?att|\b)" if run.attention else rf"{TAKEN_BACK}flex[-_ ]?att"
    return bool(rx.search(name, kernel_words(run), re.I))


def _in_one_kernel(run: Run) -> bool:
    # An abbreviation is one in capitals: `FA on`.
    words = kernel_words(run)
    return bool(rx.search(FUSED, words, re.I) or rx.search(r"\bFA\b", words))


def _clauses(run: Run) -> Iterator[str]:
    """Yields a row's clauses but what would have been: `stored scores would not have fitted`."""
    for clause in rx.split(r";|\.(?=\s|$)", f"{run.framework}; {run.notes}"):
        if not rx.search(r"\b(would|could)(n't)?\b", clause, re.I):
            yield clause


# karpathy/minGPT, mingpt/model.py (CausalSelfAttention): softmax of a product.
WRITTEN_OUT = r"\bmin-?GPT\b"
ATTENTION = r"att(?:entio)?n\b"
# Of whom or what attention is, before the word: `plain XLA attention`, `eager SDPA attention`.
WHOSE = (
    r"(?:(?:HF|Hugging ?Face|XLA|JAX|(?:py)?torch|einsum|SDPA|softmax|self|causal|core|matmul|bmm"
    r"|dense|CUDA|kernel|backend|path)[- ])*"
)
WAY = (
    r"(?:eager|na[iï]ve|vanilla|plain|math|un-?fused|non-?fused|non-?flash|pre-?flash|not fused"
    r"|reference|einsum|(?<!scaled[-_ ])(?<!\bfp8[-_ ])(?<!\bTE[-_ ])(?<!Engine[-_ ])"
    r"dot[-_ ]product|(?:plain )?matmul-softmax"
    r"|separate (?:op(?:erator)?s|kernels)|plain ops|stored scores)"
)
# What may stand between attention and its way: `attention falls to the non-flash math path`.
IS = (
    r"(?:[ =:_\"'(\[]|\b(?:backend|implementation|impl|kernel|path|code|type|is|was|are"
    r"|ran|runs|run"
    r"|falls|fell|goes|went|back|left|computed|done|implemented|in|as|at|to|the|a|by|via|with|from"
    r"|presumably|probably|likely|apparently|script's|its|own|HF|SDPA|PyTorch|torch|simple"
    r"|unoptimi[sz]ed)\b)*"
)
SCORES = (
    r"(?:(?:attention |softmax )?scores?(?: matri(?:x|ces)| tensors?)?|softmax\("
    r"|(?:attention|softmax) (?:prob(?:abilitie)?s|weights|matri(?:x|ces)))"
)
KEPT = r"(?:stored|kept|saved|materiali[sz]ed|written (?:out|to)|in (?:HBM|DRAM|device memory))\b"
STORED = (
    rf"{TAKEN_BACK}{WAY}(?: \([\w -]+\))?[- ]{WHOSE}(?:{ATTENTION}|scores\b|softmax\b|SDPA\b)"
    rf"|{TAKEN_BACK}SDPA[ -](?:is |was |with |in |the )*math\b"
    rf"|(?<!flash )(?<!flash-)(?<!flash_)(?<!fused )\b(?:\w+_)?{ATTENTION[:-2]}(?:_\w+)?{IS}"
    rf"\b{WAY}\b"
    r"(?! (?:mode|model|execution|scheduling|DDP|FSDP|runs?|rows?|figures?|stays?|keeps?)\b)"
    rf"|\batt(?:entio)?n[-_ ]impl(?:ementation)?[ =:\"']+torch\b"
    r"|\b(?:masked[- ]softmax|explicit(?:ly)?(?: masked)? softmax) attention"
    rf"|{ATTENTION} with explicit\b[\w ]*\bsoftmax\b"
    rf"|{ATTENTION} (?:with|over|by|on) (?:a|the) (?:full|whole|entire) {SCORES}"
    # jax-ml/jax, jax.nn: without an implementation it is XLA's, on any device.
    r"|\bjax\.nn\.dot_product_attention\b(?![^;,]{0,30}cudnn)"
    rf"|{TAKEN_BACK}(?:attention )?{SCORES}\b[^;,.]{{0,15}}?(?<!not )(?<!never )\b{KEPT}"
    rf"|{TAKEN_BACK}(?:materiali[sz](?:es|ing)|stor(?:es|ing)|keep(?:s|ing))"
    rf" (?:(?:the|all|full|whole|entire|of|its) )*{SCORES}"
    r"|\bmateriali[sz]ed (?:attention|scores)"
    rf"|{TAKEN_BACK}XLA(?:'s)?(?: own)? {ATTENTION}(?! kernels?\b)"
    r"|\bsoftmax ?\(Q"
)
FLASH = (
    r"(?:(?:use|enable|with)[-_ ])*(?:flash(?:[ _-]?att(?:entio)?n)?"
    r"(?:[-_ ]?v?[12])?\b(?:[-_ ]2\b)?"
    r"|FA[12]?\b|(?<!NVTE_)fused[-_ ](?:attention|attn|SDPA)\b|FusedSDPA\b)"
)
WITHOUT_FLASH = (
    r"\b(?:no|not|non|without|w/o|neither|nor|lacks?|lacking|minus|predates?|before|pre"
    r"|(?:not|won't|doesn't|didn't|cannot|can't|does not|did not|will not|refuses? to|refuses)"
    r" (?:use|run|support|take|enable))"
    rf"(?:[- ]|--|the |a |any |yet |TPU )*{FLASH}(?![-_ ]?(?:attention|attn)?[-_ ]?v?[34]\b)"
    rf"|\bno (?:option|flag|switch|argument) for {FLASH}"
    r"|\bwon't use it\b[^;]*\bplain attention\b"
    rf"|(?<![a-z]){FLASH}(?: flag| option| kernel| support)?[ =:\"']*(?:is |was |are |were )?"
    r"(?:(?:turned |switched )?off\b|disabled\b"
    r"|not (?:(?:in )?use|used|set|enabled|available|supported|passed|configured|turned on)\b"
    r"|not in use\b"
    r"|false\b|(?<=[=:\"'])no\b|(?<=[=:] )no\b|(?<=[=:\"'])0\b|(?<=[=:] )0\b"
    r"|missing\b|absent\b|unused\b|unset\b|unavailable\b|unsupported\b|refused\b)"
)
OTHER_KERNEL = (
    rf"{TAKEN_BACK}(?:(?<!fused )(?<!fused)SDPA\b|scaled[ _]dot[ _]product|xformers|splash|aiter"
    rf"|flex[-_ ]?{ATTENTION}|cudnn (?:\w+ )?(?:fused)?{ATTENTION}"
    rf"|(?:mem(?:ory)?[-_ ]efficient|triton|fused) {ATTENTION}(?! (?:is |was )?not\b))"
)
FUSED = (
    r"\bflash|\b\w*flash[-_]?att|\bsdpa\b|\bfused[-_ ]att|fusion att|\bfa[ -]?v?[1234]\b"
    r"|\bxformers\b|\bsplash\b|\bmem(?:ory)?[-_ ]efficient[-_ ]att|\bscaled[ _]dot[ _]product"
    # NVIDIA/TransformerEngine: its DotProductAttention is fused, and the only one in 8 bits.
    r"|(?:\bfp8|\bTE|Engine)[-_ ]dot[-_ ]product att"
    r"|\bflex[-_ ]?att|\bFusedSDPA\b|\bfmha\b|\b(?:ring|varlen|pallas|triton|cudnn|aiter) att"
    rf"|{ATTENTION}[-_ ]?(?:backend|kernel|impl\w*)?[ =:]*(?:is |was |of |by |through |via |from )*"
    r"(?:TE|cudnn|aiter|ck|triton|flex|fused|splash)\b"
)
FUSED_BY_COLUMN = (
    r"\bfused\b|\bflex|\bcudnn\b|\baiter\b|\bck\b|\btriton\b|\bring\b|\bmem(ory)?[ -]efficient"
)
