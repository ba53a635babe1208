"""Rules between fields, broken by a launcher's file: told at its line, by its keys."""

import re
from pathlib import Path

import pytest

from conftest import Command

MEGATRON = r"""#!/bin/bash
ARGS="
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 32
    --seq-length 4096
    --max-position-embeddings 4096
    --vocab-size 32000
    --swiglu --disable-bias-linear
    --micro-batch-size 1
    --global-batch-size 256
    --bf16
"
torchrun --nproc-per-node 8 \
    --nnodes 4 \
    pretrain_gpt.py $ARGS \
    --tensor-model-parallel-size 2 \
    --sequence-parallel \
    --context-parallel-size 1 \
    --pipeline-model-parallel-size 4 \
    --recompute-granularity full --recompute-method block \
    --recompute-num-layers 2 \
    --use-distributed-optimizer
"""
YAML = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --seq-length: 4096
  --max-position-embeddings: 4096
  --vocab-size: 32000
  --micro-batch-size: 1
  --global-batch-size: 256
  --bf16: true
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --pipeline-model-parallel-size: 4
"""
MINDFORMERS = """use_parallel: True
runner_config:
  batch_size: 1
parallel:
  parallel_mode: 1
  enable_parallel_optimizer: True
  pipeline_config:
    pipeline_interleave: True
  parallel_optimizer_config:
    optimizer_weight_shard_size: 2
# The degrees of parallel_config: those of model_parallel: too.
parallel_config:
  data_parallel: 2
  model_parallel: 4
  context_parallel: 1
  pipeline_stage: 8
  use_seq_parallel: True
  micro_batch_num: 256
recompute_config:
  recompute: [2, 2, 1, 0, 0, 0, 0, 0]
moe_config:
  expert_num: 1
