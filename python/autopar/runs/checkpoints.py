"""What people call recompute in a row's column, in the few words that `recompute` and `remat` read.

`full, block method, 5 layers` is `block 5`, `everything except attention` is `all but attention`,
`moe_act + layernorm modules` is `norm, act`. What has such a name stays as it is.
"""

import re
from dataclasses import replace

from autopar.runs import rx
from autopar.runs.as_run import ACTIVATIONS, NORMS
from autopar.runs.rows import Run
from autopar.runs.said import TAKEN_BACK
from autopar.runs.shelf import words_of

UNSAID = (
    r"\?+|-|n/?[as]|tbd|default|unknown|unclear|unstated|unspecified|undisclosed"
    r"|not (stated|said|given|told|specified|reported|printed|known|disclosed)"
)
SUBJECT = (
    r"(activation|gradient|layer|block)?s?[ -]?(re-?comput\w*|(re-?)?checkpoint\w*|remat\w*|ac)"
)
NOTHING = (
    r"(none|no|not|off|0|false|disabled|without|w/o)\b.*"
    rf"|{SUBJECT}[ =:]*((is|was) )?(off|disabled|none|no|false|not (used|on|enabled))"
    r"|(save|keep)s?[- ](all|everything)( activations)?|everything_saveable"
)
BUT = r"(except|but|bar|excluding|besides|other than|minus|apart from)(?: for)?(?: the)?"
CORE = r"(?:core )?(?:attention|attn|flash[- ]?attention|sdpa)"
SPARED_ATTENTION = (
    rf"(full|all|every\w*|remat\w*|recomput\w*|checkpoint\w*)\b.*?\b{BUT} {CORE}\b"
    r"(?!['\u2019]s| ?proj)"
    rf"|\b({CORE}|context)( (outputs?|out|kernel|forward|results?|context))?( \(\w+\))?"
    r"( (is|are))? (saved|kept|stored|not (recomputed|rerun|repeated))\b"
    rf"|\b(sav|keep|stor)(es?|s|ing) (the )?({CORE}|context)( outputs?)?(?= *([,;)]|$))"
)
PROJECTIONS = (
    r"((attention|attn)('s)? proj\w*|proj\w* of (the )?attention"
    r"|((attention|attn)('s)? )?(q/k/v/o|qkv ?/ ?o)([_ ]?proj\w*)?|q/k/v[_ ]proj\w*"
    r"|qkv ?(/|,|\+|and|&) ?o(ut(put)?)?[_ ]?proj\w*)"
)
SPARED_PROJECTIONS = (
    rf"\b({BUT}|saves?|saving|keeps?|keeping) (the |all )?(outputs of )?{PROJECTIONS}"
    rf"|\b{PROJECTIONS}( \w+)? (saved|kept)\b"
)
# As JAX's policies save the results of products.
SPARED_PRODUCTS = (
    rf"\b{BUT} (the )?(outputs of |results of )?(weights? )?"
    r"(matmuls?|dots|matrix products|products)"
    r"( outputs| results| of weights)?\b"
)
MLP = r"(mlps?|ffns?|feed[- ]?forward(s| networks?| blocks?)?)"
MLP_ALONE = (
    rf"(selective[ :,(]*)?(just |only )?(the )?{MLP} (only|alone|recomputed|checkpointed)\)?"
    rf"|(only|just) (the )?{MLP}"
)
# What only says how much of what it names; no name of a part itself.
ABOUT = set(
    words_of(
        "and only functions function fn fns fun modules module ops op operators operator of in"
        " the all both every layers layer core selective selectively recompute recomputed"
        " recomputation recomputing recomputes"
    )
)
# As a list of shares of the stages behind the name of what is computed again.
BY_STAGE = r",? ?\d+(?:(?:[/, -]+\d+)+| of \d+) layers\b.*| (?:by|per|a) stage\b"
BY_CHUNK = r" ?\(?\d+ layers? ?(?:/|per|a|in each) ?(?:chunk|stage)\)?"
PARTS = {"rms": "norm", "ln": "norm", "rmsnorms": "norm", "layernorms": "norm", "silu": "act"}
NUMBER = r"(\d+)"


