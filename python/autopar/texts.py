"""Texts in JSON, TOML and YAML: what they say, and errors with the line on which they say it.

What is wrong reads alike in each: `file:line: key: what was found. The cure.`
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autopar.errors import SpecError, shown
from autopar.lines import Entry, Format, entries, line_of, named, node_entries

DEEPEST = 32
LONG = re.compile(r"[-+]?[\d_]{4301,}")  # Python reads no longer number.


@dataclass(frozen=True, slots=True)
class Text:
    """What a text says, and where.

    Attributes:
        file: The file, as errors name it; may be empty.
        form: The format.
        text: The text itself.
        value: Its value: tables, lists, texts, numbers, booleans, dates and null.
    """

    file: str
    form: Format
    text: str
    value: Any

    def error(self, key: str, what: str, hint: str = "") -> SpecError:
        """Returns an error at a key, with its line; one that is missing belongs to the first."""
        line = line_of(self.text, self.form, key) or 1
        return SpecError(_place(self.file, line, key), what, hint)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Adds the line to each error that names the file and a key of it, `file: key`.

        Example:
            >>> with parse_toml(b"tp = 2\\npp = 0\\n", "my.toml").placing():
            ...     raise SpecError("my.toml: pp", "must be positive, found 0")
            Traceback (most recent call last):
            autopar.errors.SpecError: my.toml:2: pp: must be positive, found 0.
        """
        try:
            yield
        except SpecError as error:
            opening = f"{self.file}: "
            if not error.path.startswith(opening):
                raise
            raise self.error(error.path.removeprefix(opening), error.what, error.hint) from None


