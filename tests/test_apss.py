"""`autopar apss`: the flags, defaults and printed dicts of Baidu AIAK's APSS."""

import ast
import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import Plan, Recompute, SpecError, Stage
from autopar.frontends import apss
from autopar.report import Estimate, MemoryItems, Ranked, StageEstimate, TimeItems
from conftest import EXAMPLES, Command

# The one output that its documentation prints: Llama2-70B, global batch 1024, sequence 4096.
PRINTED = (
    "{'sim_throughput': 238013, 'sim_total_time_s': 17.62220148337528,"
    " 'max-use-mem-size': [25.00778579711914, 72.89899063110352],"
    " 'strategy': {'pipeline-model-parallel-size': 8, 'tensor-model-parallel-size': 2,"
    " 'micro-batch-size': 1, 'use-flash-attn': '', 'sequence-parallel': '',"
    " 'use-distributed-optimizer': '', 'fused-rmsnorm': '',"
    " 'apply-rotary-positional-embedding-kernel': '',"
    " 'pipeline-stage-chips': ['a800', 'h800', 'h800', 'h800', 'h800', 'h800', 'h800', 'h800'],"
    " 'pipeline-stage-layers': [3, 11, 11, 11, 11, 11, 11, 11],"
    " 'recompute-granularity': [None, 'full'], 'recompute-method': [None, 'block'],"
    " 'recompute-num-layers': [None, 3]}}"
)
PRINTED_PLAN = Plan(
    dp=16,
    tp=2,
    sp=True,
    pp=8,
    zero=1,
    shard_group=16,
    stages=(
        Stage(chip=0, layers=3),
        *(Stage(chip=1, layers=11, recompute=Recompute("block", 3)) for _ in range(7)),
    ),
)


def question(**flags: Any) -> apss.Question:
    return apss.question(version=autopar.__version__, **flags)


def costing(step_ps: int, step_s: float, memory: list[int]) -> Estimate:
    """Returns an estimate of a step's time and of the bytes on each stage."""
    nothing = MemoryItems(**dict.fromkeys(MemoryItems.__slots__, 0))
    return Estimate(
        step_ps=step_ps,
        step_s=step_s,
        tokens_per_s=1.0,
        mfu=0.5,
        time=TimeItems(**dict.fromkeys(TimeItems.__slots__, 0)),
        stages=tuple(
            StageEstimate(
                forward_ps=0,
                backward_ps=0,
                memory=nothing,
                memory_bytes=amount,
                allocated_bytes=amount,
                reserved_bytes=amount,
                capacity_bytes=80 * 2**30,
            )
            for amount in memory
        ),
        violations=(),
    )


def printed_ranked() -> Ranked:
    """Returns the printed plan; both amounts of memory are whole multiples of 4 KiB."""
    a800, h800 = 6_555_641 * 4096, 19_110_033 * 4096
    memory = [a800, h800 - 1, h800, *[h800 - 4096] * 5]
    return Ranked(
        plan=PRINTED_PLAN, estimate=costing(17_622_201_483_375, 17.62220148337528, memory)
    )


def dicts(output: str) -> list[dict[str, Any]]:
    """Returns the dicts of an output: one a line, each written as Python writes it."""
    parsed = [ast.literal_eval(line) for line in output.splitlines()]
    assert output == "".join(f"{item!r}\n" for item in parsed)
    return parsed


def test_the_printed_example_comes_out_to_the_letter() -> None:
    asked = question(gpu_infos="a800:32,h800:224")
    assert repr(apss.strategy(asked.problem, printed_ranked(), asked.kinds)) == PRINTED


def test_throughput_is_rounded_up_from_whole_numbers() -> None:
    # 512 x 512 tokens in 1 s are 262,144; a picosecond more gives less, which rounds up again,
    # and a picosecond less gives a little more.
    problem = question(gpu_infos="a800", global_batch_size=512, sequence_length=512).problem
    plan = Plan(dp=256, stages=(Stage(layers=80),))
    for step_ps, tokens in [(10**12, 262_144), (10**12 + 1, 262_144), (10**12 - 1, 262_145)]:
        ranked = Ranked(plan=plan, estimate=costing(step_ps, 1.0, [0]))
        assert apss.strategy(problem, ranked)["sim_throughput"] == tokens


