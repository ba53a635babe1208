"""The command line: formats, files, terminals, exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import autopar
from autopar import Plan, Report, Stage, wire
from conftest import EXAMPLES, Command, heed_ctrl_c

SEARCH = [
    "search", "--model", "llama2-7b", "--cluster", "a800:16",
    "--global-batch-size", "64", "--sequence-length", "4096", "--top", "3",
]  # fmt: skip
PLAN = [
    "estimate", "--model", "llama2-70b", "--cluster", "a800:32,h800:224",
    "--global-batch-size", "1024", "--sequence-length", "4096",
]  # fmt: skip
PROGRAM = [sys.executable, "-c", "import sys; from autopar.cli import main; sys.exit(main())"]


def process(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Returns a whole process of a command; keywords are environment variables."""
    environment = os.environ | {key: str(value) for key, value in options.items()}
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, env=environment, check=False)


def test_a_search_prints_a_table_and_what_was_considered(command: Command) -> None:
    run = command(*SEARCH)
    assert run.code == 0
    lines = run.out.splitlines()
    assert lines[0].split()[:3] == ["#", "step", "s"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == ""
    assert lines[5].startswith("llama2-7b on 16 x a800, global batch 64, sequence 4,096, bf16,")
    assert lines[6].startswith("Considered ")
    assert lines[7].startswith("Proved the 3 best of ")


def test_json_is_the_report_of_the_api(command: Command) -> None:
    run = command(*SEARCH, "--format", "json")
    report = autopar.search(
        "llama2-7b", "a800:16", global_batch_size=64, sequence_length=4096, top=3
    )
    assert wire.loads(Report, run.out) == report


def test_the_classes_that_are_cut_and_estimated_add_up(command: Command) -> None:
    counters = json.loads(command(*SEARCH, "--format", "json").out)["counters"]
    cut = sum(counters["cut"].values())
    assert counters["considered"] == counters["estimated"] + cut


def test_rerun_repeats_a_report_to_the_same_bytes(command: Command, tmp_path: Path) -> None:
    assert command(*SEARCH, "--format", "json", "-o", "first.json").code == 0
    assert command("rerun", "first.json", "--threads", "1", "-o", "second.json").code == 0
    first = (tmp_path / "first.json").read_bytes()
    assert (tmp_path / "second.json").read_bytes() == first
    assert command("rerun", "first.json").out.encode() == first


def test_a_limit_on_a_degree_holds(command: Command) -> None:
    run = command(*SEARCH, "--tp", "2,4", "--pp", "2", "--zero", "1", "--format", "json")
    plans = [ranked["plan"] for ranked in json.loads(run.out)["ranked"]]
    assert plans
    assert all(p["tp"] in (2, 4) and p["pp"] == 2 and p["zero"] == 1 for p in plans)


def test_a_switch_and_a_list_of_words_hold(command: Command) -> None:
    run = command(
        *SEARCH, "--tp", "2", "--sp", "off", "--schedule", "1f1b,gpipe", "--recompute", "none",
        "--no-optimizer-offload", "--no-activation-offload", "--format", "json",
    )  # fmt: skip
    plans = [ranked["plan"] for ranked in json.loads(run.out)["ranked"]]
    assert plans
    for plan in plans:
        assert not plan["sp"]
        assert not plan["optimizer_offload"]
        assert plan["schedule"] in ("1f1b", "gpipe")
        assert all(s["recompute"] == {"granularity": "none"} for s in plan["stages"])
        assert all(s["offload"] == 0 for s in plan["stages"])


def test_the_apss_format_refuses_by_name_what_it_cannot_say(command: Command) -> None:
    run = command(*SEARCH, "--cp", "2", "--format", "apss")
    assert (run.code, run.out) == (2, "")
    assert "the apss form cannot say context parallel 2" in run.err


def test_the_apss_format_prints_a_dict_a_line(command: Command) -> None:
    run = command(
        *SEARCH, "--cp", "1", "--vpp", "1", "--schedule", "1f1b", "--zero", "0,1",
        "--no-partial-shard-groups", "--no-optimizer-offload", "--no-activation-offload",
        "--no-uneven-layers", "--format", "apss",
    )  # fmt: skip
    assert run.code == 0
    assert [line[:18] for line in run.out.splitlines()] == ["{'sim_throughput':"] * 3


def test_no_plan_is_exit_code_1_with_the_report_as_the_answer(command: Command) -> None:
    run = command(
        "search", "--model", "llama2-70b", "--cluster", "a800:8", "--no-optimizer-offload",
        "--global-batch-size", "8", "--sequence-length", "4096", "--format", "json",
    )  # fmt: skip
    assert run.code == 1
    assert json.loads(run.out)["infeasible"]["kind"] == "memory"
    assert run.err.startswith("error: no plan fits in memory: the nearest")
    assert run.err.count("\n") == 1


def test_a_batch_that_nothing_divides_names_the_nearest_that_does(command: Command) -> None:
    run = command(
        "search", "--model", "llama2-7b", "--cluster", "a800:8000", "--tp", "1", "--pp", "1",
        "--cp", "1", "--global-batch-size", "1024", "--sequence-length", "4096",
    )  # fmt: skip
    assert run.code == 1
    what = "no degrees suit 8,000 devices and a global batch of 1,024"
    assert run.err == f"error: {what}; possible with 1,024 devices or a global batch of 8,000\n"


def test_an_estimate_lists_time_and_memory_item_by_item(command: Command) -> None:
    run = command(
        *PLAN, "--pp", "8", "--tp", "2", "--zero", "1", "--recompute", "none,full/block/3",
        "--layers", "3,11,11,11,11,11,11,11",
        "--chips", "a800,h800,h800,h800,h800,h800,h800,h800",
    )  # fmt: skip
    assert run.code == 0
    words = [line.split() for line in run.out.splitlines()]
    times = [float(w[1]) for w in words if len(w) == 3 and w[0] in (
        "compute", "recompute", "tensor", "context", "expert", "shard", "pipeline", "bubble",
        "data", "optimizer",
    )]  # fmt: skip
    step = next(float(w[1]) for w in words if w[:1] == ["step"] and len(w) == 3)
    assert len(times) == 10
    assert sum(times) == pytest.approx(step, abs=1e-5)
    first = next(w for w in words if w[:2] == ["0", "a800"])
    # Ten items, nothing of which is there only at the end of the step, and their peak.
    assert sum(map(float, first[2:12])) == pytest.approx(float(first[12]), abs=0.05)


def test_a_plan_in_a_file_is_the_plan_in_flags(command: Command, tmp_path: Path) -> None:
    plan = Plan(dp=8, tp=2, sp=True, zero=1, shard_group=8, stages=(Stage(layers=32),))
    (tmp_path / "plan.json").write_text(wire.dumps(plan))
    problem = [
        "estimate", "--model", "llama2-7b", "--cluster", "a800", "--format", "json",
        "--global-batch-size", "64", "--sequence-length", "4096",
    ]  # fmt: skip
    from_file = command(*problem, "--plan", "plan.json")
    from_flags = command(*problem, "--dp", "8", "--tp", "2", "--zero", "1")
    assert from_file.code == 0
    assert from_file.out == from_flags.out


def test_a_plan_that_does_not_run_is_exit_code_1_and_says_why(command: Command) -> None:
    run = command(
        "estimate", "--model", "llama2-70b", "--cluster", "a800:8", "--tp", "8",
        "--global-batch-size", "8", "--sequence-length", "4096",
    )  # fmt: skip
    assert run.code == 1
    assert "Not possible: " in run.out


@pytest.mark.parametrize("form", ["table", "json", "apss"])
def test_a_file_is_not_overwritten_without_force(
    command: Command, tmp_path: Path, form: str
) -> None:
    output = tmp_path / "out"
    output.write_text("mine")
    search = [*SEARCH, "--top", "1", "--cp", "1", "--vpp", "1", "--format", form, "-o", "out"]
    run = command(*search)
    assert (run.code, run.out) == (2, "")
    assert run.err == 'error: --output: file "out" exists. Give --force to overwrite it.\n'
    assert output.read_text() == "mine"
    if form == "json":
        assert command(*search, "--force").code == 0
        assert json.loads(output.read_text("utf-8"))["schema"] == "autopar.report/1"


def test_the_catalogs_are_listed_with_size_and_source(command: Command) -> None:
    models = command("models").out.splitlines()
    row = next(line for line in models if line.startswith("llama2-70b "))
    assert "68.98e9" in row
    assert "released" in row
    assert "arXiv:2307.09288" in row
    chips = command("chips").out.splitlines()
    row = next(line for line in chips if line.startswith("a800 "))
    assert row.split()[1:3] == ["312", "80.0"]
    assert "data sheet" in row


def test_an_entry_of_a_catalog_is_shown_key_by_key(command: Command) -> None:
    assert "layers = 80\n" in command("models", "llama2-70b").out
    assert "derivation = " in command("models", "llama-540b").out
    assert "memory_gib = 80.0\n" in command("chips", "A800-SXM4-80GB").out


@pytest.mark.parametrize("kind", ["model", "chip", "cluster", "framework"])
def test_an_annotated_example_is_printed_and_works(
    command: Command, tmp_path: Path, kind: str
) -> None:
    shown = (
        command("models", "--example") if kind == "model" else command("chips", "--example", kind)
    )
    (tmp_path / f"my-{kind}.toml").write_text(shown.out)
    given = {"model": "llama2-7b", "cluster": "a800:16", "framework": "megatron-core"}
    given["cluster" if kind == "chip" else kind] = f"./my-{kind}.toml"
    run = command(
        "search", "--model", given["model"], "--cluster", given["cluster"],
        "--framework", given["framework"], "--devices", "16", "--top", "1",
        "--global-batch-size", "64", "--sequence-length", "4096", "--format", "json",
    )  # fmt: skip
    assert run.code == 0
    problem = json.loads(run.out)["problem"]
    names = [
        problem["model"]["name"],
        problem["framework"]["name"],
        *(group["chip"]["name"] for group in problem["cluster"]["groups"]),
    ]
    assert f"my-{kind}" in names or kind == "cluster"


def test_a_cluster_file_changes_the_network_of_its_chips(command: Command) -> None:
    run = command(
        "search", "--model", "llama2-7b", "--cluster", str(EXAMPLES / "cluster.toml"),
        "--devices", "16", "--global-batch-size", "64", "--sequence-length", "4096",
        "--top", "1", "--format", "json",
    )  # fmt: skip
    cluster = json.loads(run.out)["problem"]["cluster"]
    assert [group["limit"] for group in cluster["groups"]] == [128, 160]
    assert cluster["groups"][1]["chip"]["network"]["nics_per_node"] == 4
    assert cluster["fabric"] == [{"nodes": 32, "bandwidth_fraction": 0.5}]


def test_a_chinese_path_is_read_and_named(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "模型"
    folder.mkdir()
    (folder / "我的.toml").write_bytes((EXAMPLES / "model.toml").read_bytes())
    arguments = [*SEARCH, "--format", "json"]
    arguments[arguments.index("llama2-7b")] = "模型/我的.toml"
    run = command(*arguments, "-o", "报告.json")
    assert (run.code, run.err) == (0, "")
    report = json.loads((tmp_path / "报告.json").read_text("utf-8"))
    assert report["problem"]["model"]["name"] == "我的"
    assert command("rerun", "报告.json").code == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_utf8_gets_text_and_json(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "我的.toml"
    file.write_bytes((EXAMPLES / "model.toml").read_bytes())
    arguments = [*SEARCH]
    arguments[arguments.index("llama2-7b")] = str(file)
    table = process(*arguments, PYTHONIOENCODING=encoding)
    assert table.returncode == 0
    assert ("我的" in table.stdout.decode(encoding)) == (encoding == "utf-8")
    document = process(*arguments, "--format", "json", PYTHONIOENCODING=encoding)
    assert json.loads(document.stdout.decode())["problem"]["model"]["name"] == "我的"
    wrong = process("search", "--model", "模型", *arguments[3:], PYTHONIOENCODING=encoding)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)


def test_a_chinese_path_is_read_and_named_in_a_locale_without_utf8(tmp_path: Path) -> None:
    posix = {"LC_ALL": "C", "PYTHONUTF8": 0, "PYTHONCOERCECLOCALE": 0}
    chip, report = tmp_path / "我的.toml", tmp_path / "报告.json"
    chip.write_bytes((EXAMPLES / "chip.toml").read_bytes())
    arguments = [*SEARCH, "--format", "json", "-o", str(report)]
    arguments[arguments.index("a800:16")] = f"{chip}:16"
    assert process(*arguments, **posix).returncode == 0
    groups = json.loads(report.read_text("utf-8"))["problem"]["cluster"]["groups"]
    assert groups[0]["chip"]["name"] == "我的"
    again = process(*arguments, **posix)
    assert (again.returncode, again.stdout) == (2, b"")
    assert r'\u62a5\u544a.json" exists' in again.stderr.decode()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_quietly(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([*PROGRAM, "models"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("listener", ["nobody", "one who left"])
def test_notes_that_nobody_reads_keep_nothing_from_standard_output(
    listener: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [*PROGRAM, "apss", "--model-name", "llama2-7b", "--num-gpus", "8"]
    heard = subprocess.run(command, capture_output=True, check=True)
    assert heard.stderr.startswith(b"note: ")
    if listener == "nobody":
        close = ["sh", "-c", 'exec "$@" 2>&-', "sh"]
        alone = subprocess.run([*close, *command], stdout=subprocess.PIPE, check=False)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        alone = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, check=False)
        os.close(writing)
    assert (alone.returncode, alone.stdout) == (0, heard.stdout)


def test_a_file_that_cannot_be_written_is_named(command: Command) -> None:
    run = command(*SEARCH, "-o", "absent/report.txt")
    assert (run.code, run.out) == (2, "")
    assert run.err == 'error: --output: no folder "absent". Make it first, or check the path.\n'
    run = command(*SEARCH, "-o", ".")
    assert run.err == 'error: --output: "." is a folder. Give a file in it.\n'


def test_a_full_disk_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    with full.open("wb") as file:
        run = subprocess.run([*PROGRAM, "models"], stdout=file, stderr=subprocess.PIPE, check=False)
    assert (run.returncode, run.stderr.count(b"\n")) == (2, 1)
    assert run.stderr.startswith(b"error: ")


def on_terminal(*arguments: str, **environment: str) -> str:
    """Returns what a command shows on a terminal of 200 columns."""
    ours, theirs = pty.openpty()
    variables = os.environ | {"TERM": "xterm", "COLUMNS": "200"} | environment
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=theirs, stderr=theirs, stdin=theirs, env=variables
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # The terminal is gone once the command has ended.
                break
            if not data:
                break
            shown += data
        child.wait()
    os.close(ours)
    return shown.decode()


def test_no_color_is_heeded_on_a_terminal() -> None:
    coloured = on_terminal(*SEARCH, NO_COLOR="")
    plain = on_terminal(*SEARCH, NO_COLOR="1", TERM="dumb")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert "tokens/s" in plain


def test_a_terminal_without_utf8_gets_a_table_of_ascii() -> None:
    assert on_terminal(*SEARCH, PYTHONIOENCODING="ascii").isascii()


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a POSIX signal")
def test_ctrl_c_ends_a_command_in_one_line() -> None:
    arguments = [
        "search", "--model", "llama3.1-405b", "--cluster", "h100:16384", "--top", "100000", "-v",
        "--global-batch-size", "4096", "--sequence-length", "8192",
    ]  # fmt: skip
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    ) as child:
        assert child.stderr is not None
        assert b"catalog" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        shown, error = child.communicate(timeout=60)
    assert (child.returncode, shown, error) == (130, b"", b"error: stopped\n")


def test_a_plan_with_a_degree_for_each_kind_is_found_spelled_and_read(
    command: Command, tmp_path: Path
) -> None:
    question = (
        "--model", "llama2-13b", "--cluster", "v100:8,h800:16", "--devices", "24",
        "--global-batch-size", "64", "--sequence-length", "4096", "--precision", "fp16",
    )  # fmt: skip
    searched = command("search", *question, "--mixed-tp", "--top", "1", "--format", "json")
    best = json.loads(searched.out)["ranked"][0]
    plan = best["plan"]
    assert plan["tp_of_kind"][0] != plan["tp_of_kind"][1]
    written = tmp_path / "plan.json"
    written.write_text(json.dumps(plan))
    asked = [word for word in question if word not in ("--devices", "24")]
    read = command("estimate", *asked, "--plan", str(written), "--format", "json")
    assert json.loads(read.out) == best["estimate"]
    spelled = command(
        "estimate", *question, "--chips", "h800,h800", "--pp", "2", "--tp", "8,8,8", "--format",
        "json",
    )  # fmt: skip
    assert (spelled.code, spelled.out) == (2, "")
    assert "must have one degree for each of 2 kinds of chip, found 3" in spelled.err
    for degrees, cure in (("0", "0 is not a degree"), ("8,0", "0 is not a degree")):
        run = command("estimate", *question, "--chips", "v100,h800", "--pp", "2", "--tp", degrees)
        assert (run.code, run.out) == (2, "")
        assert cure in run.err
    # The degrees stand in the cluster's order, whatever the order of the stages.
    spelled = command(
        "estimate", *question, "--chips", "h800,v100", "--pp", "2", "--tp", "2,4", "--zero", "1",
        "--recompute", "block/10,block/30", "--layers", "30,10",
    )  # fmt: skip
    assert spelled.code == 0, spelled.out
    assert "dp 4, tp 2,4, pp 2, sp" in spelled.out
    short = tmp_path / "short.json"
    short.write_text(json.dumps(plan | {"tp_of_kind": [4]}))
    run = command("estimate", *asked, "--plan", str(short))
    assert (run.code, run.out) == (2, "")
    assert "tp_of_kind [4] must have one degree a kind" in run.err


def test_the_version_names_package_catalog_and_core(command: Command) -> None:
    run = command("--version")
    version = autopar.__version__
    assert run.code == 0
    assert run.out.startswith(f"autopar {version}, catalog 20")
    assert run.out.endswith(f", core {version}\n")


def test_verbose_logs_to_standard_error_only() -> None:
    quiet, loud = process(*SEARCH), process(*SEARCH, "--verbose")
    assert quiet.stderr == b""
    assert loud.stdout == quiet.stdout
    assert b"catalog" in loud.stderr


def test_every_command_explains_itself(command: Command) -> None:
    for name in ("search", "estimate", "rerun", "apss", "models", "chips", "schema"):
        run = command(name, "--help")
        assert (run.code, run.err) == (0, "")
        assert run.out.startswith(f"Usage: autopar {name} ")


def test_a_time_limit_of_nothing_says_that_nothing_is_proved(command: Command) -> None:
    run = command(
        "search", "--model", "llama3.1-405b", "--cluster", "h100:16384", "--time-limit", "0",
        "--global-batch-size", "2048", "--sequence-length", "8192", "--format", "json",
    )  # fmt: skip
    report = json.loads(run.out)
    assert (report["stop"], report["proved"]) == ("time", False)
