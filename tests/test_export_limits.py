"""The limits that hold a search to a launcher, and the best plans that it finds there."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import autopar
from autopar import Ranked, Recompute, SpecError
from autopar.export import launchers
from autopar.export.job import Job
from autopar.export.launchers import LAUNCHERS
from autopar.spec import Options
from exported import ASCEND, LLAMA, job, problem

# A plan for each field of `Options` and value that sets it, on the way from a plan that all say.
SHOWN: dict[tuple[str, Any], dict[str, Any]] = {
    ("schedules", "1f1b"): {"pp": 2},
    ("schedules", "interleaved"): {"pp": 2, "vpp": 2},
    ("schedules", "gpipe"): {"pp": 2, "schedule": "gpipe"},
    ("schedules", "zb-h1"): {"pp": 2, "schedule": "zb-h1"},
    ("schedules", "zb-v"): {"pp": 2, "vpp": 2, "schedule": "zb-v"},
    **{("zero", zero): {"zero": zero} for zero in range(4)},
    ("vpp", 1): {"pp": 2},
    ("vpp", 2): {"pp": 2, "vpp": 2},
    ("tp", 2): {"tp": 2, "sp": False},
    ("cp", 2): {"cp": 2, "zero": 3},
    ("sp", True): {"tp": 2, "sp": True},
    ("recompute", "selective"): {"recompute": Recompute("selective")},
    ("recompute", "block"): {"recompute": Recompute("block", 2)},
    ("recompute", "uniform"): {"recompute": Recompute("uniform", 1)},
    ("activation_offload", True): {"offload": 1},
    ("uneven_layers", True): {"pp": 2, "layers": [15, 17]},
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_no_limit_of_a_search_allows_is_not_supported(name: str) -> None:
    subject = ASCEND if name.startswith("mind") else LLAMA
    for (field, value), degrees in SHOWN.items():
        allowed = [limits.get(field, ()) for limits in LAUNCHERS[name].limits]
        if any(part == () or part is True or (part and value in part) for part in allowed):
            continue
        assert LAUNCHERS[name].supports(job(problem(*subject), **degrees)), (field, value)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_value_that_the_limits_list_is_supported_in_some_plan(name: str) -> None:
    subject = ASCEND if name.startswith("mind") else LLAMA
    for (field, value), degrees in SHOWN.items():
        for limits in LAUNCHERS[name].limits:
            listed = limits.get(field, ())
            if isinstance(listed, bool) or value not in listed or (name, value) in SOME_LAYERS:
                continue
            variants = [{**degrees, **zero} for zero in ({}, {"zero": 0}, {"zero": 1}, {"zero": 3})]
            asked = problem(*subject)
            assert any(not LAUNCHERS[name].supports(job(asked, **v)) for v in variants), value


# torchtitan says a block only where it covers every layer, and its own selective recompute alone;
# MindFormers that of operators by name.
SOME_LAYERS = {
    ("torchtitan", "block"),
    ("torchtitan", "selective"),
    ("mindformers", "selective"),
}


@cache
def fastest_of_all(subject: tuple[str, str, str]) -> tuple[Ranked, ...]:
    return autopar.solve(replace(problem(*subject), options=Options(top=1000))).ranked


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_best_plan_found_for_a_launcher_is_one_that_it_can_say(name: str) -> None:
    subject = ASCEND if name.startswith("mind") else LLAMA
    asked = problem(*subject)
    [best], _ = launchers.fastest(name, launchers.questions(name, asked), autopar.solve)
    assert LAUNCHERS[name].supports(best) == []
    # No plan of the whole space that the launcher can say is faster.
    for ranked in fastest_of_all(subject):
        if ranked.estimate.step_ps < best.estimate.step_ps:
            assert LAUNCHERS[name].supports(Job(asked, ranked.plan, ranked.estimate))


def test_the_best_plans_found_for_a_launcher_are_those_of_the_whole_space() -> None:
    # Its two parts share plans of one rank, and the whole space lists plans that it cannot say.
    asked = problem("llama2-7b", "a100:64", "deepspeed")
    whole = autopar.solve(replace(asked, options=Options(top=2000))).ranked
    jobs = [Job(asked, ranked.plan, ranked.estimate) for ranked in whole]
    said = [job.estimate.step_ps for job in jobs if not LAUNCHERS["deepspeed"].supports(job)]
    found, _ = launchers.fastest(
        "deepspeed", launchers.questions("deepspeed", asked), autopar.solve, 12
    )
    assert len({job.plan for job in found}) == 12
    times = [job.estimate.step_ps for job in found]
    assert times == sorted(times)
    # Beside an option that the launcher has not, the space lists only the faster plan of the two.
    assert all(ours <= theirs for ours, theirs in zip(times, said, strict=False))


def test_deepspeed_is_offered_what_one_replica_may_do_without_zero() -> None:
    asked = problem("llama3.2-1b", "h100:8", "deepspeed")
    asked = replace(asked, options=Options(dp=(1,), cp=(1,)))
    parts = launchers.questions("deepspeed", asked)
    [best], _ = launchers.fastest("deepspeed", parts, autopar.solve)
    assert (best.plan.dp, best.plan.zero) == (1, 0)


def test_limits_that_contradict_the_flags_are_an_error() -> None:
    with pytest.raises(SpecError, match="megatron can say nothing that the flags allow"):
        launchers.restrict(Options(schedules=("gpipe",)), "megatron")