model:
  model_config:
    type: LlamaConfig
    seq_length: 4096
    hidden_size: 8192
    intermediate_size: 28672
    num_layers: 80
    num_heads: 64
    n_kv_heads: 8
    vocab_size: 32000
    compute_dtype: "bfloat16"
    pp_interleave_num: 1
    use_flash_attention: True
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
global_batch_size = 256
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 16
tensor_parallel_degree = 2
context_parallel_degree = 1
expert_parallel_degree = 1
"""
PARTS = [["tok_embeddings", "layers.0"], [f"layers.{i}" for i in range(1, 31)], ["layers.31"], []]
DEEPSPEED = """{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 2,
  "zero_optimization": {"stage": 2},
  "tensor_parallel": {
    "autotp_size": 2
  },
  "sequence_parallel_size": 1,
  "bf16": {"enabled": true}
}
"""
FILES = {
    "sh": ("megatron", MEGATRON, ()),
    "yaml": ("megatron", YAML, ("--devices", "32")),
    "yml": ("mindformers", MINDFORMERS, ()),
    "toml": ("torchtitan", TITAN, ()),
    "json": (
        "deepspeed", DEEPSPEED,
        ("--model", "llama2-7b", "--sequence-length", "4096", "--devices", "32"),
    ),
}  # fmt: skip
EXPERTS = "--swiglu --num-experts 8 --moe-ffn-hidden-size 1024"
SPARSE = "moe_config:\n  expert_num: 8"
PIPELINE = f"pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {PARTS[:2]}\n"

# A file, what is changed in it, the key that the error names with what it found, and the rest.
BROKEN = [
    # --- Megatron-LM
    ("sh", {"parallel-size 2": "parallel-size 3"}, "--tensor-model-parallel-size 3",
     "--tensor-model-parallel-size x --context-parallel-size x --pipeline-model-parallel-size = 12 "
     "does not divide 32 devices. Change it, --context-parallel-size 1 (line 22), "
     "--pipeline-model-parallel-size 4 (line 23), --nproc-per-node 8 (line 17) or --nnodes 4 "
     "(line 18)."),
    ("sh", {"parallel-size 2": "parallel-size 8", "heads 32": "heads 4", "groups 32": "groups 4"},
     "--tensor-model-parallel-size 8",
     "does not divide 4 heads. Change it or --num-attention-heads 4 (line 6)."),
    ("sh", {"groups 32": "groups 3"}, "--num-query-groups 3",
     "must divide heads (32), found 3."),
    ("sh", {"parallel-size 2": "parallel-size 4", "heads 32": "heads 24", "groups 32": "groups 6",
            "--hidden-size 4096": "--hidden-size 4608"}, "--tensor-model-parallel-size 4",
     "6 key heads and --tensor-model-parallel-size 4 do not divide each other. Change it, "
     "--num-query-groups 6 (line 8) or"),
    ("sh", {"11008": "11009"}, "--tensor-model-parallel-size 2",
     "does not divide --ffn-hidden-size 11009. Change it, --ffn-hidden-size 11009 (line 5) or "),
    ("sh", {"parallel-size 1": "parallel-size 4", "length 4096": "length 4092"},
     "--context-parallel-size 4",
     "2 --context-parallel-size = 8 does not divide the sequence 4092. "
     "Change it or --seq-length 4092 (line 9)."),
    ("sh", {"length 4096": "length 4095"}, "--tensor-model-parallel-size 2",
     "does not divide the sequence of a rank."),
    ("sh", {"batch-size 256": "batch-size 250"}, "--global-batch-size 250",
     "--micro-batch-size x data-parallel size = 4 does not divide the batch 250. Change it, "
     "--micro-batch-size 1 (line 13), --nproc-per-node 8 (line 17), --nnodes 4 (line 18), "
     "--tensor-model-parallel-size 2 (line 20), --context-parallel-size 1 (line 22) or "
     "--pipeline-model-parallel-size 4 (line 23)."),
    ("sh", {"batch-size 1\n": "batch-size 3\n"}, "--global-batch-size 256",
     "--micro-batch-size x data-parallel size = 12 does not divide the batch 256."),
    ("sh", {"--sequence-parallel": "--num-experts 6 --moe-ffn-hidden-size 1024 --sequence-parallel "
            "--expert-model-parallel-size 4"}, "--expert-model-parallel-size 4",
     "does not divide 6 experts. Change it or --num-experts 6 (line 21)."),
    ("sh", {"--sequence-parallel": f"{EXPERTS} --sequence-parallel --expert-model-parallel-size 8"},
     "--expert-model-parallel-size 8",
     "--expert-model-parallel-size x --expert-tensor-parallel-size = 16 does not divide"),
    ("sh", {"--sequence-parallel": EXPERTS}, "--tensor-model-parallel-size 2",
     "experts with --tensor-model-parallel-size > 1 need sequence parallel."),
    ("sh", {"--sequence-parallel": f"{EXPERTS} --sequence-parallel",
            "--hidden-size 4096": "--hidden-size 4096 --expert-tensor-parallel-size 3"},
     "--expert-tensor-parallel-size 3",
     "must be 1 or --tensor-model-parallel-size."),
    ("sh", {"--sequence-parallel": "--swiglu --num-experts 8 --moe-ffn-hidden-size 1023 "
            "--sequence-parallel"}, "--tensor-model-parallel-size 2",
     "--expert-tensor-parallel-size 2 does not divide --moe-ffn-hidden-size 1023."),
    ("sh", {"--sequence-parallel": f"{EXPERTS} --sequence-parallel --moe-router-topk 9"},
     "--moe-router-topk 9", "must be from 1 to experts (8), found 9."),
    ("sh", {"batch-size 256": "batch-size 24 --num-virtual-stages-per-pipeline-rank 2"},
     "--pipeline-model-parallel-size 4", "does not divide 6 micro-batches. Change it, "
     "--global-batch-size 24 (line 14), --micro-batch-size 1 (line 13)"),
    ("sh", {"parallel-size 4": "parallel-size 1 --num-layers-per-virtual-pipeline-stage 16"},
     "--num-layers-per-virtual-pipeline-stage 16", "interleaving needs "
     "--pipeline-model-parallel-size > 1 and virtual pipeline size > 1."),
    ("sh", {"--use-dist": "--num-distributed-optimizer-instances 3 --use-dist"},
     "--num-distributed-optimizer-instances 3", "3 copies do not divide data-parallel size x "
     "--context-parallel-size = 4."),
    ("sh", {"--use-distributed-optimizer": "--num-distributed-optimizer-instances 2"},
     "--num-distributed-optimizer-instances 2",
     "--num-distributed-optimizer-instances needs ZeRO stage > 0. Change it or "
     "--use-distributed-optimizer."),
    ("sh", {"--bf16": "--bf16 --fp8-format hybrid"}, "--fp8-format hybrid",
     'chip "a100_80" has no fp8 matrix unit. Use bf16, fp16, tf32 or fp32 on this chip.'),
    ("sh", {"parallel-size 1": "parallel-size 2 --cp-comm-type a2a", "heads 32": "heads 2",
            "groups 32": "groups 2"}, "--context-parallel-size 2",
     "--tensor-model-parallel-size x --context-parallel-size = 4 does not divide 2 heads."),
    ("yaml", {"parallel-size: 2": "parallel-size: 3"}, "--tensor-model-parallel-size 3",
     "= 12 does not divide 32 devices. Change it, --pipeline-model-parallel-size 4 (line 15) or "
     "--devices 32."),
    ("yaml", {"batch-size: 256": "batch-size: 250"}, "--global-batch-size 250",
     "= 4 does not divide the batch 250."),
    ("yaml", {"batch-size: 256": "batch-size: 2147483648"}, "--global-batch-size 2147483648",
     "must be from 1 to 2^30, found 2147483648. Give a whole number."),
    # --- MindFormers
    ("yml", {"model_parallel: 4": "model_parallel: 3"}, "parallel_config.model_parallel 3",
     "does not divide 64 heads. Change it or model.model_config.num_heads 64 (line 30)."),
    ("yml", {"n_kv_heads: 8": "n_kv_heads: 7"}, "model.model_config.n_kv_heads 7",
     "must divide heads (64), found 7."),
    ("yml", {"model_parallel: 4": "model_parallel: 16", "n_kv_heads: 8": "n_kv_heads: 64",
             "28672": "28664"}, "parallel_config.model_parallel 16",
     "does not divide MLP width 28664. Change it, model.model_config.intermediate_size 28664"),
    ("yml", {"context_parallel: 1": "context_parallel: 3"}, "parallel_config.context_parallel 3",
     "2 parallel_config.context_parallel = 6 does not divide the sequence 4096."),
    ("yml", {"seq_length: 4096": "seq_length: 4095"}, "parallel_config.model_parallel 4",
     "does not divide the sequence of a rank."),
    ("yml", {"batch_num: 256": "batch_num: 12", "interleave_num: 1": "interleave_num: 2"},
     "parallel_config.pipeline_stage 8", "does not divide 12 micro-batches. Change it, "
     "parallel_config.micro_batch_num 12 (line 18), runner_config.batch_size 1 (line 3)"),
    ("yml", {"shard_size: 2": "shard_size: 3"},
     "parallel.parallel_optimizer_config.optimizer_weight_shard_size 3",
     "does not divide parallel_config.data_parallel x parallel_config.context_parallel. Change it"),
    ("yml", {"expert_num: 1": "expert_num: 7", "stage: 8": "stage: 8\n  expert_parallel: 2"},
     "parallel_config.expert_parallel 2",
     "does not divide 7 experts. Change it or moe_config.expert_num 7 (line 23)."),
    ("yml", {"moe_config:\n  expert_num: 1": f"{SPARSE}\n  num_experts_chosen: 9"},
     "moe_config.num_experts_chosen 9", "must be from 1 to experts (8), found 9."),
    ("yml", {"moe_config:\n  expert_num: 1": SPARSE, "use_seq_parallel: True":
             "use_seq_parallel: False"}, "parallel_config.use_seq_parallel false",
     "experts with parallel_config.model_parallel > 1 need sequence parallel."),
    # --- torchtitan
    ("toml", {"tensor_parallel_degree = 2": "tensor_parallel_degree = 3"},
     "parallelism.tensor_parallel_degree 3",
     'does not divide 32 heads. Change it, model.flavor "8B" (line 3) or model.name "llama3"'),
    ("toml", {"shard_degree = 16": "shard_degree = -1"}, "parallelism.tensor_parallel_degree 2",
     "= 2 does not divide 33 devices."),
    ("toml", {"context_parallel_degree = 1": "context_parallel_degree = 3"},
     "parallelism.context_parallel_degree 3",
     "= 6 does not divide the sequence 8192. Change it or training.seq_len 8192 (line 7)."),
    ("toml", {"global_batch_size = 256": "global_batch_size = 250"},
     "training.global_batch_size 250",
     "parallelism.pipeline_parallel_microbatch_size x data-parallel degree = 32 does not divide "
     "the batch 250. Change it, training.local_batch_size 2 (line 5)"),
    ("toml", {"expert_parallel_degree = 1": "expert_parallel_degree = 2"},
     "parallelism.expert_parallel_degree 2", "need experts. Change it"),
    ("toml", {"expert_parallel_degree = 1": PIPELINE}, "parallelism.module_fqns_per_model_part",
     "the stages hold 31 of 32 layers. Change it, parallelism.pipeline_parallel_degree 2"),
    ("toml", {"expert_parallel_degree = 1":
              f"pipeline_parallel_schedule = 'ZBVZeroBubble'\n{PIPELINE}"},
     "parallelism.pipeline_parallel_schedule", "zb-v needs parallelism.pipeline_parallel_degree > "
     "1 and parts a stage 2."),
    # --- DeepSpeed
    ("json", {'"autotp_size": 2': '"autotp_size": 3'}, "tensor_parallel.autotp_size 3",
     "= 3 does not divide 32 devices. Change it, sequence_parallel_size 1 (line 8) or --devices"),
    ("json", {'"train_batch_size": 256': '"train_batch_size": 250'}, "train_batch_size 250",
     "train_micro_batch_size_per_gpu x data-parallel size = 32 does not divide the batch 250. "
     "Change it or train_micro_batch_size_per_gpu 2 (line 3)."),
    ("json", {'"bf16"': '"pipeline": {"stages": 5},\n  "bf16"', '_size": 2\n': '_size": 1\n',
              '"train_batch_size": 256': '"train_batch_size": 250'}, "pipeline.stages 5",
     "does not divide 32 layers. Change it or --model \"llama2-7b\"."),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "changes", "found", "says"), BROKEN)
def test_a_rule_is_told_at_the_line_by_the_keys_of_the_file(
    suffix: str, changes: dict[str, str], found: str, says: str, command: Command
) -> None:
    launcher, text, flags = FILES[suffix]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    file = Path(f"run.{suffix}")
    file.write_text(text)
    if "= -1" in text:
        flags = ("--devices", "33")
    run = command("estimate", "--from", launcher, str(file), "--cluster", "a100", *flags)
    assert (run.code, run.out, run.err.count("\n")) == (2, "", 1)
    key = found.partition(" ")[0]
    last = re.escape(key.removeprefix("--").rpartition(".")[2])
    lines = [n for n, line in enumerate(text.splitlines(), 1) if re.search(rf"\b{last}\b", line)
             and not line.startswith("#")]  # fmt: skip
    [line] = lines
    assert run.err.startswith(f"error: run.{suffix}:{line}: {found}")
    assert says in run.err
    # A cure, and no word that only autopar knows.
    assert re.search(r"\. (Change|Give|Use|A|Grouped)[^.]* .*\.$", run.err)
    assert not re.search(r"(?<![\w.-])(dp|tp|sp|cp|ep|etp|pp|vpp|mbs|\w+_hidden)(?![\w-])", run.err)
