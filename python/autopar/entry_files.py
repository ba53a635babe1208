"""Entries of the catalogs as TOML files that need no others: to show, to copy and to change."""

import json
from typing import Any

from autopar import wire
from autopar.entries import ChipEntry, FrameworkEntry, ModelEntry

Entry = ModelEntry | ChipEntry | FrameworkEntry
_EMPTY: tuple[Any, ...] = (None, "", {}, [])  # what nobody said of where figures come from
_WIDTH = 100


def model_toml(entry: ModelEntry) -> str:
    """Returns the file of a model."""
    return _file(entry.model, entry, "model", {"keys"})


def chip_toml(entry: ChipEntry) -> str:
    """Returns the file of a chip with the rates that it has from others."""
    return _file(entry.chip, entry, "chip", {"inherits_attention", "inherits_gemm", "systolic"})


def framework_toml(entry: FrameworkEntry) -> str:
    """Returns the file of a framework with the choices that it has from another."""
    before = {}
    now = wire.write(entry.framework)
    for month, earlier in reversed(entry.before.items()):
        then = wire.write(earlier)
        before[month] = _difference(then, now)
        now = then
    return _file(entry.framework, entry, "framework", {"follows", "before"}, {"before": before})


def _file(
    spec: object, entry: Entry, kind: str, left: set[str], more: dict[str, Any] | None = None
) -> str:
    own = wire.write(spec)
    head = entry.text.text.partition("\n")[0]
    name = own.pop("name")
    title = f"# {name}: {head[2:]}" if head.startswith("# ") else f"# {name}"
    apart = {kind, "text", "digest", *left}
    known = {key: value for key, value in wire.write(entry).items() if value not in _EMPTY}
    rest = {key: value for key, value in known.items() if key not in apart}
    return "\n".join([title, "", *lines(own | rest | (more or {}))]) + "\n"


def _difference(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns what was otherwise in one table than in another of the same form."""
    found: dict[str, Any] = {}
    for key, value in then.items():
        if isinstance(value, dict) and isinstance(now[key], dict):
            value = _difference(value, now[key])
        elif value == now[key]:
            continue
        if value != {}:
            found[key] = value
    return found


def lines(
    table: dict[str, Any], notes: dict[str, str] | None = None, place: tuple[str, ...] = ()
) -> list[str]:
    """Returns the lines of a TOML table, its plain keys first; what is null is left out.

    Args:
        table: Values as `wire.write` makes them.
        notes: Comments by the key that they stand behind, as `link.latency_us`.
        place: Keys of the tables around it.

    Example:
        >>> lines({"peak": {"bf16": 312.0}, "layers": 2}, {"layers": "few"})
        ['layers = 2  # few', '', '[peak]', 'bf16 = 312.0']
    """
    notes = notes or {}
    known = {key: value for key, value in table.items() if value is not None}
    tables = {key: value for key, value in known.items() if _rows(value)}
    written = []
    for key in (key for key in known if key not in tables):
        note = notes.get(".".join((*place, key)))
        line = f"{_key(key)} = {_value(known[key])}"
        if isinstance(value := known[key], list) and len(line) > _WIDTH:
            line = "\n".join([f"{_key(key)} = [", *(f"    {_value(part)}," for part in value), "]"])
        written.append(line + (f"  # {note}" if note else ""))
    for key, value in tables.items():
        inside = (*place, key)
        header = ".".join(map(_key, inside))
        for row in _rows(value):
            inner = lines(row, notes, inside)
            if isinstance(value, list):
                written += ["", f"[[{header}]]", *inner]
            elif inner and not inner[0]:
                written += inner  # tables inside say where they stand
            else:
                written += ["", f"[{header}]", *inner]
    return written


def _rows(value: object) -> list[dict[str, Any]]:
    """Returns the tables that a value is: one, those of a list, or none."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    return []


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else _value(key)


def _value(value: object) -> str:
    """Returns a value as TOML writes it; texts as JSON does, whose escapes TOML shares."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
