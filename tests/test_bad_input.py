"""Wrong input: exit code 2, one line with where, what, found and cure, nothing written."""

import re
from pathlib import Path

import pytest

from conftest import EXAMPLES, Command

SEARCH = (
    "search", "--model", "llama2-7b", "--cluster", "a800:8",
    "--global-batch-size", "64", "--sequence-length", "4096",
)  # fmt: skip


def replaced(flag: str, value: str) -> tuple[str, ...]:
    """Returns a correct search with another value of one flag."""
    at = SEARCH.index(flag)
    return (*SEARCH[: at + 1], value, *SEARCH[at + 2 :])


WRONG_APSS = {
    "an unknown model": (
        "--model-name lama2-70b",
        '--model-name: no model named "lama2-70b" in',
        "llama2-70b",
    ),
    "a model that is not on the list": ("--model-name opt-13b", "--model-name: no model named", ""),
    "an unknown chip": ("--gpu-infos a80", '--gpu-infos: no chip named "a80" in', "a800"),
    "a chip that is not on the list": ("--gpu-infos b200", "--gpu-infos: no chip named", "h800"),
    "no device": ("--num-gpus 0", "--num-gpus: must be from 1 to 1048576, found 0", "8"),
    "a negative count": ("--num-gpus=-8", "--num-gpus: must be from 1 to 1048576, found -8", "8"),
    "too many devices": (
        "--num-gpus 1048584",
        "--num-gpus: must be from 1 to 1048576, found 10",
        "",
    ),
    "half a node": (
        "--num-gpus 12",
        "--num-gpus: must be a multiple of 8, found 12",
        "whole nodes",
    ),
    "a count that is no number": (
        "--num-gpus 12.5",
        "'--num-gpus': '12.5' is not a valid integer",
        "",
    ),
    "a huge count": ("--num-gpus " + "9" * 5000, "--num-gpus", ""),
    "a batch off the step": (
        "--global-batch-size 100",
        "--global-batch-size: must be a multiple of 512, found 100",
        "",
    ),
    "an empty batch": (
        "--global-batch-size 0",
        "--global-batch-size: must be from 1 to 1048576, found 0",
        "",
    ),
    "a huge batch": (
        "--global-batch-size 1049088",
        "--global-batch-size: must be from 1 to 1048576",
        "",
    ),
    "a sequence off the step": (
        "--sequence-length 4097",
        "--sequence-length: must be a multiple of 512, found 4097",
        "",
    ),
    "a negative sequence": (
        "--sequence-length=-512",
        "--sequence-length: must be from 1 to 1048576, found -512",
        "",
    ),
    "a huge sequence": (
        "--sequence-length 1049088",
        "--sequence-length: must be from 1 to 1048576",
        "",
    ),
    "a limit of 0": (
        "--gpu-infos a800:0",
        '--gpu-infos: count of a800 must be positive, or -1 for no limit, found "0"',
        "a800:128",
    ),
    "a negative limit": ("--gpu-infos a800:-2", 'or -1 for no limit, found "-2"', "a800:128"),
    "a limit that is no number": (
        "--gpu-infos a800:x",
        'or -1 for no limit, found "x"',
        "a800:128",
    ),
    "an empty limit": ("--gpu-infos a800:", 'or -1 for no limit, found ""', "a800:128"),
    "a chip twice": (
        "--gpu-infos a800:8,a800:16",
        '--gpu-infos: chip "a800" is listed twice',
        "once",
    ),
    "a chip twice, in capitals": (
        "--gpu-infos a800:8,A800",
        '--gpu-infos: chip "A800" is listed twice',
        "once",
    ),
    "an empty list": ("--gpu-infos=", "--gpu-infos: names no chip", "a800:128"),
    "an empty item": ("--gpu-infos a800,,h800", "--gpu-infos: an item without a chip", "a800:128"),
    "another node": ("--nproc-per-node 16", "--nproc-per-node: must be 8, found 16", "8"),
    "no strategy": ("--top 0", "--top: must be from 1 to 100000, found 0", ""),
    "a negative top": ("--top=-1", "--top: must be from 1 to 100000, found -1", ""),
    "an unknown mode": ("--mode slow", "'--mode': 'slow' is not one of 'fast', 'analytic'", ""),
    "an unknown flag": ("--num-gpu 8", "No such option", "--num-gpus"),
    "a flag without its value": ("--top", "'--top' requires an argument", ""),
    "an argument too many": ("llama", "unexpected extra argument", "given as --model-name NAME"),
}


