"""What someone runs today, read from launchers' files: as questions, as plans, as errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import Plan, Problem, Recompute, SpecError, planner
from autopar.export import launchers, megatron
from autopar.export.job import Job
from autopar.framework import Framework, Graphs, Orthogonal
from autopar.frontends import launches
from autopar.report import NamedLayers
from autopar.spec import Precision
from conftest import Command
from drawn_plans import drawn

# How the pretraining scripts of Megatron-LM's examples are written: arrays, line ends, variables.
SCRIPT = r"""#!/bin/bash
# Runs a model of 7 billion parameters.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 32   # as published
    --hidden-size 4096
    --ffn-hidden-size=11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --vocab-size 32000
    --swiglu --normalization "RMSNorm" --disable-bias-linear
    --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
)
TRAINING_ARGS="
    --micro-batch-size 1
    --global-batch-size $((WORLD_SIZE * 8))
    --bf16
    --lr 6.0e-5
    --train-iters 500000
"
PARALLEL="--tensor-model-parallel-size ${TP} --sequence-parallel"
PARALLEL+=" --pipeline-model-parallel-size 4 --use-distributed-optimizer"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS} $PARALLEL \
    --recompute-granularity full --recompute-method block --recompute-num-layers 2 \
    --data-path $DATA_PATH "$@" 2>&1 | tee log.txt
"""
TITAN = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 32
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
# The degrees of the configuration of 64 devices that MindFormers ships for Llama2-70B.
MINDFORMERS = """
use_parallel: True
runner_config:
  batch_size: 1
parallel:
  parallel_mode: 1
  enable_parallel_optimizer: True
parallel_config:
  data_parallel: 2
  model_parallel: 4
  pipeline_stage: 8
  use_seq_parallel: True
  micro_batch_num: 256
  vocab_emb_dp: False
recompute_config:
  recompute: [2, 2, 1, 0, 0, 0, 0, 0]
model:
  model_config:
    type: LlamaConfig
    seq_length: 4096
    hidden_size: 8192
    num_layers: 80
    num_heads: 64
    n_kv_heads: 8
    vocab_size: 32000
    multiple_of: 256
    ffn_dim_multiplier: 1.3
    compute_dtype: "bfloat16"
    offset: [-1, 0, 0, 0, 0, 0, 0, 1]
    use_flash_attention: True
