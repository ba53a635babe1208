"""The contract: the dataclasses of Python and the structs of the core spell the same documents."""

import dataclasses
import json
import re
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import pytest

from autopar import (
    AutoparError,
    SpecError,
    _core,
    cluster,
    framework,
    graph,
    placement,
    report,
    schema,
    sharding,
    spec,
    wire,
)

ROOTS = {
    "problem": spec.Problem,
    "plan": report.Plan,
    "estimate": report.Estimate,
    "report": report.Report,
    "sizes": report.Sizes,
    "model": spec.Model,
    "chip": cluster.Chip,
    "framework": framework.Framework,
    "cluster": cluster.Cluster,
    "workload": spec.Workload,
    "options": spec.Options,
    "graph": graph.Graph,
    "sharding-problem": sharding.ShardingProblem,
    "sharding": sharding.Sharding,
    "servers-problem": placement.ServersProblem,
    "servers": placement.Servers,
}
# Values that one document type allows and another forbids; everything else is any number.
FIT: dict[str, Any] = {
    "memory_efficiency": 0.5,
    "memory_margin": 0.25,
    "efficiency": 0.5,
    "fp8_efficiency": 0.25,
    "fp8_across_slowdowns": [1.5, 2.0],
    "bandwidth_fraction": 0.5,
    "heads": 8,
    "kv_heads": 4,
    "norms_per_layer": 4,
    "devices_per_node": 4,
    "link_domain": 8,
    "topk": 2,
    "experts": 16,
    "first_dense": 1,
    "zero": 2,
    "sequence": [512],
    "tflops": [100.5],
}


# What goes with recompute by parts.
OPERATORS = {"norm": 1, "gather": 2, "projections": 0, "attention": 0, "expansion": 3}
PARTS = {"layers": 1, "regathers": True, "operators": OPERATORS | {"activation": 3}}


def full(kind: Any, key: str = "") -> Any:
    """Returns a JSON value of a type in which every optional part is present."""
    if key in FIT and get_origin(kind) is not tuple:
        return FIT[key]
    if kind is bool:
        return True
    if kind is int:
        return 3
    if kind is float:
        return 2.5
    if kind is str:
        return "名 name"
    if dataclasses.is_dataclass(kind):
        return {
            wire.key_of(field): full(field.type, field.name)
            for field in dataclasses.fields(kind)
            if not field.metadata.get("absent")
        }
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[-1] if key != "recompute" else "none"
    if origin is tuple:
        return FIT[key] if isinstance(FIT.get(key), list) else [full(args[0], key)]
    if origin is dict:
        return dict.fromkeys(get_args(args[0]), 3)
    assert isinstance(kind, UnionType)
    return full(args[0], key)


