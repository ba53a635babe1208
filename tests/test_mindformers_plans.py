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
from autopar.report import NamedLayers

INTERLEAVED: dict[str, Any] = {
    "pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
}
W1_W3 = r"feed_forward\.w[13]\.matmul"
# Two stages.
PIPED: dict[str, Any] = {"pipeline_stage": 2, "micro_batch_num": 2}


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
        ({"pipeline_stage": 4, "micro_batch_num": 4, "recompute": {"recompute": [1, 2]}}, "list 4"),
        ({"recompute": {"select_recompute": [3, 4]}}, "select_recompute: must be .*list 1 stages"),
        ({"recompute": {"select_recompute": [r"ffn\.x"]}}, "no operator of a layer is called"),
        (
            {"recompute": {"select_recompute": [r"feed_forward\.mul"]}},
            "names feed_forward.* without .*silu",
        ),
        (
            {"recompute": {"select_recompute": {r"ffn_norm\.norm": [3], r".*\.norm": [2]}}},
            "names attention_norm.* without ffn_norm",
        ),
        ({"recompute": {"select_recompute": "x"}}, "must be true, false, or list 1 stages"),
        (
            {"recompute": {"select_comm_recompute": [W1_W3]}},
            "names communication beside that of norms",
        ),
        ({"recompute": {"recompute": [3]}, "vpp": 2, **PIPED}, "must be true, false, or list 2 st"),
        ({"recompute": {"recompute": [[1, 0], [3, 0]]}, "vpp": 2, **PIPED}, "1, 3 .* as no plan"),
    ],
)
def test_what_contradicts_context_or_problem_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(SpecError, match=error):
        read(problem(), **fields)


def test_experts_on_ranks_of_a_layer_need_sequence_parallel() -> None:
    fields = {"data_parallel": 4, "model_parallel": 4, "expert_parallel": 4, "accumulation": 4}
    with pytest.raises(SpecError, match=r"^use_seq_parallel: is off where .* cuts experts"):
        read(problem("mixtral-8x7b"), **fields)
    found = read(problem("mixtral-8x7b"), use_seq_parallel=True, **fields)
    assert autopar.estimate(found.problem, found.plan).step_s > 0


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


@pytest.mark.parametrize(("again", "layers"), [(True, 32), ([20], 20)])
def test_parameters_of_recomputed_layers_are_gathered_again_in_2_3(again: Any, layers: int) -> None:
    keys = {"enable_parallel_optimizer": True}

    def found(regathers: bool, **fields: Any) -> tuple[autopar.Estimate, Any]:
        recompute = {"recompute": again, "parallel_optimizer_comm_recompute": regathers}
        said = read(
            problem(), keys=keys, data_parallel=16, recompute=recompute, accumulation=4, **fields
        )
        key = "recompute.parallel_optimizer_comm_recompute"
        [effect] = [effect for effect in said.effects if effect.key == key]
        return autopar.estimate(said.problem, said.plan), effect

    mindspore.version = "2.3"
    (kept, off), (gathered, on) = found(False), found(True)
    assert (off.changes, on.changes) == ({}, {"plan.stages": [True]})
    # The 2-byte copies of 4 h^2 + 3 h 11,008 numbers a layer are not kept, but of two layers at
    # work; norms are below the threshold of 64 KB and stay whole.
    copies = (4 * 4096**2 + 3 * 4096 * 11008) * 2
    memory, left = kept.stages[0].memory, gathered.stages[0].memory
    assert memory.parameters - left.parameters == layers * copies
    assert left.buffers - memory.buffers == pytest.approx(2 * copies, rel=1e-3)
    assert gathered.time.shard_ps > kept.time.shard_ps == 0
    assert gathered.stages[0].forward_ps > kept.stages[0].forward_ps
    assert gathered.stages[0].backward_ps > kept.stages[0].backward_ps
    assert gathered.time.data_ps < kept.time.data_ps
    # Later releases warn and pass over it, as 2.3 does in a pipeline.
    mindspore.version = "2.10"
    unchanged, effect = found(True)
    assert unchanged == kept
    assert "2.10 pass over it: optimizer_level level3" in effect.because


def test_gradients_travel_in_as_many_groups_of_layers_as_are_asked_for() -> None:
    def data_ps(groups: int, **fields: Any) -> int:
        said = read(problem(), gradient_aggregation_group=groups, **fields)
        key = "gradient_aggregation_group"
        [effect] = [effect for effect in said.effects if effect.key == key]
        assert effect.changes == {"framework.fused_groups": groups}
        return autopar.estimate(said.problem, said.plan).time.data_ps

    alone = {"data_parallel": 16, "accumulation": 4}
    # The last group has nothing left to hide behind: the smaller, the better.
    assert data_ps(1, **alone) > data_ps(4, **alone) > data_ps(8, **alone)
    # With a pipeline a stage's layers are one group whatever is asked for.
    piped = {"data_parallel": 8, "keys": {"pipeline_stages": 2}, **PIPED}
    assert data_ps(1, **piped) == data_ps(4, **piped) == data_ps(8, **piped)


def test_a_pipeline_of_2_3_gathers_parameters_once_a_step() -> None:
    mindspore.version = "2.3"
    recompute = TransformerRecomputeConfig(recompute=True, parallel_optimizer_comm_recompute=True)
    keys = {"enable_parallel_optimizer": True, "pipeline_stages": 2}
    found = read(problem(), keys=keys, data_parallel=8, recompute=recompute, **PIPED)
    assert {stage.recompute for stage in found.plan.stages} == {Recompute("uniform", 1)}
    [effect] = [effect for effect in found.effects if "parallel_optimizer_comm" in effect.key]
    assert effect.because == "MindSpore 2.3 passes over it in a pipeline"


