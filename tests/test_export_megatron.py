"""What Megatron-LM and FlagScale are given: read back and held against the plan."""

import re
from dataclasses import replace

import pytest
import yaml

import autopar
from autopar import Plan, Recompute
from autopar.export.job import Job
from drawn_plans import drawn
from exported import LLAMA, job, problem, script_arguments, texts


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


# --- FlagScale


@pytest.mark.parametrize("feature", [None, "uneven", "recompute", "mixed_tp"])
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
            kind = next(kind for kind, group in enumerate(groups) if group.chip.name == name)
            own = plan.tp_of_kind[kind] if plan.tp_of_kind else plan.tp
            assert (tp, cp, ep, dp) == (own, plan.cp, plan.ep, plan.dp)
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
