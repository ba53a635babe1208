"""What launchers are given: read back with each format's own parser and held against the plan."""

import ast
import json
import re
import shlex
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import autopar
from autopar import Plan, Problem, Ranked, Recompute, SpecError
from autopar.export import launchers, mindspore_operators
from autopar.export.job import Job
from autopar.export.launchers import LAUNCHERS
from autopar.frontends import mindspore_strategy as strategy_form
from autopar.spec import Options
from conftest import EXAMPLES, Command
from drawn_plans import drawn

LLAMA = ("llama3-8b", "h100:64", "megatron-core")
MIXTRAL = ("mixtral-8x7b", "h100:64", "megatron-core")
ASCEND = ("llama3-8b", "ascend_910b:64", "mindformers")


def problem(model: str, cluster: str, framework: str, **more: Any) -> Problem:
    return autopar.problem(
        model, cluster, framework=framework, global_batch_size=256, sequence_length=4096, **more
    )


def job(asked: Problem, **degrees: Any) -> Job:
    plan = autopar.plan(asked, **degrees)
    return Job(asked, plan, autopar.estimate(asked, plan))


def texts(name: str, said: Job) -> dict[str, str]:
    return {file.name: file.text for file in launchers.export(name, said)}


def script_arguments(text: str) -> dict[str, str | None]:
    """Returns the arguments behind the program, as a shell splits them."""
    words = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "))
    program = next(i for i, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    arguments: dict[str, str | None] = {}
    for word in words[program + 1 : -1]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in arguments
            arguments[name] = None
        else:
            assert arguments[name] is None
            arguments[name] = word
    assert words[-1] == "$@"
    return arguments


def laid_out(layout: str, pp: int) -> list[list[int]]:
    """Returns the layers of each chunk of each stage in a layout string, by its grammar."""
    layout = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    assert layout[0] == "E"
    assert layout[-1] == "L"
    chunks = [part.count("t") for part in layout.split("|")]
    return [chunks[stage::pp] for stage in range(pp)]


def split_of(arguments: dict[str, str | None], plan: Plan) -> list[int]:
    """Returns the layers of each stage that Megatron's arguments say."""
    if layout := arguments.get("pipeline-model-parallel-layout"):
        return [sum(chunks) for chunks in laid_out(layout, plan.pp)]
    layers = int(arguments["num-layers"] or 0)
    ends = [arguments.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    given = [int(end) for end in ends if end]
    share, rest = divmod(layers - sum(given), plan.pp - len(given))
    assert rest == 0
    split = [share] * plan.pp
    if ends[0]:
        split[0] = int(ends[0])
    if ends[1]:
        split[-1] = int(ends[1])
    return split


# --- Megatron


@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "ep", "cp", "recompute"])
def test_megatron_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("megatron", 12, feature=feature):
        plan, written = said.plan, texts("megatron", said)
        arguments = script_arguments(written["megatron.sh"])
        devices = plan.dp * plan.tp * plan.cp * plan.pp
        nodes = re.search(r"--nnodes (\d+) --nproc-per-node (\d+)", written["megatron.sh"])
        assert nodes is not None
        assert int(nodes[1]) * int(nodes[2]) == devices
        assert arguments["tensor-model-parallel-size"] == str(plan.tp)
        assert arguments["pipeline-model-parallel-size"] == str(plan.pp)
        assert arguments["context-parallel-size"] == str(plan.cp)
        assert arguments["micro-batch-size"] == str(plan.mbs)
        assert arguments["global-batch-size"] == "256" or arguments["global-batch-size"] == "768"
        assert ("sequence-parallel" in arguments) == plan.sp
        assert ("use-distributed-optimizer" in arguments) == (plan.zero > 0)
        assert ("use-megatron-fsdp" in arguments) == (plan.zero > 1)
        copies = int(arguments.get("num-distributed-optimizer-instances") or 1)
        assert plan.zero == 0 or copies * plan.shard_group == plan.dp * plan.cp
        assert int(arguments.get("expert-model-parallel-size") or 1) == plan.ep
        assert int(arguments.get("expert-tensor-parallel-size") or plan.etp) == plan.etp
        assert split_of(arguments, plan) == [stage.layers for stage in plan.stages]
        if "pipeline-model-parallel-layout" not in arguments:
            assert int(arguments.get("num-virtual-stages-per-pipeline-rank") or 1) == plan.vpp
        recompute = plan.stages[0].recompute
        assert arguments.get("recompute-granularity") == {
            "none": None, "selective": "selective", "block": "full", "uniform": "full",
        }[recompute.granularity]  # fmt: skip
        if recompute.layers is not None:
            assert arguments["recompute-method"] == recompute.granularity
            assert arguments["recompute-num-layers"] == str(recompute.layers)


