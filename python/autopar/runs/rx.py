"""Regular expressions as `re` has them, each compiled once for as long as the program runs.

The reader of one row asks for more patterns than `re` keeps, which would compile them anew for
every row.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache

_compiled = cache(re.compile)


def search(pattern: str, text: str, flags: int = 0) -> re.Match[str] | None:
    """Returns the first place that a pattern matches."""
    return _compiled(pattern, flags).search(text)


def match(pattern: str, text: str, flags: int = 0) -> re.Match[str] | None:
    """Returns whether a pattern matches at a text's beginning."""
    return _compiled(pattern, flags).match(text)


def fullmatch(pattern: str, text: str, flags: int = 0) -> re.Match[str] | None:
    """Returns whether a pattern matches all of a text."""
    return _compiled(pattern, flags).fullmatch(text)


def finditer(pattern: str, text: str, flags: int = 0) -> Iterator[re.Match[str]]:
    """Yields the places that a pattern matches."""
    return _compiled(pattern, flags).finditer(text)


def split(pattern: str, text: str, flags: int = 0) -> list[str]:
    """Returns the pieces of a text between the places that a pattern matches."""
    return _compiled(pattern, flags).split(text)


def sub(pattern: str, new: str | Callable[[re.Match[str]], str], text: str, flags: int = 0) -> str:
    """Returns a text with every place that a pattern matches replaced."""
    return _compiled(pattern, flags).sub(new, text)
