"""In how many bits what one measured run trained was held, as the words of its row list it.

`params/grads bf16, master weights + Adam m,v fp32` and `bf16 for weights, gradients and moments`
say the same of each thing in their lists; so do keys such as `exp_avg_dtype=bf16`.
"""

import re

from autopar.runs import rx
from autopar.runs.rows import Run

NARROW = (
    r"bf-?16(?:-true)?|b?float16|fp-?16|half[- ](?:precision|width)|(?:16|sixteen)[- ]?bits?"
    r"|(?:2|two)[- ]bytes?"
)
WIDE = (
    r"fp-?32|float32|(?:32|thirty-two)[- ]?bits?|(?:4|four)[- ]bytes?|(?:single|full)[- ]precision"
)
WIDTH = rf"(?:torch\.)?(?:(?P<narrow>{NARROW})|(?P<wide>{WIDE}))(?![a-z\d])"

# The things, each by its last words: what it is called, and what tells it.
THINGS = {
    "copy": r"master(?:s| weights| cop(?:y|ies)| param(?:eter)?s?)?\b|main[ _]params?\b",
    "reduced": (
        r"(?:grad(?:ient)?s?[- _])?(?:reduc(?:tions?|e)(?:[- ]scatter)?"
        r"|all-?reduc(?:es?|tion)|sync)\b"
    ),
    "gradients": r"(?:main[ _])?grad(?:ient)?s?\b|(?<=[wp]/)g(?=/)",
    "moments": (
        r"moments?\b(?: estimates)?|momenta\b|m ?[,/+&] ?v\b|mu ?[,/+&] ?nu\b"
        r"|exp[_-]avg(?:[_-]sq)?s?"
    ),
    # DeepSpeed calls one with states in 32 bits its bf16 optimizer.
    "states": r"states?\b|((?<=[/+])|(?<=[/+] )|(?<=\band ))optimi[sz]er\b(?! state| \w+ing\b)",
    "weights": r"weights?\b|param(?:eter)?s?\b|[wp](?=/(?:g/| /))",
    "everything": r"everything\b",
}
OWN = (
    r"(?:(?:adam[wW]?(?:'s)?|optax\.adamw?|optimi[sz]er(?:'s)?|optim|model|torch|first"
    r"|second|both|all|the"
    r"|its|their|of|training)[ /_]+)*"
)
ITEM = rf"{OWN}(?:{'|'.join(THINGS.values())})(?: (?:states?|copies))?"
LIST = rf"(?<![a-z])(?P<list>{ITEM}(?:(?:,? and |,? plus | as well as |, ?| ?[/+&] ?){ITEM})*)"
FILLERS = (
    r"(?:[\s:=(_\"'`-]|\b(?:is|are|was|were|all|both|kept|held|stored|lives?|stays?|in|as"
    r"|at|also|too|to"
    r"|reduced|accumulated|created|with|sits?|being|purely|entirely|d_?type|precision|done)\b|(?:model_)?d_?type\b)*"
)
OF_WHOM = r"(?: (?:of|in) (?:the )?(?:fused )?(?:adam[wW]?|optimi[sz]er))?"
LISTED = (
    re.compile(rf"{WIDTH}(?:[-\s]only)?[-\s]+(?:(?:for|of|on) )?{LIST}", re.I),
    re.compile(rf"{LIST}(?P<fill>{OF_WHOM}{FILLERS})(?<![a-z\d]){WIDTH}", re.I),
)
# Before a copy that is not there, and what nobody knows.
NONE = re.compile(
    r"\b(no|not|without|w/o|lacks?|instead of)( \w+)?[\s-]*$|\bwhether\s[^.;,]{0,20}$", re.I
)


def formats(run: Run) -> dict[str, bool]:
    """Returns of the things that a row lists whether they are in 16 bits; else they are in 32.

    The things are `weights`, `gradients`, `reduced` gradients, `moments`, optimizer `states`, the
    `copy` of the weights that the optimizer steps, and `everything`. What stands first counts.

    Example:
        >>> formats(Run(id="a", notes="params/grads bf16, master weights + Adam m,v fp32"))
        {'gradients': True, 'weights': True, 'copy': False, 'moments': False}
    """
    text = f"{run.framework}; {run.notes}"
    found = [match for pattern in LISTED for match in pattern.finditer(text)]
    behind = {match.end("list") for match in found if "fill" in match.groupdict()}
    told: dict[str, bool] = {}
    for match in sorted(found, key=lambda match: match.start()):
        if NONE.search(text[: match.start()]):
            continue
        narrow = match["narrow"] is not None
        moved = rx.search("reduced", match.groupdict().get("fill") or "", re.I)
        rest = match["list"]
        if "fill" not in match.groupdict() and match.end("list") in behind:
            # `fp32 weights and gradients, moments in bf16`: what has a width of its own behind it.
            rest = rest.partition(",")[0]
        for thing, pattern in THINGS.items():
            rest, times = re.subn(rf"(?<![a-z]){pattern}", " ", rest, flags=re.I)
            if times:
                told.setdefault("reduced" if thing == "gradients" and moved else thing, narrow)
    return told


def all_narrow(run: Run) -> bool:
    """Returns whether a row has weights and the optimizer's states in 16 bits, no copy wider."""
    told = formats(run)
    if told.get("copy") is False or told.get("weights") is False:
        return False
    if told.get("everything") or (told.get("states") and told.get("moments", True)):
        return True
    return bool(told.get("moments") and told.get("weights"))
