"""Dataclass <-> JSON, generic and strict: no key is guessed, none is dropped.

Documents come from JSON and from TOML; both give tables, lists, strings, booleans and numbers.
No number of any document is negative, infinite or NaN, and whole numbers have at most 64 bits.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from operator import index
from types import UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from autopar import texts
from autopar.errors import SpecError, shown

T = TypeVar("T")
LARGEST = 2**64 - 1
UNIT = "Give the figure in the unit that the key names."
# Takes a value and its path, which opens the path of every error.
Reader = Callable[[Any, str], Any]


def key_of(field: Field[Any]) -> str:
    """Returns the key that a field has in documents: its name, unless that is a Python keyword."""
    return str(field.metadata.get("key", field.name))


def is_required(field: Field[Any]) -> bool:
    """Returns whether a document must spell a field out: no default, or the tag of a document."""
    tag = get_origin(field.type) is Literal and len(get_args(field.type)) == 1
    return tag or (field.default is MISSING and field.default_factory is MISSING)


def read(cls: type[T], value: object, path: str = "") -> T:
    """Returns the dataclass that a table spells out.

    Args:
        cls: The dataclass to read.
        value: The table, as a JSON or TOML reader gives it.
        path: Where the table stands; it opens the path of every error.

    Raises:
        SpecError: A key is unknown or missing, or a value has the wrong type or range.

    Example:
        >>> from autopar.spec import Window
        >>> read(Window, {"size": 4096})
        Window(size=4096, global_every=0)
    """
    return cls(**read_fields(cls, value, path))


def read_fields(
    cls: type[Any], value: object, path: str, given: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Returns the values of a dataclass's fields in a table, except those `given` otherwise.

    Raises:
        SpecError: A key is unknown or missing, or a value has the wrong type or range.
    """
    if not isinstance(value, dict):
        what = f"must be a table, found {shown(value)}"
        raise SpecError(path.rstrip(": "), what, "Give keys and values.")
    known = _keys(cls)  # type: ignore[arg-type]
    if given:
        known = {key: field for key, field in known.items() if field[0] not in given}
    for key in value:
        if key not in known:
            raise SpecError(join(path, str(key)), "unknown key", _nearest(str(key), list(known)))
    values = {}
    for key, (name, reader, required) in known.items():
        if key in value:
            values[name] = reader(value[key], join(path, key))
        elif required:
            raise SpecError(join(path, key), "missing key", "Add it.")
    return values


def write(document: object) -> dict[str, Any]:
    """Returns the table that spells a dataclass out; the inverse of `read`.

    Example:
        >>> from autopar.spec import Window
        >>> write(Window(size=4096))
        {'size': 4096, 'global_every': 0}
    """
    table = {}
    for name, key, absent in _written(type(document)):  # type: ignore[arg-type]
        value = getattr(document, name)
        if value is not None or not absent:
            table[key] = _write_value(value)
    return table


def loads(cls: type[T], text: str | bytes, file: str = "") -> T:
    """Returns the dataclass that a JSON text spells out.

    Args:
        cls: The dataclass.
        text: The text.
        file: The file, as errors name it.

    Raises:
        SpecError: The text is not JSON, or `read` refuses it.
    """
    said = texts.parse_json(text, file, "Give the document as autopar wrote it.")
    with said.placing():
        return read(cls, said.value, f"{file}: " if file else "")


def dumps(document: object) -> str:
    """Returns a dataclass as JSON text on one line.

    Raises:
        SpecError: It holds what no document holds.
    """
    kind = type(document).__name__
    try:
        return json.dumps(
            write(document),
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=_number,
        )
    except (TypeError, ValueError) as error:
        hint = "Give its fields the types that they name."
        raise SpecError(kind, f"cannot be written: {error}", hint) from None


def check(cls: type[Any], document: object, path: str) -> None:
    """Refuses an argument that is no `cls`.

    Raises:
        SpecError: It is another thing.
    """
    if not isinstance(document, cls):
        what = f"must be a {cls.__name__}, found {shown(document)}"
        raise SpecError(path, what, f"Give an autopar.{cls.__name__}.")


def spelled(cls: type[Any], document: object, path: str) -> str:
    """Returns the JSON text of an argument that should be a `cls`.

    Raises:
        SpecError: It is another thing, or holds what no document holds.

    Example:
        >>> from autopar.spec import Window
        >>> spelled(Window, Window(size=4096), "window")
        '{"size":4096,"global_every":0}'
    """
    check(cls, document, path)
    return dumps(document)


def join(path: str, key: str) -> str:
    """Returns the path of `key`: after a dot, or directly behind `my.toml: `.

    Example:
        >>> join("cluster", "devices"), join("my.toml: ", "devices")
        ('cluster.devices', 'my.toml: devices')
    """
    if not path or path.endswith(" "):
        return f"{path}{key}"
    return f"{path}.{key}"


def given(table: Any, key: str, path: str) -> Any:
    """Returns the value of a key that a table of another tool's document must have.

    Raises:
        SpecError: There is no table, or not the key.
    """
    if not isinstance(table, dict):
        what = f"must be a table, found {shown(table)}"
        raise SpecError(path.rstrip(": "), what, "Give keys and values.")
    if key not in table:
        raise SpecError(join(path, key), "missing key", "Add it.")
    return table[key]


def whole(table: Any, key: str, path: str, least: int = 0) -> int:
    """Returns the whole number of 32 bits, from `least` on, of a key that a table must have.

    Raises:
        SpecError: There is no such number.
    """
    value = given(table, key, path)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        what = f"must be a whole number from {least}, found {shown(value)}"
        raise SpecError(join(path, key), what, "Give a count.")
    return value


