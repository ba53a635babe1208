"""Keys of launchers' files that are misspelt, empty or contradict each other."""

from pathlib import Path
from typing import Any

import pytest

from autopar import Plan, Problem, Recompute, planner
from autopar.frontends import launches
from conftest import Command
from test_launch_rules import DEEPSPEED, FILES, MINDFORMERS

EXPERTS = "--num-experts 8 --moe-ffn-hidden-size 1024 --sequence-parallel"

# A file, what is changed in it, and where the error stands with what it says.
WRONG = [
    # --- Misspelt: never passed over where the key that is meant has a default.
    ("sh", {"tensor-model-parallel": "tensor-model-paralel"},
     "run.sh:20: --tensor-model-paralel-size: no argument of Megatron-LM. "
     "Write --tensor-model-parallel-size."),
    ("sh", {"--use-distributed-optimizer": "--use-distribute-optimizer"},
     "run.sh:26: --use-distribute-optimizer: no argument of Megatron-LM. "
     "Write --use-distributed-optimizer."),
    ("sh", {"--num-query-groups": "--num-query-group"}, "run.sh:8: --num-query-group: no argument"),
    ("yaml", {"--pipeline-model-parallel": "--pipeline-model-paralel"},
     "run.yaml:15: --pipeline-model-paralel-size: no argument"),
    ("yml", {"data_parallel:": "data_paralel:"},
     "run.yml:13: parallel_config.data_paralel: no such key. Write data_parallel."),
    ("yml", {"\nparallel_config:": "\nparalel_config:"},
     "run.yml:12: paralel_config: no such key. Write parallel_config."),
    ("yml", {"n_kv_heads:": "n_kv_head:"}, "run.yml:31: model.model_config.n_kv_head: no such key"),
    ("yml", {"  recompute: [": "  recomputes: ["}, "run.yml:20: recompute_config.recomputes: no"),
    ("toml", {"tensor_parallel_degree": "tensor_paralel_degree"},
     "run.toml:11: parallelism.tensor_paralel_degree: no such key. Write tensor_parallel_degree."),
    ("toml", {"[parallelism]": "[paralellism]"}, "run.toml:8: paralellism: no such key."),
    ("json", {'"autotp_size"': '"auto_tp_size"'},
     "run.json:6: tensor_parallel.auto_tp_size: no such key. Write autotp_size."),
    ("json", {'"zero_optimization"': '"zero_optimisation"'},
     "run.json:4: zero_optimisation: no such key. Write zero_optimization."),
    ("json", {"train_micro_batch_size_per_gpu": "train_microbatch_size_per_gpu"},
     "run.json:3: train_microbatch_size_per_gpu: no such key."),
    # --- Given without a value
    ("sh", {"parallel-size 2": "parallel-size"},
     "run.sh:20: --tensor-model-parallel-size: must have one value, found none."),
    ("sh", {"parallel-size 2": "parallel-size 2 4"},
     'run.sh:20: --tensor-model-parallel-size: must have one value, found "2 4".'),
    ("sh", {"--sequence-parallel": "--sequence-parallel True"},
     'run.sh:21: --sequence-parallel: takes no value, found "True".'),
    ("yaml", {"parallel-size: 2": "parallel-size: null"},
     "run.yaml:13: --tensor-model-parallel-size: must be a value, found null."),
    ("yaml", {"parallel-size: 2": "parallel-size: false"},
     'run.yaml:13: --tensor-model-parallel-size: must be a whole number from 1, found "False".'),
    ("yaml", {"--sequence-parallel: true": "--sequence-parallel:"},
     "run.yaml:14: --sequence-parallel: must be true or false, found null."),
    ("yml", {"data_parallel: 2": "data_parallel: null"},
     "run.yml:13: parallel_config.data_parallel: must be a whole number from 1, found null. "
     "Write 1, or leave it out."),
    ("yml", {"pipeline_stage: 8": "pipeline_stage:"},
     "run.yml:16: parallel_config.pipeline_stage: must be a whole number from 1, found null."),
    ("json", {'"stage": 2': '"stage": null'},
     "run.json:4: zero_optimization.stage: must be a whole number from 0, found null."),
    ("json", {'"autotp_size": 2': '"autotp_size": null'},
     "run.json:6: tensor_parallel.autotp_size: must be a whole number from 0, found null."),
    # --- What Megatron-LM refuses: `validate_args` and `TransformerConfig` of 0.16
    ("sh", {"--sequence-parallel": "--sequence-parallel --expert-model-parallel-size 2"},
     "run.sh:21: --expert-model-parallel-size: is 2 without --num-experts. Give 1, or the "),
    ("sh", {"--bf16": "--fp16", "--sequence-parallel": f"{EXPERTS} --expert-model-parallel-size 2"},
     "run.sh:21: --expert-model-parallel-size: is 2 beside --fp16."),
    *(
        ("sh", {"parallel-size 4": "parallel-size 4 "
                f"--pipeline-model-parallel-layout 'Et*8|(t*8|)*2t*8L' {beside}"},
         f"run.sh:23: --pipeline-model-parallel-layout: given beside {beside.partition(' ')[0]}.")
        for beside in (
            "--decoder-first-pipeline-num-layers 8", "--decoder-last-pipeline-num-layers 8",
            "--num-layers-per-virtual-pipeline-stage 4", "--num-virtual-stages-per-pipeline-rank 2",
            "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
        )
    ),
    ("sh", {"parallel-size 4": "parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
            "--decoder-first-pipeline-num-layers 8"},
     "--num-layers-per-virtual-pipeline-stage: given beside --decoder-first-pipeline-num-layers."),
    ("sh", {"parallel-size 4": "parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
            "--decoder-first-pipeline-num-layers 5"},
     "--num-virtual-stages-per-pipeline-rank: 2 does not divide the 5 layers of stage 0."),
    ("sh", {"parallel-size 4": "parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
            "--no-overlap-p2p-communication"},
     "run.sh:23: --num-virtual-stages-per-pipeline-rank: chunks on 2 stages beside"),
    ("sh", {"parallel-size 4": "parallel-size 4 --account-for-embedding-in-pipeline-split"},
     "run.sh:23: --pipeline-model-parallel-size: 33 layers do not divide into 4 equal stages."),
    ("sh", {"parallel-size 4": "parallel-size 1 --decoder-first-pipeline-num-layers 8"},
     "run.sh:23: --pipeline-model-parallel-size: the ends leave 24 of 32 layers to 0 equal "),
    ("sh", {"--use-dist": "--overlap-param-gather --use-dist"},
     "run.sh:26: --overlap-param-gather: given without --overlap-grad-reduce."),
    ("sh", {"--use-distributed-optimizer": "--overlap-param-gather --overlap-grad-reduce"},
     "--overlap-param-gather: given without --use-distributed-optimizer or --use-megatron-fsdp."),
    ("sh", {"--use-dist": "--optimizer-cpu-offload --use-dist"},
     "--optimizer-cpu-offload: given without --use-precision-aware-optimizer."),
    ("sh", {"--use-dist": "--use-torch-fsdp2 --no-gradient-accumulation-fusion "
            "--untie-embeddings-and-output-weights --use-dist"},
     "--use-torch-fsdp2: given beside --use-distributed-optimizer."),
    ("sh", {"--use-distributed-optimizer": "--use-torch-fsdp2 --no-gradient-accumulation-fusion "
            "--untie-embeddings-and-output-weights"},
     "run.sh:23: --pipeline-model-parallel-size: is 4 beside --use-torch-fsdp2. Give 1."),
    ("sh", {"--sequence-parallel": "--tp-comm-overlap"},
     "run.sh:21: --tp-comm-overlap: given without --sequence-parallel."),
    ("sh", {"parallel-size 2": "parallel-size 1", "--use-dist": "--tp-comm-overlap --use-dist"},
     "run.sh:26: --tp-comm-overlap: given with one tensor-parallel rank"),
    ("sh", {"--sequence-parallel": f"{EXPERTS} --moe-enable-deepep"},
     "--moe-enable-deepep: given without --moe-token-dispatcher-type flex."),
    ("sh", {"--swiglu --disable-bias-linear": "--swiglu", "--sequence-parallel": EXPERTS},
     "run.sh:21: --num-experts: biases of experts that 2 tensor-parallel ranks cut."),
    ("sh", {"embeddings 4096": "embeddings 2048"},
     "run.sh:10: --max-position-embeddings: is 2048, less than --seq-length 4096."),
    ("sh", {"full --recompute-method block": "selective"},
     "run.sh:25: --recompute-num-layers: given with granularity selective."),
    ("sh", {"--sequence-parallel": "--model-parallel-size 2"},
     "run.sh:21: --model-parallel-size: no longer an argument of Megatron-LM. "
     "Write --tensor-model-parallel-size."),
    ("sh", {"--sequence-parallel": "--enable-hetero"}, "run.sh:21: --enable-hetero: has no est"),
    ("sh", {"--seq-length 4096": ""}, "run.sh:17: --seq-length: missing. Add it."),
    ("sh", {"--nproc-per-node 8": "", "--nnodes 4": ""},
     "run.sh: --nproc-per-node: a100_80 has no limit to take all of. Give devices"),
    # --- torchtitan
    ("toml", {"expert_parallel_degree = 1":
              "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 7"},
     "run.toml:14: parallelism.pipeline_parallel_layers_per_stage: 34 layers, ends counted, make 5 "
     "parts on 4 stages. Give a size that makes whole rounds."),
    ("toml", {"expert_parallel_degree = 1": "pipeline_parallel_degree = 8\n"
              "pipeline_parallel_last_stage_less_layers = 6"},
     "run.toml:14: parallelism.pipeline_parallel_last_stage_less_layers: an end that counts as 6 "
     "layers in parts of 4."),
    ("toml", {'"8B"': '"8B"\nconverters = "float8"'},
     'run.toml:4: model.converters: must be a list, found "float8".'),
    # --- MindFormers
    ("yml", {"hidden_size: 8192": "hidden_size: 8200"},
     "run.yml:30: model.model_config.num_heads: 64 heads do not divide model.model_config.hidden_"),
    ("yml", {"batch_num: 256": "batch_num: 4"},
     "run.yml:18: parallel_config.micro_batch_num: must be at least parallel_config.pipeline_stage "
     "8, found 4. Give as many micro-batches as stages, or more."),
    ("yml", {"  parallel_mode: 1": "  parallel_mode: 1\n  full_batch: False"},
     "run.yml:6: parallel.full_batch: false beside parallel_config.model_parallel 4"),
    ("yml", {"parallel_mode: 1": "parallel_mode: hybrid_parallel"},
     "run.yml:14: parallel_config.model_parallel: has no effect beside parallel_mode: "
     "hybrid_parallel, found 4. Write 1, or parallel_mode: 1."),
    # --- ZeRO++ and MiCS
    ("json", {'{"stage": 2}': '{"stage": 3,\n    "zero_hpz_partition_size": 8}'},
     "run.json:5: zero_optimization.zero_hpz_partition_size: a second copy of the parameters, in "
     "groups of 8, has no estimate. Set it to 1."),
    ("json", {'{"stage": 2}': '{"stage": 3,\n    "zero_quantized_weights": true}'},
     "run.json:5: zero_optimization.zero_quantized_weights: quantized messages have no estimate."),
    ("json", {'{"stage": 2}': '{"stage": 3,\n    "mics_shard_size": 5}'},
     "run.json:5: zero_optimization.mics_shard_size 5: does not divide data-parallel size x "
     "sequence_parallel_size. Change it, train_batch_size 256 (line 2)"),
]  # fmt: skip


