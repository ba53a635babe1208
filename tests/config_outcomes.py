"""What MindFormers' configurations do as drop-ins, in the form in which the real ones' is kept."""

from pathlib import Path
from typing import Any

from autopar.compat import mindformers, mindspore
from outcomes import Change, made

GOLDEN = Path(__file__).parent / "data/mindformers_1.3.2.jsonl"

Case = tuple[str, dict[str, Any], list[Change]]


def outcome(name: str, keywords: dict[str, Any], changes: list[Change]) -> dict[str, Any]:
    """Returns the exceptions of making and changing one, what it then holds, and the context's."""
    mindspore.reset_auto_parallel_context()
    one, raises = made(getattr(mindformers, name), keywords, changes)
    written = None if one is None else repr(one.to_dict())
    stages = mindspore.get_auto_parallel_context("pipeline_stages")
    mindspore.reset_auto_parallel_context()
    return {"raises": raises, "dict": written, "stages": stages}