def parse_json(data: str | bytes, file: str = "", hint: str = "Give a JSON file.") -> Text:
    """Returns what a JSON text says, without NaN and infinities, which are not JSON.

    Args:
        data: The text.
        file: The file, as errors name it.
        hint: The cure where the text has nothing of JSON.

    Raises:
        SpecError: The text is not JSON, or gives a key twice.

    Example:
        >>> parse_json('{"tp": 2,\\n "tp": 4}', "my.json")
        Traceback (most recent call last):
        autopar.errors.SpecError: my.json:2: tp: given twice, first on line 1. Keep one of them.
    """
    text = _decoded(data, file)
    try:
        value = json.loads(text, object_pairs_hook=_table, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise _not_json(error, file, hint) from None
    except (ValueError, RecursionError) as error:
        raise _fault(file, "JSON", entries(text, "JSON")) or error from None
    return Text(file, "JSON", text, value)


def parse_toml(data: str | bytes, file: str = "") -> Text:
    """Returns what a TOML text says.

    Raises:
        SpecError: The text is not TOML.
    """
    import tomllib

    text = _decoded(data, file)
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(str(error), text, file) from None
    except (ValueError, RecursionError) as error:
        raise _fault(file, "TOML", entries(text, "TOML")) or error from None
    return Text(file, "TOML", text, value)


def parse_yaml(data: str | bytes, file: str = "") -> Text:
    """Returns what a YAML text says: plain values only, each key once, 32 levels at most.

    Raises:
        SpecError: The text is not such YAML.
    """
    import yaml

    root: yaml.Node | None = None

    class Loader(yaml.SafeLoader):
        """Tells the place of a number or date that Python cannot read."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except SpecError:
                raise
            except (ValueError, OverflowError):
                found = (e for e in node_entries(root) if e.value == node.value)
                entry = next(found, Entry((), node.start_mark.line + 1))
                raise _unreadable(file, entry, node.tag.endswith("timestamp")) from None

    text = _decoded(data, file)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise SpecError(_place(file, line), *TOO_DEEP)
        loader = Loader(text)
        root = loader.get_single_node()
        if fault := _fault(file, "YAML", node_entries(root)):
            raise fault
        value = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what = " ".join(str(error.problem).split())
        raise SpecError(_place(file, line), f"not YAML: {what}", _cure(what, YAML_CURES)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"not YAML: the sign {error.character:#06x} is not allowed"
        raise SpecError(_place(file, line), what, "Remove it.") from None
    return Text(file, "YAML", text, value)


TOO_DEEP = (f"nested over {DEEPEST} levels", "Give a flatter file.")
MEND = "Check the quotes, brackets and commas there."
JSON_CURES = {
    "Expecting property name": "Write keys in double quotes, and no comma behind the last.",
    "Illegal trailing comma": "Remove the comma.",
    "Expecting ':' delimiter": "Write a colon behind the key.",
    "Expecting value": "Write a number, a text in double quotes, true, false or null.",
    "Unterminated string": "Close the quote.",
    "Invalid control character": "Write a line break as \\n and a tab as \\t.",
    "Invalid \\": "Write a backslash twice.",
    "Extra data": "Remove what follows the document.",
}
TOML_CURES = {
    "Invalid value": "Write texts in quotes, and true or false in small letters.",
    "Expected '='": "Write key = value.",
    "Invalid statement": "Write key = value.",
    "Invalid initial character for a key": "Write key = value.",
    "Expected newline": "Give each key a line of its own.",
    "Unclosed": "Close the bracket.",
    "Unterminated string": "Close the quote.",
    "Illegal character": "Close the quote, or write a line break as \\n.",
    "Unescaped": "Write a backslash twice.",
}
YAML_CURES = {
    "'\\t'": "Indent with spaces.",
    "cannot start any token": "Write the text in quotes.",
    "mapping values are not allowed": "Indent keys of a table alike; quote a text with a colon.",
    "could not find expected ':'": "Write key: value.",
    "could not determine a constructor": "Leave the tag out: only plain values are read.",
    "undefined alias": "Define it above.",
    "<block end>": "Indent keys of a table alike.",
    "expected ','": "Close the bracket.",
    "unexpected end of stream": "Close the quote.",
    "unhashable": "Give a text as the key.",
    "another document": "Leave one document in the file.",
}


def _decoded(data: str | bytes, file: str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place(file, data.count(b"\n", 0, error.start) + 1)
        raise SpecError(place, f"not UTF-8 (byte {error.start})", "Save it as UTF-8.") from None


def _place(file: str, line: int, key: str = "") -> str:
    """Returns where something stands, as errors name it."""
    place = f"{file}:{line}" if file and line else file or (f"line {line}" if line else "")
    return ": ".join(part for part in (place, key) if part)


def _fault(file: str, form: Format, found: Iterable[Entry]) -> SpecError | None:
    """Returns the first fault that the formats' readers tell without its line, or not at all."""
    first: dict[object, int] = {}
    for entry in found:
        what, cure = "", ""
        if len(entry.path) > DEEPEST:
            return SpecError(_place(file, entry.line), *TOO_DEEP)
        if entry.path in first and entry.path[-1] != "<<":
            line = first[entry.path]
            where = "on the same line" if line == entry.line else f"first on line {line}"
            what, cure = f"given twice, {where}", "Keep one of them."
        elif form == "JSON" and entry.value in ("NaN", "Infinity", "-Infinity"):
            what, cure = f"must be a finite number, found {entry.value}", "Give a number."
        elif form != "YAML" and LONG.fullmatch(entry.value):
            return _unreadable(file, entry)
        if what:
            return SpecError(_place(file, entry.line, named(entry.path)), what, cure)
        first[entry.path] = entry.line
    return None


def _unreadable(file: str, entry: Entry, is_date: bool = False) -> SpecError:
    """Returns the error that Python has no number or date for what is written."""
    if digits := LONG.fullmatch(entry.value):
        count = sum(sign.isdigit() for sign in digits[0])
        what = f"must be a number of at most 4,300 digits, found one of {count:,}"
        cure = "Give the count or figure itself."
    else:
        kind = "a date" if is_date else "a number"
        what, cure = f"must be {kind}, found {shown(entry.value)}", "Write a text in quotes."
    return SpecError(_place(file, entry.line, named(entry.path)), what, cure)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is given twice")
    return table


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _cure(what: str, cures: dict[str, str]) -> str:
    return next((cure for part, cure in cures.items() if part in what), MEND)


def _not_json(error: json.JSONDecodeError, file: str, hint: str) -> SpecError:
    """Returns why a text is not JSON; its reader does not say where a comma belongs."""
    text, at = error.doc, error.pos
    rest = text[at : at + 80].lstrip()
    what, cure = error.msg[:1].lower() + error.msg[1:], _cure(error.msg, JSON_CURES)
    if not text[:at].strip():
        cure = hint
    elif rest.startswith(("//", "/*", "#")):
        what, cure = "a comment", "Remove it."
    elif not rest:
        what, cure = "the text ends within a table or list", "Give the whole of it."
    elif error.msg == "Expecting ',' delimiter":
        read = text[:at].rstrip()
        last = re.search(r'"(?:[^"\\]|\\.)*"$|[^\s,:"]+$', read)
        what = f"a comma is missing after {last[0] if last else 'this'}"
        at, cure = len(read), "Add it."
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return SpecError(_place(file, line), f"not JSON: {what} (column {column})", cure)


def _not_toml(message: str, text: str, file: str) -> SpecError:
    """Returns why a text is not TOML, of its reader's message, which ends in the place."""
    twice = message.startswith(("Cannot", "Duplicate"))
    if twice and (fault := _fault(file, "TOML", entries(text, "TOML"))):
        return fault
    ending = r" \(at (?:line (\d+), column (\d+)|end of document)\)"
    found = re.fullmatch(rf"(.*){ending}", message, re.S)
    what, line, column = found.groups() if found else (message, None, None)
    what = what[:1].lower() + what[1:]
    place = _place(file, int(line or text.rstrip().count("\n") + 1))
    column = f" (column {column})" if column else ""
    return SpecError(place, f"not TOML: {what}{column}", _cure(message, TOML_CURES))
