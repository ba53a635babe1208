"""What the words of a row say, and what they take back."""

import re

from autopar.runs.rows import Run


def said(run: Run, pattern: str) -> re.Match[str] | None:
    """Returns where a row's framework or notes say something that no word before it takes back."""
    return re.search(rf"{TAKEN_BACK}({pattern})", f"{run.framework} {run.notes}", re.I)


TAKEN_BACK = r"(?<!no )(?<!not )(?<!without )\b"