def test_megatron_yaml_says_what_the_script_says() -> None:
    for said in drawn("megatron", 12):
        written = texts("megatron", said)
        table = yaml.safe_load(written["megatron.yaml"])
        spelled = {
            name.removeprefix("--"): None if value is True else str(value)
            for name, value in table["MODEL_ARGS"].items()
        }
        assert spelled == script_arguments(written["megatron.sh"])
        for name, value in table.get("ENV_VARS", {}).items():
            assert f"export {name}={value}\n" in written["megatron.sh"]


def test_the_printed_split_of_layers_becomes_the_first_stage() -> None:
    # [3, 11 x 7] of 80 layers: (80 - 3) / 7 is 11.
    said = job(problem("llama2-70b", "h800:64", "megatron-core"), pp=8, tp=2, layers=[3] + [11] * 7)
    arguments = script_arguments(texts("megatron", said)["megatron.sh"])
    assert arguments["decoder-first-pipeline-num-layers"] == "3"
    assert "decoder-last-pipeline-num-layers" not in arguments


def test_a_general_split_becomes_a_layout_with_chunks_in_rounds() -> None:
    said = job(problem(*LLAMA), pp=4, vpp=2, layers=[6, 10, 8, 8])
    arguments = script_arguments(texts("megatron", said)["megatron.sh"])
    assert arguments["pipeline-model-parallel-layout"] == "Et*3|t*5|t*4|t*4|t*3|t*5|t*4|t*4L"


def test_an_end_of_the_model_takes_the_place_of_a_layer() -> None:
    # 2 x 4 chunks have room for 4 layers each; of 31 layers the first chunk has one less.
    asked = problem("llama3-8b", "h100:64", "megatron-core")
    asked = replace(asked, model=replace(asked.model, layers=31))
    plan = autopar.plan(asked, pp=4, vpp=2, layers=[7, 8, 8, 8])
    arguments = script_arguments(
        texts("megatron", Job(asked, plan, autopar.estimate(asked, plan)))["megatron.sh"]
    )
    assert arguments["pipeline-model-parallel-layout"] == "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*4L"


def test_dense_and_sparse_layers_are_listed_for_megatron() -> None:
    said = job(problem("deepseek-v3", "h800:256", "megatron-core"), tp=2, ep=8)
    arguments = script_arguments(texts("megatron", said)["megatron.sh"])
    assert arguments["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert "multi-latent-attention" in arguments
    assert arguments["kv-lora-rank"] == "512"


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


# --- DeepSpeed


@pytest.mark.parametrize("feature", [None, "cp", "recompute"])
def test_deepspeed_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("deepspeed", 12, feature=feature):
        plan = said.plan
        table = json.loads(texts("deepspeed", said)["deepspeed.json"])
        steps = table["gradient_accumulation_steps"]
        assert table["train_batch_size"] == said.problem.workload.global_batch_size
        assert table["train_micro_batch_size_per_gpu"] == plan.mbs
        assert table["train_batch_size"] == plan.mbs * steps * plan.dp
        assert table.get("sequence_parallel_size", 1) == plan.cp
        zero = table["zero_optimization"]
        assert zero["stage"] == plan.zero
        assert plan.zero == 0 or plan.dp * plan.cp == plan.shard_group
        assert ("offload_optimizer" in zero) == plan.optimizer_offload
        assert table.get("tensor_parallel", {}).get("autotp_size", 1) == plan.tp
        assert table.get("pipeline", {}).get("stages", 1) == plan.pp
        recompute = plan.stages[0].recompute
        assert ("activation_checkpointing" in table) == (recompute.granularity != "none")
        if plan.pp > 1 and recompute.granularity == "uniform":
            assert table["pipeline"]["activation_checkpoint_interval"] == recompute.layers


# --- torchtitan


@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "ep", "cp"])
def test_torchtitan_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("torchtitan", 12, feature=feature):
        plan = said.plan
        table = tomllib.loads(texts("torchtitan", said)["torchtitan.toml"])
        degrees, training = table["parallelism"], table["training"]
        replicas = degrees["data_parallel_replicate_degree"]
        shards = degrees["data_parallel_shard_degree"]
        assert replicas * shards == plan.dp
        assert plan.zero == 0 or shards * plan.cp == plan.shard_group
        assert plan.zero > 0 or shards == 1
        # What is kept after the forward pass: with a pipeline torchtitan's default keeps it too.
        kept = {"never"} if plan.zero == 2 else {"default"} if plan.zero else {"default", "never"}
        assert degrees["fsdp_reshard_after_forward"] in kept
        assert degrees["tensor_parallel_degree"] == plan.tp
        assert degrees["context_parallel_degree"] == plan.cp
        assert degrees["pipeline_parallel_degree"] == plan.pp
        assert degrees["expert_parallel_degree"] == plan.ep
        assert plan.ep == 1 or degrees["expert_tensor_parallel_degree"] == plan.etp
        local = training["local_batch_size"]
        if plan.pp == 1:
            assert local == plan.mbs
        else:
            assert local * plan.dp == training["global_batch_size"]
            assert degrees["pipeline_parallel_microbatch_size"] == plan.mbs
            assert modules_of(degrees, plan) == [stage.layers for stage in plan.stages]
        mode = table["activation_checkpoint"]["mode"]
        assert (mode == "none") == (plan.stages[0].recompute.granularity == "none")


