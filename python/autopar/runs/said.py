"""What the words of a row say, and what they take back."""

import re

from autopar.runs.rows import Run


def said(run: Run, pattern: str) -> re.Match[str] | None:
    """Returns where a row's framework or notes say something that no word before it takes back."""
    return re.search(rf"{TAKEN_BACK}({pattern})", f"{run.framework} {run.notes}", re.I)


def before(run: Run, month: str) -> bool:
    """Returns whether a row tells a time before a month; what tells none is of today."""
    return "" < run.month < month


# What a row denies, and what it only sets itself against.
TAKEN_BACK = (
    r"(?<!no )(?<!not )(?<!without )"
    r"(?<!unlike )(?<!than )(?<!instead of )(?<!vs )(?<!vs\. )(?<!versus )(?<!against )\b"
)
# What takes back the name of a switch before it.
SWITCHED_OFF = (
    r"[ =:]*\b((is|are|was|were) )?((turned|switched) )?"
    r"(off|false|disabled|unused|unset|not (used|on|set|enabled))\b"
)
# Hugging Face's models, not what else is theirs.
HF = (
    r"(HF|Hugging ?Face)\b"
    r"(?!('s)? (data|token|(hub|format|weights)\b|checkpoints? (loaded|convert)))|TRL\b"
    r"|(?<![/\w-])transformers[ =]+v?\d"
)
# Who trains them by their code.
TRAINS_THEIRS = r"LLaMA-?Factory\b|Axolotl\b|XTuner\b|(ms-)?swift\b"
