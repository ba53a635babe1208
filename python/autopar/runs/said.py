"""What the words of a row say, and what they take back."""

import re
from dataclasses import replace

from autopar.runs import rx
from autopar.runs.rows import Run


def said(run: Run, pattern: str) -> re.Match[str] | None:
    """Returns where a row's framework or notes say something that no word before it takes back."""
    return rx.search(rf"{TAKEN_BACK}({pattern})", f"{run.framework} {run.notes}", re.I)


def in_full(run: Run) -> Run:
    """Returns a run whose software has its whole name: `pt2.4`, `ds 0.16`, `mbridge`, `CG`.

    What a rank's buffers hold, for graphs of a whole step, is a bound: no expert has a capacity.
    """

    def named(text: str) -> str:
        for short, whole in SHORT_NAMES.items():
            text = rx.sub(short, whole, text, flags=re.I)
        return text

    return replace(run, framework=named(run.framework), notes=named(run.notes))


SHORT_NAMES = {
    r"\b(?-i:CGs?)\b": "CUDA graphs",
    r"(?<![\w.-])pt ?(?=\d\.\d)": "PyTorch ",
    r"(?<![\w.-])ds ?(?=\d\.\d|z(ero)?[- ]?[0-3]\b)": "DeepSpeed ",
    r"(?<![\w.-])mbridge(?= \d\d\.\d\d\b)": "Megatron-Bridge",
    # NVIDIA/Megatron-LM: --moe-expert-rank-capacity-factor, with which experts are in a stash.
    r"\b(?:expert[-_ ])?rank[-_ ]capacity(?:[-_ ]factor)?\b": "buffer bound",
    r"(\b(?:stash(?:es|ing)?|buffers?)\b[^;.]{0,50}?)capacity(?:[-_ ]factor)?\b": r"\1bound",
}
# What a row denies, and what it only sets itself against.
TAKEN_BACK = (
    r"(?<!no )(?<!not )(?<!without )(?<!w/o )"
    r"(?<!unlike )(?<!than )(?<!instead of )(?<!vs )(?<!vs\. )(?<!versus )(?<!against )\b"
)
# What takes back the name of a switch before it.
SWITCHED_OFF = (
    r"[ =:]*\b((is|are|was|were) )?((turned|switched) )?"
    r"(off|false|disabled|unused|unset|not (used|on|set|enabled))\b"
)
# What before a thing says that it was not there, small words between, and what behind it does, with
# the rest of its own word and a remark between: `no use of the`, `--no-`, `async TP (old): off`.
ABSENT = re.compile(
    r"(?<![a-z])(no|not|non|neither|nor|never|without|w/o|lack(s|ing)|skip(s|ping)?|omit(s|ting)"
    r"|disabl(e|ed|es|ing)|instead of|rather than)[-\s:\"'`]+"
    r"((any|the|a|an|use|using|of|with|under|set|passed|torch)[-\s.]+)*"
    r"((--?)?[a-z]+([-_]\w+)+\s*([/,&]|and|or|nor)\s*)*[-\"'`]*$|(?<![a-z])un$",
    re.I,
)
OFF = re.compile(
    r"[\w-]{0,16}\s*(\([^)]*\)\s*)?[=:\"'`\s]*((is|are|was|were|be|being|set|left|kept"
    r"|turned|switched|got|silently"
    r"|to|both|all)\s+)*(((is|was|are|were)n't|not|never)\s(used|set|on|enabled|passed"
    r"|applied|active|in use)"
    r"|off|false|0|no|none|disabled|unused|unset|absent|missing|commented out|omitted)(?!\w|\.\d)",
    re.I,
)
# What leaves open whether it was.
UNTOLD = re.compile(r"\b(whether|(unclear|unknown|not \w+) if)\s[^.;,]{0,25}$", re.I)
UNTOLD_BEHIND = re.compile(
    r"\w*\s*(\w+\s+){0,2}(not|\w+n't)\s(stated|told|said|printed|given|specified|reported"
    r"|named|noted|known|clear)"
    r"|[\w-]*(\s*[/&]\s*[\w-]+( [\w-]+)?)*(\s(status|state|setting))?"
    r"[\s=:]*((is|are|was)\s)?"
    r"(n/?s|n/a|unstated|untold|unknown|unclear|unspecified|undisclosed|unreported)\b",
    re.I,
)


def on(text: str, pattern: str) -> bool | None:
    """Returns whether a text says that something was on or that it was off, by what it says first.

    None where nothing tells.

    Example:
        >>> [on(text, "compiled?") for text in (
        ...     "--compile", "not compiled", "compile=false", "compile_model: off", "uncompiled",
        ...     "whether compiled is not told", "eager",
        ... )]
        [True, False, False, False, False, None, None]
    """
    for found in rx.finditer(pattern, text, re.I):
        before, behind = text[max(0, found.start() - 60) : found.start()], text[found.end() :][:60]
        if not (UNTOLD.search(before) or UNTOLD_BEHIND.match(behind)):
            return not (ABSENT.search(before) or OFF.match(behind))
    return None


# What times the passes alone.
NO_OPTIMIZER = (
    r"\bno (optimi[sz]er\b|opt(im)?[. ]step\b)(?! (overlap|offload|states?|sharding|parallel))"
    r"|\b(without( an?)?|excl(udes|uding|\.)( the)?) optimi[sz]er([. ](step|update))?"
    r"(?= *($|[;,.)]))"
    r"|\boptimi[sz]er([. ]step)? (is |was )?"
    r"(left out|excluded|not (included|run|timed|counted|taken))\b"
)
# Hugging Face's models, not what else is theirs.
HF = (
    r"(?<!from )(?<!per )(HF|Hugging ?Face)\b"
    r"(?!('s)? (data|token|(public )?(config\w*|cfg|card|dims|shape)\b|(hub|format|weights)\b"
    r"|checkpoints? (loaded|convert)))|TRL\b"
    r"|(?<![/\w-])transformers[ =]+v?\d"
)
# Who trains them by their code.
TRAINS_THEIRS = r"LLaMA-?Factory\b|Axolotl\b|XTuner\b|(ms-)?swift\b"