"""
DEEPSPEED = """
{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
  "bf16": {"enabled": true}
}
"""


def launched(
    launcher: str, text: str, suffix: str, folder: Path, question: Any, **degrees: Any
) -> tuple[Problem, Plan]:
    path = folder / f"run.{suffix}"
    path.write_text(text)
    return planner.launched(launches.read(launcher, str(path)), question, degrees)


def test_a_script_of_megatron_is_read_without_being_run(tmp_path: Path) -> None:
    problem, plan = launched("megatron", SCRIPT, "sh", tmp_path, {"cluster": "a100"})
    model = problem.model
    # The dimensions of Llama2-7B, of 6,738,415,616 parameters.
    assert planner.model_facts(model).parameters == 6_738_415_616
    assert problem.cluster.devices == 32
    assert problem.workload.global_batch_size == 32 * 8
    assert problem.workload.precision == "bf16"
    assert not problem.workload.dropout
    # 32 devices / (2 x 4) = 4 replicas.
    assert (plan.dp, plan.tp, plan.pp, plan.sp, plan.zero) == (4, 2, 4, True, 1)
    assert [stage.layers for stage in plan.stages] == [8] * 4
    assert {stage.recompute for stage in plan.stages} == {Recompute("block", 2)}
    assert not problem.framework.overlap.gradient_reduce


@pytest.mark.parametrize(
    ("flags", "gradient", "update"),
    [("--bf16", 4, 0), ("--fp16", 2, 4), ("--fp16 --accumulate-allreduce-grads-in-fp32", 4, 0)],
)
def test_gradients_of_megatron_are_as_wide_as_its_arguments_say(
    flags: str, gradient: int, update: int, tmp_path: Path
) -> None:
    script = change(SCRIPT, "--bf16", flags)
    problem, plan = launched("megatron", script, "sh", tmp_path, {"cluster": "a100"})
    framework = problem.framework
    assert (framework.bytes.gradient, framework.bytes.gradient_sent) == (gradient, gradient)
    assert framework.held.update_bytes == update
    job = Job(problem, plan, planner.estimate(problem, plan))
    arguments = megatron.plan_arguments(job)
    said = "accumulate-allreduce-grads-in-fp32" in arguments
    assert said == ("fp16" in flags and gradient == 4)


def test_a_configuration_of_torchtitan_is_read(tmp_path: Path) -> None:
    problem, plan = launched("torchtitan", TITAN, "toml", tmp_path, {"cluster": "h100"})
    assert problem.model.name.startswith("llama3")
    assert problem.cluster.devices == 256
    assert problem.workload.global_batch_size == 8 * 32
    assert problem.workload.sequence_length == 8192
    assert (plan.dp, plan.tp, plan.sp, plan.zero, plan.shard_group) == (32, 8, True, 3, 32)
    assert plan.stages[0].recompute == Recompute("uniform", 1)


def test_of_several_programs_the_one_that_trains_is_read(tmp_path: Path) -> None:
    question = {"cluster": "a800"}
    alone = launched("megatron", SCRIPT, "sh", tmp_path, question)
    data = "python tools/preprocess_data.py --input raw.json --workers 8\n"
    convert = (
        "\npython tools/checkpoint/convert.py --target-tensor-parallel-size 8 --loader mcore\n"
    )
    assert launched("megatron", data + SCRIPT + convert, "sh", tmp_path, question) == alone
    start = SCRIPT.index("torchrun")
    command = SCRIPT[start:].replace('"$@" 2>&1 | tee log.txt\n', "")
    twice = f'{SCRIPT[:start]}RUN="{command}"\necho $RUN\neval $RUN\n'
    assert launched("megatron", twice, "sh", tmp_path, question) == alone


@pytest.mark.parametrize(
    ("option", "layers"),
    [("", 40), ("selective_ac_option = '4'", 20), ("selective_ac_option = '99'", 0)],
)
def test_every_so_manieth_layer_of_torchtitan_is_recomputed(
    option: str, layers: int, tmp_path: Path
) -> None:
    # Of 80 layers each second by default.
    text = change(TITAN, 'mode = "full"', f'mode = "selective"\n{option}')
    _, plan = launched("torchtitan", text, "toml", tmp_path, {"cluster": "h100"})
    assert plan.stages[0].recompute == (Recompute("block", layers) if layers else Recompute())


def test_operators_of_torchtitan_are_what_its_framework_calls_selective(tmp_path: Path) -> None:
    text = change(TITAN, 'mode = "full"', 'mode = "selective"\nselective_ac_option = "op"')
    problem, plan = launched("torchtitan", text, "toml", tmp_path, {"cluster": "h100"})
    assert plan.stages[0].recompute == Recompute("selective")
    assert problem.framework.selective == "operators"


@pytest.mark.parametrize(
    ("name", "suffix", "old", "new", "why"),
    [
        ("torchtitan", "toml", 'mode = "full"', 'mode = "memory_budget"', "by a budget of memory"),
        ("mindformers", "yaml", "recompute: [",
         "select_recompute: ['ffn_norm\\.norm']\n  recompute: [",
         "select_recompute names ffn_norm.*without attention_norm"),
    ],
)  # fmt: skip
def test_recompute_that_no_plan_says_is_asked_for(
    name: str, suffix: str, old: str, new: str, why: str, tmp_path: Path
) -> None:
    text = change({"torchtitan": TITAN, "mindformers": MINDFORMERS}[name], old, new)
    cluster = "h100" if name == "torchtitan" else "ascend_910b"
    with pytest.raises(SpecError, match=f"^--recompute: missing: .*{why}.*Give the nearest"):
        launched(name, text, suffix, tmp_path, {"cluster": cluster})
    said = Recompute("selective")
    _, plan = launched(name, text, suffix, tmp_path, {"cluster": cluster}, recompute=said)
    assert {stage.recompute for stage in plan.stages} == {Recompute("selective")}


def test_operators_of_some_layers_are_read_by_stage_and_pattern(tmp_path: Path) -> None:
    # MindFormers' own example of 70B on 64 devices, and counts that differ by pattern.
    question = {"cluster": "ascend_910b"}
    recompute = "recompute: [2, 2, 1, 0, 0, 0, 0, 0]"
    text = change(MINDFORMERS, recompute, "select_recompute: [10, 8, 6, 4, 2, 0, 0, 0]")
    problem, plan = launched("mindformers", text, "yaml", tmp_path, question)
    found = [stage.recompute.operators for stage in plan.stages]
    # The first stage has nine layers.
    assert [each.activation if each else 0 for each in found] == [9, 8, 6, 4, 2, 0, 0, 0]
    stages = autopar.estimate(problem, plan).stages
    assert stages[1].backward_ps > stages[5].backward_ps
    patterns = r"""
  select_recompute:
    'feed_forward\.mul': [4, 4, 4, 4, 4, 4, 4, 4]
    'feed_forward\.w1\.activation\.silu': [4, 4, 4, 4, 4, 4, 4, 4]
    '.*\.norm': [9, 0, 0, 0, 0, 0, 0, 0]
  select_comm_recompute: [0, 0, 0, 0, 0, 0, 0, 5]"""
    _, plan = launched(
        "mindformers", change(MINDFORMERS, recompute, recompute + patterns), "yaml", tmp_path,
        question,
    )  # fmt: skip
    first, last = plan.stages[0].recompute, plan.stages[7].recompute
    assert first.layers == 2
    assert first.operators == NamedLayers(norm=9, activation=4)
    assert last.operators == NamedLayers(gather=5, activation=4)


def test_keywords_of_recompute_that_mindformers_gives_no_layer_change_nothing(
    tmp_path: Path,
) -> None:
    lists = "recompute: [2, 2, 1, 0, 0, 0, 0, 0]"
    file = tmp_path / "run.yaml"
    said = "\n  recompute_slice_activation: True\n  mp_comm_recompute: False"
    for recompute, sliced in ((lists, False), ("recompute: True", True)):
        file.write_text(change(MINDFORMERS, lists, recompute + said))
        job = launches.read("mindformers", str(file))
        assert job.changes["slices_kept_inputs"] is sliced
        assert "keeps_tensor_results" not in job.changes
        notes = " ".join(job.notes)
        assert "mp_comm_recompute acts on no layer" in notes
        assert ("recompute_slice_activation acts where" in notes) is not sliced


def test_a_run_of_mindformers_is_read(tmp_path: Path) -> None:
    question = {"cluster": "ascend_910b"}
    problem, plan = launched("mindformers", MINDFORMERS, "yaml", tmp_path, question)
    # 1.31 x 4 x 8192 x 2/3 = 28,617, rounded up to a multiple of 256: Llama2-70B's own width.
    assert problem.model.ffn_hidden == 28_672
    assert planner.model_facts(problem.model).parameters == 68_976_648_192
    assert problem.cluster.devices == 64
    assert problem.workload.global_batch_size == 2 * 256
    assert (plan.dp, plan.tp, plan.pp, plan.zero) == (2, 4, 8, 1)
    assert [stage.layers for stage in plan.stages] == [9, 10, 10, 10, 10, 10, 10, 11]
    layers = [stage.recompute.layers for stage in plan.stages]
    assert layers == [2, 2, 1, None, None, None, None, None]
    # 81 // 4 = 20 layers a group.
    assert problem.framework.fused_groups == 4


def test_the_capacity_of_experts_is_written_for_megatron_and_read_back(tmp_path: Path) -> None:
    whole = autopar.problem(
        "mixtral-8x7b", "h100:64", framework="megatron-core", global_batch_size=256,
        sequence_length=4096,
    )  # fmt: skip
    assert whole.model.moe is not None
    model = replace(whole.model, moe=replace(whole.model.moe, capacity_factor=1.25))
    problem = replace(whole, model=model)
    plan = autopar.plan(problem, tp=2, ep=8, zero=1)
    said = Job(problem, plan, autopar.estimate(problem, plan))
    script = next(
        file.text for file in launchers.export("megatron", said) if file.name.endswith(".sh")
    )
    assert "--moe-expert-capacity-factor 1.25" in script
    found, _ = launched("megatron", script, "sh", tmp_path, {"cluster": "h100:64"})
    assert found.model.moe is not None
    assert found.model.moe.capacity_factor == 1.25
    # A bound that is not filled does not make all experts take as long.
    bare = script.replace("--moe-pad-expert-input-to-capacity", "")
    found, _ = launched("megatron", bare, "sh", tmp_path, {"cluster": "h100:64"})
    assert found.model.moe is not None
    assert found.model.moe.capacity_factor == 0


def test_graphs_are_written_for_megatron_and_read_back(tmp_path: Path) -> None:
    whole = autopar.problem(
        "mixtral-8x7b", "h100:64", framework="megatron-core", global_batch_size=256,
        sequence_length=4096,
    )  # fmt: skip
    graphs = Graphs(attention=True, router=True)
    problem = replace(whole, framework=replace(whole.framework, graphs=graphs))
    plan = autopar.plan(problem, tp=2, ep=8, zero=1)
    said = Job(problem, plan, autopar.estimate(problem, plan))
    script = next(
        file.text for file in launchers.export("megatron", said) if file.name.endswith(".sh")
    )
    scope = "--cuda-graph-scope attn moe_router moe_preprocess"
    assert f"--cuda-graph-impl transformer_engine \\\n    {scope}" in script

    def read(text: str) -> Framework:
        question = {"cluster": "h100:64", "framework": "megatron-core"}
        return launched("megatron", text, "sh", tmp_path, question)[0].framework

    def written(**changes: object) -> str:
        asked = replace(whole, framework=replace(whole.framework, **changes))
        job = Job(asked, plan, autopar.estimate(asked, plan))
        return "".join(file.text for file in launchers.export("megatron", job))

    assert read(script).graphs == graphs
    # Whole layers without a scope, and a step.
    assert read(script.replace(f"    {scope} \\\n", "")).graphs == Graphs(
        attention=True, router=True, mlp=True
    )
    step = "--cuda-graph-scope full_iteration"
    assert read(script.replace(scope, step)).launch_us == 0.0
    assert step in written(launch_us=0.0)
    # No layer is dense, so no graph is of an MLP.
    assert scope in written(graphs=Graphs(attention=True, router=True, mlp=True))
    assert "cuda-graph" not in written(graphs=Graphs(mlp=True))
    with pytest.raises(SpecError, match="must be full_iteration, or of attn"):
        read(script.replace(scope, "--cuda-graph-scope mamba"))


def test_muon_is_written_for_megatron_and_read_back(tmp_path: Path) -> None:
    plain = autopar.problem(
        "llama2-7b", "a800:8", framework="megatron-core", global_batch_size=64, sequence_length=4096
    )

    def written(zero: int, orthogonal: Orthogonal, **changes: object) -> str:
        asked = replace(plain, framework=replace(plain.framework, orthogonal=orthogonal, **changes))
        plan = autopar.plan(asked, tp=2, zero=zero)
        job = Job(asked, plan, autopar.estimate(asked, plan))
        assert "deepspeed" not in launchers.able(job)
        return "".join(file.text for file in launchers.export("megatron", job))

    def read(text: str) -> tuple[Framework, int]:
        question = {"cluster": "a800:8", "framework": "megatron-core"}
        found, plan = launched("megatron", text, "sh", tmp_path, question)
        return found.framework, plan.zero

    own = Orthogonal(iterations=6)
    script = written(0, own)
    assert "--optimizer muon" in script
    found, zero = read(script)
    assert (found.orthogonal, zero) == (own, 0)
    shared = Orthogonal(iterations=5, shared=True)
    after = replace(plain.framework.overlap, parameter_gather=False)
    script = written(1, shared, shards="tensors", all_reduces=True, overlap=after)
    assert "--optimizer dist_muon" in script
    assert "--use-distributed-optimizer" not in script
    found, zero = read(script)
    assert (found.orthogonal, found.shards, found.all_reduces, zero) == (shared, "tensors", True, 1)
    with pytest.raises(SpecError, match="updates made orthogonal by other"):
        written(1, shared)
    with pytest.raises(SpecError, match="optimizer"):
        read(script.replace("dist_muon", "lion"))


@pytest.mark.parametrize(
    ("precision", "said"), [("fp8", "--fp8-format hybrid"), ("fp4", "--fp4-format e2m1")]
)
def test_narrow_products_are_written_for_megatron_and_read_back(
    precision: Precision, said: str, tmp_path: Path
) -> None:
    problem = autopar.problem(
        "llama2-70b", "gb200:64", framework="megatron-core", global_batch_size=256,
        sequence_length=4096, precision=precision,
    )  # fmt: skip
    plan = autopar.plan(problem, tp=4, sp=True, zero=1)
    job = Job(problem, plan, autopar.estimate(problem, plan))
    files = launchers.export("megatron", job)
    script = next(file.text for file in files if file.name.endswith(".sh"))
    assert said in script
    assert "--bf16" in script
    question = {"cluster": "gb200:64", "framework": "megatron-core"}
    found, read = launched("megatron", script, "sh", tmp_path, question)
    assert (found.workload.precision, read) == (precision, plan)


def test_deepspeed_s_file_and_flags_make_a_plan(tmp_path: Path) -> None:
    question = {"model": "llama2-7b", "cluster": "a100", "sequence_length": 4096}
    problem, plan = launched("deepspeed", DEEPSPEED, "json", tmp_path, question)
    # 256 / (2 x 4) = 32 replicas.
    assert (plan.dp, plan.mbs, plan.zero, plan.shard_group) == (32, 2, 3, 32)
    assert plan.optimizer_offload
    assert problem.cluster.devices == 32
    # Without ZeRO the optimizer of bf16 is sharded all the same, and sums gradients in 32 bits.
    bare = change(DEEPSPEED, '"stage": 3, "offload_optimizer": {"device": "cpu"}', "")
    problem, plan = launched("deepspeed", bare, "json", tmp_path, question)
    assert (plan.zero, problem.framework.bytes.gradient) == (1, 6)
    _, plan = launched("deepspeed", change(bare, "bf16", "fp16"), "json", tmp_path, question)
    assert plan.zero == 0


@pytest.mark.parametrize("name", launches.READERS)
@pytest.mark.parametrize("feature", [None, "vpp", "uneven", "ep", "cp", "recompute"])
def test_what_was_exported_is_read_back_as_the_same_plan(
    name: str, feature: str | None, tmp_path: Path
) -> None:
    if (name, feature) in NEVER:
        return
    for said in drawn(name, 8, feature=feature):
        file = launchers.export(name, said)[0]
        (tmp_path / file.name).write_text(file.text)
        work = said.problem.workload
        job = launches.read(name, str(tmp_path / file.name))
        question: dict[str, Any] = {"cluster": said.problem.cluster}
        wanted = {
            "model": said.problem.model,
            "global_batch_size": work.global_batch_size,
            "sequence_length": work.sequence_length,
        }
        question |= {k: v for k, v in wanted.items() if k not in job.question}
        problem, plan = planner.launched(job, question, {})
        assert problem.workload.global_batch_size == work.global_batch_size
        assert problem.workload.precision == work.precision
        assert problem.cluster.devices == said.problem.cluster.devices
        if plan.cp > 1 and name in ("megatron", "torchtitan"):
            exchange = said.problem.framework.context_exchange
            assert problem.framework.context_exchange == exchange
        assert settled(plan, said.problem) == settled(said.plan, said.problem)


# torchtitan and DeepSpeed cannot say these.
NEVER = {
    ("deepspeed", "vpp"), ("deepspeed", "uneven"), ("deepspeed", "ep"), ("torchtitan", "recompute")
}  # fmt: skip


def settled(plan: Plan, problem: Problem) -> Any:
    """Returns what a plan does, a full recompute by block and by group being one and the same."""
    stages = []
    for index, stage in enumerate(plan.stages):
        layers = -(-stage.layers // plan.vpp)
        kind, count = stage.recompute.granularity, stage.recompute.layers or 0
        done = count if kind == "block" else (kind, count)
        if (kind == "block" and count >= layers) or (kind, count) == ("uniform", 1):
            done = layers
        stages.append((index, stage.layers, 0 if kind == "none" else done))
    etp = plan.etp if problem.model.moe is not None and (plan.ep > 1 or plan.etp > 1) else 1
    names = ("dp", "tp", "sp", "cp", "ep", "pp", "vpp", "mbs", "schedule", "optimizer_offload")
    degrees = [getattr(plan, name) for name in names]
    return degrees, etp, plan.zero, plan.shard_group, stages


def test_megatron_s_model_is_read_back_too(tmp_path: Path) -> None:
    for said in drawn("megatron", 20):
        file = launchers.export("megatron", said)[0]
        (tmp_path / file.name).write_text(file.text)
        problem, _ = planner.launched(
            launches.read(None, str(tmp_path / file.name)), {"cluster": said.problem.cluster}, {}
        )
        facts = planner.model_facts(said.problem.model)
        assert planner.model_facts(problem.model) == facts


# --- What is wrong


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "suffix", "text", "says"),
    [
        ("megatron", "sh", change(SCRIPT, "TP=2", "TP=$1"), '"$1" cannot be resolved'),
        ("megatron", "sh", change(SCRIPT, "${TRAINING_ARGS}", "$EXTRA"), '"$EXTRA" cannot be'),
        ("megatron", "sh", change(SCRIPT, "--num-layers 32", "--num-layers $(n)"), '"$(n)" cannot'),
        ("megatron", "sh", change(SCRIPT, "TP=2", "TP=3"), "run.sh:33: --tensor-m"),
        ("megatron", "sh", change(SCRIPT, "TP=2", "TP=2\nif x; then TP=4; fi"),
         '"$TP" cannot be resolved without running the script, set where only a running'),
        ("megatron", "sh", change(SCRIPT, "--bf16", "--bf16 --fp16"), "--fp16: given beside"),
        ("megatron", "sh", change(SCRIPT, "layers 32 ", "layers 31 "), "31 layers do not divide"),
        ("megatron", "sh", change(SCRIPT, "layers 32 ", "layers x "), "--num-layers: must be a"),
        ("megatron", "sh", change(SCRIPT, "full --rec", "selective --rec"), "--recompute-method:"),
        ("megatron", "sh", change(SCRIPT, "parallel-size 4", "parallel-size 4 "
         "--pipeline-model-parallel-layout Et*9|t*9|t*9|t*9L"), "holds 36 layers"),
        ("megatron", "sh", change(SCRIPT, "parallel-size 4", "parallel-size 4 "
         "--pipeline-model-parallel-layout nonsense"), "no layout"),
        ("megatron", "sh", change(SCRIPT, '"RMSNorm"', '"RMSNorm'), "a quote is not closed"),
        ("megatron", "sh", "echo nothing", "starts 0 Python programs"),
        ("megatron", "sh", SCRIPT + SCRIPT, "starts 2 Python programs"),
        ("megatron", "sh", change(SCRIPT, "block", "blocks"), "--recompute-method: must be one of"),
        ("megatron", "sh", change(SCRIPT, "--micro-batch-size 1", ""), "--micro-batch-size: miss"),
        ("megatron", "yaml", "MODEL_ARGS: [1]", "must be a table"),
        ("megatron", "yaml", "a: 1\na: 2\n", "run.yaml:2: a: given twice, first on line 1."),
        ("megatron", "yaml", "a: {b: 1}\n", "run.yaml:1: a: must be a value"),
        ("megatron", "yaml", "a: !!python/object/apply:os.system [x]\n", "not YAML"),
        ("megatron", "yaml", "a: " + "[" * 40 + "]" * 40, "nested over 32 levels"),
        ("mindformers", "yaml", change(MINDFORMERS, "[-1,", "[1,"), "adds up to 2"),
        ("mindformers", "yaml", change(MINDFORMERS, "parallel_mode: 1", "parallel_mode: 0"),
         "model_parallel: has no effect beside parallel_mode: 0, found 4"),
        ("mindformers", "yaml", change(MINDFORMERS, "use_parallel: True", "use_parallel: False"),
         "model_parallel: has no effect beside use_parallel: false, found 4"),
        ("mindformers", "yaml", change(MINDFORMERS, "parallel_mode: 1", "parallel_mode: semi"),
         "parallel_mode: must be one of 1, semi_auto_parallel"),
        ("mindformers", "yaml", change(MINDFORMERS, "[-1,", "["), "run.yaml:29: model.model"),
        ("mindformers", "yaml", change(MINDFORMERS, "model_parallel: 4", "model_parallel: 0"),
         "run.yaml:10: parallel_config.model_parallel: must be a whole number from 1, found 0"),
        ("mindformers", "yaml", change(MINDFORMERS, "[2, 2,", "[2,"), "list 8 stages, found"),
        ("mindformers", "yaml", change(MINDFORMERS, "parallel_config:", "other:"), "must list 1"),
        ("mindformers", "yaml", "parallel_config: 3", "must be a table, found 3"),
        ("deepspeed", "json", change(DEEPSPEED, "256", "250"), "run.json:3: train_batch_"),
        ("deepspeed", "json", change(DEEPSPEED, "256", '"auto"'), 'found "auto". Give a number.'),
        ("deepspeed", "json", change(DEEPSPEED, '"stage": 3', '"stage": 4'), "to 3, found 4"),
        ("deepspeed", "json", change(DEEPSPEED, '"cpu"', '"nvme"'), "NVMe has no estimate"),
        ("deepspeed", "json", change(DEEPSPEED, "}\n}", '}, "fp16": {"enabled": true}\n}'),
         "fp16.enabled: true beside bf16"),
        ("deepspeed", "json", '{"train_batch_size": 8}', "size_per_gpu: missing"),
        ("deepspeed", "json", "[]", "must be a table"),
        ("torchtitan", "toml", change(TITAN, "= 8\nseq", "= 8.5\nseq"), "run.toml:6: training."),
        ("torchtitan", "toml", TITAN + "[parallelism]\n", "parallelism: given twice, first on"),
        ("torchtitan", "toml", change(TITAN, '"full"', '"some"'), "checkpoint.mode: must"),
        ("torchtitan", "toml", change(change(TITAN, "tensor_", "pipeline_"), "70B", "7B"),
         'run.toml: parallelism.module_fqns_per_model_part: missing key: the model, whose layers'),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(
    name: str, suffix: str, text: str, says: str, command: Command
) -> None:
    Path(f"run.{suffix}").write_text(text)
    run = command("estimate", "--from", name, f"run.{suffix}", "--cluster", "a100",
                  *(["--model", "llama2-7b"] if name == "deepspeed" else []))  # fmt: skip
    assert (run.code, run.out) == (2, "")
    assert run.err.count("\n") == 1
    assert says in run.err


def test_what_a_file_says_is_not_overruled_by_a_flag(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--sequence-length: given beside .*, which says 4096"):
        launched("megatron", SCRIPT, "sh", tmp_path, {"cluster": "a100", "sequence_length": 8192})
    with pytest.raises(SpecError, match=r"--tp: given beside .*, which says 2"):
        launched("megatron", SCRIPT, "sh", tmp_path, {"cluster": "a100"}, tp=4)
    with pytest.raises(SpecError, match=r"--model: missing: .* does not say it"):
        launched("deepspeed", DEEPSPEED, "json", tmp_path, {"cluster": "a100"})


# --- Commands


def test_an_estimate_from_a_file_is_that_of_its_plan(command: Command) -> None:
    Path("run.sh").write_text(SCRIPT)
    run = command(
        "estimate", "--from", "megatron", "run.sh", "--cluster", "a100", "--format", "json"
    )
    assert run.code in (0, 1)
    problem, plan = planner.launched(launches.read(None, "run.sh"), {"cluster": "a100"}, {})
    assert json.loads(run.out)["step_ps"] == planner.estimate(problem, plan).step_ps


def test_a_search_like_a_file_says_how_much_faster_the_best_is(command: Command) -> None:
    Path("run.sh").write_text(SCRIPT)
    run = command("search", "--like", "run.sh", "--cluster", "a100")
    assert run.code == 0
    problem, plan = planner.launched(launches.read(None, "run.sh"), {"cluster": "a100"}, {})
    mine = planner.estimate(problem, plan)
    best = planner.solve(problem).ranked[0]
    gain = mine.step_ps / best.estimate.step_ps
    assert gain > 1
    assert f"The best is {gain:.2f} times as fast." in run.out
    rows = {row.split()[0]: row.split()[1:] for row in run.out.splitlines() if row.strip()}
    assert rows["dp"] == ["4", str(best.plan.dp)]
    assert rows["recompute"][0] == "block"
    # What is the same on both sides has no row.
    assert ("mbs" in rows) == (best.plan.mbs != 1)


def test_a_file_of_no_launcher_is_refused(command: Command) -> None:
    Path("run.txt").write_text("x")
    run = command("search", "--like", "run.txt", "--cluster", "a100")
    assert (run.code, run.out) == (2, "")
    assert "run.txt: of no launcher that is known" in run.err
    alone = command("estimate", "--from", "megatron", "--cluster", "a100")
    assert alone.code == 2
    assert "--from: needs a launcher and its FILE" in alone.err
