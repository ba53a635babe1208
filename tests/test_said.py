"""What the words of rows say, whoever wrote them."""

import pytest

from autopar.runs import Run
from autopar.runs.formats import all_narrow, formats
from autopar.runs.said import on
from autopar.runs.shelf import is_compiled
from autopar.runs.stored import CHECKPOINTS, OPTIMIZER, PARAMETERS, on_host


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("async TP", True),
        ("--async-tp", True),
        ("Async TP off (baseline column)", False),
        ("async TP (old): disabled.", False),
        ("without any async TP", False),
        ("neither async TP nor graphs", False),
        ("async_tp=false", False),
        ("async TP was not used", False),
        ("whether async TP is not told", None),
        ("unclear if async TP was on", None),
        ("async TP / loss parallel n/s", None),
        ("no --sequence-parallel / --async-tp", False),
        ("sequence parallel", None),
    ],
)
def test_a_switch_is_on_or_off_whichever_side_says_so(text: str, told: bool | None) -> None:
    assert on(text, "async[-_ ]tp") is told


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ("compile.components=[model, loss]", True),
        ("--compile", True),
        ("jitted by a compiler", True),
        ("uncompiled baseline (compiled lines skipped)", False),
        ("compile disabled. 20 steps", False),
        ("compile_model=false in the script", False),
        ("eager; FlexAttention compiled by itself", False),
        ("only the loss function is torch.compile'd", False),
        ("whether compiled isn't stated", None),
        ("compile status unknown", None),
        ("torch.compile brought nothing", None),
        ("eager attention", None),
    ],
)
def test_a_row_says_whether_its_model_was_compiled(notes: str, told: bool | None) -> None:
    assert is_compiled(Run(id="a", notes=notes)) is told


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ("bf16 for params, grads, moments", {"weights": True, "gradients": True, "moments": True}),
        ("Adam moments bf16", {"moments": True}),
        ("exp_avg_dtype=bf16", {"moments": True}),
        ("w/g/mu/nu bf16", {"weights": True, "gradients": True, "moments": True}),
        ("grads/Adam m,v all model_dtype=bf16", {"gradients": True, "moments": True}),
        ("bf16-only params", {"weights": True}),
        (
            "bf16 params + grads + optimizer",
            {"weights": True, "gradients": True, "states": True},
        ),
        ("weights and optimizer purely bf16", {"weights": True, "states": True}),
        ("grad reduction dtype float32", {"reduced": False}),
        ("gradients reduced in bf16", {"reduced": True}),
        ("bf16 weights, no fp32 master copy", {"weights": True}),
        ("whether gradients reduce in bf16 is not said", {}),
    ],
)
def test_formats_are_read_of_each_thing_that_is_listed(notes: str, told: dict[str, bool]) -> None:
    assert formats(Run(id="a", notes=notes)) == told


@pytest.mark.parametrize(
    ("notes", "narrow"),
    [
        ("weights plus optimizer states live in bf16", True),
        ("everything 2-byte: params, grads, Adam mu/nu", True),
        ("params and Adam moments 2-byte", True),
        ("Adam moments bf16", False),
        ("params/grads/moments bf16, master weights fp32", False),
    ],
)
def test_all_states_are_narrow_where_no_copy_is_wider(notes: str, narrow: bool) -> None:
    assert all_narrow(Run(id="a", notes=notes)) is narrow


@pytest.mark.parametrize(
    ("notes", "things"),
    [
        ("params and all optimizer state live in pinned host RAM", {PARAMETERS, OPTIMIZER}),
        ("optimizer and params on CPU", {PARAMETERS, OPTIMIZER}),
        ("optimizer_memory_host_offload=true", {OPTIMIZER}),
        ("optimizer_cpu_offload: true", {OPTIMIZER}),
        ("param+optimizer -> cpu", {PARAMETERS, OPTIMIZER}),
        ("--swap-attention (attention activations offloaded to host)", set()),
        ("offload_param to CPU", {PARAMETERS}),
        ("checkpoint activations offloaded to the host", {CHECKPOINTS}),
        ("cpu_checkpointing", {CHECKPOINTS}),
        ("optimizer offload off", set()),
        ("master weights in host memory", set()),
        ("no offload of the optimizer", set()),
    ],
)
def test_what_waits_on_the_host_is_named_before_or_behind(notes: str, things: set[str]) -> None:
    run = Run(id="a", notes=notes)
    assert {t for t in (PARAMETERS, OPTIMIZER, CHECKPOINTS) if on_host(run, t)} == things
