"""How many devices to use, and what it costs in money."""

import json
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import wire
from conftest import Command

ASKED = (
    "--model", "llama2-7b", "--global-batch-size", "64", "--sequence-length", "4096",
    "--cp", "1", "--pp", "1,2,3", "--zero", "0,1", "--mbs", "1", "--recompute", "none,block",
)  # fmt: skip


@pytest.fixture
def priced(tmp_path: Path) -> str:
    """A cluster of 32 A800 at 1.5 a device-hour."""
    file = tmp_path / "cluster.toml"
    file.write_text('[[groups]]\nchip = "a800"\nlimit = 32\nprice_per_hour = 1.5\n', "utf-8")
    return str(file)


def report(text: str) -> Any:
    return json.loads(text)


def test_money_is_device_hours_times_their_price(command: Command, priced: str) -> None:
    run = command("search", *ASKED, "--cluster", priced, "--format", "json", "--top", "1")
    best = report(run.out)["ranked"][0]["estimate"]
    step = 32 * best["step_s"] / 3600 * 1.5
    assert best["money"]["step"] == pytest.approx(step, rel=1e-12)
    steps = 1e12 / (64 * 4096)
    assert best["money"]["trillion_tokens"] == pytest.approx(step * steps, rel=1e-12)


def test_money_has_columns_only_where_there_is_a_price(command: Command, priced: str) -> None:
    table = command("search", *ASKED, "--cluster", priced, "--top", "2").out
    assert "money/step  money/1e12 tokens" in table.splitlines()[0]
    assert "money" not in command("search", *ASKED, "--cluster", "a800:32", "--top", "2").out
    one = ("estimate", *ASKED[:6], "--dp", "32", "--zero", "1")
    assert "money" in command(*one, "--cluster", priced).out
    assert "money" not in command(*one, "--cluster", "a800:32").out


def test_a_plan_on_chips_of_which_one_has_no_price_has_no_money() -> None:
    chips = autopar.problem(
        "llama2-7b", "a800:8,h800:8", global_batch_size=64, sequence_length=4096
    )
    assert all(group.chip.price_per_hour is None for group in chips.cluster.groups)
    assert autopar.estimate(chips, autopar.plan(chips, pp=2, chips=[0, 1], zero=1)).money is None


def test_at_most_finds_what_a_search_of_every_count_finds(command: Command, priced: str) -> None:
    every = {}
    for devices in range(1, 33):
        run = command(
            "search", *ASKED, "--cluster", priced, "--devices", str(devices),
            "--format", "json", "--top", "1",
        )  # fmt: skip
        if run.code == 0:
            every[devices] = report(run.out)["ranked"][0]["estimate"]
    fastest = min(every, key=lambda n: (every[n]["step_ps"], n))
    cheapest = min(every, key=lambda n: (n * every[n]["step_ps"], every[n]["step_ps"]))
    assert fastest != cheapest
    for objective, devices in (("throughput", fastest), ("cost", cheapest)):
        run = command(
            "search", *ASKED, "--cluster", priced, "--at-most", "32", "--objective", objective,
            "--format", "json", "--top", "3",
        )  # fmt: skip
        found = report(run.out)
        assert found["problem"]["cluster"]["devices"] == devices
        assert found["ranked"][0]["estimate"] == every[devices]
        assert "device counts up to 32" in run.err
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True))
    question = autopar.problem(
        asked["--model"], priced, global_batch_size=64, sequence_length=4096, cp=[1], pp=[1, 2, 3],
        zero=[0, 1], mbs=[1], recompute=["none", "block"],
    )  # fmt: skip
    found = json.loads(wire.dumps(autopar.sizes(question)))
    assert {size["devices"]: size["best"]["estimate"] for size in found["sizes"]} == every
    run = command("search", *ASKED, "--cluster", priced, "--frontier", "--format", "json")
    sizes = report(run.out)
    costs = {n: (e["step_ps"], n * e["step_ps"]) for n, e in every.items()}
    frontier = [
        n
        for n, (time, money) in costs.items()
        if not any(t <= time and m <= money and (t, m) != (time, money) for t, m in costs.values())
    ]
    assert [size["devices"] for size in sizes["sizes"]] == frontier
    assert [s["devices"] for s in found["sizes"] if s["frontier"]] == frontier
    lines = command("search", *ASKED, "--cluster", priced, "--frontier").out.splitlines()
    assert lines[0].split()[:2] == ["#", "devices"]
    assert [line.split()[1] for line in lines[1 : 1 + len(frontier)]] == [str(n) for n in frontier]


