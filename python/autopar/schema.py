"""JSON Schemas of the documents, made from the dataclasses (JSON Schema draft 2020-12)."""

import json
import re
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from autopar.graph import Graph
from autopar.placement import Servers, ServersProblem
from autopar.report import Estimate, Plan, Report, Sizes
from autopar.sharding import Sharding, ShardingProblem, Strategies
from autopar.spec import Problem
from autopar.wire import is_required, key_of, write

DOCUMENTS: dict[str, type[Any]] = {
    "problem": Problem,
    "plan": Plan,
    "report": Report,
    "estimate": Estimate,
    "graph": Graph,
    "sharding-problem": ShardingProblem,
    "sharding": Sharding,
    "strategies": Strategies,
    "servers-problem": ServersProblem,
    "servers": Servers,
    "sizes": Sizes,
}


def text(cls: type[Any]) -> str:
    """Returns a document's schema as the text that ships in `schemas/`."""
    return json.dumps(schema(cls), indent=2) + "\n"


def schema(cls: type[Any]) -> dict[str, Any]:
    """Returns the schema of a document; the tables in it are its definitions.

    Example:
        >>> schema(Plan)["properties"]["cp"]["description"]
        'Context-parallel degree (ring attention).'
    """
    tables: dict[str, Any] = {}
    root = _table(cls, tables)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "$defs": {name: tables[name] for name in sorted(tables)},
    }


def _table(cls: type[Any], tables: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of one dataclass and adds those of its fields to `tables`."""
    texts = descriptions(cls)
    properties = {}
    required = []
    for field in fields(cls):
        kind = _kind(field.type, tables)
        if field.metadata.get("absent"):
            kind = kind["anyOf"][0]
        if is_required(field):
            required.append(key_of(field))
        properties[key_of(field)] = {"description": texts[field.name], **kind}
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if default is not MISSING and default is not None:
            properties[key_of(field)]["default"] = (
                write(default) if is_dataclass(default) else default
            )
    return {
        "title": cls.__name__,
        "description": (cls.__doc__ or "").split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Returns what a dataclass's docstring says of each field.

    Example:
        >>> from autopar.spec import Window
        >>> descriptions(Window)["size"]
        'Positions that a query sees.'
    """
    _, _, listed = (cls.__doc__ or "").partition("Attributes:\n")
    pairs = re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", listed, re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in pairs}


def _kind(kind: Any, tables: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field's type."""
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        return {"type": "integer", "minimum": 0}
    if kind is float:
        return {"type": "number", "minimum": 0}
    if kind is str:
        return {"type": "string"}
    if kind is type(None):
        return {"type": "null"}
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in tables:
            tables[kind.__name__] = _table(kind, tables)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _kind(args[0], tables)}
    if origin is dict:
        return {
            "type": "object",
            "propertyNames": _kind(args[0], tables),
            "additionalProperties": _kind(args[1], tables),
        }
    if isinstance(kind, UnionType):
        return {"anyOf": [_kind(arg, tables) for arg in args]}
    raise TypeError(f"no schema of {kind}")
