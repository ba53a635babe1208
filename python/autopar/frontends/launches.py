"""The launchers whose files are read."""

from pathlib import Path
from types import MappingProxyType

from autopar import files, texts
from autopar.errors import SpecError
from autopar.frontends import deepspeed, launch, megatron, mindformers, torchtitan
from autopar.frontends.launch import Launch

READERS = MappingProxyType(
    {
        "megatron": megatron.read,
        "mindformers": mindformers.read,
        "deepspeed": deepspeed.read,
        "torchtitan": torchtitan.read,
    }
)


def read(name: str | None, file: str) -> Launch:
    """Returns the job that a file describes, by its launcher's name or, without one, by its form.

    Raises:
        SpecError: The file is wrong, or its form is no launcher's.
    """
    return READERS[name or _kind(file)](file)


def _kind(file: str) -> str:
    match Path(file).suffix:
        case ".json":
            return "deepspeed"
        case ".toml":
            return "torchtitan"
        case ".sh":
            return "megatron"
        case ".yaml" | ".yml":
            table = texts.parse_yaml(launch.read_text(file), files.printable(file)).value
            known = isinstance(table, dict) and "parallel_config" in table
            return "mindformers" if known else "megatron"
        case _:
            hint = "Give a .sh, .yaml, .json or .toml file."
            raise SpecError(files.printable(file), "of no launcher that is known", hint)
