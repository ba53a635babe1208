"""The drop-in context: what the real one did, the older release's ranges, the only state."""

import ast
import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import autopar
from autopar.compat import mindspore
from autopar.compat.keys import KEYS
from context_outcomes import GOLDEN, outcome

HEAD, *LINES = GOLDEN.read_text("utf-8").splitlines()
DEFAULTS: dict[str, str] = json.loads(HEAD)["defaults"]


@pytest.fixture(autouse=True)
def _defaults_after() -> Iterator[None]:
    yield
    mindspore.version = "2.10"
    outcome([])


def test_a_context_starts_at_mindspores_defaults() -> None:
    assert outcome([])["state"] == DEFAULTS


@pytest.mark.parametrize("line", LINES)
def test_each_recorded_case_comes_out_as_in_mindspore(line: str) -> None:
    case = json.loads(line)
    ours = outcome(ast.literal_eval(case["calls"]))
    assert ours["raises"] == case["raises"]
    assert ours["state"] == DEFAULTS | case["changed"]
    assert ours["folders"] == case.get("folders", [])


def test_the_recorded_cases_set_every_key_and_refuse_a_value_of_each() -> None:
    cases = [json.loads(line) for line in LINES]
    single = [(ast.literal_eval(case["calls"]), case["raises"]) for case in cases]
    for outcomes in (True, False):
        seen = {
            name
            for calls, raises in single
            for keywords, raised in zip(calls, raises, strict=True)
            for name in keywords or {}
            if (raised is None) == outcomes
        }
        assert seen >= KEYS.keys()


def test_only_keywords_are_taken() -> None:
    with pytest.raises(TypeError):
        mindspore.set_auto_parallel_context(8)  # type: ignore[call-arg]


def test_what_is_read_can_be_changed_without_changing_the_context() -> None:
    mindspore.get_auto_parallel_context("comm_fusion")["openstate"] = False
    assert mindspore.get_auto_parallel_context("comm_fusion")["openstate"] is True


class Layout:
    """Stands for MindSpore's Layout: all that the context asks of it."""

    def __init__(self, interleaved: bool) -> None:
        self.interleaved = interleaved

    def to_dict(self) -> dict[str, Any]:
        return {"interleaved_parallel": self.interleaved}


def test_a_dataset_strategy_of_layouts_is_kept_and_an_interleaved_one_refused() -> None:
    layouts = (Layout(False),)
    mindspore.set_auto_parallel_context(dataset_strategy=layouts)
    assert mindspore.get_auto_parallel_context("dataset_strategy") is layouts
    mindspore.reset_auto_parallel_context()
    assert mindspore.get_auto_parallel_context("dataset_strategy") == "data_parallel"
    with pytest.raises(ValueError, match="interleaved"):
        mindspore.set_auto_parallel_context(dataset_strategy=(Layout(True),))


def test_release_2_3_has_the_ranges_of_its_documentation() -> None:
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"device_num": 4097}, ValueError),
        (
            {"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "seqpipe"}},
            ValueError,
        ),
        ({"comm_fusion": {"allgather": {"mode": "size", "config": 0}}}, ValueError),
        ({"parallel_optimizer_config": {"optimizer_level": "level1"}}, ValueError),
    ]
    for keywords, error in refused:
        mindspore.version = "2.10"
        mindspore.set_auto_parallel_context(**keywords)
        mindspore.version = "2.3"
        with pytest.raises(error):
            mindspore.set_auto_parallel_context(**keywords)
    mindspore.set_auto_parallel_context(device_num=4096)
    assert mindspore.get_auto_parallel_context("device_num") == 4096


@pytest.mark.parametrize(
    ("release", "error", "says"),
    [
        ("2.4", ValueError, r'version: must be one of "2.10", "2.3", found "2.4"'),
        ("", ValueError, r'version: must be one of "2.10", "2.3", found ""'),
        (2.3, TypeError, r"version: must be a text, one of .*, found 2\.3"),
        (None, TypeError, r"version: must be a text, one of .*, found null"),
        ([], TypeError, r"version: must be a text, one of .*, found a list of 0"),
    ],
)
def test_an_unknown_release_is_refused_when_it_is_assigned(
    release: Any, error: type[Exception], says: str
) -> None:
    mindspore.version = "2.3"
    mindspore.set_auto_parallel_context(device_num=8)
    with pytest.raises(error, match=says):
        mindspore.version = release
    assert mindspore.version == "2.3"
    assert mindspore.get_auto_parallel_context("device_num") == 8
    with pytest.raises(ValueError, match="device_num"):
        mindspore.set_auto_parallel_context(device_num=4097)


# --- The only state


def modules() -> list[ModuleType]:
    """Returns every module of the package that can be imported without starting a command."""
    found = pkgutil.walk_packages(autopar.__path__, "autopar.")
    return [importlib.import_module(m.name) for m in found if not m.name.endswith("__main__")]


def mutable(value: object) -> bool:
    """Returns whether a value is an object of one of this package's classes that can change."""
    kind = type(value)
    if not kind.__module__.startswith("autopar") or isinstance(value, type | ModuleType):
        return False
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    return not frozen and not hasattr(value, "__slots__")


def changed_in_functions(source: str) -> list[str]:
    """Returns the names of a module that its functions rebind, or whose content they change."""
    tree = ast.parse(source)
    outer = {
        target.id
        for node in tree.body
        for target in (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if isinstance(target, ast.Name)
    }
    changing = {"append", "extend", "add", "update", "pop", "clear", "setdefault", "remove"}
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Global):
            found += node.names
        parts = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [node.func] if node.func.attr in changing else []
        for part in parts:
            if isinstance(part, (ast.Subscript, ast.Attribute)) and isinstance(
                part.value, ast.Name
            ):
                found.append(part.value.id) if part.value.id in outer else None
    return found


def test_the_parallel_context_is_the_only_global_state_of_the_package() -> None:
    objects = [
        f"{module.__name__}.{name}"
        for module in modules()
        for name, value in vars(module).items()
        if mutable(value)
    ]
    assert objects == ["autopar.compat.mindspore._context"]


def test_no_function_changes_a_name_of_its_module() -> None:
    for module in modules():
        if module.__file__ and module.__file__.endswith(".py"):
            source = Path(module.__file__).read_text("utf-8")
            assert changed_in_functions(source) == [], module.__name__


@pytest.mark.parametrize(
    "code",
    [
        "seen = {}\ndef f():\n    seen['a'] = 1",
        "seen = []\ndef f():\n    seen.append(1)",
        "seen = 0\ndef f():\n    global seen\n    seen = 1",
    ],
)
def test_a_function_that_keeps_something_in_its_module_is_found(code: str) -> None:
    assert changed_in_functions(code) == ["seen"]
