"""A search driven by the parallel context: each key that acts, and that the plan obeys it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import autopar
from autopar import Problem, SpecError
from autopar.compat import mindspore, operators
from autopar.compat.keys import KEYS
from autopar.export.job import Job


@pytest.fixture(autouse=True)
def _defaults_around() -> Iterator[None]:
    mindspore.reset_auto_parallel_context()
    yield
    mindspore.reset_auto_parallel_context()


def question(model: str = "llama2-7b", batch: int = 64, **keys: Any) -> mindspore.Question:
    """Returns what a context asks of 16 devices, semi-automatic unless it says otherwise."""
    mindspore.reset_auto_parallel_context()
    usual = {"parallel_mode": "semi_auto_parallel", "device_num": 16}
    mindspore.set_auto_parallel_context(**(usual | keys))
    return mindspore.question(model, "ascend_910b", global_batch_size=batch, sequence_length=4096)


def plans(asked: mindspore.Question, top: int = 50) -> list[autopar.Plan]:
    """Returns the plans of a question, of which there must be some."""
    options = replace(asked.problem.options, top=top)
    report = autopar.solve(replace(asked.problem, options=options))
    assert report.ranked
    return [ranked.plan for ranked in report.ranked]


def changed(asked: mindspore.Question, key: str) -> dict[str, Any]:
    """Returns what a key set in the problem."""
    return next(dict(effect.changes) for effect in asked.effects if effect.key == key)


def test_every_key_has_an_effect_or_a_reason_for_none() -> None:
    effects = question().effects
    named = {effect.key.split(".")[0] for effect in effects}
    assert named == KEYS.keys()
    assert all(effect.because for effect in effects)
    assert len({effect.key for effect in effects}) == len(effects)


# Each key that acts, its value, and the fields of the problem that then differ from the default's.
ACTING: list[tuple[dict[str, Any], set[str]]] = [
    ({"device_num": 8}, {"cluster"}),
    ({"parallel_mode": "data_parallel"}, {"options"}),
    ({"gradient_fp32_sync": False}, {"framework"}),
    ({"pipeline_stages": 4}, {"options"}),
    ({"dataset_strategy": ((4, 2), (4, 1))}, {"options"}),
    ({"enable_parallel_optimizer": True}, {"options", "framework"}),
    ({"force_fp32_communication": True}, {"framework"}),
    # Sharded, parameters of up to 64 KB stay whole.
    (
        {"optimizer_weight_shard_size": 4, "enable_parallel_optimizer": True},
        {"options", "framework"},
    ),
    (
        {
            "parallel_optimizer_config": {"optimizer_level": "level2"},
            "enable_parallel_optimizer": True,
        },
        {"options", "framework"},
    ),
    (
        {
            "pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"},
            "pipeline_stages": 2,
        },
        {"options"},
    ),
]

IDLE: list[dict[str, Any]] = [
    {"global_rank": 3},
    {"gradients_mean": True},
    {"loss_repeated_mean": False},
    {"search_mode": "dynamic_programming"},
    {"sharding_propagation": True},
    {"parameter_broadcast": True},
    {"pipeline_result_broadcast": True},
    {"auto_pipeline": True},
    {"enable_alltoall": True},
    {"parallel_optimizer_config": {"optimizer_level": "level3"}},
    {"optimizer_weight_shard_size": 4},
    {"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"}},
    {"comm_fusion": {"openstate": False}},
    {"comm_fusion": {"allgather": {"mode": "size", "config": 8}}},
    {"strategy_ckpt_config": {"load_file": "a.json"}},
    {"dataset_strategy": "full_batch"},
    {"communi_parallel_mode": "no_group_parallel"},
]


@pytest.mark.parametrize(("keys", "parts"), ACTING)
def test_a_key_that_acts_changes_these_parts_of_the_problem(
    keys: dict[str, Any], parts: set[str]
) -> None:
    usual, asked = question().problem, question(**keys).problem
    names = ("model", "cluster", "workload", "framework", "options")
    assert {name for name in names if getattr(usual, name) != getattr(asked, name)} == parts


@pytest.mark.parametrize(("kilobytes", "limit"), [(None, 65536), (0, 0), (16, 16384)])
def test_a_threshold_in_kilobytes_leaves_small_parameters_whole(
    kilobytes: int | None, limit: int
) -> None:
    config = {} if kilobytes is None else {"parallel_optimizer_threshold": kilobytes}
    asked = question(enable_parallel_optimizer=True, parallel_optimizer_config=config)
    key = "parallel_optimizer_config.parallel_optimizer_threshold"
    [effect] = [each for each in asked.effects if each.key == key]
    assert effect.changes == {"framework.whole_below_bytes": limit}
    assert asked.problem.framework.whole_below_bytes == limit


@pytest.mark.parametrize("keys", IDLE)
def test_a_key_that_does_not_act_leaves_the_problem_as_it_is(keys: dict[str, Any]) -> None:
    asked = question(**keys)
    assert asked.problem == question().problem


@pytest.mark.parametrize(("keys", "_"), ACTING)
def test_the_effects_alone_make_the_problem(keys: dict[str, Any], _: set[str]) -> None:
    asked = question(**keys)
    written: dict[str, Any] = {}
    for effect in asked.effects:
        written |= effect.changes
    for path, value in written.items():
        part: Any = asked.problem
        for name in path.split("."):
            part = getattr(part, name)
        found = list(part) if isinstance(part, tuple) else part
        if isinstance(value, list):
            assert set(found) <= set(value), path
        else:
            assert found == value, path


def test_alone_one_device_trains_whatever_their_number() -> None:
    asked = question("llama2-7b", batch=4, parallel_mode="stand_alone")
    assert asked.problem.cluster.devices == 1


def test_data_parallel_splits_the_batch_only() -> None:
    mindspore.set_auto_parallel_context(parallel_mode="data_parallel", device_num=16)
    answer = mindspore.search(
        "llama2-7b", "ascend_910b", global_batch_size=64, sequence_length=512, top=50
    )
    degrees = {
        (r.plan.dp, r.plan.tp, r.plan.cp, r.plan.pp, r.plan.zero) for r in answer.report.ranked
    }
    infeasible = answer.report.infeasible
    assert degrees == {(16, 1, 1, 1, 0)} or infeasible is not None
    sharded = question(parallel_mode="data_parallel", enable_parallel_optimizer=True, batch=16)
    assert {(plan.dp, plan.zero) for plan in plans(sharded)} == {(16, 1)}


def test_plans_have_the_stages_and_the_schedule_of_the_context() -> None:
    given = question(
        pipeline_stages=4,
        pipeline_config={"pipeline_interleave": True, "pipeline_scheduler": "gpipe"},
    )
    assert {(plan.pp, plan.schedule) for plan in plans(given)} == {(4, "gpipe")}
    plain = question(pipeline_stages=4)
    assert {(plan.pp, plan.schedule, plan.vpp) for plan in plans(plain)} == {(4, "1f1b", 1)}


def test_auto_pipeline_chooses_up_to_the_stages_given() -> None:
    keys = {"parallel_mode": "auto_parallel", "pipeline_stages": 4, "auto_pipeline": True}
    assert question(**keys).problem.options.pp == (1, 2, 4)
    assert question(**(keys | {"auto_pipeline": False})).problem.options.pp == (4,)
    other = question(**(keys | {"search_mode": "dynamic_programming"}))
    assert other.problem.options.pp == (4,)


def test_the_searches_of_the_launcher_need_a_power_of_two_a_stage() -> None:
    keys: dict[str, Any] = {"parallel_mode": "auto_parallel", "device_num": 24}
    with pytest.raises(SpecError, match=r"power of two devices a stage.*found 24 devices"):
        question(**keys)
    assert question(**keys, pipeline_stages=3).problem.options.pp == (3,)
    assert question(**keys, search_mode="sharding_propagation").problem.cluster.devices == 24


def test_recursive_programming_takes_no_more_than_1024_devices_a_stage() -> None:
    keys: dict[str, Any] = {"parallel_mode": "auto_parallel", "device_num": 2048}
    with pytest.raises(SpecError, match="at most 1024"):
        question(**keys)
    assert question(**keys, search_mode="dynamic_programming").problem.options.pp == (1,)
    assert question(**keys, pipeline_stages=2).problem.options.pp == (2,)


def test_the_shard_group_is_the_one_given_and_ignored_where_it_does_not_divide() -> None:
    # 16 devices: of dp 16, 8, 4, 2 a group of 8 divides the first two only.
    asked = question(enable_parallel_optimizer=True, optimizer_weight_shard_size=8)
    seen = {(plan.dp * plan.cp, plan.shard_group) for plan in plans(asked, 400)}
    assert seen <= {(16, 8), (8, 8), (4, 4), (2, 2), (1, 1)}
    assert (16, 8) in seen
    whole = question(enable_parallel_optimizer=True)
    assert {plan.shard_group for plan in plans(whole)} >= {16}
    assert all(plan.shard_group == plan.dp * plan.cp for plan in plans(whole))


def test_without_all_to_all_experts_take_longer_to_reach() -> None:
    with_it = question("mixtral-8x7b", enable_alltoall=True)
    without = question("mixtral-8x7b", enable_alltoall=False)
    plan = autopar.plan(with_it.problem, ep=8, tp=2, pp=1)
    near, far = (autopar.estimate(asked.problem, plan) for asked in (with_it, without))
    assert far.time.expert_ps > near.time.expert_ps
    assert far.step_ps > near.step_ps


def test_sums_and_gradients_in_32_bits_take_longer() -> None:
    def cost(**keys: Any) -> autopar.Estimate:
        problem = question(**keys).problem
        # Nothing hides the gradients, so that their bytes show.
        overlap = replace(problem.framework.overlap, gradient_reduce=False)
        framework = replace(problem.framework, overlap=overlap)
        problem = replace(problem, framework=framework)
        return autopar.estimate(problem, autopar.plan(problem, tp=4))

    usual, forced = cost(), cost(force_fp32_communication=True)
    assert forced.time.tensor_ps > usual.time.tensor_ps
    assert forced.time.data_ps == usual.time.data_ps
    half = cost(gradient_fp32_sync=False)
    assert half.time.data_ps < usual.time.data_ps
    both = cost(gradient_fp32_sync=False, force_fp32_communication=True)
    assert both.time.data_ps == usual.time.data_ps


def test_fusion_sizes_are_those_of_the_collectives_that_the_plan_has() -> None:
    fusion = {
        "allreduce": {"mode": "size", "config": 8},
        "allgather": {"mode": "auto", "config": None},
        "reducescatter": {"mode": "size", "config": 16},
    }
    whole = changed(question(comm_fusion=fusion), "comm_fusion")
    assert whole == {"framework.fused_reduce_bytes": 8 << 20}
    sharded = question(comm_fusion=fusion, enable_parallel_optimizer=True)
    assert changed(sharded, "comm_fusion") == {
        "framework.fused_reduce_bytes": 16 << 20,
        "framework.fused_gather_bytes": 64 << 20,
    }
    closed = question(comm_fusion=fusion | {"openstate": False})
    assert changed(closed, "comm_fusion") == {}


def test_keys_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="pipeline_stages: 3 stages do not divide 16 devices"):
        question(pipeline_stages=3)
    with pytest.raises(SpecError, match="seqpipe splits sequences"):
        question(
            pipeline_stages=2,
            pipeline_config={"pipeline_interleave": True, "pipeline_scheduler": "seqpipe"},
        )
    with pytest.raises(SpecError, match=r"dataset_strategy: cuts must be from 1, found \[0, 1\]"):
        question(dataset_strategy=((0, 1),))


def test_limits_of_the_call_and_of_the_context_must_agree() -> None:
    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=16, pipeline_stages=2
    )
    asked: dict[str, Any] = {"global_batch_size": 64, "sequence_length": 4096}
    both = mindspore.question("llama2-7b", "ascend_910b", pp=[2, 4], **asked)
    assert both.problem.options.pp == (2,)
    with pytest.raises(SpecError, match="pipeline_stages: allows pp 2 where 4 is asked for"):
        mindspore.question("llama2-7b", "ascend_910b", pp=[4], **asked)


def test_a_batch_below_devices_times_copies_is_advised_against() -> None:
    keys = {"parallel_mode": "auto_parallel"}
    assert question(batch=16, **keys).advice == ()
    assert "at least devices times copies, 16" in question(batch=8, **keys).advice[0]
    assert question(batch=8).advice == ()
    mindspore.set_auto_parallel_context(parallel_mode="auto_parallel", device_num=16)
    asked = mindspore.question(
        "llama2-7b", "ascend_910b", global_batch_size=16, sequence_length=4096, copies=2
    )
    assert "copies, 32" in asked.advice[0]


def test_splits_written_by_hand_have_no_stages() -> None:
    asked = question(parallel_mode="hybrid_parallel", pipeline_stages=4)
    assert asked.problem.options.pp == (1,)
    assert asked.problem.options.tp == ()


def test_the_limit_on_reused_subgraphs_changes_no_step_and_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = question()
    monkeypatch.setenv("MS_COMM_COMPILER_OPT", "8")
    asked = question()
    assert asked.problem == usual.problem
    assert asked.effects[:-1] == usual.effects
    assert asked.effects[-1].key == "MS_COMM_COMPILER_OPT"
    for wrong in ("0", "-2", "x", "", "1.5"):
        monkeypatch.setenv("MS_COMM_COMPILER_OPT", wrong)
        with pytest.raises(SpecError, match="MS_COMM_COMPILER_OPT: must be -1 or a positive"):
            question()


def replicas(**degrees: Any) -> Job:
    """Returns a plan of 16 devices for Llama2-7B; of replicas alone unless it says otherwise."""
    problem = question().problem
    plan = autopar.plan(problem, **degrees)
    return Job(problem, plan, autopar.estimate(problem, plan))


@pytest.mark.parametrize(("model", "most"), [("llama2-7b", 100), ("mixtral-8x7b", 480)])
def test_places_of_gradients_group_those_of_every_stage_of_any_plan(model: str, most: int) -> None:
    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=16, pipeline_stages=2,
        all_reduce_fusion_config=[1],
    )  # fmt: skip
    asked = mindspore.question(
        model, "ascend_910b", global_batch_size=64, sequence_length=4096, memory_margin=0.0
    )
    assert changed(asked, "all_reduce_fusion_config") == {"framework.fused_reduce_places": [1]}
    framework = asked.problem.framework

    def data_ps(*places: int) -> int:
        problem = replace(
            asked.problem,
            framework=replace(
                framework,
                fused_reduce_places=places,
                overlap=replace(framework.overlap, gradient_reduce=True),
            ),
        )
        plan = autopar.plan(problem, tp=4, pp=2)
        return autopar.estimate(problem, plan).time.data_ps

    # The gradients of the first parameters are complete last: the fewer they are, the less shows.
    # One group of all begins when the backward pass has ended.
    assert data_ps(1) < data_ps(most) < data_ps(10_000)


def test_places_group_no_gradients_that_are_scattered() -> None:
    asked = question(
        parallel_mode="semi_auto_parallel", enable_parallel_optimizer=True,
        all_reduce_fusion_config=[1, 2],
    )  # fmt: skip
    assert changed(asked, "all_reduce_fusion_config") == {}
    by_index = question(comm_fusion={"allreduce": {"mode": "index", "config": [1, 2]}})
    assert by_index.problem.framework.fused_reduce_places == (1, 2)


def test_identical_communication_operators_of_a_stage_are_calls_of_shared_subgraphs() -> None:
    # 4 gathers and 4 scatters in each of 32 layers, one of each at both ends; three sums of the
    # loss, and its own over the replicas, which is alone.
    effect = operators.reused(replicas(tp=2), -1)
    assert effect.changes == {"compiled": [4]}
    assert effect.because == (
        "the fastest plan compiles 4 communication operators in place of 264: 263 are calls of 3"
        " shared subgraphs; saves compilation and streams, not a step"
    )
    # Room for the gathers alone.
    assert operators.reused(replicas(tp=2), 130).changes == {"compiled": [264 - 130 + 1]}
    # Two stages of 16 layers, 16 micro-batches: gathers and scatters are 16 x (16 x 4 + 1) each,
    # more than the 1,000 of the default; at the head the loss's remain, 16 x 3 and 16.
    stages = operators.reused(replicas(tp=2, pp=2, mbs=1), -1)
    assert stages.changes == {"compiled": [2 * 16 * 65, 2 * 16 * 65 + 2]}
    wider = operators.reused(replicas(tp=2, pp=2, mbs=1), 5000)
    assert wider.changes == {"compiled": [2, 4]}


def test_shared_subgraphs_hold_for_experts_and_say_where_nothing_is_shared() -> None:
    problem = autopar.problem(
        "mixtral-8x7b", "ascend_910b", devices=16, global_batch_size=64, sequence_length=4096,
        framework="mindformers",
    )  # fmt: skip
    plan = autopar.plan(problem, ep=8)
    experts = Job(problem, plan, autopar.estimate(problem, plan))
    # 32 layers of two exchanges in each of two passes; the sum of the loss.
    assert operators.reused(experts, -1).changes == {"compiled": [2]}
    assert "leaves no kind" in operators.reused(experts, 100).because
    chunks = replicas(tp=2, pp=2, vpp=2)
    assert operators.reused(chunks, -1).because.startswith("MindSpore refuses it where cells are")


def test_the_answer_tells_what_keys_about_operators_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_COMM_COMPILER_OPT", "-1")
    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=16, all_reduce_fusion_config=[20, 35]
    )
    answer = mindspore.search(
        "llama2-7b", "ascend_910b", global_batch_size=64, sequence_length=4096,
        pp=[1], cp=[1], tp=[4],
    )  # fmt: skip
    told = {effect.key: effect for effect in answer.effects}
    assert told["all_reduce_fusion_config"].changes
    assert "shared subgraphs" in told["MS_COMM_COMPILER_OPT"].because


def test_keys_of_the_automatic_modes_change_nothing_in_the_others() -> None:
    asked = question(parallel_mode="data_parallel", pipeline_stages=4)
    assert changed(asked, "pipeline_stages") == {}
    assert asked.problem.options.pp == (1,)


def test_a_problem_of_the_context_runs_again_to_the_same_bytes(small: Problem) -> None:
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    answer = mindspore.search(
        "llama2-7b", "ascend_910b", global_batch_size=64, sequence_length=4096
    )
    mindspore.reset_auto_parallel_context()
    assert autopar.rerun(answer.report) == answer.report
