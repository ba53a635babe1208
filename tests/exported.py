"""Jobs that several tests of the exporters start from, and their files read back."""

import shlex
from dataclasses import replace
from typing import Any

import autopar
from autopar import Problem
from autopar.export import launchers
from autopar.export.job import Job

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


def mindspore_module(said: Job) -> dict[str, Any]:
    """Returns the names of the module for MindSpore; a layout is its grid and what it is called
    with."""
    text = texts("mindspore", said)["auto_parallel_context.py"]
    layout = "def Layout(*grid): return lambda *axes: (grid, axes)"
    values: dict[str, Any] = {}
    exec(text.replace("from mindspore import Layout", layout), values)
    return values


def script_arguments(text: str) -> dict[str, str | None]:
    """Returns the arguments behind the program, as a shell splits them; several words as one."""
    words = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "))
    program = next(i for i, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    arguments: dict[str, str | None] = {}
    for word in words[program + 1 : -1]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in arguments
            arguments[name] = None
        else:
            before = arguments[name]
            arguments[name] = word if before is None else f"{before} {word}"
    assert words[-1] == "$@"
    return arguments


def in_framework(said: Job, **changes: Any) -> Job:
    """Returns a job whose framework does something else besides."""
    framework = replace(said.problem.framework, **changes)
    return replace(said, problem=replace(said.problem, framework=framework))