def modules_of(degrees: dict[str, Any], plan: Plan) -> list[int]:
    """Returns the layers of each stage, after checking that the chunks hold the whole model."""
    chunks = degrees["module_fqns_per_model_part"]
    assert len(chunks) == plan.pp * plan.vpp
    modules = [module for chunk in chunks for module in chunk]
    layers = sum(stage.layers for stage in plan.stages)
    names = [f"layers.{layer}" for layer in range(layers)]
    assert modules == ["tok_embeddings", *names, "norm", "output"]
    counts = [sum(module.startswith("layers.") for module in chunk) for chunk in chunks]
    if plan.schedule == "zb-v":
        # A V: the rank of stage i also holds chunk 2 pp - 1 - i.
        return [counts[i] + counts[-1 - i] for i in range(plan.pp)]
    return [sum(counts[i :: plan.pp]) for i in range(plan.pp)]


def test_a_model_that_torchtitan_does_not_define_keeps_its_name() -> None:
    said = job(problem("llama2-7b", "h100:64", "torchtitan"), zero=3)
    text = texts("torchtitan", said)["torchtitan.toml"]
    assert tomllib.loads(text)["model"] == {"name": "llama2-7b", "flavor": "llama2-7b"}
    assert "defines no llama2-7b" in text


# --- MindSpore


@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "recompute"])
def test_mindspore_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("mindspore", 12, feature=feature):
        plan = said.plan
        values = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(texts("mindspore", said)["auto_parallel_context.py"]).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
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
    said = texts("mindspore", job(replace(asked, framework=framework, model=model), **degrees))
    _, _, cuts = said["auto_parallel_context.py"].partition("\nCUTS = ")
    file = strategy_form.read_json(said["strategies.json"])
    return ast.literal_eval(cuts), {each.name: each for each in file.operators}


def test_tensor_parallel_becomes_the_cuts_of_operators() -> None:
    cuts, file = operators({"tp": 4, "pp": 2, "sp": False})
    # Two replicas of four ranks on each of two stages; columns first, then rows.
    assert file["BatchMatMul_layers.0.attention.qkv.weight"].inputs == ((2, 1, 1), (1, 4))
    assert file["BatchMatMul_layers.0.attention.out.weight"].inputs == ((2, 1, 4), (4, 1))
    assert file["Gather_embedding"].inputs == ((4, 1), (2, 1))
    assert cuts["layers.*.attention.core"] == (((2, 4, 1, 1),) * 3, None)
    assert cuts["layers.*.mlp.residual"] == (((2, 1, 1), (2, 1, 1)), None)
    assert "layers.*.attention.out" not in cuts
    stages = {name: each.stage for name, each in file.items()}
    assert stages["Gather_embedding"] == stages["BatchMatMul_layers.5.mlp.down.weight"] == 0
    assert stages["BatchMatMul_layers.6.mlp.down.weight"] == stages["BatchMatMul_head"] == 1


def test_chunks_take_their_layers_to_stages_in_turn() -> None:
    _, file = operators({"tp": 2, "pp": 2, "vpp": 3})
    stages = [file[f"BatchMatMul_layers.{layer}.mlp.down.weight"].stage for layer in range(12)]
    assert stages == [0, 0, 1, 1] * 3


