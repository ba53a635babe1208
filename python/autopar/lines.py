"""On which line of a text in JSON, TOML or YAML each key stands.

Python's readers of these formats keep no places. Lines are looked for only when an error must name
one; a text may be broken then, and of such a text as much is read as can be made out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import yaml

Format = Literal["JSON", "TOML", "YAML"]
Path = tuple[str | int, ...]


class Entry(NamedTuple):
    """A key of a table, an item of a list, or the head of a table.

    Attributes:
        path: The keys, and the places in lists, that lead to it.
        line: Line on which it stands, from 1.
        value: What is written there; of a table or a list nothing.
    """

    path: Path
    line: int
    value: str = ""


def named(path: Path) -> str:
    """Returns a path as errors name it.

    Example:
        >>> named(("groups", 1, "limit"))
        'groups[1].limit'
    """
    keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return "".join(keys).removeprefix(".")


def line_of(text: str, form: Format, key: str) -> int:
    """Returns the line of a key, or of the nearest table around it; 0 where the text has neither.

    Args:
        text: The text.
        form: Its format.
        key: The key as errors name it, `groups[1].limit`.

    Example:
        >>> line_of("[a]\\nsize = 1\\n[b]\\nsize = 2\\n", "TOML", "b.size")
        4
        >>> line_of('{"a":\\n {"b": [1,\\n {"c": 2}]}}', "JSON", "a.b[1].none")
        3
    """
    return nearest(lines_of(text, form), key)


def lines_of(text: str, form: Format) -> dict[str, int]:
    """Returns the line of each key, by the key as errors name it.

    Example:
        >>> lines_of("a:\\n b: [1,\\n  2]\\n", "YAML")
        {'a': 1, 'a.b': 2, 'a.b[0]': 2, 'a.b[1]': 3}
    """
    lines: dict[str, int] = {}
    for entry in entries(text, form):
        for end in range(1, len(entry.path) + 1):
            lines.setdefault(named(entry.path[:end]), entry.line)
    return lines


def nearest(lines: Mapping[str, int], key: str) -> int:
    """Returns the line of a key, or of the nearest table around it; 0 where neither has one."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return lines.get(key, 0)


def entries(text: str, form: Format) -> Iterator[Entry]:
    """Yields what a text holds, from its beginning to its end."""
    if form != "YAML":
        yield from _scanned(text, form)
        return
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return
    yield from node_entries(root)


def node_entries(root: "yaml.Node | None") -> Iterator[Entry]:
    """Yields what a YAML document holds; what an alias stands for, where it is written alone."""
    import yaml

    seen: set[int] = set()
    left: list[tuple[Path, int, yaml.Node | None]] = [((), 0, root)]
    while left:
        path, line, node = left.pop()
        if path:
            written = node.value if isinstance(node, yaml.ScalarNode) else ""
            yield Entry(path, line, written)
        inner: list[tuple[Path, int, yaml.Node | None]] = []
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                # An item that an alias stands for has the mark of what was written before.
                mark = node.start_mark if id(item) in seen else item.start_mark
                inner.append(((*path, i), mark.line + 1, item))
        elif isinstance(node, yaml.MappingNode):
            for i, (key, value) in enumerate(node.value):
                name = key.value if isinstance(key, yaml.ScalarNode) else f"? {i}"
                inner.append(((*path, name), key.start_mark.line + 1, value))
        left += reversed(inner)


_TEXT = r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
# Compiled where they are first used, which few runs do.
_TOKENS = {
    "JSON": r'(?P<word>"(?:[^"\\\n]|\\.)*"|[^\s\[\]{},:"]+)|(?P<sign>[\[\]{},:])',
    # In TOML a line may be the head of a table, and words have colons in them.
    "TOML": r"^[ \t]*(?P<head>\[\[?[^\[\]\n]+\]\]?)[ \t]*(?=[#\r\n]|\Z)|#[^\n]*"
    rf"|(?P<word>{_TEXT}|[^\s\[\]{{}},=\"'#]+)|(?P<sign>[\[\]{{}},=\n])",
}


def _scanned(text: str, form: Format) -> Iterator[Entry]:
    """Yields what a text of brackets, keys and values holds."""
    base: Path = ()  # The table or list around a token.
    item: int | None = None  # The place in that list; None in a table.
    around: list[tuple[Path, int | None]] = []
    at: Path | None = () if form == "JSON" else None  # What a value is of; None before a key.
    key: list[str] = []
    counts: dict[Path, int] = {}  # The tables in each of TOML's lists of tables.
    line = stands = 1
    counted = 0
    for token in re.finditer(_TOKENS[form], text, re.S | re.M):
        start = token.start(token.lastgroup or 0)
        line += text.count("\n", counted, start)
        counted = start
        match token.lastgroup, token[token.lastgroup or 0]:
            case "head", head if not around:
                base, at, key = _table(head, counts), None, []
                yield Entry(base, line)
            case "sign", (":" | "=") if item is None:
                at, stands, key = (*base, *_parts("".join(key), form)), line, []
            case "sign", ("[" | "{") as sign:
                path = base if at is None else at
                yield Entry(path, line if item is not None else stands)
                around.append((base, item))
                base, item = path, 0 if sign == "[" else None
                at, key = None if item is None else (*base, 0), []
            case "sign", ("]" | "}"):
                base, item = around.pop() if around else ((), None)
                at, key = None, []
            case "sign", ",":
                item = None if item is None else item + 1
                at, key = None if item is None else (*base, item), []
            case "sign", _ if not around:
                at, key = None, []
            case (("word" | "head"), word):
                if at is None:
                    key.append(word)
                else:
                    yield Entry(at, line if item is not None else stands, word)
                    at = None


def _table(head: str, counts: dict[Path, int]) -> Path:
    """Returns the table that a head opens; `counts` has the last place in each list of tables."""
    path: Path = ()
    parts = _parts(head.strip("[]"), "TOML")
    for i, part in enumerate(parts):
        path = (*path, part)
        if head.startswith("[[") and i == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _parts(key: str, form: Format) -> list[str]:
    """Returns the parts of a key as it is written: in JSON one text, in TOML with dots between."""
    if form == "TOML":
        found = re.findall(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s."\']+)', key)
        return ["".join(part) for part in found]
    try:
        return [str(json.loads(key))]
    except ValueError:
        return [key]
