"""Files that a user names: read whole, bounded, and refused in one line."""

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autopar.errors import SpecError

LARGEST_BYTES = 16 * 2**20
DEEPEST = 32


def printable(path: str | os.PathLike[str]) -> str:
    """Returns a path as text that any document and message can hold, Chinese names included."""
    try:
        # A locale without UTF-8 hands bytes over as half surrogates; they are UTF-8 all the same.
        return os.fsencode(path).decode("utf-8", "replace")
    except UnicodeEncodeError:
        return str(path).encode("utf-8", "replace").decode()


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


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST_BYTES) -> bytes:
    """Returns what a file holds, `largest` bytes at most; `-` is standard input.

    Raises:
        SpecError: The file is absent, unreadable, empty or larger.
    """
    name = printable(path)
    try:
        if name == "-":
            data = sys.stdin.buffer.read(largest + 1)
        else:
            with Path(path).open("rb") as file:
                # A pipe has no size; of a file no more is asked for than it has.
                size = os.fstat(file.fileno()).st_size
                data = file.read(min(size or largest, largest) + 1)
    except FileNotFoundError:
        raise SpecError(name, "no such file", "Check the path.") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(name, f"cannot be read: {reason}", "Check the path.") from None
    if len(data) > largest:
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


def parse_toml(data: bytes, name: str) -> dict[str, Any]:
    """Returns the table of a TOML text.

    Raises:
        SpecError: The text is not UTF-8 or not TOML.
    """
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SpecError(name, f"not UTF-8 (byte {error.start})", "Save it as UTF-8.") from None
    except RecursionError:
        raise SpecError(name, "nested too deeply to be TOML", "See toml.io.") from None
    except ValueError as error:
        raise SpecError(name, f"not TOML: {error}", "See toml.io.") from None


def yaml_lines(text: str) -> dict[str, int]:
    """Returns the line of each key of nested tables of YAML, and of most JSON, from 1.

    Keys are paths with dots; a text that is no YAML has none.

    Example:
        >>> yaml_lines("a:\\n  size: 1\\nb: {size: 2}")
        {'a': 1, 'a.size': 2, 'b': 3, 'b.size': 3}
    """
    import yaml

    lines: dict[str, int] = {}
    seen: set[int] = set()

    def walk(node: yaml.Node | None, path: str) -> None:
        if not isinstance(node, yaml.MappingNode) or id(node) in seen:
            # What an alias repeats stands where it was written first.
            return
        seen.add(id(node))
        for key, value in node.value:
            name = f"{path}{key.value}"
            lines[name] = key.start_mark.line + 1
            walk(value, f"{name}.")

    try:
        walk(yaml.compose(text, Loader=yaml.SafeLoader), "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return lines


def parse_yaml(text: str, name: str) -> Any:
    """Returns the value of a YAML text: plain values only, each key once, 32 levels at most.

    Raises:
        SpecError: The text is not such YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a table that gives a key twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: set[object] = set()
            for key_node, _ in node.value:
                # A merge key stands for the keys of another table.
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
                if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                    what = f"key {key} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, what, key_node.start_mark)
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise SpecError(name, f"nested over {DEEPEST} levels", "Give a flatter file.")
        return yaml.load(text, Loader=Loader)
    except SpecError:
        raise
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"{name}{line}", f"not YAML: {error.problem}", "See yaml.org.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"not YAML: {' '.join(str(error).split())[:100]}"
        raise SpecError(name, what, "See yaml.org.") from None
