"""What a launcher's files expect of a plan is what the framework that runs it takes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import autopar
from autopar import Problem, Report, catalog, wire
from autopar.export import accelerate, launchers
from autopar.export.job import Job, header
from autopar.export.launchers import LAUNCHERS
from conftest import Command

FLAGS = (
    "--model", "llama2-7b", "--cluster", "a100:16", "--global-batch-size", "64",
    "--sequence-length", "4096",
)  # fmt: skip


def problem(framework: str, model: str = "llama2-7b", **options: object) -> Problem:
    return autopar.problem(
        model, "a100", devices=16, global_batch_size=64, sequence_length=4096,
        framework=framework, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def in_framework(job: Job, name: str) -> Job:
    """Returns a plan estimated in a framework, asked anew."""
    asked = replace(job.problem, framework=catalog.framework(name).framework)
    return Job(asked, job.plan, autopar.estimate(asked, job.plan))


def test_each_part_of_what_accelerate_says_is_asked_in_what_it_starts_there() -> None:
    asked = launchers.own_questions("accelerate", problem("fsdp"))
    assert [part.framework.name for part in asked] == list(accelerate.FRAMEWORKS)
    # Sharded parameters are FSDP's, plain replicas DDP's, sharded optimizers Megatron-LM's.
    for zero, backend in ((3, "FSDP"), (0, "MULTI_GPU"), (1, "MEGATRON_LM")):
        narrow = problem(
            "fsdp", "llama3.2-1b", zero=(zero,), tp=(1,), pp=(1,), cp=(1,), recompute=("none",),
            optimizer_offload=False,
        )  # fmt: skip
        parts = launchers.own_questions("accelerate", narrow)
        [job], _ = launchers.fastest("accelerate", parts, autopar.solve)
        files = {file.name: file.text for file in LAUNCHERS["accelerate"].files(job)}
        assert yaml.safe_load(files["accelerate.yaml"])["distributed_type"] == backend
        own = dict(zip(("FSDP", "MULTI_GPU", "MEGATRON_LM"), accelerate.FRAMEWORKS, strict=True))
        assert job == in_framework(job, own[backend])
        assert f", {own[backend]}: " in files["accelerate.yaml"]


def test_the_fastest_of_accelerates_parts_is_compared_in_their_own_frameworks() -> None:
    asked = launchers.own_questions("accelerate", problem("fsdp", "llama3.2-1b"))
    firsts = [launchers.fastest("accelerate", [part], autopar.solve)[0][0] for part in asked]
    assert [job.problem.framework.name for job in firsts] == list(accelerate.FRAMEWORKS)
    assert firsts == [in_framework(job, job.problem.framework.name) for job in firsts]
    [best], _ = launchers.fastest("accelerate", asked, autopar.solve)
    assert best == min(firsts, key=lambda job: job.estimate.step_ps)


def test_accelerate_starts_megatron_without_the_flags_that_its_file_cannot_give() -> None:
    entry = catalog.framework("accelerate-megatron").framework
    plain = catalog.framework("megatron-core").framework
    assert not entry.overlap.gradient_reduce
    assert plain.overlap.gradient_reduce
    experts = autopar.problem(
        "mixtral-8x7b", "h100", devices=32, global_batch_size=64, sequence_length=4096,
        framework="accelerate-megatron",
    )  # fmt: skip
    plan = autopar.plan(experts, tp=2, ep=8, dp=4, pp=4, zero=1)
    said = Job(experts, plan, autopar.estimate(experts, plan))
    assert LAUNCHERS["accelerate"].supports(said) == []


def test_a_list_within_accelerate_says_which_plan_runs_in_what(command: Command) -> None:
    flags = ("--model", "llama3.2-1b", *FLAGS[2:], "--launcher", "accelerate", "--top", "12")
    run = command("search", *flags)
    assert run.code == 0
    told = dict(re.findall(r"^Estimated in (\S+): ([\d, ]+)\.$", run.out, re.M))
    assert told.keys() <= set(accelerate.FRAMEWORKS)
    ranks = [int(rank) for listed in told.values() for rank in listed.split(", ")]
    assert sorted(ranks) == list(range(1, 13))


def report(command: Command, *flags: str) -> Report:
    run = command("search", *FLAGS, "--format", "json", "-o", "report.json", "--force", *flags)
    assert run.code == 0
    return wire.loads(Report, Path("report.json").read_text("utf-8"))


PLAIN = (
    "--zero", "1", "--recompute", "none", "--schedule", "1f1b", "--no-activation-offload",
    "--no-optimizer-offload",
)  # fmt: skip
DEGREES = (*PLAIN, "--tp", "2", "--pp", "2", "--vpp", "1")


@pytest.mark.parametrize(
    ("name", "own"), [("deepspeed", "deepspeed"), ("accelerate", "accelerate-megatron")]
)
def test_a_report_is_exported_with_the_figures_of_what_runs(
    name: str, own: str, command: Command
) -> None:
    degrees = (*PLAIN, "--pp", "1", "--tp", "1") if name == "deepspeed" else DEGREES
    found = report(command, *degrees)
    first = found.ranked[0]
    told = Job(found.problem, first.plan, first.estimate)
    run = command("export", "--to", name, "report.json", "-o", "out")
    assert run.code == 0
    again = in_framework(told, own)
    text = "".join(path.read_text("utf-8") for path in Path("out").iterdir())
    assert header(again)[1] in text
    assert header(told)[1] not in text
    assert run.err.splitlines()[0] == (
        f"note: estimated in {own}: {again.estimate.step_s:.6g} s a step, where the report has "
        f"{first.estimate.step_s:.6g} s in megatron-core; --framework names another"
    )


def test_a_report_in_the_launchers_own_framework_stays_as_it_is(command: Command) -> None:
    found = report(command, *DEGREES)
    run = command("export", "--to", "megatron", "report.json", "-o", "out")
    assert (run.code, run.err) == (0, "")
    first = found.ranked[0]
    expected = header(Job(found.problem, first.plan, first.estimate))
    assert all(line in Path("out/megatron.sh").read_text("utf-8") for line in expected)


def test_a_profile_of_ones_own_is_kept_and_named(command: Command) -> None:
    Path("mine.toml").write_text('follows = "megatron-core"\nlaunch_us = 5.0\n')
    found = report(command, *DEGREES, "--framework", "./mine.toml")
    run = command("export", "--to", "megatron", "report.json", "-o", "out")
    assert run.code == 0
    assert run.err == ("note: estimated in mine, as the report is; --framework names another\n")
    first = found.ranked[0]
    assert header(Job(found.problem, first.plan, first.estimate))[1] in Path(
        "out/megatron.sh"
    ).read_text("utf-8")


def test_a_framework_that_is_named_is_taken(command: Command) -> None:
    found = report(command, *DEGREES)
    run = command("export", "--to", "accelerate", "report.json", "-o", "out", "--framework", "nemo")
    assert run.code == 0
    assert "note: estimated in nemo: " in run.err
    first = found.ranked[0]
    again = in_framework(Job(found.problem, first.plan, first.estimate), "nemo")
    assert header(again)[1] in Path("out/accelerate.yaml").read_text("utf-8")


def test_a_plan_is_exported_with_the_figures_of_what_runs(command: Command) -> None:
    asked = problem("deepspeed")
    plan = autopar.plan(asked, dp=16, zero=2, mbs=1)
    Path("plan.json").write_text(wire.dumps(plan))
    run = command("export", "--to", "deepspeed", "plan.json", *FLAGS, "-o", "out")
    assert (run.code, run.err) == (0, "")
    expected = header(Job(asked, plan, autopar.estimate(asked, plan)))[1]
    assert expected in json.loads(Path("out/deepspeed.json").read_text())["_comment"]


@pytest.mark.parametrize("command_line", [("estimate", "--plan"), ("export", "--to", "megatron")])
def test_a_rule_that_a_plan_breaks_has_the_line_of_its_file(
    command_line: tuple[str, ...], command: Command
) -> None:
    plan = wire.write(autopar.plan(problem("megatron-core"), dp=16, mbs=1))
    text = json.dumps({**plan, "sp": True}, indent=1)
    Path("plan.json").write_text(text)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if '"sp"' in row)
    run = command(*command_line, "plan.json", *FLAGS)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"error: plan.json:{line}: sp: ")


def test_a_plan_that_does_not_fit_where_it_runs_is_told(command: Command) -> None:
    asked = problem("deepspeed")
    plan = autopar.plan(asked, dp=16, zero=1, mbs=4)
    assert autopar.estimate(asked, plan).violations
    Path("plan.json").write_text(wire.dumps(plan))
    run = command("export", "--to", "deepspeed", "plan.json", *FLAGS, "-o", "out")
    assert run.code == 0
    assert run.err.startswith("note: not possible: stage 0 lacks ")


def test_a_search_within_a_named_framework_leaves_out_what_runs_elsewhere() -> None:
    asked = launchers.questions("accelerate", problem("fsdp"))
    assert {part.framework.name for part in asked} == {"fsdp"}
    found, _ = launchers.fastest("accelerate", asked, autopar.solve, 5)
    assert all(launchers.framework_of("accelerate", job) == "fsdp" for job in found)
    # A profile that the launcher does not start stands for any.
    other = launchers.questions("accelerate", problem("nemo", zero=(1,)))
    found, _ = launchers.fastest("accelerate", other, autopar.solve)
    assert [job.problem.framework.name for job in found] == ["nemo"]


def test_only_profiles_of_other_stacks_are_foreign() -> None:
    asked = problem("megatron-core", zero=(1,), pp=(2,), vpp=(1,), recompute=("none",))
    [ranked] = autopar.solve(replace(asked, options=replace(asked.options, top=1))).ranked
    job = Job(asked, ranked.plan, ranked.estimate)
    foreign = {
        name: [
            framework
            for framework in ("megatron-core", "nemo", "torchtitan-eager", "mindformers", "fsdp")
            if launchers.is_foreign(name, in_framework(job, framework))
        ]
        for name in ("megatron", "torchtitan", "kubernetes")
    }
    assert foreign == {
        "megatron": ["torchtitan-eager", "mindformers", "fsdp"],
        "torchtitan": ["megatron-core", "nemo", "mindformers", "fsdp"],
        "kubernetes": [],
    }
