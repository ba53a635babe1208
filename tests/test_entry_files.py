"""What the commands show of the catalogs: complete files, that say what the catalog says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar import catalog, entry_files
from conftest import Command


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("models", "chips", "frameworks") for name in catalog.names(kind)],
)
def test_a_shown_entry_is_a_file_that_needs_no_others(kind: str, name: str, tmp_path: Path) -> None:
    read, shown, apart = {
        "models": (catalog.model, entry_files.model_toml, {}),
        "chips": (
            catalog.chip,
            entry_files.chip_toml,
            {"inherits_gemm": None, "inherits_attention": None, "systolic": 0},
        ),
        "frameworks": (catalog.framework, entry_files.framework_toml, {"follows": None}),
    }[kind]
    entry: Any = read(name)  # type: ignore[operator]
    file = tmp_path / f"{name}.toml"
    file.write_text(shown(entry), "utf-8")  # type: ignore[operator]
    again: Any = read(str(file))  # type: ignore[operator]
    same = {"text": entry.text, "digest": entry.digest, **apart}
    assert replace(again, **same) == replace(entry, **apart)


def test_frameworks_are_listed_and_shown(command: Command) -> None:
    rows = {line.split()[0]: line for line in command("frameworks").out.splitlines()[1:]}
    assert sorted(rows) == catalog.names("frameworks")
    assert rows["megatron-bridge-mxfp8"].split()[1] == "megatron-bridge"
    shown = command("frameworks", "megatron-bridge-mxfp8").out
    assert 'fp8_scaling = "block"\n' in shown
    # What it has from the one that it follows, and what it was before a month.
    assert "\n[bytes]\nparameter = 2\n" in shown
    assert '\n[before."2026-06"]\nstashes_experts = false\nlaunch_us = 107.0\n' in shown
    wrong = command("frameworks", "megatorn-core")
    assert wrong.code == 2
    assert "megatron-core" in wrong.err