def test_sequence_parallel_cuts_what_stands_between_the_products() -> None:
    cuts, file = operators({"tp": 2, "sp": True})
    assert file["RmsNorm_layers.0.mlp.norm.scale"].inputs == ((8, 2, 1), (1,))
    assert file["BatchMatMul_layers.11.mlp.down.weight"].inputs == ((8, 1, 2), (2, 1))
    assert cuts["layers.*.mlp.down"] == (((8, 1, 2), (2, 1)), ((8, 2, 1),))


def test_context_parallel_cuts_the_sequence_of_all_but_keys_and_values() -> None:
    cuts, file = operators({"cp": 2})
    assert file["BatchMatMul_layers.0.mlp.down.weight"].inputs == ((8, 2, 1), (1, 1))
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


# --- Accelerate


@pytest.mark.parametrize("feature", [None, "uneven", "ep", "cp", "recompute"])
def test_accelerate_is_given_the_plan(feature: str | None) -> None:
    for said in drawn("accelerate", 12, feature=feature):
        plan, written = said.plan, texts("accelerate", said)
        table = yaml.safe_load(written["accelerate.yaml"])
        assert table["num_processes"] == plan.dp * plan.tp * plan.cp * plan.pp
        words = dict(re.findall(r"--(per_device\w+|gradient\w+) (\d+)", written["accelerate.sh"]))
        steps = int(words["gradient_accumulation_steps"])
        if table["distributed_type"] == "MEGATRON_LM":
            config = table["megatron_lm_config"]
            assert steps == 1
            steps = config["megatron_lm_num_micro_batches"]
            assert config["megatron_lm_tp_degree"] == plan.tp
            assert config["megatron_lm_pp_degree"] == plan.pp
            assert config["megatron_lm_context_parallel_size"] == plan.cp
            assert config.get("megatron_lm_expert_model_parallel_size", 1) == plan.ep
            assert config["megatron_lm_use_distributed_optimizer"] == (plan.zero == 1)
        elif table["distributed_type"] == "FSDP":
            sizes = table["parallelism_config"]
            shards = sizes["parallelism_config_dp_shard_size"]
            assert shards * sizes["parallelism_config_dp_replicate_size"] == plan.dp
            assert shards * plan.cp == plan.shard_group
            assert sizes["parallelism_config_tp_size"] == plan.tp
            assert table["fsdp_config"]["fsdp_reshard_after_forward"] == (plan.zero == 3)
        else:
            assert (plan.zero, plan.dp) == (0, table["num_processes"])
        batch = int(words["per_device_train_batch_size"]) * steps * plan.dp
        assert batch == said.problem.workload.global_batch_size


# --- FlagScale


@pytest.mark.parametrize("feature", [None, "uneven", "recompute"])
def test_flagscale_is_given_stages_on_their_chips(feature: str | None) -> None:
    for said in drawn("flagscale", 15, feature=feature):
        plan, groups = said.plan, said.problem.cluster.groups
        text = texts("flagscale", said)["flagscale.yaml"]
        system = yaml.safe_load(text)["train"]["system"]
        if "enable_hetero" not in system:
            assert len({stage.chip for stage in plan.stages}) == 1
            continue
        meshes = system["hetero_process_meshes"]
        assert len(meshes) == 5 * len(system["hetero_device_types"])
        chips = []
        for i, name in enumerate(system["hetero_device_types"]):
            tp, cp, ep, dp, pp = meshes[5 * i : 5 * i + 5]
            assert (tp, cp, ep, dp) == (plan.tp, plan.cp, plan.ep, plan.dp)
            chips += [name] * pp
            assert f"{dp * tp * cp * pp // 8} lines NAME slots=8 type={name}" in text
        assert chips == [groups[stage.chip].chip.name for stage in plan.stages]
        assert system["hetero_pipeline_layer_split"] == [stage.layers for stage in plan.stages]


def test_flagscale_says_recompute_stage_by_stage() -> None:
    asked = problem("llama3-8b", "a800:64,h800:64", "megatron-core", devices=64)
    said = job(asked, pp=4, tp=2, chips=[0, 1, 1, 1], layers=[5, 9, 9, 9],
               recompute=[Recompute("block", 2), Recompute()])  # fmt: skip
    # 64 devices / (2 x 4) = 8 replicas of 256 sequences: 32 micro-batches.
    system = yaml.safe_load(texts("flagscale", said)["flagscale.yaml"])["train"]["system"]
    assert system["recompute_granularity_per_stage_micro_batch"] == [[1, 32, 1], [3, 32, 0]]
    assert system["recompute_method_per_stage_micro_batch"][0] == [1, 32, 1]
    assert system["recompute_num_layers_per_stage_micro_batch"][0] == [1, 32, 2]