@pytest.mark.parametrize(("flags", "what", "cure"), WRONG_APSS.values(), ids=WRONG_APSS)
def test_apss_refuses_in_one_line(
    command: Command, tmp_path: Path, flags: str, what: str, cure: str
) -> None:
    run = command("apss", *flags.split())
    assert run.code == 2
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1
    assert what in run.err
    assert cure in run.err
    assert run.out == ""
    assert list(tmp_path.iterdir()) == []


SHARD = ("shard", "llama2-7b", "--layers", "1", "--chip", "a800", "--devices", "8")
WRONG_SEARCH = {
    "a dataset that is none": (
        (*SHARD, "--dataset", "x"),
        "Invalid value for '--dataset': \"x\" is no name with sizes from 1. Write",
    ),
    "no model of the name": (
        replaced("--model", "lama2-70b"),
        'model: no model named "lama2-70b" in the catalog. Nearest: llama2-70b',
    ),
    "an empty model": (replaced("--model", ""), 'model: no model named "" in the catalog'),
    "no chip of the name": (
        replaced("--cluster", "h10:8"),
        'no chip named "h10" in the catalog. Nearest: h100',
    ),
    "no framework of the name": (
        (*SEARCH, "--framework", "megatrom"),
        'framework: no framework named "megatrom"',
    ),
    "a chip without a limit and no devices": (
        replaced("--cluster", "a800"),
        "devices: a800 has no limit to take all of. Give devices",
    ),
    "a part of a node": (
        replaced("--cluster", "a800:4"),
        "cluster: 4 a800 are less than a node of 8. To use a part of one, give 8 of the chip",
    ),
    "no devices": ((*SEARCH, "--devices", "0"), "cluster.devices: must be from 1"),
    "negative devices": (
        (*SEARCH, "--devices=-8"),
        "cluster.devices: must be from 0 to 2^64 - 1, found -8",
    ),
    "an empty batch": (
        replaced("--global-batch-size", "0"),
        "workload.global_batch_size: must be from 1",
    ),
    "an empty sequence": (
        replaced("--sequence-length", "0"),
        "workload.sequence_length: must be from 1",
    ),
    "no plan asked for": ((*SEARCH, "--top", "0"), "options.top: must be from 1"),
    "a negative margin": (
        (*SEARCH, "--memory-margin=-0.1"),
        "options.memory_margin: must be a finite number from 0",
    ),
    "a margin of everything": (
        (*SEARCH, "--memory-margin", "1"),
        "options.memory_margin: must be from 0 up to 1",
    ),
    "a margin that is no number": (
        (*SEARCH, "--memory-margin", "nan"),
        "options.memory_margin: must be a finite number",
    ),
    "a degree of 0": ((*SEARCH, "--tp", "0,1"), "options.tp: a degree must be positive, found 0"),
    "a degree that is no number": (
        (*SEARCH, "--tp", "1,x"),
        "'--tp': \"1,x\" is no list of whole numbers",
    ),
    "an unknown schedule": (
        (*SEARCH, "--schedule", "1f1b,2f2b"),
        "'--schedule': \"2f2b\" is none of 1f1b,",
    ),
    "a ZeRO stage of 4": ((*SEARCH, "--zero", "4"), "options.zero: stages go from 0 to 3"),
    "an unknown precision": ((*SEARCH, "--precision", "fp2"), "'--precision': 'fp2' is not one of"),
    "a chip without the precision": (
        (*SEARCH, "--precision", "fp8"),
        'chip "a800" has no fp8 matrix unit. Use bf16, fp16, tf32 or fp32 on this chip.',
    ),
    "negative time": ((*SEARCH, "--time-limit=-1"), "time_limit_s: must be"),
    "negative threads": ((*SEARCH, "--threads=-1"), "threads: must be"),
    "a missing flag": (SEARCH[:-2], "Missing option '--sequence-length'"),
    "no command": ((), "Missing command"),
    "an unknown command": (("serch",), "No such command 'serch'"),
    "an absent report": (("rerun", "absent.json"), "absent.json: no such file. Check the path."),
    "a plan with an unknown key": (
        ("estimate", *SEARCH[1:], "--plan", str(EXAMPLES / "chip.toml")),
        "not JSON",
    ),
    "a plan twice": (
        ("estimate", *SEARCH[1:], "--plan", "p.json", "--tp", "2"),
        "--plan: given beside --tp",
    ),
    "layers of another depth": (
        ("estimate", *SEARCH[1:], "--pp", "2", "--layers", "32"),
        "layers: must have one item for each of 2 stages, found 1",
    ),
    "a share of layers that is not whole": (
        ("estimate", *SEARCH[1:], "--pp", "5"),
        "layers: pp 5 does not divide 32 layers",
    ),
    "degrees that do not divide": (
        ("estimate", *SEARCH[1:], "--tp", "3"),
        "dp: tp x cp x pp = 3 does not divide 8 devices",
    ),
    "a plan that breaks a rule": (
        ("estimate", *SEARCH[1:], "--mbs", "5"),
        "mbs x dp = 40 does not divide the batch 64",
    ),
    "an unknown setting of recompute": (
        ("estimate", *SEARCH[1:], "--recompute", "block"),
        '--recompute: no setting "block"',
    ),
    "an image for no pods": (
        (*SEARCH, "--image", "team/train"),
        "--image: given without --export kubernetes. Leave it out.",
    ),
    "negative devices of a graph": (
        ("shard", "llama2-7b", "--chip", "a800", "--devices=-8"),
        "cluster.devices: must be from 0 to 2^64 - 1, found -8. Give a count.",
    ),
    "a negative buffer": (
        (*SHARD, "--prefetch-mb=-1"),
        "options.prefetch_mb: must be from 0 to 2^64 - 1, found -1. Give a count.",
    ),
    "a negative time without a solver": (
        (*SHARD, "--method", "dp", "--time-limit=-3"),
        "time_limit_s: must be seconds from 0, found -3.0. Leave it out for no limit.",
    ),
    "a solver's time that is no number": (
        (*SHARD, "--method", "ilp", "--time-limit", "nan"),
        "time_limit_s: must be seconds from 0, found nan. Leave it out for no limit.",
    ),
    "a recovery that is no number": (
        (
            "servers",
            "llama2-7b",
            "--layers",
            "1",
            "--chip",
            "a800",
            "--workers",
            "8",
            "--checkpoint-s",
            "nan",
        ),
        "options.checkpoint_s: must be a finite number from 0, found nan",
    ),
    "a chip outside the cluster": (
        ("estimate", *SEARCH[1:], "--chips", "h800"),
        '--chips: no chip named "h800" in the cluster. Known: a800.',
    ),
}


