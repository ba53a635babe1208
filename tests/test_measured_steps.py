"""Steps of PyTorch's own trainer, and kernels of Megatron's, against their estimates.

Neither was timed with a network. `te_layers` has kernels of Megatron-Core 0.19.2 with Transformer
Engine 2.20 on one H100 (700 W), told apart by PyTorch 2.11's profiler in November 2026.
"""

import csv
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

import autopar
from autopar import planner
from autopar.planner.question import problem
from autopar.report import Estimate
from autopar.runs import read_runs
from autopar.spec import Problem
from autopar.validate import check

STEPS = Path(__file__).parent / "data/steps/titanh100.csv"
KERNELS = Path(__file__).parent / "data/operators/te_layers.csv"


def without_network(problem: Problem) -> Problem:
    """Returns a problem whose links take no time: the ranks beside the one timed are not there."""
    group = problem.cluster.groups[0]
    fast = dict.fromkeys(
        ("all_reduce_gb_per_s", "all_gather_gb_per_s", "all_to_all_gb_per_s", "p2p_gb_per_s"), 1e6
    )
    link = replace(group.chip.link, latency_us=0.001, processor_share=0.0, **fast)
    groups = (replace(group, chip=replace(group.chip, link=link)),)
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def test_steps_of_torchtitan_take_what_they_were_timed_at() -> None:
    errors: dict[str, float] = {}
    for row in check(read_runs(STEPS)):
        assert row.setup is not None, row.skipped
        assert row.measured_step_s is not None
        estimate = autopar.estimate(without_network(row.setup.problem), row.setup.plan)
        errors[row.run.id] = estimate.step_s / row.measured_step_s - 1.0
    assert len(errors) == 12
    # What fills the gathered tensors takes 4 to 11 % of a step, most where there are experts, and
    # is no part of the estimate.
    assert mean(map(abs, errors.values())) < 0.08, errors
    assert max(map(abs, errors.values())) < 0.15, errors


def llama_8b(**changed: object) -> Estimate:
    """Returns a step of 8,192 tokens on each of eight H100 that wait for no host."""
    asked = problem("llama3-8b", "h100:8", global_batch_size=8, sequence_length=8192)
    model = replace(asked.model, position=changed.pop("position", "rope"))
    framework = replace(asked.framework, launch_us=0.0, **changed)
    asked = replace(asked, model=model, framework=framework)
    return autopar.estimate(asked, planner.plan(asked, dp=8))


def timed(layer: str, direction: str, *kernels: str) -> float:
    """Returns the microseconds that kernels of a layer took together."""
    with KERNELS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == layer]
    found = {
        row["kernel"]: float(row["microseconds"])
        for row in rows
        if row["pass"] == direction and row["precision"] in ("bf16", "fp32")
    }
    return sum(found[kernel] for kernel in kernels)


def test_kernels_of_transformer_engine_take_what_they_were_timed_at() -> None:
    whole = llama_8b()
    without = {
        ("query copy", "value copy"): (llama_8b(copies_packed_heads=False), ("join",)),
        ("rotation",): (llama_8b(position="learned"), ("rotation",)),
    }
    for there, (less, back) in without.items():
        stage, other = whole.stages[0], less.stages[0]
        forward = (stage.forward_ps - other.forward_ps) / 32e6
        backward = (stage.backward_ps - other.backward_ps) / 32e6
        assert forward == pytest.approx(timed("llama-8b", "forward", *there), rel=0.06)
        assert backward == pytest.approx(timed("llama-8b", "backward", *back), rel=0.06)


def test_the_end_of_a_step_of_megatron_takes_what_it_was_timed_at() -> None:
    # Of 872 million parameters of 8,030 million.
    end = llama_8b().time.optimizer_ps / 1e6 * 872.448 / 8030.261
    assert end == pytest.approx(
        timed("optimizer", "step", "norm", "clip", "adam", "copy", "zero"), rel=0.04
    )