def changed(suffix: str, changes: dict[str, str]) -> str:
    _, text, _ = FILES[suffix]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(("suffix", "changes", "says"), WRONG)
def test_a_key_that_the_client_would_refuse_is_refused(
    suffix: str, changes: dict[str, str], says: str, command: Command
) -> None:
    launcher, _, flags = FILES[suffix]
    Path(f"run.{suffix}").write_text(changed(suffix, changes))
    run = command("estimate", "--from", launcher, f"run.{suffix}", "--cluster", "a100", *flags)
    assert (run.code, run.out, run.err.count("\n")) == (2, "", 1)
    assert run.err.startswith(f"error: run.{suffix}:")
    assert says in run.err


@pytest.mark.parametrize(
    ("suffix", "changes", "note"),
    [
        # Keys of forks and of the clients themselves that are near to none.
        ("sh", {"--sequence-parallel": "--sequence-parallel --my-own-flag"}, "--my-own-flag"),
        ("sh", {"--sequence-parallel": "--sequence-parallel --tp-comm-overlap-cfg x.yaml"},
         "--tp-comm-overlap-cfg"),
        ("sh", {"--sequence-parallel": "--sequence-parallel --mtp-num-layers 1"}, "mtp-num-layers"),
        ("yml", {"data_parallel: 2": "data_parallel: 2\n  my_own: 3"}, "parallel_config.my_own"),
        ("toml", {"seq_len": "steps = 3\nseq_len"}, ""),
        ("toml", {"expert_parallel_degree = 1": "enable_async_tensor_parallel = true"},
         "parallelism.enable_async_tensor_parallel"),
        ("json", {'{"stage": 2}': '{"stage": 2, "mics_shard_size": 8}'},
         "zero_optimization.mics_shard_size acts in ZeRO stage 3 only"),
    ],
)  # fmt: skip
def test_a_key_that_nobody_knows_is_a_note(
    suffix: str, changes: dict[str, str], note: str, tmp_path: Path
) -> None:
    file = tmp_path / f"run.{suffix}"
    file.write_text(changed(suffix, changes))
    notes = " ".join(launches.read(FILES[suffix][0], str(file)).notes)
    assert note in notes


