"""The errors of this package: wrong input only. "No plan fits" is an answer, not an error."""

import math
from collections.abc import Sequence


class AutoparError(Exception):
    """Whatever this package raises on purpose."""


class SpecError(AutoparError, ValueError):
    """Wrong input: where, what with what was found, and the cure.

    Attributes:
        path: Where: a document's key (`cluster.groups[1].limit`), a flag or a file.
        what: What is wrong and what was found, without a full stop.
        hint: The cure, one sentence; may be empty.
        about: The fields that a rule is about, most telling first, as `plan.tp`; the path alone
            where it says it.

    Example:
        >>> print(SpecError("workload.sequence_length", "must be positive, found 0", "Give 1."))
        workload.sequence_length: must be positive, found 0. Give 1.
    """

    def __init__(self, path: str, what: str, hint: str = "", about: Sequence[str] = ()) -> None:
        super().__init__(path, what, hint, about)
        self.path = path
        self.what = what
        self.hint = hint
        self.about = tuple(about) or (path,)

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.what}. {self.hint}".rstrip()

    def under(self, outer: str) -> "SpecError":
        """Returns the same error one level further out: `a` before `b.c` gives `a.b.c`."""
        inner = self.path if self.path.startswith("[") or not self.path else f".{self.path}"
        return SpecError(f"{outer}{inner}", self.what, self.hint)


def shown(value: object) -> str:
    """Returns a value as an error message quotes it: on one line and at most 60 characters long.

    Example:
        >>> print(shown("two\\nlines"), shown(True), shown(None))
        "two\\nlines" true null
    """
    match value:
        case True:
            text = "true"
        case False:
            text = "false"
        case None:
            text = "null"
        case str():
            text = '"' + repr(value[:80])[1:-1].replace('"', '\\"') + '"'
        case int() if value.bit_length() > 256:
            text = "a number of more than 77 digits"
        case dict():
            text = "a table"
        case list() | tuple():
            text = f"a list of {len(value)}"
        case _:
            text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_time_limit(seconds: float | None) -> None:
    """Refuses a limit that is no time.

    Raises:
        SpecError: It is negative, infinite or no number.
    """
    if seconds is not None and not 0 <= seconds < math.inf:
        what = f"must be seconds from 0, found {shown(seconds)}"
        raise SpecError("time_limit_s", what, "Leave it out for no limit.")
