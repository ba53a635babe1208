"""What a command writes: text, documents byte for byte, files of a folder; nothing over another."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import files
from autopar.errors import SpecError
from autopar.files import printable

if TYPE_CHECKING:
    from autopar.export.job import File


def text(content: str, output: Path | None, force: bool) -> None:
    """Writes text and a line's end to standard output or a new file."""
    if output is None:
        print(content)
    else:
        save(f"{content}\n".encode(), output, force)


def document(content: str, output: Path | None, force: bool) -> None:
    """Writes JSON and a line's end byte for byte, whatever encoding the terminal has."""
    data = f"{content}\n".encode()
    if output is not None:
        save(data, output, force)
    elif sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)


def folder(written: "Sequence[File]", path: Path | None, force: bool) -> None:
    """Writes files into a folder, all or none, or to standard output under their names."""
    if path is None:
        several = len(written) > 1
        for file in written:
            document((f"==> {file.name} <==\n" if several else "") + file.text, None, False)
        return
    check_folder(path)
    for file in written:
        check_new(path / file.name, force)
    files.make_folder(path)
    files.write_all({path / file.name: file.text.encode() for file in written})


def save(data: bytes, output: Path, force: bool) -> None:
    """Writes a new file, or over one, whole or not at all; a device or a pipe directly.

    Raises:
        SpecError: The file exists and is not to be overwritten.
    """
    check_output(output, force)
    if output.exists() and not output.is_file():
        output.write_bytes(data)
    else:
        files.write_all({output: data})


# --- Refusals before work is spent


def check_output(output: Path | None, force: bool, flag: str = "--output") -> None:
    """Refuses a file of a flag that cannot be a new one, before work is spent on what goes there.

    Raises:
        SpecError: It exists and is not to be overwritten, or is a folder, or its folder is absent.
    """
    if output is None:
        return
    if output.is_dir():
        raise SpecError(flag, f'"{printable(output)}" is a folder', "Give a file in it.")
    check_new(output, force, flag)
    _check_parent(output, flag)


def check_new(output: Path, force: bool, flag: str = "--output") -> None:
    """Refuses a file that exists already.

    Raises:
        SpecError: It exists and is not to be overwritten.
    """
    if output.exists() and not force:
        what = f'file "{printable(output)}" exists'
        raise SpecError(flag, what, "Give --force to overwrite it.")


def check_folder(output: Path | None, flag: str = "--output") -> None:
    """Refuses a folder that cannot be made, before work is spent on what goes into it.

    Raises:
        SpecError: It is a file, or the folder that it would stand in is absent.
    """
    if output is None or output.is_dir():
        return
    if output.exists():
        cure = "Move the file away, or name a folder."
        raise SpecError(flag, f'"{printable(output)}" is no folder', cure)
    _check_parent(output, flag)


def _check_parent(output: Path, flag: str) -> None:
    if not output.parent.is_dir():
        what = f'no folder "{printable(output.parent)}"'
        raise SpecError(flag, what, "Make it first, or check the path.")