# --- Kubernetes


def test_kubernetes_gives_one_pod_a_node_and_ranks_in_the_order_of_the_stages() -> None:
    asked = problem("llama3-8b", "a800:64,h800:64", "megatron-core", devices=64)
    said = replace(job(asked, pp=4, tp=2, chips=[0, 1, 1, 1]), image="registry.example/train:1")
    first, second = yaml.safe_load_all(texts("kubernetes", said)["kubernetes.yaml"])
    # Each stage has 8 x 2 devices, two nodes: 2 of a800, then 6 of h800.
    for manifest, chip, nodes, offset in [(first, "a800", 2, 0), (second, "h800", 6, 2)]:
        roles = manifest["spec"]["pytorchReplicaSpecs"]
        assert sum(role["replicas"] for role in roles.values()) == nodes
        assert roles["Master"]["replicas"] == 1
        for role in roles.values():
            pod = role["template"]["spec"]
            assert pod["nodeSelector"] == {"chip": chip}
            [container] = pod["containers"]
            assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
            assert container["image"] == "registry.example/train:1"
            assert f"NODE_RANK=$(({offset} + RANK))" in container["command"][-1]
            assert "MASTER_ADDR=train-llama3-8b-a800-master-0 " in container["command"][-1]


def test_mindformers_runs_as_an_ms_job() -> None:
    said = replace(job(problem(*ASCEND), tp=8), image="registry.example/ms:1")
    [manifest] = yaml.safe_load_all(texts("kubernetes", said)["kubernetes.yaml"])
    assert manifest["kind"] == "MSJob"
    roles = manifest["spec"]["msReplicaSpecs"]
    assert {name: role["replicas"] for name, role in roles.items()} == {"Scheduler": 1, "Worker": 8}
    worker, scheduler = (roles[name]["template"]["spec"] for name in ("Worker", "Scheduler"))
    assert worker["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": "8"}
    assert "resources" not in scheduler["containers"][0]


def test_kubernetes_needs_an_image() -> None:
    with pytest.raises(SpecError, match="--image: missing"):
        launchers.export("kubernetes", job(problem(*LLAMA), tp=2))


# --- What is refused


