"""What launchers refuse, what Kubernetes is given, and the commands that write files."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import autopar
from autopar import Recompute, SpecError
from autopar.export import launchers
from autopar.export.job import Job
from autopar.export.launchers import LAUNCHERS
from autopar.framework import Named
from conftest import EXAMPLES, Command
from drawn_plans import drawn
from exported import ASCEND, LLAMA, MIXTRAL, in_framework, job, problem, script_arguments, texts

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
        (
            "megatron",
            LLAMA,
            {"recompute": Recompute("uniform", 5)},
            "groups of 5 layers in chunks of 32",
        ),
        ("megatron", ("gemma2-9b", *LLAMA[1:]), {}, "4 norms a layer"),
        ("megatron", ("falcon-40b", *LLAMA[1:]), {}, "a parallel block"),
        ("megatron", ("olmo-7b", *LLAMA[1:]), {}, "norms without a weight"),
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
        ("mindspore", ("opt-13b", *ASCEND[1:]), {"tp": 2}, "an embedding that is the head's too"),
        ("mindspore", ASCEND, {"tp": 2, "cp": 2}, "context beside tensor parallel"),
        ("mindspore", ("mixtral-8x7b", *ASCEND[1:]), {"tp": 2}, "cuts of experts"),
        ("accelerate", LLAMA, {"tp": 2, "zero": 3}, "sequence parallel with FSDP"),
        (
            "accelerate",
            LLAMA,
            {"pp": 2, "recompute": Recompute("uniform", 5)},
            "groups of 5 layers in chunks of 16",
        ),
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


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "accelerate", "deepspeed"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sums_in_fp32": True}, "sums of activations in 32 bits"),
        ({"whole_vocabulary": True}, "a whole vocabulary on each tensor-parallel rank"),
        ({"gathered_logits": True}, "logits gathered over tensor-parallel ranks"),
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


@pytest.mark.parametrize("name", ["torchtitan", "accelerate", "deepspeed"])
def test_recompute_that_gathers_for_itself_is_refused(name: str) -> None:
    again = Recompute("uniform", 1)
    sharded = job(problem(*LLAMA), dp=64, zero=3, shard_group=64, recompute=again)
    reason = "recompute that gathers sharded parameters for itself"
    assert reason not in LAUNCHERS[name].supports(sharded)
    assert reason in LAUNCHERS[name].supports(in_framework(sharded, recompute_gathers=True))
    plain = replace(sharded, plan=replace(sharded.plan, zero=1))
    assert reason not in LAUNCHERS[name].supports(in_framework(plain, recompute_gathers=True))


def test_norms_and_experts_activation_are_modules_of_megatron() -> None:
    asked = job(problem(*MIXTRAL), ep=8, recompute=Recompute("selective"))
    both = in_framework(asked, selective="named", named=Named(norm=True, activation=True))
    assert LAUNCHERS["megatron"].supports(both) == []
    script = launchers.export("megatron", both)[0].text
    assert "--recompute-modules layernorm moe_act " in script
    dense = job(problem(*LLAMA), recompute=Recompute("selective"))
    apart = in_framework(dense, selective="named", named=Named(activation=True))
    [reason] = LAUNCHERS["megatron"].supports(apart)
    assert reason == "recompute of the activation outside grouped experts"
    for single in (Named(expansion=True), Named(output=True), Named(contraction=True)):
        products = in_framework(dense, selective="named", named=single)
        assert LAUNCHERS["megatron"].supports(products) == ["recompute of single operators"]


def test_mindformers_has_no_pattern_for_what_closes_attention() -> None:
    asked = job(problem(*ASCEND), recompute=Recompute("selective"))
    reason = "recompute of operators that no pattern marks"
    both = in_framework(asked, selective="named", named=Named(activation=True, output=True))
    assert reason in LAUNCHERS["mindformers"].supports(both)
    one = in_framework(asked, selective="named", named=Named(activation=True))
    assert reason not in LAUNCHERS["mindformers"].supports(one)


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
    )
    run = yaml.safe_load(texts("mindformers", said)["mindformers.yaml"])
    assert run["parallel"]["force_fp32_communication"] is True
    assert run["parallel_config"]["vocab_emb_dp"] is True
    assert run["recompute_config"]["mp_comm_recompute"] is True
    assert run["recompute_config"]["recompute_slice_activation"] is True
    kept = in_framework(said, keeps_tensor_results=True)
    module = texts("mindspore", kept)["auto_parallel_context.py"]
    assert "'force_fp32_communication': True" in module
    keywords = "{'mp_comm_recompute': False, 'recompute_slice_activation': True}"
    assert f"RECOMPUTE = {keywords}" in module
    assert "Cell.recompute(**RECOMPUTE)" in module


def test_what_no_layer_of_mindformers_is_told_is_refused() -> None:
    # LayerSetting passes on recompute_slice_activation with `recompute: true`, nothing otherwise.
    supports = LAUNCHERS["mindformers"].supports
    every = job(problem(*ASCEND), tp=2, sp=False, recompute=Recompute("uniform", 1))
    some = job(problem(*ASCEND), tp=2, sp=False, recompute=Recompute("block", 3))
    none = job(problem(*ASCEND), tp=2, sp=False)
    sliced, kept = {"slices_kept_inputs": True}, {"keeps_tensor_results": True}
    assert supports(in_framework(every, **sliced)) == []
    [reason] = supports(in_framework(some, **sliced))
    assert reason == "inputs kept in slices where some layers are recomputed"
    for said in (every, some):
        [reason] = supports(in_framework(said, **kept))
        assert reason == "recompute that does not repeat communication, which no layer is told"
    assert supports(in_framework(none, **sliced, **kept)) == []


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


@pytest.mark.parametrize("name", ["mindformers", "torchtitan"])
def test_a_capacity_of_the_experts_is_refused_where_it_cannot_be_said(name: str) -> None:
    subject = ("mixtral-8x7b", *ASCEND[1:]) if name == "mindformers" else MIXTRAL
    whole = job(problem(*subject), ep=4, zero=3 if name == "torchtitan" else 1)
    moe = whole.problem.model.moe
    assert moe is not None
    assert "a capacity of the experts" not in LAUNCHERS[name].supports(whole)
    model = replace(whole.problem.model, moe=replace(moe, capacity_factor=1.25))
    said = replace(whole, problem=replace(whole.problem, model=model))
    assert "a capacity of the experts" in LAUNCHERS[name].supports(said)


def test_several_kinds_of_chip_are_refused_by_launchers_of_equal_nodes() -> None:
    mixed = problem("llama3-8b", "a800:64,h800:64", "megatron-core", devices=64)
    said = job(mixed, pp=2, chips=[0, 1])
    for name in LAUNCHERS.keys() - {"flagscale", "kubernetes"}:
        assert "several kinds of chip" in LAUNCHERS[name].supports(said)


def test_launchers_of_pytorch_refuse_chips_that_it_does_not_drive() -> None:
    said = job(problem("llama3-8b", "tpu_v5p:64", "megatron-core"), tp=2)
    for name in LAUNCHERS.keys() - {"kubernetes", "mindspore"}:
        assert "the chip tpu_v5p" in LAUNCHERS[name].supports(said)


def test_a_node_that_is_not_full_is_refused() -> None:
    asked = problem("llama3-8b", "h100:16", "megatron-core", devices=12)
    said = job(asked, pp=3, layers=[10, 11, 11])
    assert LAUNCHERS["megatron"].supports(said) == ["12 devices on nodes of 8"]


# --- Files and flags


def test_an_ms_job_of_several_kinds_is_refused_with_the_reason() -> None:
    asked = problem("llama3-8b", "ascend_910b1:32,ascend_910b2:32", "mindformers")
    both = job(asked, dp=16, pp=4, tp=1, chips=[0, 0, 1, 1], layers=[8, 8, 8, 8])
    assert LAUNCHERS["kubernetes"].supports(both) == [
        "several kinds of chip in one MSJob, whose workers share one pod template"
    ]


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
        (["bad.json"], "bad.json:1: not JSON"),
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


SMALL = ["--model", "llama2-7b"]
SEQUENCE = ["--sequence-length", "4096"]


@pytest.mark.parametrize(
    ("launcher", "cluster", "file", "unsaid"),
    [
        ("megatron", "h100:16", "megatron.sh", []),
        ("mindformers", "910b:16", "mindformers.yaml", []),
        ("deepspeed", "h100:16", "deepspeed.json", [*SMALL, *SEQUENCE]),
        ("torchtitan", "h100:16", "torchtitan.toml", SMALL),
    ],
)
def test_what_is_exported_costs_what_its_launcher_is_read_to_cost(
    command: Command, launcher: str, cluster: str, file: str, unsaid: list[str]
) -> None:
    asked = [*SMALL, "--cluster", cluster, *SEQUENCE, "--global-batch-size", "64"]
    wrote = command("search", *asked, "--export", launcher, "-o", "job")
    assert wrote.code == 0
    expected = re.search(r"Expected: (\S+ s) a step", Path("job", file).read_text())
    assert expected is not None
    run = command("estimate", "--from", launcher, f"job/{file}", "--cluster", cluster, *unsaid)
    assert f"step {expected[1]}," in run.out


def test_of_several_files_none_is_written_where_one_cannot_be(command: Command) -> None:
    Path("job/megatron.yaml").mkdir(parents=True)
    run = command(
        "search", *SMALL, "--cluster", "a800:8", *SEQUENCE, "--global-batch-size", "64",
        "--export", "megatron", "-o", "job", "--force",
    )  # fmt: skip
    assert run.code == 2
    assert "job/megatron.yaml: cannot be written: is a directory" in run.err
    assert [path.name for path in Path("job").iterdir()] == ["megatron.yaml"]


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


def test_nothing_that_fits_is_an_answer_for_a_launcher_too(command: Command) -> None:
    run = command(
        "search", "--model", "llama3.1-405b", "--cluster", "a800:8", "--global-batch-size", "64",
        "--sequence-length", "4096", "--export", "megatron", "-o", "job",
    )  # fmt: skip
    assert run.code == 1
    assert "no plan fits in memory" in run.err
    assert not Path("job").exists()