def test_one_kind_has_one_chip_one_recompute_and_no_layers() -> None:
    asked = question(gpu_infos="h800")
    stages = tuple(Stage(layers=10, recompute=Recompute("uniform", 2)) for _ in range(8))
    ranked = Ranked(plan=Plan(dp=32, pp=8, stages=stages), estimate=costing(1, 1e-12, [2**30] * 8))
    found = apss.strategy(asked.problem, ranked, asked.kinds)
    assert found["max-use-mem-size"] == [1.0]
    assert found["strategy"] == {
        "pipeline-model-parallel-size": 8,
        "tensor-model-parallel-size": 1,
        "micro-batch-size": 1,
        "use-flash-attn": "",
        "fused-rmsnorm": "",
        "apply-rotary-positional-embedding-kernel": "",
        "pipeline-stage-chips": ["h800"],
        "recompute-granularity": ["full"],
        "recompute-method": ["uniform"],
        "recompute-num-layers": [2],
    }


def test_a_kind_that_a_plan_does_not_use_keeps_its_place() -> None:
    asked = question(gpu_infos="a800,h800,h100")
    stages = (Stage(chip=1, layers=80, recompute=Recompute("selective")),)
    ranked = Ranked(plan=Plan(dp=256, stages=stages), estimate=costing(1, 1e-12, [2**31]))
    found = apss.strategy(asked.problem, ranked, asked.kinds)
    assert found["max-use-mem-size"] == [0.0, 2.0, 0.0]
    assert found["strategy"]["pipeline-stage-chips"] == ["h800"]
    assert found["strategy"]["pipeline-stage-layers"] == [80]
    assert found["strategy"]["recompute-granularity"] == [None, "selective", None]
    assert found["strategy"]["recompute-method"] == [None, None, None]
    assert found["strategy"]["recompute-num-layers"] == [None, None, None]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("llama2-70b", {"fused-rmsnorm", "apply-rotary-positional-embedding-kernel"}),
        ("galactica-30b", set()),
        ("glm-130b", {"apply-rotary-positional-embedding-kernel"}),
    ],
)
def test_norm_and_position_flags_are_those_of_the_model(model: str, flags: set[str]) -> None:
    asked = question(model_name=model)
    layers = asked.problem.model.layers
    ranked = Ranked(
        plan=Plan(dp=256, stages=(Stage(layers=layers),)), estimate=costing(1, 1e-12, [0])
    )
    named = {"fused-rmsnorm", "apply-rotary-positional-embedding-kernel"}
    assert set(apss.strategy(asked.problem, ranked)["strategy"]) & named == flags


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dp": 8, "cp": 2, "shard_group": 16}, "context parallel 2"),
        ({"ep": 2}, "expert parallel 2"),
        ({"vpp": 2, "schedule": "interleaved"}, "2 chunks a stage"),
        ({"schedule": "gpipe"}, "schedule gpipe"),
        ({"zero": 3}, "ZeRO stage 3"),
        ({"shard_group": 8}, "a partial shard group"),
        ({"optimizer_offload": True}, "optimizer offload"),
        ({"stages": (Stage(layers=80, offload=1),)}, "activation offload"),
        (
            {"stages": (Stage(layers=40), Stage(layers=40, recompute=Recompute("selective")))},
            "different recompute on one kind of chip",
        ),
        ({"stages": (Stage(layers=39), Stage(layers=41))}, "uneven layers on one kind of chip"),
    ],
)
def test_a_plan_that_the_dict_cannot_say_is_refused_by_name(
    change: dict[str, Any], reason: str
) -> None:
    problem = question(num_gpus=32, gpu_infos="a800").problem
    plan = replace(Plan(dp=16, tp=2, sp=True, zero=1, shard_group=16, stages=()), **change)
    assert apss.unsayable(problem, plan) == [reason]
    with pytest.raises(SpecError, match=f"the apss form cannot say {reason}"):
        apss.strategy(problem, Ranked(plan=plan, estimate=costing(1, 1.0, [0])))


def test_the_defaults_are_those_of_the_tool() -> None:
    problem = question().problem
    assert problem.model.name == "llama2-70b"
    assert [(group.chip.name, group.limit) for group in problem.cluster.groups] == [("a800", None)]
    assert problem.cluster.devices == 256
    assert problem.workload.global_batch_size == 1024
    assert problem.workload.sequence_length == 4096
    assert problem.options.top == 5