@pytest.mark.parametrize(
    ("name", "subject", "degrees", "reason"),
    [
        ("megatron", LLAMA, {"pp": 4, "schedule": "zb-h1"}, "schedule zb-h1"),
        ("megatron", LLAMA, {"pp": 4, "zero": 2}, "ZeRO stage 2 with pipeline stages"),
        ("megatron", LLAMA, {"offload": 2}, "activation offload"),
        ("megatron", ("gemma2-9b", *LLAMA[1:]), {}, "4 norms a layer"),
        ("megatron", ("falcon-40b", *LLAMA[1:]), {}, "a parallel block"),
        ("mindformers", LLAMA, {}, "the chip h100"),
        ("mindformers", ASCEND, {"recompute": Recompute("selective")}, "selective recompute"),
        ("mindformers", ASCEND, {"recompute": Recompute("uniform", 2)}, "in groups of layers"),
        ("mindformers", ("gpt3-6.7b", *ASCEND[1:]), {}, "its norms"),
        ("deepspeed", LLAMA, {"tp": 2}, "sequence parallel"),
        ("deepspeed", LLAMA, {"cp": 2}, "context parallel 2"),
        ("torchtitan", (*LLAMA[:2], "deepspeed"), {"cp": 2, "zero": 3}, "that exchanges heads"),
        ("deepspeed", LLAMA, {"pp": 2, "zero": 2}, "ZeRO stage 2 with pipeline stages"),
        ("deepspeed", LLAMA, {"zero": 1, "shard_group": 8}, "shard groups of 8"),
        ("deepspeed", LLAMA, {"pp": 2, "layers": [15, 17]}, "uneven layers"),
        ("deepspeed", MIXTRAL, {"ep": 8}, "expert parallel 8"),
        ("deepspeed", LLAMA, {"recompute": Recompute("block", 2)}, "recompute of only some"),
        ("mindspore", ASCEND, {"cp": 2}, "context parallel that does not gather keys"),
        ("mindspore", ("mixtral-8x7b", *ASCEND[1:]), {"ep": 8}, "expert parallel, whose"),
        ("mindspore", ("opt-13b", *ASCEND[1:]), {"tp": 2}, "an embedding that is the head's too"),
        ("mindspore", ASCEND, {"tp": 2, "cp": 2}, "context beside tensor parallel"),
        ("mindspore", ("mixtral-8x7b", *ASCEND[1:]), {"tp": 2}, "cuts of experts"),
        ("accelerate", LLAMA, {"tp": 2, "zero": 3}, "sequence parallel with FSDP"),
        ("accelerate", LLAMA, {"pp": 2, "vpp": 2}, "2 chunks a stage"),
        ("accelerate", LLAMA, {"pp": 4, "layers": [9, 7, 8, 8]}, "uneven layers but in the last"),
        ("flagscale", LLAMA, {"pp": 4, "schedule": "zb-h1"}, "schedule zb-h1"),
        ("kubernetes", ("llama3-8b", "my.toml", "megatron-core"), {}, "of no device plugin"),
        ("torchtitan", LLAMA, {"zero": 1}, "ZeRO stage 1"),
        ("torchtitan", LLAMA, {"tp": 2, "sp": False, "zero": 3}, "without sequence parallel"),
        ("torchtitan", LLAMA, {"pp": 4, "schedule": "zb-h1"}, "schedule zb-h1"),
        ("torchtitan", LLAMA, {"recompute": Recompute("selective")}, "recompute of only some"),
    ],
)
def test_what_a_launcher_cannot_say_is_refused_by_name(
    name: str,
    subject: tuple[str, str, str],
    degrees: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text((EXAMPLES / "chip.toml").read_text())
    if "my.toml" in subject:
        subject = (subject[0], "my.toml:64", subject[2])
    with pytest.raises(SpecError, match=re.escape(reason)) as refusal:
        launchers.export(name, job(problem(*subject), **degrees))
    assert refusal.value.path == "--to"


def in_framework(said: Job, **changes: Any) -> Job:
    """Returns a job whose framework does something else besides."""
    framework = replace(said.problem.framework, **changes)
    return replace(said, problem=replace(said.problem, framework=framework))


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "accelerate", "deepspeed"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sums_in_fp32": True}, "sums of activations in 32 bits"),
        ({"whole_vocabulary": True}, "a whole vocabulary on each tensor-parallel rank"),
        ({"slices_kept_inputs": True}, "inputs of recomputed layers kept in slices"),
        ({"keeps_tensor_results": True}, "recompute that does not repeat communication"),
    ],
)
def test_what_only_mindspore_does_is_refused_by_others(
    name: str, change: dict[str, bool], reason: str
) -> None:
    again = Recompute("uniform", 1)
    said = job(problem(*LLAMA), tp=2, sp=False, recompute=again)
    assert reason not in LAUNCHERS[name].supports(said)
    assert reason in LAUNCHERS[name].supports(in_framework(said, **change))


@pytest.mark.parametrize("name", ["megatron", "accelerate", "flagscale"])
def test_recompute_of_single_operators_is_not_megatron_s(name: str) -> None:
    said = job(problem(*LLAMA), tp=2, recompute=Recompute("selective"))
    assert LAUNCHERS[name].supports(said) == []
    other = in_framework(said, selective="operators")
    assert LAUNCHERS[name].supports(other) == ["recompute of single operators"]


def test_recompute_of_single_operators_is_torchtitan_s() -> None:
    subject = (*LLAMA[:2], "torchtitan")
    said = job(problem(*subject), zero=3, recompute=Recompute("selective"))
    table = tomllib.loads(texts("torchtitan", said)["torchtitan.toml"])
    checkpoint = {"mode": "selective", "selective_ac_option": "op"}
    assert table["activation_checkpoint"] == checkpoint
    core = in_framework(said, selective="attention")
    assert "recompute of only some layers or operators" in LAUNCHERS["torchtitan"].supports(core)


def test_what_mindspore_does_besides_is_in_its_files() -> None:
    said = job(problem(*ASCEND), tp=2, sp=False, recompute=Recompute("uniform", 1))
    said = in_framework(
        said,
        sums_in_fp32=True,
        whole_vocabulary=True,
        slices_kept_inputs=True,
        keeps_tensor_results=True,
    )
    run = yaml.safe_load(texts("mindformers", said)["mindformers.yaml"])
    assert run["parallel"]["force_fp32_communication"] is True
    assert run["parallel_config"]["vocab_emb_dp"] is True
    assert run["recompute_config"]["mp_comm_recompute"] is False
    assert run["recompute_config"]["recompute_slice_activation"] is True
    module = texts("mindspore", said)["auto_parallel_context.py"]
    assert "'force_fp32_communication': True" in module