def planned(suffix: str, text: str, folder: Path, **question: Any) -> tuple[Problem, Plan]:
    file = folder / f"run.{suffix}"
    file.write_text(text)
    job = launches.read(FILES[suffix][0], str(file))
    return planner.launched(job, {"cluster": "a100", **question}, {})


def test_recompute_of_more_layers_than_a_stage_has_is_of_all(tmp_path: Path) -> None:
    text = changed("sh", {"recompute-num-layers 2": "recompute-num-layers 9"})
    _, plan = planned("sh", text, tmp_path)
    assert {stage.recompute for stage in plan.stages} == {Recompute("block", 8)}
    said = '"pipeline": {"stages": 2, "activation_checkpoint_interval": 99},\n  "bf16"'
    text = changed("json", {'"bf16"': said, '_size": 2\n': '_size": 1\n'})
    asked = {"model": "llama2-7b", "sequence_length": 4096, "devices": 32}
    _, plan = planned("json", text, tmp_path, **asked)
    assert {stage.recompute for stage in plan.stages} == {Recompute("uniform", 16)}


def test_groups_of_mics_are_the_shard_group(tmp_path: Path) -> None:
    text = DEEPSPEED.replace('"stage": 2', '"stage": 3, "mics_shard_size": 8')
    asked = {"model": "llama2-7b", "sequence_length": 4096, "devices": 32}
    _, plan = planned("json", text, tmp_path, **asked)
    assert (plan.zero, plan.dp, plan.tp, plan.shard_group) == (3, 16, 2, 8)


