"""What a command writes: text, documents byte for byte, files of a folder; nothing over another."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import files, flags

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
    flags.check_folder(path)
    for file in written:
        flags.check_new(path / file.name, force)
    files.make_folder(path)
    files.write_all({path / file.name: file.text.encode() for file in written})


def save(data: bytes, output: Path, force: bool) -> None:
    """Writes a new file, or over one, whole or not at all; a device or a pipe directly.

    Raises:
        SpecError: The file exists and is not to be overwritten.
    """
    flags.check_output(output, force)
    if output.exists() and not output.is_file():
        output.write_bytes(data)
    else:
        files.write_all({output: data})