@cache
def _written(cls: type[Any]) -> tuple[tuple[str, str, bool], ...]:
    """Returns each field's name and key, and whether the key is left out of it if null."""
    return tuple(
        (field.name, key_of(field), bool(field.metadata.get("absent"))) for field in fields(cls)
    )


@cache
def _keys(cls: type[Any]) -> dict[str, tuple[str, Reader, bool]]:
    """Returns the keys of a dataclass: the field's name, its reader, and whether it is required."""
    return {
        key_of(field): (field.name, _reader(field.type), is_required(field))  # type: ignore[arg-type]
        for field in fields(cls)
    }


@cache
def _reader(kind: Any) -> Reader:
    """Returns what reads a value as the annotated type `kind`."""
    scalars: dict[Any, Reader] = {
        bool: _read_bool,
        int: integer,
        float: _read_float,
        str: _read_str,
    }
    if kind in scalars:
        return scalars[kind]
    if is_dataclass(kind):
        return partial(_read_table, kind)  # type: ignore[arg-type]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return partial(_read_choice, args)
    if origin is tuple:
        return partial(_read_list, _reader(args[0]))
    if origin is dict:
        return partial(_read_dict, _reader(args[0]), _reader(args[1]))
    if origin in (Union, UnionType):
        return _union_reader(args)
    raise TypeError(f"no reading of {kind}")


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """Returns what reads null or one of several kinds, which differ in a tag, their first field."""
    optional = type(None) in kinds
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        reader = _reader(kinds[0])
    else:
        tags = {get_args(fields(kind)[0].type)[0]: kind for kind in kinds}
        reader = partial(_read_tagged, fields(kinds[0])[0].name, tags)
    return partial(_read_optional, reader) if optional else reader


def _read_table(kind: type[Any], value: object, path: str) -> Any:
    return kind(**read_fields(kind, value, path))


def _read_choice(choices: tuple[str, ...], value: object, path: str) -> str:
    if isinstance(value, str) and value in choices:
        return value
    what = f"must be one of {', '.join(choices)}, found {shown(value)}"
    raise SpecError(path, what, "Write one of them in quotes.")


def _read_list(reader: Reader, value: object, path: str) -> tuple[Any, ...]:
    if not is_list(value):
        raise SpecError(path, f"must be a list, found {shown(value)}", "Write it in brackets.")
    return tuple([reader(item, f"{path}[{i}]") for i, item in enumerate(value)])


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Returns whether a value is a list, a tuple, a range, an array: no text."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return bool(getattr(value, "shape", ()))


def _read_dict(keys: Reader, values: Reader, value: object, path: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise SpecError(path, f"must be a table, found {shown(value)}", "Give keys and values.")
    return {keys(key, path): values(item, join(path, str(key))) for key, item in value.items()}


def _read_optional(reader: Reader, value: object, path: str) -> Any:
    return None if value is None else reader(value, path)


def _read_tagged(key: str, tags: dict[str, type[Any]], value: object, path: str) -> Any:
    if not isinstance(value, dict):
        raise SpecError(path, f"must be a table, found {shown(value)}", "Give keys and values.")
    tag = value.get(key)
    if not isinstance(tag, str) or tag not in tags:
        choices = ", ".join(tags)
        what = f"must be one of {choices}, found {shown(tag)}"
        raise SpecError(join(path, key), what, "Write one of them in quotes.")
    return _read_table(tags[tag], value, path)


def _read_bool(value: object, path: str) -> bool:
    if isinstance(value, bool):
        return value
    what = f"must be true or false, found {shown(value)}"
    raise SpecError(path, what, "Write one of the two without quotes.")


def integer(value: object, path: str) -> int:
    """Returns a whole number from 0 of at most 64 bits.

    Raises:
        SpecError: It is none.
    """
    try:
        # NumPy's too; a boolean is a number to Python alone.
        number = index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        what = f"must be a whole number, found {shown(value)}"
        raise SpecError(path, what, "Give a count.")
    if not 0 <= number <= LARGEST:
        what = f"must be from 0 to 2^64 - 1, found {shown(value)}"
        raise SpecError(path, what, "Give a count.")
    return number


def _read_float(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        what = f"must be a number, found {shown(value)}"
        raise SpecError(path, what, UNIT)
    if isinstance(value, int) and not 0 <= value <= LARGEST:
        raise SpecError(path, f"must be from 0 to 2^64 - 1, found {shown(value)}", UNIT)
    if not math.isfinite(value) or value < 0:
        raise SpecError(path, f"must be a finite number from 0, found {shown(value)}", UNIT)
    return float(value)


def _read_str(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise SpecError(path, f"must be a text, found {shown(value)}", "Write it in quotes.")
    # Half of a surrogate pair is a legal JSON escape and no text.
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        what = f"must be Unicode text, found {shown(value)}"
        raise SpecError(path, what, "Write both halves of the sign.")
    return value


def _write_value(value: object) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, tuple | list):
        return [_write_value(item) for item in value]
    if is_dataclass(value):
        return write(value)
    if isinstance(value, dict):
        return {key: _write_value(item) for key, item in value.items()}
    return value


def _number(value: object) -> int | float:
    """Returns a number of another library, as NumPy's, as Python's own."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    return index(value)  # type: ignore[arg-type]


def _nearest(key: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=2)
    if near:
        return f"Nearest: {', '.join(near)}."
    return f"Known: {', '.join(known)}."
