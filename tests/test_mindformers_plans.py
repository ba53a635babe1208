"""Plans of MindFormers' configuration beside MindSpore's context, and back."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import autopar
from autopar import Plan, Problem, Recompute, SpecError
from autopar.compat import mindspore
from autopar.compat.mindformers import TransformerOpParallelConfig, TransformerRecomputeConfig
from autopar.compat.plans import Meaning, config_of, keywords_of, meant, reasons


@pytest.fixture(autouse=True)
def _defaults_around() -> Iterator[None]:
    mindspore.reset_auto_parallel_context()
    yield
    mindspore.version = "2.10"
    mindspore.reset_auto_parallel_context()


def problem(model: str = "llama2-7b", **limits: Any) -> Problem:
    """Returns a model on 16 devices with experts cut as MindFormers cuts them."""
    limits |= {"activation_offload": False, "optimizer_offload": False}
    return autopar.problem(
        model,
        "ascend_910b:16",
        global_batch_size=64,
        sequence_length=4096,
        framework="mindformers",
        expert_tensor_parallel=True,
        **limits,
    )


def read(question: Problem, *, keys: dict[str, Any] | None = None, **fields: Any) -> Meaning:
    """Returns what a configuration means, semi-automatic on 16 devices unless keys differ."""
    usual = {"parallel_mode": "semi_auto_parallel", "device_num": 16}
    mindspore.set_auto_parallel_context(**(usual | (keys or {})))
    extra = {name: fields.pop(name) for name in ("vpp", "layers", "accumulation") if name in fields}
    config = TransformerOpParallelConfig(**fields)
    return meant(config, mindspore.context(), question, **extra)


def written(question: Problem, plan: Plan) -> Plan:
    """Returns a plan after it was written as configuration and context, and read again."""
    mindspore.reset_auto_parallel_context()
    mindspore.set_auto_parallel_context(**keywords_of(question, plan))
    config = config_of(question, plan)
    return meant(
        config,
        mindspore.context(),
        question,
        vpp=plan.vpp,
        layers=tuple(stage.layers for stage in plan.stages),
        accumulation=64 // (plan.dp * plan.mbs),
    ).plan


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ("llama2-7b", {}),
        ("llama2-7b", {"pp": [4], "recompute": ["block"]}),
        ("llama2-7b", {"pp": [2, 4], "schedules": ["interleaved", "gpipe", "zb-v"]}),
        ("llama2-7b", {"zero": [2, 3], "pp": [1, 2]}),
        ("llama2-7b", {"recompute": ["uniform"], "pp": [1, 2]}),
        ("mixtral-8x7b", {"ep": [2, 4, 8]}),
    ],
)
def test_a_plan_that_can_be_said_is_read_back_as_it_was(model: str, limits: dict[str, Any]) -> None:
    question = problem(model, top=200, **limits)
    found = [ranked.plan for ranked in autopar.solve(question).ranked]
    said = [plan for plan in found if not reasons(question, plan)]
    assert said
    for plan in said:
        assert written(question, plan) == plan
    for plan in set(found) - set(said):
        with pytest.raises(SpecError, match="MindFormers cannot say it"):
            config_of(question, plan)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"optimizer_offload": True}, "keeps optimizer state in host memory"),
        ({"offload": 2}, "keeps activations in host memory"),
        ({"recompute": Recompute("selective")}, "recomputes the core of attention alone"),
        ({"recompute": Recompute("uniform", 2)}, "recomputes groups of layers"),
        ({"pp": 2, "schedule": "zb-h1"}, "zb-h1 is no schedule of MindSpore"),
        ({"pp": 8, "dp": 2, "tp": 1, "mbs": 8}, "fewer micro-batches than stages"),
    ],
)
def test_what_cannot_be_said_is_named(change: dict[str, Any], reason: str) -> None:
    question = problem()
    assert reasons(question, autopar.plan(question, **change)) == (reason,)


def test_fewer_degrees_than_devices_repeat_the_computation() -> None:
    # 2 x 4 of 16 devices compute something of their own; the others the same once more.
    found = read(problem(), data_parallel=2, model_parallel=4, accumulation=8)
    assert (found.repeats, found.problem.cluster.devices) == (2, 8)
    alone = replace(problem(), cluster=replace(problem().cluster, devices=8))
    framework = found.problem.framework
    cost = autopar.estimate(found.problem, found.plan)
    assert cost == autopar.estimate(replace(alone, framework=framework), found.plan)
    whole = read(problem(), data_parallel=4, model_parallel=4, accumulation=8)
    assert whole.repeats == 1
    assert autopar.estimate(whole.problem, whole.plan).step_ps < cost.step_ps


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"data_parallel": 32}, "degrees of 32 devices do not divide the 16 there are"),
        ({"data_parallel": 3}, "degrees of 3 devices do not divide the 16 there are"),
        ({"pipeline_stage": 4, "micro_batch_num": 2}, "at least pipeline_stage, 4, found 2"),
        ({"accumulation": 7}, "1 replicas of 7 micro-batches do not divide the batch 64"),
        ({"pipeline_stage": 4, "micro_batch_num": 4, "recompute": {"recompute": [1, 2]}}, "4 co"),
        ({"recompute": {"select_recompute": [3]}}, "names 3 of a stage's 32 layers"),
        ({"recompute": {"select_recompute": [r"ffn\.x"]}}, "no operator of a layer is called"),
        (
            {"recompute": {"select_recompute": [r"feed_forward\.mul"]}},
            "names feed_forward.* without .*silu",
        ),
        (
            {"recompute": {"select_recompute": {r".*\.norm": True, r"feed_forward": False}}},
            "operators differ in their stages",
        ),
        ({"recompute": {"select_recompute": "x"}}, "must be a truth value, names, or 1 counts"),
    ],
)
def test_what_contradicts_context_or_problem_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(SpecError, match=error):
        read(problem(), **fields)


def test_outside_the_automatic_modes_only_recompute_acts() -> None:
    recompute = TransformerRecomputeConfig(recompute=True)
    found = read(
        problem(), keys={"parallel_mode": "data_parallel"}, model_parallel=4, recompute=recompute
    )
    assert (found.plan.dp, found.plan.tp) == (16, 1)
    assert {stage.recompute for stage in found.plan.stages} == {Recompute("uniform", 1)}
    said = {effect.key: effect for effect in found.effects}
    assert said["model_parallel"].because == "does not act in data_parallel"
    assert said["recompute.recompute"].changes


def test_layers_to_recompute_are_counted_for_each_stage_and_no_more_than_it_has() -> None:
    config = {"recompute": [3, 0, 9, 1]}
    found = read(problem(), pipeline_stage=4, micro_batch_num=8, recompute=config)
    counted = [stage.recompute for stage in found.plan.stages]
    # 32 layers over 4 stages: 8 each.
    assert counted == [
        Recompute("block", 3),
        Recompute(),
        Recompute("block", 8),
        Recompute("block", 1),
    ]


def test_a_truth_value_recomputes_every_layer_in_the_older_release() -> None:
    mindspore.version = "2.3"
    found = read(problem(), recompute=True)
    assert found.plan.stages[0].recompute == Recompute("uniform", 1)


def test_a_sliced_input_saves_memory_and_takes_time() -> None:
    def cost(sliced: bool) -> autopar.Estimate:
        recompute = TransformerRecomputeConfig(recompute=True, recompute_slice_activation=sliced)
        found = read(problem(), data_parallel=2, model_parallel=8, recompute=recompute)
        return autopar.estimate(found.problem, found.plan)

    whole, sliced = cost(False), cost(True)
    assert sliced.stages[0].memory.activations < whole.stages[0].memory.activations
    assert sliced.step_ps > whole.step_ps


def test_a_whole_vocabulary_holds_more_and_is_off_with_a_pipeline() -> None:
    def parameters(**fields: Any) -> int:
        found = read(problem(), model_parallel=8, data_parallel=1, **fields)
        return autopar.estimate(found.problem, found.plan).stages[0].memory.parameters

    # 32,000 rows of 4,096 channels, embedding and head, of 4 bytes, whole instead of an eighth.
    more = parameters(vocab_emb_dp=True) - parameters(vocab_emb_dp=False)
    assert more == 2 * 32_000 * 4096 * 4 * 7 // 8
    piped = {"pipeline_stage": 2, "micro_batch_num": 2}
    assert parameters(vocab_emb_dp=True, **piped) == parameters(vocab_emb_dp=False, **piped)


def test_parameters_gathered_again_are_those_of_zero_3() -> None:
    recompute = TransformerRecomputeConfig(recompute=True, parallel_optimizer_comm_recompute=True)
    keys = {"enable_parallel_optimizer": True}
    found = read(problem(), keys=keys, data_parallel=16, recompute=recompute, accumulation=4)
    assert (found.plan.zero, found.problem.framework.gathers) == (3, "micro_batch")
    plain = read(problem(), keys=keys, data_parallel=16, accumulation=4)
    assert (plain.plan.zero, plain.problem.framework.gathers) == (1, "step")


def test_every_keyword_has_an_effect_or_a_reason_for_none() -> None:
    found = read(problem(), data_parallel=16, accumulation=4)
    config = TransformerOpParallelConfig()
    keys = {effect.key for effect in found.effects}
    assert keys >= config.to_dict().keys() - {"recompute"}
    assert keys >= {f"recompute.{key}" for key in config.recompute.to_dict()}
    assert all(effect.because for effect in found.effects)