def test_idle_devices_help_where_the_batch_does_not_divide(command: Command) -> None:
    # 7 devices hold 7 sequences at a time of a batch of 8 in no way; 4 do, and 8 are not there.
    asked = ("search", "--model", "llama2-7b", "--cluster", "a800:8", "--global-batch-size", "8",
             "--sequence-length", "4096", "--cp", "1", "--pp", "1", "--format", "json")  # fmt: skip
    assert command(*asked, "--devices", "7").code == 1
    run = command(*asked, "--at-most", "7")
    assert report(run.out)["problem"]["cluster"]["devices"] == 4


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--cluster", "a800:32", "--frontier"), 'groups[0].chip.price_per_hour: "a800" has no'),
        (("--cluster", "a800:32", "--objective", "cost"), "has no price"),
        (("--cluster", "a800:32", "--at-most", "8", "--devices", "8"), "--at-most: given beside"),
        (("--cluster", "a800:32", "--at-most", "0"), "Invalid value for '--at-most'"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    command: Command, flags: tuple[str, ...], says: str
) -> None:
    run = command("search", *ASKED, *flags)
    assert (run.code, run.out) == (2, "")
    assert says in run.err
    assert len(run.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flag", "beside"),
    [
        (("--launcher", "megatron"), ("--export", "megatron")),
        (("--launcher", "megatron"), ("--like", "x.sh")),
        (("--launcher", "megatron"), ("--frontier",)),
        (("--launcher", "megatron"), ("--format", "json")),
        (("--like", "x.sh"), ("--export", "megatron")),
        (("--like", "x.sh"), ("--at-most", "8")),
        (("--like", "x.sh"), ("--frontier",)),
        (("--like", "x.sh"), ("--objective", "cost")),
        (("--like", "x.sh"), ("--format", "json")),
        (("--like", "x.sh"), ("--format", "apss")),
        (("--frontier",), ("--export", "megatron")),
        (("--frontier",), ("--objective", "cost")),
        (("--frontier",), ("--top", "3")),
        (("--frontier",), ("--format", "apss")),
        (("--export", "megatron"), ("--format", "json")),
    ],
    ids=lambda words: " ".join(words),
)
def test_two_answers_at_once_are_refused(
    command: Command, priced: str, flag: tuple[str, ...], beside: tuple[str, ...]
) -> None:
    run = command("search", *ASKED, "--cluster", priced, *flag, *beside)
    assert (run.code, run.out) == (2, "")
    what = " ".join(beside) if beside[0] in ("--format", "--objective") else beside[0]
    assert run.err.startswith(f"error: {flag[0]}: given beside {what}. ")
    assert len(run.err.splitlines()) == 1


def test_a_frontier_is_found_again_and_its_rows_exported(
    command: Command, priced: str, tmp_path: Path
) -> None:
    asked = ("search", *ASKED, "--cluster", priced, "--frontier", "--format", "json")
    asked += ("--no-activation-offload",)
    assert command(*asked, "-o", "frontier.json").code == 0
    assert command("rerun", "frontier.json").out == (tmp_path / "frontier.json").read_text("utf-8")
    sizes = report((tmp_path / "frontier.json").read_text("utf-8"))["sizes"]
    assert len(sizes) > 1
    for rank, size in enumerate(sizes, 1):
        run = command("export", "frontier.json", "--to", "megatron", "--rank", str(rank))
        assert run.code == 0
        nodes, each = -(-size["devices"] // 8), min(8, size["devices"])
        assert f"    --nnodes {nodes} --nproc-per-node {each} " in run.out
    beyond = command("export", "frontier.json", "--to", "megatron", "--rank", str(len(sizes) + 1))
    assert (beyond.code, beyond.out) == (2, "")
    assert "--rank: no plan" in beyond.err


def test_several_prices_are_refused_for_money(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    groups = [f'[[groups]]\nchip = "{c}"\nlimit = 8\nprice_per_hour = {p}\n' for c, p in
              (("a800", 1.5), ("h800", 3.0))]  # fmt: skip
    file.write_text("\n".join(groups), "utf-8")
    run = command("search", *ASKED, "--cluster", str(file), "--frontier")
    assert run.code == 2
    assert 'groups[1].chip.price_per_hour: "h800" has another price than "a800"' in run.err
    run = command("search", *ASKED, "--cluster", str(file), "--frontier", "--format", "apss")
    assert run.code == 2
