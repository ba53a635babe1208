"""What calls do to MindSpore and MindFormers, real or not: exceptions, folders, attributes.

Used with the drop-ins by the tests, and with the real ones in their own Python, so that it uses the
standard library alone.
"""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Calls = list[dict[str, Any] | None]
Change = tuple[str, Any]


def called(
    calls: Calls, put: Callable[..., None], reset: Callable[[], None]
) -> tuple[list[str | None], list[str]]:
    """Returns the exception of each call, or null, and the folders that calls made.

    Args:
        calls: Keywords to set, or null to reset.
        put: Sets keywords of a context.
        reset: Puts them back.
    """
    raises: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for keywords in calls:
            try:
                if keywords is None:
                    reset()
                else:
                    put(**keywords)
                raises.append(None)
            except Exception as error:
                raises.append(type(error).__name__)
        return raises, sorted(str(path) for path in Path().rglob("*"))


def made(
    kind: Callable[..., Any], keywords: dict[str, Any], changes: list[Change]
) -> tuple[Any, list[str | None]]:
    """Returns an object, null where it is refused, and the exceptions of making and changing it."""
    raises: list[str | None] = []
    try:
        one = kind(**keywords)
        raises.append(None)
    except Exception as error:
        return None, [type(error).__name__]
    for attribute, value in changes:
        try:
            setattr(one, attribute, value)
            raises.append(None)
        except Exception as error:
            raises.append(type(error).__name__)
    return one, raises