def in_known_words(run: Run) -> Run:
    """Returns a run whose column says what is recomputed in the words that the readers know.

    Where that says that what is kept waits on the host, the notes do afterwards.
    """
    waits = rx.search(rf"{TAKEN_BACK}{ON_HOST}", run.recompute, re.I)
    notes = f"{run.notes}; checkpoints offloaded" if waits else run.notes
    return replace(run, recompute=meant(run.recompute), notes=notes)


ON_HOST = r"(offload(ed|ing)?|(in|on|to) (the )?(host|CPU)( memory| RAM)?)\b"


def meant(column: str) -> str:
    """Returns a column's text in known words, the text itself where it needs none.

    Example:
        >>> [meant(text) for text in ("full, block method, 5 layers", "AC off", "all but attn")]
        ['block 5', 'none', 'all but attention']
    """
    text = column.strip().lower()
    if rx.fullmatch(UNSAID, text):
        return ""
    if rx.fullmatch(NOTHING, text):
        return "none"
    if rx.search(SPARED_ATTENTION, text) and not rx.search(r"proj|\b(every|each) \S+ layer", text):
        return "all but attention"
    if rx.search(SPARED_PRODUCTS, text):
        return "minimal"
    if rx.search(SPARED_PROJECTIONS, text) and not rx.search(r"\b(host|cpu|offload\w*)\b", text):
        return "all but attention's projections"
    if rx.fullmatch(MLP_ALONE, text):
        return "mlp alone"
    if parts := _parts(text):
        return parts
    return _counted(text) or column


def _parts(text: str) -> str:
    """Returns norms and activations alone where a text names nothing else."""
    text = rx.sub(r"\bmoe[_ ]act", "act", rx.sub(f"{BY_CHUNK}|{BY_STAGE}", "", text))
    words = {PARTS.get(word, word) for word in words_of(text)} - ABOUT
    if not words or not words <= NORMS | ACTIVATIONS or words <= {"activations"}:
        return ""  # `activations` alone says that it is recompute that is meant.
    kinds = ["norm"] * bool(words & NORMS) + ["act"] * bool(words & ACTIVATIONS)
    return ", ".join(kinds)


def _counted(text: str) -> str:
    """Returns how many layers are recomputed, or every which, where a text tells it."""
    for figure, word in enumerate(WORDS, start=1):
        text = rx.sub(rf"\b{word}\b", str(figure), text)
    text = rx.sub(r"\b(in|of|per|a) ((every|each) )?(virtual )?(chunk|stage)\b", "", text)
    if option := rx.search(rf"selective_ac_option\W*{NUMBER}", text):
        return f"every {option[1]}th layer" if option[1] != "1" else "full"
    if rx.search(r"\b(uniform|every|\d+ ?%)", text) or rx.search(r"\d ?/ ?\d|\d of \d", text):
        return ""
    if share := rx.search(
        rf"{NUMBER} (?:layers?|blocks?) (?:in|of|out of) (?:the )?{NUMBER}", text
    ):
        return f"{share[1]} of {share[2]} layers"
    for words, share_of in SHARES.items():
        if rx.search(rf"\b{words} (?:of )?(?:the |all )?(?:layers|blocks)\b", text):
            return f"{share_of} of the layers"
    if told := rx.search(rf"num[-_ ]layers\W*{NUMBER}|\b{NUMBER} (?:whole |full )?layers?\b", text):
        layers = int(told[1] or told[2])
        if layers > 1 or "block" in text:
            return f"block {layers}"
    return ""


WORDS = "one two three four five six seven eight nine ten".split()
SHARES = {"half": "1/2", "(?:a |one )third": "1/3", "(?:a |one )quarter": "1/4"}
