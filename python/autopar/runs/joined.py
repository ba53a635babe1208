"""Which operators a row says were one kernel, and which it says were several."""

import re
from functools import cache

from autopar.runs import rx
from autopar.runs.rows import Run

# What people call the operators that kernels of their own join.
OPERATORS = {
    "norm": r"(?:(?:add|residual)[ +&-]+)*(?:(?:layer|rms)[- ]?)?norm(?:s|ali[sz]ations?)?"
    r"(?:\+residual)?|LN",
    "activation": r"(?:bias[- +])?"
    r"(?:swi-?glu|ge-?glu|gelu|silu|activations?(?: functions?)?|act)(?: act)?",
    "rope": r"(?:qkv\+)?(?:rope|rotary)(?:[- ]pos(?:itional|itions?)?)?(?:[- ]emb(?:edding)?s?)?",
    "residual": r"(?:bias[- +])?dropout(?:[- +]add)?",
    "permutation": r"(?:moe[- ])?(?:un)?permut(?:e|ations?)(?:/unpermute)?",
    "router": r"(?:moe[- ])?(?:router|gating)",
    "accumulation": r"(?:gradient|grad|wgrad)[- ]accum(?:ulation)?",
    "softmax": r"(?:(?:scaled|masked|upper-triang)[- ])*softmax",
}
# And what else stands in lists of them.
OTHERS = (
    r"bias|grouped[- ]?(?:gemm|mm|matmul|product)s?|loss|residuals?"
    r"|(?:(?:vocab[- ])?cross[- ]entropy|CE)(?:[- ]loss)?"
)


def joined(run: Run, operator: str) -> bool | None:
    """Whether a row says that an operator was one kernel; None if it does not say.

    Lists count for each of their operators: `neither permute, router nor RoPE fusion`, `fused ops
    for RMSNorm and RoPE`, `SwiGLU and norms in separate operators`. So do switches, as scripts
    spell them: `--no-rope-fusion`, `apply_rope_fusion: false`, `--use-fused-rmsnorm absent`.
    """
    one = OPERATORS[operator]
    joins = None
    for clause in rx.split(r";|\.(?=\s|$)", f"{run.framework}; {run.notes}"):
        text = clause.replace("_", "-")
        if rx.search(_apart(one), text, re.I):
            return False
        if rx.search(_in_one(one), text, re.I):
            joins = True
    return joins


ANY = "|".join((*OPERATORS.values(), OTHERS))
# Operators one behind the other, up to the one that is asked for and after it.
_THEN = r"(?:, (?:and |or |nor )?| ?/ ?| and | & | \+ | or | nor )"
LISTED = rf"(?:(?:expert|MoE|Triton|the) )*(?:(?:{ANY})\b{_THEN})*"
REST = rf"(?:{_THEN}(?:{ANY})\b)*"
# One word may be of several.
SWITCHES = r"(?:\s*(?:,|and|or|nor|/|&)\s*(?:--?[-\w]+|[-\w]+-fus(?:ion|ed)))*"
OFF = (
    r"(?: \([^)]*\))?[ =:\"']*(?:(?:is|was|are|were|both|all|flag|option) )*"
    r"(?:(?:turned |switched )?off|false|no|0|disabled|missing"
    r"|absent|unset|unused|(?:un|not )available"
    r"|(?:not|(?:is|was|are|were)n't) (?:used|set|enabled|passed|given))\b"
)
BEING = r"(?:all|both|is|was|are|were|left|in|as|runs?|ran|stays?|kept|likewise|also)"
NOT_ONE = (
    r"(?:un-?fused|not fused|non-?fused|eager|op(?:erator)?[- ]by[- ]op(?:erator)?"
    r"|(?:as |in |left )*"
    r"(?:separate|discrete|plain|elementwise|eager) (?:op(?:erator)?s|kernels))"
)


NOT_DENIED = r"(?<!no )(?<!not )(?<!non-)(?<!without )(?<!w/o )\b"


@cache
def _apart(one: str) -> str:
    switch = rf"(?:(?:use|apply|enable)-)*(?:fused-(?:{one})|(?:{one})-fus(?:ion|ed))\b[-\w]*"
    return (
        rf"(?<!--)\b(?:no|not|without|neither|w/o)[- ](?:any )?"
        rf"{LISTED}(?:{one})\b{REST}[- ]fus(?:ion|ed)\b"
        rf"|\b(?:no|without|w/o|lacks|neither|nor) (?:(?:--)?{switch}|fused {LISTED}(?:{one})\b)"
        rf"|\b(?:absent|missing|unset|off|not (?:used|set|passed|given))[: (]+"
        rf"(?:--?[-\w]+(?:,? (?:and |or )?| ?/ ?))*(?:--)?{switch}"
        rf"|(?<!no )(?<!without )--no-{switch}(?!{OFF})|(?<![-\w])(?:--)?{switch}{SWITCHES}{OFF}"
        rf"|\b(?:{one})\b{REST} fus(?:ion|ed){OFF}|\b(?:{one})\b[\w ]{{0,25}} without fusion\b"
        rf"|\bfusions? (?:is |are |were )?(?:off|disabled)[ (:]+{LISTED}(?:{one})\b"
        rf"|{NOT_DENIED}(?:un-?fused|non-?fused|eager) {LISTED}(?:{one})\b(?! fused)"
        rf"|(?<!fused )\b(?:{one})\b{REST}[ :=]+(?:{BEING} )*{NOT_ONE}\b"
        r"(?! (?:in)?to\b| with\b)"
        r"|\b(?:un-?fused|non-?fused) (?:op(?:erator)?s|kernels|layers)\b"
    )


@cache
def _in_one(one: str) -> str:
    kernels = r"(?:op(?:erator)?s|kernels?)"
    return (
        rf"{NOT_DENIED}fused:? (?:(?:(?:triton|cuda|apex|te) )*{kernels}"
        rf"(?: (?:for|of):? |: | \()(?:the )?)?"
        rf"{LISTED}(?:{one}){REST}(?: (?:{kernels}|embeddings?))?\s*(?:$|,|[()])"
        rf"|{NOT_DENIED}fused (?:kernels? )?{LISTED}(?:{one})\b{REST}"
        rf" (?:(?:cuda|triton) )?{kernels}"
        rf"|{NOT_DENIED}fused[ -]?(?:{one})\b|{NOT_DENIED}fuses? {LISTED}(?:{one})\b"
        rf"|\b(?:{one})\b{REST}[- ](?:(?:is|was|are|were) )?fus(?:ed|ion)\b"
        rf"|\b(?:{one}) in one kernel\b|\b(?:single|one)-kernel {LISTED}(?:{one})\b"
        rf"|\b(?:{one})(?: kernel)? (?:(?:is|was) )?(?:an? |one )?fused\b"
        rf"|{NOT_DENIED}triton (?:kernels? (?:for|of) )?{LISTED}(?:{one})\b{REST} kernels?\b"
        rf"|{NOT_DENIED}triton (?:kernels? (?:for|of)|fused) {LISTED}(?:{one})\b"
        rf"|{NOT_DENIED}fused {kernels}: [^:]*\b(?:{one})\b"
    )
