"""Rows of measured runs that state every setting, and what comes of them."""

from autopar import validate
from autopar.runs import Run, parse_runs
from autopar.validate import Checked

# Llama2-7B on eight A100: every setting stated.
STATED = {
    "id": "mine-1",
    "model": "llama2-7b",
    "layers": "32",
    "hidden": "4096",
    "ffn_hidden": "11008",
    "heads": "32",
    "kv_heads": "32",
    "vocab": "32000",
    "gated_mlp": "1",
    "seq_len": "4096",
    "gbs": "64",
    "chip": "A100-80GB",
    "gpus": "8",
    "dp": "4",
    "tp": "2",
    "sp": "1",
    "pp": "1",
    "vpp": "1",
    "cp": "1",
    "mbs": "1",
    "recompute": "none",
    "zero": "1",
    "precision": "bf16",
    "attention": "flash",
    "framework": "megatron-core",
    "iter_time_s": "10",
}


def table(*rows: dict[str, str]) -> bytes:
    """Returns rows as a CSV text; a cell that a row lacks is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, *([row.get(key, "") for key in columns] for row in rows)]
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines).encode()


def run_of(**changes: str) -> Run:
    """Returns the stated run with other cells."""
    [run] = parse_runs(table(STATED | changes), "runs.csv")
    assert isinstance(run, Run)
    return run


def checked(*changes: dict[str, str]) -> list[Checked]:
    return validate.check(parse_runs(table(*(STATED | change for change in changes)), "runs.csv"))