@pytest.mark.parametrize(("arguments", "what"), WRONG_SEARCH.values(), ids=WRONG_SEARCH)
def test_a_command_refuses_in_one_line(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    run = command(*arguments)
    assert run.code == 2
    assert what in run.err
    assert run.err.count("\n") == 1
    assert run.out == ""
    assert list(tmp_path.iterdir()) == []


def edited(name: str, old: str, new: str) -> bytes:
    """Returns an example file with one line changed."""
    text = (EXAMPLES / name).read_text("utf-8")
    assert old in text
    return text.replace(old, new, 1).encode()


WRONG_FILES = {
    "an empty file": ("model.toml", b"", "empty"),
    "a blank file": ("model.toml", b" \n\n", "empty"),
    "no TOML": (
        "model.toml",
        b"layers = \n",
        "model.toml:1: not TOML: invalid value (column 10). Write texts in",
    ),
    "a binary": ("model.toml", b"\x7fELF\x02\x01\x01\x00\x00", "not TOML"),
    "no UTF-8": (
        "model.toml",
        "# 模型\nlayers = 1".encode("gb18030"),
        "not UTF-8 (byte 4). Save it as UTF-8.",
    ),
    "over 16 MiB": ("model.toml", b"#" * (16 * 2**20 + 1), "larger than 16 MiB"),
    "nested deeply": (
        "model.toml",
        b"a = " + b"[" * 100_000,
        "model.toml:1: nested over 32 levels. Give a flatter file.",
    ),
    "a key twice": (
        "model.toml",
        b"layers = 1\nlayers = 1\n",
        "model.toml:2: layers: given twice, first on line 1. Keep one of them.",
    ),
    "an unknown key": (
        "model.toml",
        edited("model.toml", "layers", "layer"),
        "layer: unknown key. Nearest: layers",
    ),
    "a missing key": ("model.toml", edited("model.toml", "vocab", "# vocab"), "vocab: missing key"),
    "a wrong type": (
        "model.toml",
        edited("model.toml", "= 24", '= "24"'),
        'layers: must be a whole number, found "24"',
    ),
    "a fraction": (
        "model.toml",
        edited("model.toml", "= 24", "= 24.5"),
        "layers: must be a whole number, found 24.5",
    ),
    "a negative number": (
        "model.toml",
        edited("model.toml", "= 3072", "= -3072"),
        "hidden: must be from 0 to 2^64 - 1, found -3072",
    ),
    "a date": (
        "model.toml",
        edited("model.toml", "= 24", "= 2026-11-21"),
        "layers: must be a whole number, found datetime.date",
    ),
    "a name": (
        "model.toml",
        edited("model.toml", "layers", 'name = "x"\nlayers'),
        "name: unknown key",
    ),
    "an unknown key in a table": (
        "model.toml",
        edited("model.toml", "topk", "top_k"),
        "moe.top_k: unknown key. Nearest: topk",
    ),
    "a value instead of a table": (
        "model.toml",
        edited("model.toml", "[moe]", "moe = 3\n[window]"),
        "moe: must be a table, found 3",
    ),
    "heads that do not divide": (
        "model.toml",
        edited("model.toml", "head_dim = 128", "# ").replace(b"heads = 24", b"heads = 28"),
        "head_dim: missing, and hidden (3072) is no multiple of heads (28)",
    ),
    "key heads that do not divide": (
        "model.toml",
        edited("model.toml", "kv_heads = 8", "kv_heads = 7"),
        "model.toml:9: kv_heads: must divide heads (24), found 7",
    ),
    "no layer": (
        "model.toml",
        edited("model.toml", "= 24", "= 0"),
        "model.toml:5: layers: must be from 1 to 4096, found 0",
    ),
    "NaN": (
        "chip.toml",
        edited("chip.toml", "= 79.65", "= nan"),
        "memory_gib: must be a finite number from 0, found nan",
    ),
    "infinity": (
        "chip.toml",
        edited("chip.toml", "= 79.65", "= inf"),
        "memory_gib: must be a finite number from 0, found inf",
    ),
    "negative memory": (
        "chip.toml",
        edited("chip.toml", "= 79.65", "= -79.65"),
        "memory_gib: must be a finite number from 0, found -79.65",
    ),
    "no memory": (
        "chip.toml",
        edited("chip.toml", "= 79.65", "= 0"),
        "chip.toml:8: memory_gib: must be a positive number, found 0",
    ),
    "a unit that is not the key's": (
        "chip.toml",
        edited("chip.toml", "memory_gib", "memory_gb"),
        "memory_gb: unknown key. Nearest: memory_gib",
    ),
    "an heir of nothing": (
        "chip.toml",
        edited("chip.toml", '"h100"', '"h10"'),
        'inherits_attention: no chip named "h10" in the catalog. Nearest: h100',
    ),
    "an heir of itself": (
        "chip.toml",
        edited("chip.toml", '"h100"', '"./chip.toml"'),
        ": inherits_attention: comes back to itself",
    ),
    "an unknown topology": (
        "chip.toml",
        edited("chip.toml", '"switch"', '"ring"'),
        "link.topology: must be one of switch, mesh, cubemesh, pcie, torus2d, torus3d",
    ),
    "a chip that is not there": (
        "cluster.toml",
        edited("cluster.toml", '"a800"', '"a80"'),
        'groups[0].chip: no chip named "a80"',
    ),
    "a chip's file that is not there": (
        "cluster.toml",
        edited("cluster.toml", '"a800"', '"a80.toml"'),
        "a80.toml: no such file",
    ),
    "a limit of 0": (
        "cluster.toml",
        edited("cluster.toml", "= 160", "= 0"),
        "cluster.toml:13: groups[1].limit: must be positive, found 0",
    ),
    "a framework that follows none": (
        "framework.toml",
        b'follows = "torchtitam"\n',
        'follows: no framework named "torchtitam" in the catalog. Nearest: torchtitan',
    ),
    "a framework that follows itself": (
        "framework.toml",
        b'follows = "./framework.toml"\n',
        "./framework.toml:1: follows: comes back to itself",
    ),
    "a framework that follows a number": (
        "framework.toml",
        edited("framework.toml", "context_gib = 2.0", "context_gib = 2.0\nfollows = 3"),
        "follows: must be a text, found 3",
    ),
    "a share over 1": (
        "cluster.toml",
        edited("cluster.toml", "= 0.5", "= 1.5"),
        "cluster.toml:18: fabric[0]: ",
    ),
}


@pytest.mark.parametrize(("name", "data", "what"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_is_refused_in_one_line(
    command: Command, tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(data)
    flag = f"--{Path(name).stem}".replace("chip", "cluster")
    arguments = replaced(flag, f"./{name}") if flag in SEARCH else (*SEARCH, flag, f"./{name}")
    run = command(*arguments, "--devices", "8")
    assert run.code == 2
    assert any(part in run.err for part in what.split("|")), run.err
    assert run.err.count("\n") == 1
    assert run.out == ""
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("flag", ["--model", "--cluster", "--framework"])
def test_an_absent_file_and_a_folder_are_refused(
    command: Command, tmp_path: Path, flag: str
) -> None:
    arguments = (
        replaced(flag, "./absent.toml") if flag in SEARCH else (*SEARCH, flag, "./absent.toml")
    )
    run = command(*arguments)
    assert (run.code, run.err) == (2, "error: ./absent.toml: no such file. Check the path.\n")
    (tmp_path / "absent.toml").mkdir()
    run = command(*arguments)
    assert (run.code, run.err.count("\n")) == (2, 1)
    assert "./absent.toml: cannot be read: is a directory." in run.err


def test_a_list_of_minus_one_has_no_limit(command: Command) -> None:
    run = command("apss", "--num-gpus", "8", "--model-name", "llama2-7b", "--gpu-infos", "a800:-1")
    assert run.code == 0


def test_search_takes_a_batch_and_a_sequence_that_apss_refuses(command: Command) -> None:
    run = command(*replaced("--global-batch-size", "24"), "--top", "1")
    assert run.code == 0


def test_a_report_cut_short_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"schema": "autopar.report/1", "prob')
    run = command("rerun", "report.json")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: report.json:1: not JSON: ")
    assert run.err.count("\n") == 1


LINKS = ("all_reduce", "all_gather", "all_to_all", "p2p")


@pytest.mark.parametrize(
    ("rates", "command_line"),
    [
        (LINKS, ("search", "--model", "llama2-70b", "--cluster", "CHIP", "--at-most", "8",
                 "--global-batch-size", "8", "--sequence-length", "4096")),
        ((*LINKS, "memory_bandwidth"),
         ("search", "--model", "llama2-70b", "--cluster", "CHIP", "--devices", "8",
          "--global-batch-size", "8", "--sequence-length", "4096")),
        (("memory_bandwidth",), ("apss", "--gpu-infos", "CHIP")),
        (("memory_bandwidth",), ("shard", "llama2-7b", "--layers", "1", "--chip", "CHIP",
                                 "--devices", "8", "--method", "dp")),
        (("memory_bandwidth",), ("servers", "llama2-7b", "--layers", "1", "--chip", "CHIP",
                                 "--workers", "8")),
    ],
)  # fmt: skip
def test_a_step_too_long_to_be_told_is_refused(
    command: Command, tmp_path: Path, rates: tuple[str, ...], command_line: tuple[str, ...]
) -> None:
    # 70 billion weights need several devices, to which 10^-300 GB/s bring nothing; and no memory
    # that slow is read through.
    text = (EXAMPLES.parent / "chips/a800.toml").read_text("utf-8")
    for rate in rates:
        text = re.sub(rf"^{rate}_gb_per_s = \S+", f"{rate}_gb_per_s = 1e-300", text, flags=re.M)
    (tmp_path / "still.toml").write_text(text, "utf-8")
    run = command(*("still.toml" if word == "CHIP" else word for word in command_line))
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "error: problem: a step takes over 213 days, the longest time that can be told."
        " Check the rates of its chips and the sizes of what is trained.\n"
    )