def test_every_strategy_is_one_that_the_form_can_say(command: Command) -> None:
    run = command("apss", "--global-batch-size", "512", "--top", "40")
    assert run.code == 0
    found = dicts(run.out)
    assert len(found) == 40
    times = [item["sim_total_time_s"] for item in found]
    assert times == sorted(times)
    for item in found:
        assert list(item) == ["sim_throughput", "sim_total_time_s", "max-use-mem-size", "strategy"]
        tokens_per_s = 512 * 4096 / item["sim_total_time_s"]
        assert item["sim_throughput"] == math.ceil(tokens_per_s)
        settings = item["strategy"]
        pp = settings["pipeline-model-parallel-size"]
        tp = settings["tensor-model-parallel-size"]
        assert 256 % (pp * tp) == 0
        assert 512 % (256 // (pp * tp) * settings["micro-batch-size"]) == 0
        assert 80 % pp == 0
        assert tp > 1 or "sequence-parallel" not in settings
        assert settings["pipeline-stage-chips"] == ["a800"]
        assert all(0 < amount < 80 for amount in item["max-use-mem-size"])


def test_mixed_chips_are_used_within_their_limits(command: Command) -> None:
    run = command(
        "apss", "--gpu-infos", "a800:128,h800:160", "--global-batch-size", "512", "--top", "10"
    )  # fmt: skip
    assert run.code == 0
    for item in dicts(run.out):
        settings = item["strategy"]
        stages = settings["pipeline-stage-chips"]
        devices = 256 // len(stages)
        assert len(stages) == settings["pipeline-model-parallel-size"]
        assert sum(settings["pipeline-stage-layers"]) == 80
        assert stages.count("a800") * devices <= 128
        assert stages.count("h800") * devices <= 160
        # Stages of one kind are neighbours.
        assert sum(a != b for a, b in pairwise(stages)) <= 1
        recompute = zip(
            settings["recompute-granularity"],
            settings["recompute-method"],
            settings["recompute-num-layers"],
            strict=True,
        )
        assert all(
            setting in [(None, None, None), ("selective", None, None)]
            or (setting[0] == "full" and setting[1] in ("block", "uniform") and setting[2] >= 1)
            for setting in recompute
        )


def test_the_best_is_at_least_as_fast_as_the_printed_plan(command: Command) -> None:
    asked = question(gpu_infos="a800:32,h800:224")
    printed = autopar.estimate(asked.problem, PRINTED_PLAN)
    assert printed.violations == ()
    run = command("apss", "--gpu-infos", "a800:32,h800:224")
    assert dicts(run.out)[0]["sim_total_time_s"] <= printed.step_s


def test_too_few_chips_is_an_answer_with_nothing_on_standard_output(command: Command) -> None:
    run = command("apss", "--gpu-infos", "a800:64,h800:64")
    assert (run.code, run.out) == (1, "")
    assert "the limits give 128 devices, not the 256 asked for" in run.err


def test_a_batch_that_apss_would_refuse_is_not_proposed(command: Command) -> None:
    # 8,000 devices leave a factor of 25 to the replicas: 1,025 is the nearest of its multiples, and
    # 12,800 the nearest that is one of 512 too.
    run = command("apss", "--num-gpus", "8000", "--gpu-infos", "h800")
    assert (run.code, run.out) == (1, "")
    assert "possible with 8,192 devices or a global batch of 12,800\n" in run.err


def test_a_count_or_batch_beyond_the_largest_is_not_proposed(command: Command) -> None:
    # 10^6 devices leave 5^5 to the replicas: 512 x 3,125 = 1,600,000 is the nearest such batch.
    asked = ["--num-gpus", "1000000", "--gpu-infos", "h800", "--global-batch-size", "1048576"]
    run = command("apss", *asked)
    assert (run.code, run.out) == (1, "")
    assert run.err.endswith("; possible with 1,048,576 devices\n")


def test_a_chip_in_other_nodes_is_refused(command: Command, tmp_path: Path) -> None:
    text = (EXAMPLES / "chip.toml").read_text("utf-8")
    (tmp_path / "small.toml").write_text(text.replace("per_node = 8", "per_node = 4"), "utf-8")
    run = command("apss", "--gpu-infos", "small.toml", "--num-gpus", "40")
    assert (run.code, run.out) == (2, "")
    assert 'error: --gpu-infos: "small.toml" has 4 devices in a node, not 8. APSS knows' in run.err


def test_too_little_memory_is_an_answer_that_names_the_nearest_miss(command: Command) -> None:
    run = command("apss", "--model-name", "llama-1800b", "--num-gpus", "8")
    assert (run.code, run.out) == (1, "")
    assert "no plan fits in memory: the nearest" in run.err
    assert "GiB on stage" in run.err


@pytest.mark.parametrize("mode", ["fast", "analytic"])
def test_only_analytic_mode_writes_traces(command: Command, tmp_path: Path, mode: str) -> None:
    run = command(
        "apss", "--model-name", "llama2-7b", "--num-gpus", "8", "--top", "2", "--mode", mode
    )  # fmt: skip
    assert len(dicts(run.out)) == 2
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json"))
    assert files == (
        ["cache/strategy-1.json", "cache/strategy-2.json"] if mode == "analytic" else []
    )


def test_traces_that_cannot_be_written_leave_no_strategy_half_told(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    run = command("apss", "--model-name", "llama2-7b", "--num-gpus", "8", "--mode", "analytic")
    assert (run.code, run.out) == (2, "")
    assert run.err.endswith(
        'error: --mode analytic: "cache" is no folder. Move the file away, or name a folder.\n'
    )


def test_a_trace_has_a_process_for_each_stage_whose_threads_do_not_overlap(
    command: Command, tmp_path: Path
) -> None:
    run = command(
        "apss", "--model-name", "llama2-70b", "--num-gpus", "64", "--top", "1",
        "--mode", "analytic", "--gpu-infos", "a800,h800",
    )  # fmt: skip
    best = dicts(run.out)[0]
    trace = json.loads((tmp_path / "cache" / "strategy-1.json").read_text("utf-8"))
    stages = best["strategy"]["pipeline-stage-chips"]
    names = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert names == {i: f"stage {i} ({chip})" for i, chip in enumerate(stages)}
    tracks = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    work = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in work} == set(tracks)
    for e in work:
        where = tracks[e["pid"], e["tid"]]
        assert where.startswith("communication") == (e["cat"] in ("send", "data"))
    assert {e["cat"] for e in work} == {"forward", "backward", "send", "data", "optimizer"}
    assert max(e["ts"] + e["dur"] for e in work) <= best["sim_total_time_s"] * 1e6 * (1 + 1e-9)
    # Perfetto takes a thread of another process's number, or of one's own, for its main thread.
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert {pid for pid, tid in tracks if pid == tid} == {pid for pid, _ in tracks}
    for thread in tracks:
        mine = [e for e in work if (e["pid"], e["tid"]) == thread]
        # It rounds both figures to nanoseconds, and drops what overlaps then.
        rounded = sorted((round(e["ts"] * 1e3), round(e["dur"] * 1e3)) for e in mine)
        assert all(start + took <= after for (start, took), (after, _) in pairwise(rounded))


def test_the_module_takes_the_same_flags(command: Command) -> None:
    flags = ["--model-name", "llama2-7b", "--num-gpus", "8", "--top", "1"]
    module = subprocess.run(
        [sys.executable, "-m", "autopar", *flags], capture_output=True, text=True, check=True
    )
    assert module.stdout == command("apss", *flags).out


def test_files_of_ones_own_stand_where_names_do(command: Command) -> None:
    run = command(
        "apss", "--model-name", str(EXAMPLES / "model.toml"), "--num-gpus", "64",
        "--gpu-infos", f"{EXAMPLES / 'chip.toml'}:64,h800:64", "--top", "1",
    )  # fmt: skip
    assert run.code == 0
    assert set(dicts(run.out)[0]["strategy"]["pipeline-stage-chips"]) <= {"chip", "h800"}


def test_a_name_that_stands_for_one_of_several_chips_says_which(command: Command) -> None:
    run = command(
        "apss", "--model-name", "llama2-7b", "--num-gpus", "8", "--gpu-infos", "ascend_910b"
    )
    assert "910B3" in run.err
    assert dicts(run.out)[0]["strategy"]["pipeline-stage-chips"] == ["ascend_910b"]


@pytest.mark.parametrize("devices", [256, 4096, 65_536])
@pytest.mark.parametrize("model", apss.MODELS)
def test_every_model_on_every_chip_has_an_answer(
    command: Command, model: str, devices: int
) -> None:
    for chip in apss.CHIPS:
        run = command(
            "apss", "--model-name", model, "--num-gpus", str(devices), "--gpu-infos", chip,
            "--global-batch-size", "65536", "--top", "1",
        )  # fmt: skip
        if run.code == 0:
            assert dicts(run.out)[0]["sim_total_time_s"] > 0
        else:
            assert (run.code, run.out) == (1, "")
            assert "no plan fits in memory: the nearest" in run.err
