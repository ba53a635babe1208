"""Files that a user names: read whole, bounded, and refused in one line."""

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from autopar.errors import SpecError, shown

LARGEST_BYTES = 16 * 2**20


def printable(path: str | os.PathLike[str]) -> str:
    """Returns a path as text that any document and message can hold, Chinese names included."""
    try:
        # A locale without UTF-8 hands bytes over as half surrogates; they are UTF-8 all the same.
        return os.fsencode(path).decode("utf-8", "replace")
    except UnicodeEncodeError:
        return str(path).encode("utf-8", "replace").decode()


def named(value: object, path: str) -> str:
    """Returns the name or the path that a caller gave as text.

    Args:
        value: What was given.
        path: What an error calls it.

    Raises:
        SpecError: It is neither.

    Example:
        >>> named(Path("chips/my-chip.toml"), "chip")
        'chips/my-chip.toml'
    """
    if not isinstance(value, str | os.PathLike):
        raise SpecError(path, f"must be a name or a path, found {shown(value)}", "Give a text.")
    return os.fsdecode(value)


def stem(name: str) -> str:
    """Returns the name that a printable path gives its content: without folder and `.toml`.

    Example:
        >>> stem("chips/my-chip.toml")
        'my-chip'
    """
    return Path(name).name.removesuffix(".toml")


def is_path(text: str) -> bool:
    """Returns whether a text that may be a name in the catalog is a path: by its form alone.

    Example:
        >>> is_path("h800"), is_path("h800.toml"), is_path("./h800")
        (False, True, True)
    """
    separators = {"/", os.sep, os.altsep or "/"}
    return text.endswith(".toml") or any(separator in text for separator in separators)


def is_file(path: str) -> bool:
    """Returns whether a text that may be a name is a file; one too long for a path is none."""
    with suppress(OSError, ValueError):
        return Path(path).is_file()
    return False


def is_folder(path: str) -> bool:
    """Returns whether a text that may be a name is a folder; one too long for a path is none."""
    with suppress(OSError, ValueError):
        return Path(path).is_dir()
    return False


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST_BYTES) -> bytes:
    """Returns what a file holds, `largest` bytes at most; `-` is standard input.

    Raises:
        SpecError: The file is absent, unreadable, empty or larger.
    """
    name = printable(path)
    size = 0
    try:
        if name == "-":
            data = sys.stdin.buffer.read(largest + 1)
        else:
            with Path(path).open("rb") as file:
                # A pipe has no size; of a file no more is asked for than it has, and nothing of one
                # that is too large.
                size = os.fstat(file.fileno()).st_size
                data = b"" if size > largest else file.read((size or largest) + 1)
    except FileNotFoundError:
        raise SpecError(name, "no such file", "Check the path.") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(name, f"cannot be read: {reason}", "Check the path.") from None
    if size > largest or len(data) > largest:
        raise SpecError(
            name,
            f"larger than {largest >> 20} MiB",
            "Give the document itself, without other data.",
        )
    if not data.strip():
        raise SpecError(name, "empty", "Give a file with the document in it.")
    return data


def make_folder(path: Path) -> None:
    """Makes a folder where there is none.

    Raises:
        SpecError: It cannot be made.
    """
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> SpecError:
    reason = (error.strerror or str(error)).lower()
    return SpecError(printable(path), f"cannot be written: {reason}", "Check the folder.")


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Writes files, each whole or not at all: under names of their own first, then renamed.

    Raises:
        SpecError: One cannot be written; then none is.
    """
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    path = Path()
    try:
        for path, draft in drafts.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            with draft.open("xb") as file:
                file.write(contents[path])
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)