def test_operators_of_some_layers_are_in_the_plan_and_its_cost() -> None:
    # Of two stages of 16 layers the first computes 2 again whole and the activation of the next 8,
    # the second the activation of 4 and the norms of all of its layers.
    select = {
        r"feed_forward\.mul": [10, 4],
        r"feed_forward\.w1\.activation\.silu": [10, 4],
        r".*\.norm": [0, 16],
    }
    keys = {"pipeline_stages": 2}

    def found(**recompute: Any) -> tuple[Meaning, autopar.Estimate]:
        said = read(problem(), keys=keys, data_parallel=8, recompute=recompute, **PIPED)
        return said, autopar.estimate(said.problem, said.plan)

    said, cost = found(recompute=[2, 0], select_recompute=select)
    first, second = (stage.recompute for stage in said.plan.stages)
    assert first == Recompute("parts", 2, regathers=False, operators=NamedLayers(activation=10))
    assert second == Recompute(
        "parts", 0, regathers=False, operators=NamedLayers(norm=16, activation=4)
    )
    effects = {effect.key: effect.changes for effect in said.effects}
    counts = {"plan.stages": {"norm": [0, 16], "activation": [10, 4]}}
    assert effects["recompute.select_recompute"] == counts
    _, block = found(recompute=[2, 0])
    # Each layer drops the outputs of nonlinearity and gate product, 11,008 numbers of 2 bytes a
    # token, of the two micro-batches of 4 x 4,096 tokens that the first stage has under way.
    dropped = 2 * 8 * (2 * 11008 * 2) * 4 * 4096
    memory = [each.stages[0].memory.activations for each in (block, cost)]
    assert memory[0] - memory[1] == dropped
    # The last stage has one: four activations, and the outputs of two norms in 16 layers.
    dropped = 4 * (2 * 11008 * 2) * 4 * 4096 + 16 * 2 * 4096 * 2 * 4 * 4096
    memory = [each.stages[1].memory.activations for each in (block, cost)]
    assert memory[0] - memory[1] == dropped
    assert cost.stages[0].backward_ps > block.stages[0].backward_ps


def test_counts_of_a_stage_are_dealt_out_to_its_chunks() -> None:
    # Two chunks of eight layers: five are three and two, four two each, twenty all of them.
    select = {
        r"feed_forward\.mul": [[5, 2], [4, 2]],
        r"feed_forward\.w1\.activation\.silu": [[5, 2], [4, 2]],
    }
    recompute = {"recompute": [5, 4], "select_recompute": select}
    said = read(problem(), keys={"pipeline_stages": 2, **INTERLEAVED}, data_parallel=8, vpp=2,
                recompute=recompute, **PIPED)  # fmt: skip
    first, last = (stage.recompute for stage in said.plan.stages)
    assert first == Recompute("parts", 5, regathers=False, operators=NamedLayers(activation=9))
    assert last == Recompute("block", 2)
    every = read(problem(), keys={"pipeline_stages": 2, **INTERLEAVED}, data_parallel=8, vpp=2,
                 recompute={"recompute": [20, True]}, **PIPED)  # fmt: skip
    assert {stage.recompute for stage in every.plan.stages} == {Recompute("block", 8)}


def test_gathers_of_norms_results_are_repeated_in_the_layers_that_say_so() -> None:
    def found(counts: Any) -> tuple[Recompute, autopar.Estimate]:
        recompute = {"select_comm_recompute": counts}
        said = read(
            problem(), data_parallel=2, model_parallel=8, use_seq_parallel=True,
            recompute=recompute, accumulation=8,
        )  # fmt: skip
        return said.plan.stages[0].recompute, autopar.estimate(said.problem, said.plan)

    (none, kept), (again, cost) = found(False), found([5])
    assert none == Recompute()
    assert again.operators == NamedLayers(gather=5)
    # Two gathered inputs of 4,096 numbers of 2 bytes for 4 x 4,096 tokens; an eighth stays.
    memory = [each.stages[0].memory.activations for each in (kept, cost)]
    assert memory[0] - memory[1] == 5 * 2 * 4096 * 2 * 4 * 4096 * 7 // 8
    assert cost.time.tensor_ps > kept.time.tensor_ps


@pytest.mark.parametrize("version", ["2.10", "2.3"])
def test_plans_by_parts_are_read_back_as_they_were(version: str) -> None:
    mindspore.version = version
    question = problem()
    stages = [Recompute("parts", 3, regathers=False, operators=NamedLayers(norm=5, attention=7))]
    stages += [Recompute("block", 2), Recompute()]
    for degrees in ({"pp": 2}, {"pp": 2, "vpp": 2, "tp": 2, "sp": True}, {"tp": 2, "sp": True}):
        for again in stages:
            plan = autopar.plan(question, **degrees)
            said = (replace(plan.stages[0], recompute=again), *plan.stages[1:])
            plan = replace(plan, stages=said)
            assert reasons(question, plan) == ()
            assert written(question, plan) == plan
    gathers = Recompute("parts", 3, regathers=True, operators=NamedLayers())
    plan = autopar.plan(question, zero=1, recompute=gathers)
    if version == "2.3":
        assert written(question, plan) == plan
    else:
        assert "as MindSpore 2.3 does" in reasons(question, plan)[0]


def test_every_keyword_has_an_effect_or_a_reason_for_none() -> None:
    found = read(problem(), data_parallel=16, accumulation=4)
    config = TransformerOpParallelConfig()
    keys = {effect.key for effect in found.effects}
    assert keys >= config.to_dict().keys() - {"recompute"}
    assert keys >= {f"recompute.{key}" for key in config.recompute.to_dict()}
    assert all(effect.because for effect in found.effects)
