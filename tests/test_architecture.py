"""The order of the tree: a file uses only what stands above it in its list.

The two lists are the architecture. A new file takes a place in one of them, under everything that
it uses; a use of something that stands lower is a knot, to be untied rather than listed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUST = ROOT / "rust/core/src"
PYTHON = ROOT / "python/autopar"

RUST_ORDER = """
    units error
    spec::model spec::workload spec::exchange spec::attention spec::cluster spec::kernels
    spec::framework::bytes spec::framework::fused spec::framework::held
    spec::framework::offload spec::framework::orthogonal spec::framework::overlap spec::framework
    spec::problem
    spec::tensors spec
    plan plan::rules
    estimate::flops estimate::torus estimate::choice estimate::collective estimate::chain
    estimate::dispatch estimate::compute estimate::fused_attention estimate::shard
    estimate::shortest estimate::host estimate::pass
    testing
    estimate::layer estimate::repeats estimate::block estimate::casts estimate::fills
    estimate::residual
    estimate::joined
    estimate::launches estimate::gathers estimate::selective estimate::attention
    estimate::loads estimate::permutation estimate::stash estimate::routing estimate::exchange
    estimate::experts
    estimate::memory estimate::longest
    estimate::pipeline::order
    estimate::pipeline estimate::pipeline::late estimate::pipeline::tape
    estimate::orthogonal estimate::replica estimate::servers estimate::least
    estimate::stage estimate::stage::held estimate::stage::parts
    estimate
    search::watch search::report search::cell search::counts search::ends search::space
    search::bound search::stall search::room search::weights search::relax search::any_order
    search::paths search::caps search::places
    search::holds search::pace search::stages search::paces search::labels
    search::entry search::passage search::swiftest search::prices
    search::guess search::descent search::best search::entries search::mixed search::devices
    search::compositions search::family search::walk search::enumerate
    search::throughput search::octaves search::shapes search::sieve search::known
    search::replicas search::sizes
    search::nearest search
    graph::loops graph::form graph::ir graph::problem graph::slices graph::uneven graph::layout
    graph::strategy graph::packed graph::reshard graph::backward
    graph::price graph::work graph::routes graph::view graph::fixed graph::cost
    graph::overlap graph::fusion graph::communications graph::stage_communications graph::answer
    graph::minplus graph::eliminate graph::completion graph::coarse graph::charged graph::front
    graph::dp
    graph::ilp graph::recursive graph::propagate graph::double_recursive graph::servers
    graph::transformer graph::transformer::attention graph::transformer::mlp graph
    calibrate::figure calibrate::point calibrate::least calibrate
    bulk reading wire lib
""".split()

PYTHON_ORDER = """
    errors lines texts
    cluster held framework spec bulk report fit forms graph sharding placement wire schema files
    protobuf entries catalog entry_files
    points
    runs.rx runs.releases runs.rows runs runs.said runs.formats runs.anatomy runs.joined
    runs.attention runs.loads runs.remat runs.hardware runs.shelf runs.trained runs.exchange
    runs.operators
    runs.losses runs.stored runs.orthogonal runs.as_run runs.checkpoints runs.recompute
    runs.stages runs.shards
    frontends frontends.apss
    frontends.hf.config frontends.hf.parts frontends.hf.llamas frontends.hf.mixtures
    frontends.hf.gpts frontends.hf
    frontends.shell_words frontends.shell frontends.places frontends.launch
    frontends.mindformers_operators frontends.mindformers_recompute
    frontends.megatron_arguments frontends.megatron_model
    frontends.megatron frontends.mindformers frontends.deepspeed frontends.torchtitan
    frontends.launches
    frontends.atc frontends.mindspore_strategy
    frontends.draft frontends.onnx_forms frontends.onnx
    frontends.graphdef_tensors frontends.graphdef_forms frontends.graphdef
    frontends.graph_file
    ilp
    planner.question planner.plans planner.answers planner.operators planner.measured planner
    runs.setups validate calibrate
    render render.text render.terminal render.trace render.errors render.fit
    export export.job export.mindformers_recompute
    export.mindspore_strategy export.mindspore_operators
    compat compat.keys compat.context compat.settings compat.effects compat.operators
    compat.mindspore compat.graphs compat.mindformers compat.plans compat.cells compat.functional
    render.sharding render.placement
    export.megatron export.mindformers export.mindspore export.deepspeed
    export.torchtitan export.accelerate export.flagscale export.kubernetes export.launchers
    export.sharding_table
    partition
    flags writing
    cli.ends cli.asking cli.launchers cli.search cli.jobs cli.operators cli.measured cli.catalogs
    cli
    __init__ __main__