def document(kind: str) -> dict[str, Any]:
    """Returns a full document; its recompute is the one that has no layers."""

    def mend(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("granularity") in ("uniform", "parts"):
                value["granularity"] = "selective"
            for item in value.values():
                mend(item)
        elif isinstance(value, list):
            for item in value:
                mend(item)

    made: dict[str, Any] = full(ROOTS[kind])
    mend(made)
    return made


def tables(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of each table in a document that is not a map of counts."""
    if isinstance(value, dict):
        inner = [p for key, item in value.items() for p in tables(item, (*path, key))]
        return inner if path and path[-1] == "cut" else [path, *inner]
    if isinstance(value, list):
        return [p for i, item in enumerate(value) for p in tables(item, (*path, i))]
    return []


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def canonical(kind: str, value: Any) -> Any:
    return json.loads(_core.canonical(kind, json.dumps(value)))


@pytest.mark.parametrize("kind", ROOTS)
def test_the_core_writes_a_full_document_as_it_read_it(kind: str) -> None:
    assert canonical(kind, document(kind)) == document(kind)


@pytest.mark.parametrize("kind", ROOTS)
def test_python_writes_a_full_document_as_it_read_it(kind: str) -> None:
    assert wire.write(wire.read(ROOTS[kind], document(kind))) == document(kind)


@pytest.mark.parametrize("kind", ROOTS)
def test_the_core_has_no_key_that_python_lacks(kind: str) -> None:
    # The core names the keys that it knows when it meets one that it does not.
    for path in tables(document(kind)):
        wrong = document(kind)
        known = set(at(wrong, path))
        if "granularity" in known or "kind" in known:
            continue
        at(wrong, path)["no such key"] = 1
        with pytest.raises(SpecError, match="no such key") as error:
            canonical(kind, wrong)
        listed = str(error.value).partition("the keys are ")[2].partition(". ")[0]
        assert set(listed.split(", ")) == known, path


@pytest.mark.parametrize("kind", ROOTS)
def test_the_core_requires_every_key_of_every_table(kind: str) -> None:
    for path in tables(document(kind)):
        for key, value in at(document(kind), path).items():
            wrong = document(kind)
            del at(wrong, path)[key]
            cls = at_type(ROOTS[kind], path)
            field = next(f for f in dataclasses.fields(cls) if wire.key_of(f) == key)
            if isinstance(field.type, UnionType) and type(None) in get_args(field.type):
                continue
            with pytest.raises(SpecError):
                canonical(kind, wrong)
            assert value is not None


def at_type(kind: Any, path: tuple[Any, ...]) -> Any:
    """Returns the dataclass of the table at a path."""
    for step in path:
        if isinstance(kind, UnionType):
            kind = get_args(kind)[0]
        if isinstance(step, int):
            kind = get_args(kind)[0]
        else:
            kind = next(f.type for f in dataclasses.fields(kind) if wire.key_of(f) == step)
    return get_args(kind)[0] if isinstance(kind, UnionType) else kind


def words() -> list[tuple[str, tuple[Any, ...], tuple[str, ...]]]:
    """Returns every place in a document that holds a word of a set, with the set."""
    found = []
    for kind, root in ROOTS.items():
        for path in tables(document(kind)):
            for field in dataclasses.fields(at_type(root, path)):
                inner = get_args(field.type)[0] if get_origin(field.type) is tuple else field.type
                if get_origin(inner) is Literal and len(get_args(inner)) > 1:
                    step = (0,) if inner is not field.type else ()
                    found.append((kind, (*path, wire.key_of(field), *step), get_args(inner)))
    return found


@pytest.mark.parametrize(("kind", "path", "allowed"), words())
def test_both_sides_know_the_same_words(
    kind: str, path: tuple[Any, ...], allowed: tuple[str, ...]
) -> None:
    for word in allowed:
        made = document(kind)
        at(made, path[:-1])[path[-1]] = word
        if word in ("block", "uniform") and path[-1] == "granularity":
            at(made, path[:-1])["layers"] = 2
        if word == "parts":
            at(made, path[:-1]).update(PARTS)
        assert canonical(kind, made) == made
        assert wire.write(wire.read(ROOTS[kind], made)) == made
    wrong = document(kind)
    at(wrong, path[:-1])[path[-1]] = "no such word"
    with pytest.raises(SpecError) as error:
        canonical(kind, wrong)
    listed = str(error.value).partition("must be ")[2].partition(", found ")[0]
    assert set(re.findall(r'"([^"]+)"', listed)) == set(allowed)


@pytest.mark.parametrize(
    "infeasible",
    [
        {"kind": "devices", "asked": 256, "available": 128, "cure": "Raise a800 to 256"},
        {"kind": "factorisation", "nearest_devices": 8192, "nearest_batch": None},
        None,
    ],
)
def test_both_sides_tell_the_reasons_for_no_plan_apart(infeasible: Any) -> None:
    made = document("report") | {"infeasible": infeasible}
    assert canonical("report", made) == made
    assert wire.write(wire.read(report.Report, made)) == made


def test_recompute_of_a_whole_layer_has_its_number_of_layers_and_no_other_has() -> None:
    block = {"granularity": "block", "layers": 3}
    assert wire.read(report.Recompute, block) == report.Recompute("block", 3)
    assert wire.write(report.Recompute("block", 3)) == block
    assert wire.write(report.Recompute()) == {"granularity": "none"}


def test_recompute_by_parts_has_counts_of_layers_and_operators_on_both_sides() -> None:
    parts = {"granularity": "parts"} | PARTS
    assert wire.write(wire.read(report.Recompute, parts)) == parts
    made = document("plan")
    made["stages"][0]["recompute"] = parts
    assert canonical("plan", made) == made
    del parts["regathers"]
    with pytest.raises(SpecError, match="regathers: missing key"):
        canonical("plan", made)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": 4096, "globally": 2}, "window.globally: unknown key. Nearest: global_every."),
        ({"global_every": 2}, "window.size: missing key. Add it."),
        ({"size": "4096"}, 'window.size: must be a whole number, found "4096". Give a count.'),
        ({"size": 4096.0}, "window.size: must be a whole number, found 4096.0. Give a count."),
        ({"size": True}, "window.size: must be a whole number, found true. Give a count."),
        ({"size": -1}, "window.size: must be from 0 to 2^64 - 1, found -1. Give a count."),
        (
            {"size": 2**64},
            "window.size: must be from 0 to 2^64 - 1, found 18446744073709551616. Give a count.",
        ),
        ([4096], "window: must be a table, found a list of 1. Give keys and values."),
        (None, "window: must be a table, found null. Give keys and values."),
    ],
)
def test_a_wrong_table_is_refused_with_where_what_found_and_cure(
    value: object, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        wire.read(spec.Window, value, "window")
    assert str(error.value) == message


@pytest.mark.parametrize("number", [-0.5, float("nan"), float("inf"), float("-inf"), -1, True, "1"])
def test_a_figure_is_a_finite_number_from_0(number: object) -> None:
    link = {"bandwidth_gb_per_s": number, "latency_us": 1}
    with pytest.raises(SpecError, match=r"^link\.bandwidth_gb_per_s: must be "):
        wire.read(cluster.NetworkLink, link, "link")


def test_a_whole_number_is_a_figure_too() -> None:
    link = wire.read(cluster.NetworkLink, {"bandwidth_gb_per_s": 25, "latency_us": 1})
    assert link == cluster.NetworkLink(bandwidth_gb_per_s=25.0, latency_us=1.0)
    assert isinstance(link.bandwidth_gb_per_s, float)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"size": NaN}', "w.json:1: size: must be a finite number, found NaN. Give a number."),
        ('{"size": Infinity}', "w.json:1: size: must be a finite number, found Infinity"),
        (
            '{"size": 1, "size": 2}',
            "w.json:1: size: given twice, on the same line. Keep one of them.",
        ),
        ("[" * 100_000, "w.json:1: nested over 32 levels. Give a flatter file."),
        ('{"size": ' + "9" * 5000 + "}", "size: must be a number of at most 4,300 digits"),
        (b'{"size": "\xff"}', "not UTF-8"),
    ],
)
def test_a_text_that_is_no_document_is_refused(text: str | bytes, what: str) -> None:
    with pytest.raises(SpecError) as error:
        wire.loads(spec.Window, text, "w.json")
    assert what in str(error.value)
    assert len(str(error.value)) < 200


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(SpecError, match="must be Unicode text"):
        wire.loads(
            report.DeviceShortage, r'{"kind":"devices","asked":1,"available":1,"cure":"\ud800"}'
        )


def test_a_document_of_another_version_is_refused_by_name() -> None:
    old = document("report") | {"schema": "autopar.report/0"}
    with pytest.raises(SpecError, match=r'^schema: must be one of autopar\.report/1, found "autop'):
        wire.read(report.Report, old)
    del old["schema"]
    with pytest.raises(AutoparError, match=r"^schema: missing key"):
        wire.read(report.Report, old)


@pytest.mark.parametrize("name", schema.DOCUMENTS)
def test_the_published_schema_is_the_dataclasses(name: str) -> None:
    from pathlib import Path

    import autopar

    file = Path(autopar.__file__).parent / "schemas" / f"{name}.schema.json"
    cure = f"run: autopar schema {name} > python/autopar/schemas/{file.name}"
    assert file.read_text("utf-8") == schema.text(schema.DOCUMENTS[name]), cure


@pytest.mark.parametrize("module", [spec, report, graph, sharding])
def test_every_field_of_every_document_is_explained(module: Any) -> None:
    for cls in vars(module).values():
        if dataclasses.is_dataclass(cls) and isinstance(cls, type):
            assert list(schema.descriptions(cls)) == [f.name for f in dataclasses.fields(cls)]