@pytest.mark.parametrize(("said", "projections"), [("True", "packed"), ("False", "apart")])
def test_whether_projections_are_one_product_is_read(
    said: str, projections: str, tmp_path: Path
) -> None:
    text = changed("yml", {"num_heads: 64": f"num_heads: 64\n    qkv_concat: {said}"})
    problem, _ = planned("yml", text, tmp_path)
    assert problem.framework.projections == projections


def test_accumulation_acts_only_where_mindformers_parallel_cells_do(tmp_path: Path) -> None:
    alone = {"model_parallel: 4": "model_parallel: 1", "pipeline_stage: 8": "pipeline_stage: 1",
             "[2, 2, 1, 0, 0, 0, 0, 0]": "True",
             "batch_size: 1": "batch_size: 1\n  gradient_accumulation_steps: 4"}  # fmt: skip
    problem, _ = planned("yml", changed("yml", alone), tmp_path)
    assert problem.workload.global_batch_size == 2 * 4
    mode = {"parallel_mode: 1": "parallel_mode: data_parallel"}
    problem, _ = planned("yml", changed("yml", alone | mode), tmp_path)
    assert problem.workload.global_batch_size == 2


def test_embedding_and_loss_that_count_as_layers_shorten_their_stages(tmp_path: Path) -> None:
    more = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    text = changed(
        "sh", {"layers 32\n": "layers 30\n", "parallel-size 4": f"parallel-size 4 {more}"}
    )
    _, plan = planned("sh", text, tmp_path)
    # (30 + 2) / 4 = 8, of which the first and the last hold one less.
    assert [stage.layers for stage in plan.stages] == [7, 8, 8, 7]


