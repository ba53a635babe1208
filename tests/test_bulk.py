"""`estimate_many`: the same figures as `estimate`, for a table of plans."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autopar
from autopar import bulk
from autopar.spec import Problem

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mixed() -> Problem:
    return autopar.problem(
        "llama2-7b", "a800:8,h800:8", global_batch_size=64, sequence_length=4096, devices=16
    )


def test_columns_that_are_left_out_have_the_defaults_of_a_plan(mixed: Problem) -> None:
    choices: list[dict[str, Any]] = [
        {"tp": 2, "pp": 4, "zero": 1},
        {"tp": 1, "pp": 4, "vpp": 2, "mbs": 2},
        {"tp": 8, "cp": 2, "zero": 3},
    ]
    names = ("tp", "cp", "pp", "vpp", "mbs", "zero")
    table = np.array(
        [tuple(choice.get(name, name != "zero") for name in names) for choice in choices],
        dtype=[(name, np.int64) for name in names],
    )
    # One kind of chip has no more than 8 devices: the stages are told one by one.
    layers = np.array([[8, 8, 8, 8], [8, 8, 8, 8], [32, 0, 0, 0]])
    chips = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [1, 9, 9, 9]])
    costs = autopar.estimate_many(mixed, table, layers=layers, chips=chips)
    for cost, choice, on in zip(costs[:2], choices[:2], chips[:2].tolist(), strict=True):
        expected = autopar.estimate(mixed, autopar.plan(mixed, chips=on, **choice))
        assert (int(cost["step_ps"]), float(cost["step_s"])) == (expected.step_ps, expected.step_s)
        assert float(cost["tokens_per_s"]) == expected.tokens_per_s
        assert float(cost["mfu"]) == expected.mfu
        fullest = min(expected.stages, key=lambda s: s.capacity_bytes - s.allocated_bytes)
        assert int(cost["allocated_bytes"]) == fullest.allocated_bytes
        assert int(cost["capacity_bytes"]) == fullest.capacity_bytes
        assert expected.stages[int(cost["stage"])] == fullest
        assert bool(cost["fits"]) == (not expected.violations)
    # 16 h800 are asked of 8.
    assert autopar.VIOLATIONS[int(costs["violation"][2])] == "limit"
    assert int(costs["step_ps"][2]) == 0
    assert np.isnan(costs["step_s"][2])


def test_uneven_stages_are_told_by_their_layers() -> None:
    problem = autopar.problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
    table = np.array([(4,), (2,)], dtype=[("pp", np.uint8)])
    costs = autopar.estimate_many(problem, table, layers=[[7, 9, 9, 7], [15, 17, 0, 0]])
    plans = [
        autopar.plan(problem, pp=4, layers=[7, 9, 9, 7]),
        autopar.plan(problem, pp=2, layers=[15, 17]),
    ]
    expected = [autopar.estimate(problem, plan).step_ps for plan in plans]
    assert costs["step_ps"].tolist() == expected


def test_numbers_beyond_32_bits_are_illegal_and_not_wrapped() -> None:
    problem = autopar.problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
    huge = np.array([(2**32 + 1,), (2**63 - 1,), (-1,), (0,)], dtype=[("tp", np.int64)])
    costs = autopar.estimate_many(problem, huge)
    assert [autopar.VIOLATIONS[code] for code in costs["violation"].tolist()] == ["degrees"] * 4
    top = np.array([(2**64 - 1,)], dtype=[("pp", np.uint64)])
    assert not autopar.estimate_many(problem, top)["fits"][0]
    assert len(autopar.estimate_many(problem, huge[:0])) == 0


@pytest.mark.parametrize(
    ("table", "more", "says"),
    [
        (np.zeros(2), {}, "plans: must be a structured array"),
        (np.zeros(2, [("tensor", int)]), {}, 'plans: has an unknown column "tensor"'),
        (np.ones(2, [("tp", float)]), {}, "plans.tp: must hold whole numbers, found float64"),
        (np.full(2, 9, [("zero", int)]), {}, r"plans\[0\].zero: must be from 0 to 3, found 9"),
        (np.full(2, 1, [("chip", int)]), {}, r"plans\[0\].chip: must be from 0 to 0, found 1"),
        (np.ones(2, [("tp", int)]), {"layers": [32, 32]}, "layers: must have two dimensions"),
        (np.ones(2, [("tp", int)]), {"layers": [[32]]}, "layers: must have one line for each of 2"),
        (np.ones(2, [("tp", int)]), {"chips": [[0], [0]]}, "chips: given without layers"),
    ],
)
def test_a_wrong_table_is_refused_by_its_place(table: Any, more: Any, says: str) -> None:
    problem = autopar.problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)
    with pytest.raises(autopar.SpecError, match=says):
        autopar.estimate_many(problem, table, **more)


def test_columns_codes_and_rules_are_those_of_the_core() -> None:
    table = (ROOT / "rust/core/src/bulk.rs").read_text("utf-8")
    columns = re.search(r"COLUMNS: \[&str; \d+\] = \[(.*?)\];", table, re.S)
    assert columns is not None
    assert tuple(re.findall(r'"(\w+)"', columns[1])) == bulk.COLUMNS
    order = re.search(r"SCHEDULES: \[Schedule; 5\] = \[(.*?)\];", table, re.S)
    assert order is not None
    names = dict(
        re.findall(
            r'rename = "([\w-]+)"\)\]\s+(\w+),',
            (ROOT / "rust/core/src/spec/problem.rs").read_text("utf-8"),
        )
    )
    said = {variant: name for name, variant in names.items()}
    codes = tuple(said[v] for v in re.findall(r"Schedule::(\w+)", order[1]))
    assert codes == bulk.SCHEDULES
    rules = re.search(
        r"pub enum Rule \{(.*?)\n\}",
        (ROOT / "rust/core/src/plan/rules.rs").read_text("utf-8"),
        re.S,
    )
    assert rules is not None
    variants = re.findall(r"^    (\w+)(?: = 1)?,$", rules[1], re.M)
    words = [re.sub(r"(?<!^)([A-Z])", r"-\1", variant).lower() for variant in variants]
    assert words == [bulk.VIOLATIONS[code] for code in range(1, len(words) + 1)]


def test_numpy_is_imported_only_when_a_table_is_estimated() -> None:
    code = "import sys, autopar; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
