"""What MindFormers and MindSpore are given: read back and held against the plan."""

import ast
from dataclasses import replace
from typing import Any

import pytest
import yaml

from autopar import Plan, Recompute
from autopar.export import mindspore_operators
from autopar.export.launchers import LAUNCHERS
from autopar.frontends import mindspore_strategy as strategy_form
from drawn_plans import drawn
from exported import ASCEND, job, mindspore_module, problem, texts

# --- MindFormers


@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "ep", "cp", "recompute"])
def test_mindformers_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("mindformers", 12, feature=feature):
        plan = said.plan
        run = yaml.safe_load(texts("mindformers", said)["mindformers.yaml"])
        parallel = run["parallel_config"]
        assert parallel["data_parallel"] == plan.dp
        assert parallel["model_parallel"] == plan.tp
        assert parallel["pipeline_stage"] == plan.pp
        assert parallel["expert_parallel"] == plan.ep
        assert parallel.get("context_parallel", 1) == plan.cp
        assert parallel.get("use_seq_parallel", False) == plan.sp
        # The product that mindformers/trainer/base_trainer.py works out.
        batch = run["runner_config"]["batch_size"] * plan.dp
        batch *= parallel["micro_batch_num"] * run["runner_config"]["gradient_accumulation_steps"]
        assert batch == said.problem.workload.global_batch_size
        model = run["model"]["model_config"]
        assert model["pp_interleave_num"] == plan.vpp
        assert stage_layers(model["num_layers"], model["offset"], plan) == [
            stage.layers for stage in plan.stages
        ]
        context = run["parallel"]
        assert context["enable_parallel_optimizer"] == (plan.zero > 0)
        if plan.zero:
            config = context["parallel_optimizer_config"]
            assert config["optimizer_level"] == f"level{plan.zero}"
            whole = config["optimizer_weight_shard_size"] == -1
            assert whole == (plan.shard_group == plan.dp * plan.cp)
            assert whole or config["optimizer_weight_shard_size"] == plan.shard_group
        if plan.pp > 1:
            assert context["pipeline_config"]["pipeline_interleave"] == (plan.vpp > 1)


def stage_layers(layers: int, offset: Any, plan: Plan) -> list[int]:
    """Returns the layers of each stage by MindFormers' rule: a share plus the chunk's offset."""
    share, rest = divmod(layers, plan.pp * plan.vpp)
    if offset == 0:
        assert rest == 0
        return [share * plan.vpp] * plan.pp
    chunks = offset if plan.vpp > 1 else [offset]
    assert [len(chunk) for chunk in chunks] == [plan.pp] * plan.vpp
    assert sum(map(sum, chunks)) == rest
    return [sum(share + chunk[stage] for chunk in chunks) for stage in range(plan.pp)]


def test_mindformers_recompute_lists_layers_of_each_stage() -> None:
    asked = problem(*ASCEND)
    for plan, recompute in [
        ({"pp": 2, "recompute": Recompute("block", 3)}, [3, 3]),
        ({"pp": 2, "layers": [2, 30], "recompute": Recompute("block", 3)}, [2, 3]),
        ({"pp": 2, "vpp": 2, "recompute": Recompute("block", 3)}, [[3, 3], [3, 3]]),
        ({"pp": 2, "recompute": Recompute("block", 16)}, True),
        ({"pp": 2, "recompute": Recompute("uniform", 1)}, True),
        ({"pp": 2}, False),
    ]:
        written = texts("mindformers", job(asked, tp=2, **plan))
        run = yaml.safe_load(written["mindformers.yaml"])
        assert run["recompute_config"]["recompute"] == recompute


def test_the_classes_of_mindformers_get_the_file_s_settings() -> None:
    for said in drawn("mindformers", 12):
        written = texts("mindformers", said)
        run = yaml.safe_load(written["mindformers.yaml"])
        calls = {
            node.value.func.id: {
                keyword.arg: ast.literal_eval(keyword.value)
                for keyword in node.value.keywords
                if keyword.arg != "recompute" or not isinstance(keyword.value, ast.Name)
            }
            for node in ast.parse(written["parallel_config.py"]).body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        }
        assert calls["TransformerRecomputeConfig"] == run["recompute_config"]
        parallel = calls["TransformerOpParallelConfig"]
        assert parallel.pop("optimizer_shard") == run["parallel"]["enable_parallel_optimizer"]
        assert parallel == run["parallel_config"]


# --- MindSpore