@pytest.mark.parametrize(
    ("name", "dispatch", "says"),
    [
        ("mindformers", "copies", "enable_alltoall: true"),
        ("mindformers", "gather_split", "enable_alltoall: false"),
        ("mindformers", "once_a_node", None),
        ("torchtitan", "copies", 'expert_parallel_comm_backend = "standard"'),
        ("torchtitan", "once_a_node", 'expert_parallel_comm_backend = "deepep"'),
        ("torchtitan", "gather", None),
        ("megatron", "once_a_node", "--moe-enable-deepep"),
        ("megatron", "gather_split", None),
        ("accelerate", "gather", "expert_model_parallel_size: 4"),
        ("accelerate", "copies", None),
    ],
)
def test_how_tokens_reach_experts_is_said_or_refused(
    name: str, dispatch: str, says: str | None
) -> None:
    subject = ("mixtral-8x7b", *ASCEND[1:]) if name == "mindformers" else MIXTRAL
    degrees = {"zero": 3} if name == "torchtitan" else {"zero": 1}
    said = in_framework(job(problem(*subject), ep=4, **degrees), expert_dispatch=dispatch)
    if says is None:
        assert f"expert dispatch {dispatch}" in LAUNCHERS[name].supports(said)
    else:
        assert any(says in text for text in texts(name, said).values())


def test_several_kinds_of_chip_are_refused_by_launchers_of_equal_nodes() -> None:
    mixed = problem("llama3-8b", "a800:64,h800:64", "megatron-core", devices=64)
    said = job(mixed, pp=2, chips=[0, 1])
    for name in LAUNCHERS.keys() - {"flagscale", "kubernetes"}:
        assert "several kinds of chip" in LAUNCHERS[name].supports(said)


def test_a_node_that_is_not_full_is_refused() -> None:
    asked = problem("llama3-8b", "h100:16", "megatron-core", devices=12)
    said = job(asked, pp=3, layers=[10, 11, 11])
    assert LAUNCHERS["megatron"].supports(said) == ["12 devices on nodes of 8"]


# --- The limits of a search

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
            variants = [degrees, {**degrees, "zero": 0}, {**degrees, "zero": 3}]
            asked = problem(*subject)
            assert any(not LAUNCHERS[name].supports(job(asked, **v)) for v in variants), value


# torchtitan says a block only where it covers every layer, and its own selective recompute alone.
SOME_LAYERS = {("torchtitan", "block"), ("torchtitan", "selective")}


@cache
def fastest_of_all(subject: tuple[str, str, str]) -> tuple[Ranked, ...]:
    return autopar.solve(replace(problem(*subject), options=Options(top=1000))).ranked


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_best_plan_found_for_a_launcher_is_one_that_it_can_say(name: str) -> None:
    subject = ASCEND if name.startswith("mind") else LLAMA
    asked = problem(*subject)
    [best], _ = launchers.fastest(name, asked, autopar.solve)
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
    found, _ = launchers.fastest("deepspeed", asked, autopar.solve, 12)
    assert len({job.plan for job in found}) == 12
    times = [job.estimate.step_ps for job in found]
    assert times == sorted(times)
    # Beside an option that the launcher has not, the space lists only the faster plan of the two.
    assert all(ours <= theirs for ours, theirs in zip(times, said, strict=False))


def test_limits_that_contradict_the_flags_are_an_error() -> None:
    with pytest.raises(SpecError, match="megatron can say nothing that the flags allow"):
        launchers.restrict(Options(schedules=("gpipe",)), "megatron")


# --- Files and flags


@pytest.mark.parametrize("name", LAUNCHERS)
def test_files_say_what_to_expect_and_come_out_the_same_twice(name: str) -> None:
    said = drawn(name, 1)[0]
    assert launchers.export(name, said) == launchers.export(name, said)
    for text in texts(name, said).values():
        assert said.problem.model.name in text
        assert f"{said.estimate.step_s:.6g} s a step" in text
        assert f"x {said.problem.cluster.groups[0].chip.name}" in text


def small_report(command: Command, *flags: str) -> Path:
    run = command(
        "search", "--model", "llama2-7b", "--cluster", "a800:8", "--global-batch-size", "64",
        "--sequence-length", "4096", "--format", "json", "-o", "report.json",
        "--no-activation-offload", "--zero", "0,1", "--schedule", "1f1b", *flags,
    )  # fmt: skip
    assert run.code == 0
    return Path("report.json")


