"""What MindFormers' configurations do as drop-ins, in the form in which the real ones' is kept."""

from pathlib import Path
from typing import Any

from autopar.compat import mindformers, mindspore

GOLDEN = Path(__file__).parent / "data/mindformers_1.3.2.jsonl"

Case = tuple[str, dict[str, Any], list[tuple[str, Any]]]


def outcome(name: str, keywords: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the exceptions of making and changing one, what it then holds, and the context's."""
    mindspore.reset_auto_parallel_context()
    made = None
    raises: list[str | None] = []
    try:
        made = getattr(mindformers, name)(**keywords)
        raises.append(None)
    except Exception as error:
        raises.append(type(error).__name__)
    for attribute, value in changes if made is not None else ():
        try:
            setattr(made, attribute, value)
            raises.append(None)
        except Exception as error:
            raises.append(type(error).__name__)
    written = None if made is None else repr(made.to_dict())
    stages = mindspore.get_auto_parallel_context("pipeline_stages")
    mindspore.reset_auto_parallel_context()
    return {"raises": raises, "dict": written, "stages": stages}