""".split()

# Crates and packages that some places own; nothing else names them.
RUST_OWNERS: dict[str, set[str]] = {
    "serde": {
        "calibrate::*",
        "calibrate",
        "units",
        "spec::*",
        "spec::framework::*",
        "plan",
        "estimate::*",
        "estimate",
        "search::report",
        "search::sizes",
        "reading",
        "wire",
        "graph::form",
        "graph::ir",
        "graph::problem",
        "graph::servers",
        "graph::transformer",
    },
    "serde_json": {"reading", "wire"},
    "serde_path_to_error": {"reading"},
    "rayon": {"calibrate", "graph::coarse", "graph::cost", "graph::routes", "search::*", "wire"},
    "std::time": {"search::watch"},
    "std::fs": set(),
    "std::env": set(),
    "std::net": set(),
    "std::process": set(),
    "rand": set(),
    "pyo3": set(),
}
PYTHON_OWNERS = {
    "autopar._core": {"planner.*"},
    "click": {"cli", "cli.*", "flags"},
    "highspy": {"ilp"},
    "rich": {"render.terminal"},
    "yaml": {"lines", "texts", "export.job"},
}

# What the core does not have: global state.
GLOBAL = re.compile(r"\bthread_local!|^[\w() ]*\bstatic \w+", re.M)


def resolve(path: list[str], known: list[str], root: str, separator: str) -> str:
    """Returns the longest module of `known` that `path` lies in; `root` if it lies in none."""
    for end in range(len(path), 0, -1):
        if (module := separator.join(path[:end])) in known:
            return module
    return root


def knots(
    module: str,
    inside: set[str],
    outside: set[str],
    order: list[str],
    owners: dict[str, set[str]],
) -> list[str]:
    """Returns the uses that break the order or an ownership; `a::*` and `a.*` own as all of `a`."""
    names = {module, re.sub(r"(::|\.)\w+$", r"\1*", module)}
    return [
        *(
            f"{module} uses {used}, which stands below it"
            for used in sorted(inside)
            if order.index(used) > order.index(module)
        ),
        *(
            f"{module} uses {name}, which is for {' or '.join(sorted(owners[name])) or 'no file'}"
            for name in sorted(outside & owners.keys())
            if not names & owners[name]
        ),
    ]


# --- Rust


def rust_code(text: str) -> str:
    """Returns the code of a file without its comments and its unit tests."""
    text = text.split("#[cfg(test)]\nmod ")[0]
    return re.sub(r"//[^\n]*", "", text)


def rust_paths(code: str) -> Iterator[list[str]]:
    """Yields every path in the code, those of nested `use` lists one by one."""
    yield from (re.split(r"\s*::\s*", path) for path in re.findall(r"\w+(?:\s*::\s*\w+)+", code))
    for tree in re.findall(r"\buse\s+([^;]+);", code):
        prefixes: list[list[str]] = [[]]
        names: list[str] = []
        for token in re.findall(r"\w+|[{},]", re.sub(r"\bas\s+\w+", "", tree)):
            if token == "{":
                prefixes.append(prefixes[-1] + names)
            elif token in ",}":
                if names:
                    yield prefixes[-1] + names
                if token == "}":
                    prefixes.pop()
            names = [*names, token] if token not in "{,}" else []
        if names:
            yield names


def rust_uses(module: str, code: str) -> tuple[set[str], set[str]]:
    """Returns the modules of the core and the outside crates that a file names."""
    here = [] if module == "lib" else module.split("::")
    inside, outside = set(), set()
    for first, *rest in rust_paths(code):
        ups = 0
        while rest and first == "super":
            ups, first, rest = ups + 1, rest[0], rest[1:]
        if ups:
            inside.add(resolve([*here[:-ups], first, *rest], RUST_ORDER, "lib", "::"))
        elif first in ("crate", "self"):
            base = here if first == "self" else []
            inside.add(resolve([*base, *rest], RUST_ORDER, "lib", "::"))
        elif (child := "::".join([*here, first])) in RUST_ORDER:
            inside.add(resolve([*here, first, *rest], RUST_ORDER, child, "::"))
        else:
            outside.add(f"std::{rest[0]}" if first == "std" and rest else first)
    return inside - {module}, outside


def rust_files() -> dict[str, str]:
    """Returns the code of each module of the core."""
    files = {}
    for path in sorted(RUST.rglob("*.rs")):
        parts = path.relative_to(RUST).with_suffix("").parts
        name = "::".join(parts[:-1] if parts[-1] == "mod" else parts)
        files[name] = rust_code(path.read_text("utf-8"))
    return files


def rust_knots(module: str, code: str) -> list[str]:
    """Returns what a file of the core uses or has and may not."""
    inside, outside = rust_uses(module, code)
    return [
        *knots(module, inside, outside, RUST_ORDER, RUST_OWNERS),
        *(f"{module} has {found.strip()}" for found in GLOBAL.findall(code)),
    ]


# --- Python


def python_uses(module: str, code: str) -> tuple[set[str], set[str]]:
    """Returns the modules of the package and the outside packages that a file imports."""
    package = module.split(".")[:-1]
    if module in PYTHON_ORDER and any(name.startswith(f"{module}.") for name in PYTHON_ORDER):
        package = module.split(".")
    names: list[list[str]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = ["autopar", *package[: len(package) - node.level + 1], *base]
            names += [[*base, alias.name] for alias in node.names]
    inside, outside = set(), set()
    for first, *rest in names:
        if first != "autopar":
            outside.add(first)
        elif rest[:1] == ["_core"]:
            outside.add("autopar._core")
        else:
            inside.add(resolve(rest, PYTHON_ORDER, "__init__", "."))
    return inside - {module}, outside


def python_files() -> dict[str, str]:
    """Returns the text of each module of the package."""
    files = {}
    for path in sorted(PYTHON.rglob("*.py")):
        parts = path.relative_to(PYTHON).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        files[name] = path.read_text("utf-8")
    return files


def python_knots(module: str, code: str) -> list[str]:
    """Returns what a file of the package imports and may not."""
    inside, outside = python_uses(module, code)
    return knots(module, inside, outside, PYTHON_ORDER, PYTHON_OWNERS)


# --- The tests


def test_every_rust_file_has_its_place_in_the_order() -> None:
    assert sorted(rust_files()) == sorted(RUST_ORDER)


def test_every_python_file_has_its_place_in_the_order() -> None:
    assert sorted(python_files()) == sorted(PYTHON_ORDER)


@pytest.mark.parametrize("module", RUST_ORDER)
def test_a_rust_file_uses_only_what_stands_above_it(module: str) -> None:
    assert rust_knots(module, rust_files().get(module, "")) == []


@pytest.mark.parametrize("module", PYTHON_ORDER)
def test_a_python_file_imports_only_what_stands_above_it(module: str) -> None:
    assert python_knots(module, python_files().get(module, "")) == []


def test_pyo3_is_named_only_by_the_door() -> None:
    assert "pyo3" not in (ROOT / "rust/core/Cargo.toml").read_text("utf-8")
    assert "pyo3" in (ROOT / "rust/py/Cargo.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("module", "code", "knot"),
    [
        ("units", "use crate::error::Error;", "units uses error,"),
        ("estimate", "use crate::{plan::Plan, search::{space, bound as b}};", "search::space,"),
        ("estimate", "use crate::{plan::Plan, search::{space, bound as b}};", "search::bound,"),
        ("estimate::layer", "use super::{memory::items, collective};", "uses estimate::memory,"),
        ("estimate::layer", "fn f() -> super::Estimate {}", "estimate::layer uses estimate,"),
        ("spec::model", "fn f(p: &crate::plan::Plan) {}", "spec::model uses plan,"),
        ("plan", "use crate::Error;", "plan uses lib,"),
        ("search::space", "use serde::Serialize;", "search::space uses serde,"),
        ("estimate", "let text = std::fs::read(path);", "estimate uses std::fs,"),
        (
            "search::space",
            "use std::{fmt, time::Instant};",
            "std::time, which is for search::watch",
        ),
        ("search::watch", "use std::env;", "std::env, which is for no file"),
        ("search", "static BEST: Mutex<u64> = Mutex::new(0);", "search has static BEST"),
    ],
)
def test_a_knot_in_rust_is_found(module: str, code: str, knot: str) -> None:
    assert any(knot in found for found in rust_knots(module, rust_code(code)))


@pytest.mark.parametrize(
    "code",
    [
        "use crate::{plan::Plan, spec::{cluster::Link, model}, units::*};",
        "use super::compute;",
        "fn f(name: &'static str) {}",
        "// crate::search::space",
        "#[cfg(test)]\nmod tests { use crate::search::search; }",
    ],
)
def test_what_stands_above_may_be_used_in_rust(code: str) -> None:
    assert rust_knots("estimate::memory", rust_code(code)) == []


@pytest.mark.parametrize(
    ("module", "code", "knot"),
    [
        ("spec", "from autopar.wire import dumps", "spec uses wire,"),
        ("spec", "from . import catalog", "spec uses catalog,"),
        ("spec", "def f():\n    import autopar", "spec uses __init__,"),
        ("points", "from .cli import main", "points uses cli,"),
        ("cli", "from autopar import _core", "cli uses autopar._core,"),
        ("cli", "import highspy", "cli uses highspy,"),
        ("wire", "from click import echo", "wire uses click,"),
    ],
)
def test_a_knot_in_python_is_found(module: str, code: str, knot: str) -> None:
    assert any(knot in found for found in python_knots(module, code))


@pytest.mark.parametrize(
    "code",
    ["import json", "from autopar import _core, spec", "from .plans import plan", "import numpy"],
)
def test_what_stands_above_may_be_imported_in_python(code: str) -> None:
    assert python_knots("planner.answers", code) == []