def test_a_plan_of_a_report_is_written_into_a_folder(command: Command) -> None:
    report = small_report(command)
    run = command("export", "--to", "megatron", str(report), "--rank", "2", "-o", "job")
    assert (run.code, run.out, run.err) == (0, "", "")
    second = json.loads(report.read_text())["ranked"][1]["plan"]
    arguments = script_arguments(Path("job/megatron.sh").read_text())
    assert arguments["tensor-model-parallel-size"] == str(second["tp"])
    assert arguments["micro-batch-size"] == str(second["mbs"])
    again = command("export", "--to", "megatron", str(report), "-o", "job")
    assert again.code == 2
    assert 'megatron.sh" exists' in again.err
    assert command("export", "--to", "megatron", str(report), "-o", "job", "--force").code == 0


def test_a_plan_alone_is_written_with_the_question_in_flags(command: Command) -> None:
    plan = {**json.loads(small_report(command).read_text())["ranked"][0]["plan"]}
    Path("plan.json").write_text(json.dumps(plan))
    question = ["--model", "llama2-7b", "--cluster", "a800", "--global-batch-size", "64"]
    run = command("export", "--to", "megatron", "plan.json", *question, "--sequence-length", "4096")
    assert run.code == 0
    assert "==> megatron.sh <==" in run.out
    short = command("export", "--to", "megatron", "plan.json", *question)
    assert (short.code, short.out) == (2, "")
    assert short.err.startswith("error: --sequence-length: missing.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report.json", "--rank", "9"], "--rank: no plan 9 in a report of 5"),
        (["report.json", "--model", "llama2-7b"], "given beside a report, --model"),
        (["absent.json"], "absent.json: no such file"),
        (["bad.json"], "bad.json: not JSON"),
        (["list.json"], "list.json: must be a table"),
    ],
)
def test_a_wrong_export_is_one_line(command: Command, arguments: list[str], says: str) -> None:
    small_report(command)
    Path("bad.json").write_text("{")
    Path("list.json").write_text("[]")
    run = command("export", "--to", "megatron", *arguments)
    assert (run.code, run.out) == (2, "")
    assert says in run.err
    assert run.err.count("\n") == 1


def test_a_search_for_a_launcher_prints_its_file(command: Command) -> None:
    run = command(
        "search", "--model", "llama2-7b", "--cluster", "a800:8", "--global-batch-size", "64",
        "--sequence-length", "4096", "--framework", "deepspeed", "--export", "deepspeed",
    )  # fmt: skip
    assert run.code == 0
    table = json.loads(run.out)
    assert table["train_batch_size"] == 64
    assert "llama2-7b on 8 x a800" in table["_comment"][0]


def test_the_table_names_the_launchers_that_can_say_each_plan(command: Command) -> None:
    asked = ["--model", "llama2-7b", "--cluster", "a800:16", "--global-batch-size", "256",
             "--sequence-length", "4096", "--top", "9"]  # fmt: skip
    ranked = autopar.solve(problem("llama2-7b", "a800:16", "megatron-core", top=9)).ranked
    rows = command("search", *asked).out.splitlines()
    assert rows[0].endswith("  launchers")
    for row, each in zip(rows[1:10], ranked, strict=True):
        said = Job(problem("llama2-7b", "a800:16", "megatron-core"), each.plan, each.estimate)
        able = [
            name
            for name in LAUNCHERS
            if name != "kubernetes" and not LAUNCHERS[name].supports(said)
        ]
        assert row.endswith(f"  {' '.join(able) or 'none'}")
    held = command("search", *asked, "--launcher", "megatron").out.splitlines()
    assert all("megatron" in row.split("  ")[-1].split() for row in held[1:10])


@pytest.mark.parametrize(
    "beside", [["--format", "json"], ["--export", "megatron"], ["--frontier"], ["--like", "x.sh"]]
)
def test_a_list_for_a_launcher_has_one_form(command: Command, beside: list[str]) -> None:
    run = command(
        "search", "--model", "llama2-7b", "--cluster", "a800:8", "--global-batch-size", "64",
        "--sequence-length", "4096", "--launcher", "megatron", *beside,
    )  # fmt: skip
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"error: --launcher: given beside {beside[0]}")


def test_nothing_that_fits_is_an_answer_for_a_launcher_too(command: Command) -> None:
    run = command(
        "search", "--model", "llama3.1-405b", "--cluster", "a800:8", "--global-batch-size", "64",
        "--sequence-length", "4096", "--export", "megatron", "-o", "job",
    )  # fmt: skip
    assert run.code == 1
    assert "no plan fits in memory" in run.err
    assert not Path("job").exists()