def test_without_a_batch_megatron_takes_one_micro_batch_a_replica(tmp_path: Path) -> None:
    text = changed("sh", {"--global-batch-size 256": "", "batch-size 1": "batch-size 2"})
    problem, plan = planned("sh", text, tmp_path)
    assert problem.workload.global_batch_size == 2 * plan.dp == 8


@pytest.mark.parametrize(
    ("said", "layers", "vpp"),
    [
        # 32 layers, the ends counting as one each: 34 = 4 x 8 + 2, the first two one more.
        ("pipeline_parallel_degree = 4", [9 - 1, 9, 8, 8 - 1], 1),
        # 32 + 2 + 2 = 36 = 4 x 9.
        ("pipeline_parallel_degree = 4\npipeline_parallel_first_stage_less_layers = 2\n"
         "pipeline_parallel_last_stage_less_layers = 2", [7, 9, 9, 7], 1),
        # Two parts a stage: 32 = 4 x 8 without weights at the ends.
        ("pipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'\n"
         "pipeline_parallel_first_stage_less_layers = 0\n"
         "pipeline_parallel_last_stage_less_layers = 0", [16, 16], 2),
        # Parts of at most 9 layers: ceil(34 / 9) = 4, two a stage.
        ("pipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'\n"
         "pipeline_parallel_layers_per_stage = 9", [8 + 8, 9 + 7], 2),
    ],
)  # fmt: skip
def test_layers_that_torchtitan_deals_itself_are_dealt_likewise(
    said: str, layers: list[int], vpp: int, tmp_path: Path
) -> None:
    text = changed("toml", {"expert_parallel_degree = 1": said})
    _, plan = planned("toml", text, tmp_path)
    assert [stage.layers for stage in plan.stages] == layers
    assert plan.vpp == vpp


def test_a_dense_model_of_torchtitan_with_tensor_parallel_has_an_estimate(tmp_path: Path) -> None:
    problem, plan = planned("toml", FILES["toml"][1], tmp_path)
    assert (plan.tp, plan.etp) == (2, 1)
    assert planner.estimate(problem, plan).step_ps > 0


@pytest.mark.parametrize(
    ("suffix", "old", "says"),
    [
        ("sh", "--vocab-size 32000", "run.sh does not give --vocab-size"),
        ("yml", "type: LlamaConfig", "run.yml does not give model.model_config.type"),
        ("toml", 'flavor = "8B"', "run.toml does not give model.flavor"),
    ],
)
def test_a_model_that_a_file_does_not_spell_is_asked_for(
    suffix: str, old: str, says: str, command: Command
) -> None:
    launcher, _, flags = FILES[suffix]
    Path(f"run.{suffix}").write_text(changed(suffix, {old: ""}))
    run = command("estimate", "--from", launcher, f"run.{suffix}", "--cluster", "a100", *flags)
    assert (run.code, run.err) == (2, f"error: --model: missing: {says}. Give the flag.\n")


def test_a_flag_beside_a_file_names_the_line_that_says_it(command: Command) -> None:
    Path("run.yml").write_text(MINDFORMERS)
    run = command("estimate", "--from", "mindformers", "run.yml", "--cluster", "a100", "--tp", "2")
    assert run.code == 2
    where = "run.yml:14: parallel_config.model_parallel"
    assert run.err == f"error: --tp: given beside {where}, which says 4. Leave the flag out.\n"
