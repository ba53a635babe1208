"""What DeepSpeed, torchtitan and Accelerate are given: read back and held against the plan."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from autopar import Plan
from drawn_plans import drawn
from exported import job, problem, texts

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