@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "recompute"])
def test_mindspore_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("mindspore", 12, feature=feature):
        plan = said.plan
        values = mindspore_module(said)
        context, layers = values["CONTEXT"], values["LAYERS"]
        assert context["device_num"] == plan.dp * plan.tp * plan.cp * plan.pp
        assert context.get("pipeline_stages", 1) == plan.pp
        assert context["enable_parallel_optimizer"] == (plan.zero > 0)
        batch = values["MICRO_BATCH_SIZE"] * values["MICRO_BATCHES"] * plan.dp
        assert batch == said.problem.workload.global_batch_size
        for index, stage in enumerate(plan.stages):
            rows = [(chunk, again) for of_stage, chunk, again in layers if of_stage == index]
            assert len(rows) == stage.layers
            for chunk in range(plan.vpp):
                flags = [again for of_chunk, again in rows if of_chunk == chunk]
                count = {"none": 0, "block": stage.recompute.layers}.get(
                    stage.recompute.granularity, len(flags)
                )
                assert flags == [i < (count or 0) for i in range(len(flags))]


def operators(degrees: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the module's cuts, and the strategies that its file has, of a plan of 12 layers."""
    asked = problem("llama2-7b", "ascend_910b:16", "mindformers")
    framework = replace(asked.framework, context_exchange="gather")
    model = replace(asked.model, layers=12)
    said = job(replace(asked, framework=framework, model=model), **degrees)
    file = strategy_form.read_json(texts("mindspore", said)["strategies.json"])
    return mindspore_module(said)["CUTS"], {each.name: each for each in file.operators}


def test_tensor_parallel_becomes_the_cuts_of_operators() -> None:
    cuts, file = operators({"tp": 4, "pp": 2, "sp": False})
    # Two replicas of four ranks on each of two stages; columns first, then rows. Tokens are rows.
    assert file["MatMul_layers.0.attention.qkv.weight"].inputs == ((2, 1), (1, 4))
    assert file["MatMul_layers.0.attention.out.weight"].inputs == ((2, 4), (4, 1))
    assert file["Gather_embedding"].inputs == ((4, 1), (2,))
    assert cuts["layers.*.attention.core"] == (((2, 4, 1, 1),) * 3, None)
    assert cuts["layers.*.mlp.residual"] == (((2, 1, 1), (2, 1, 1)), None)
    assert "layers.*.attention.out" not in cuts
    stages = {name: each.stage for name, each in file.items()}
    assert stages["Gather_embedding"] == stages["MatMul_layers.5.mlp.down.weight"] == 0
    assert stages["MatMul_layers.6.mlp.down.weight"] == stages["MatMul_head"] == 1


def test_chunks_take_their_layers_to_stages_in_turn() -> None:
    _, file = operators({"tp": 2, "pp": 2, "vpp": 3})
    stages = [file[f"MatMul_layers.{layer}.mlp.down.weight"].stage for layer in range(12)]
    assert stages == [0, 0, 1, 1] * 3


def test_sequence_parallel_cuts_what_stands_between_the_products() -> None:
    cuts, file = operators({"tp": 2, "sp": True})
    assert file["RmsNorm_layers.0.mlp.norm.scale"].inputs == ((8, 2, 1), (1,))
    assert file["MatMul_layers.11.mlp.down.weight"].inputs == ((8, 2), (2, 1))
    assert cuts["layers.*.mlp.down"] == (((8, 2), (2, 1)), ((16, 1),))
    assert cuts["embed"] == (((2, 1), (8,)), ((16, 1),))


def test_context_parallel_cuts_the_sequence_of_all_but_keys_and_values() -> None:
    cuts, file = operators({"cp": 2})
    assert file["MatMul_layers.0.mlp.down.weight"].inputs == ((16, 1), (1, 1))
    assert cuts["layers.*.attention.core"] == (((8, 1, 2, 1), (8, 1, 1, 1), (8, 1, 1, 1)), None)


def test_operators_cut_as_a_plan_says_communicate_as_the_plan_does() -> None:
    for model in ("llama2-7b", "qwen2.5-14b"):
        asked = problem(model, "ascend_910b:8", "mindformers")
        for sp, forward, backward in (
            (False, [], ["all_reduce"]),
            # Gathered again for the weights' gradient: Korthikanti et al. 2022, arXiv:2205.05198.
            (True, ["all_gather"], ["all_gather", "reduce_scatter"]),
        ):
            found = mindspore_operators.sharding(job(asked, tp=2, sp=sp, mbs=1))
            # Narayanan et al. 2021, arXiv:2104.04473, section 2.3: two sums forward, two backward.
            summed = [each.name for each in found.operators if each.summands != "none"]
            assert summed == ["embed", "layers.0.attention.out", "layers.0.mlp.down", "loss"]
            moved = [(each.reader, each.forward, each.backward) for each in found.reshards]
            assert [reader for reader, *_ in moved] == [
                "layers.0.attention.qkv", "layers.0.mlp.gate_up", "logits"
            ]  # fmt: skip
            for _, there, back in moved:
                assert [step.operation for step in there] == forward
                assert [step.operation for step in back] == backward


def test_context_parallel_gathers_keys_and_values_alone() -> None:
    asked = problem("llama2-7b", "ascend_910b:8", "mindformers")
    gathers = replace(asked.framework, context_exchange="gather")
    found = mindspore_operators.sharding(job(replace(asked, framework=gathers), cp=4))
    assert [(each.tensor, each.reader) for each in found.reshards] == [
        (f"layers.0.attention.{part}.turn.out", "layers.0.attention.core") for part in "kv"
    ]


def test_experts_lie_on_the_replicas_and_tokens_are_exchanged_around_them() -> None:
    asked = problem("mixtral-8x7b", "ascend_910b:16", "mindformers")
    said = job(asked, ep=8, pp=2)
    assert LAUNCHERS["mindspore"].supports(said) == []
    written = texts("mindspore", said)
    file = strategy_form.read_json(written["strategies.json"])
    strategies = {each.name: (each.inputs, each.stage) for each in file.operators}
    of_experts = ((8, 1, 1), (8, 1, 1))
    assert strategies["BatchMatMul_layers.0.mlp.experts.gate_up.weight"] == (of_experts, 0)
    assert strategies["BatchMatMul_layers.31.mlp.experts.down.weight"] == (of_experts, 1)
    assert strategies["MatMul_layers.0.mlp.router.weight"] == (((8, 1), (1, 1)), 0)
    apart = mindspore_module(said)["CUTS"]
    assert apart["layers.*.mlp.sent"] == (((1, 8, 1, 1),), None)
    assert apart["layers.*.mlp.returned"] == (((8, 1, 1, 1),), None)
    # Look-ups of rows: what is looked up, and places in one dimension.
    assert apart["layers.*.mlp.dispatch"] == (((8, 1, 1), (8, 1)), None)
    found = mindspore_operators.sharding(said)
    moved = [(each.reader, each.forward, each.backward) for each in found.reshards]
    assert [reader for reader, *_ in moved] == ["layers.0.mlp.sent", "layers.0.mlp.combine"]
    for _, there, back in moved:
        assert [step.operation for step in there] == ["all_to_all"]
        assert [step.operation for step in back] == ["all_to_all"]


def test_groups_of_replicas_hold_the_same_experts_in_the_order_of_ranks() -> None:
    asked = problem("mixtral-8x7b", "ascend_910b:16", "mindformers")
    said = job(asked, ep=4, pp=2)
    assert LAUNCHERS["mindspore"].supports(said) == []
    cuts = mindspore_module(said)["CUTS"]
    # Eight replicas of a stage are two groups of four: rank 4 g + e has the e-th share of the
    # experts, and the tokens of replica 4 g + e before they are sent. By counts alone MindSpore
    # would have cut experts over ranks 0 and 2, 4 and 6 first.
    grid = ((2, 4), ("group", "expert"))
    rows, weights = (grid, ("expert", "group", "None")), (grid, ("expert", "None", "None"))
    assert cuts["layers.*.mlp.sent"] == (((2, 4, 1, 1),), None)
    assert cuts["layers.*.mlp.experts.gate_up"] == ((rows, weights), None)
    assert cuts["layers.*.mlp.experts.down"] == ((rows, weights), None)
    assert cuts["layers.*.mlp.experts.mul"] == ((rows, rows), None)
    returned = (grid, ("expert", "group", "None", "None"))
    assert cuts["layers.*.mlp.returned"] == ((returned,), None)
    assert cuts["layers.*.mlp.combine"] == (((8, 1, 1), (8, 1)), None)
    file = strategy_form.read_json(texts("mindspore", said)["strategies.json"])
    assert not [each.name for each in file.operators if "experts" in each.name]


def test_experts_that_a_strategy_cannot_place_are_refused_by_name() -> None:
    asked = problem("mixtral-8x7b", "ascend_910b:8", "mindformers")
    supports = LAUNCHERS["mindspore"].supports
    assert "cuts of experts beside tensor or context parallel" in supports(job(asked, ep=4, tp=2))
