"""What several tests use: a command run in this process, and the example files."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import autopar
from autopar.cli import main
from autopar.runs.shelf import Shelf

# They need other packages, each in an environment of its own, and are started by themselves.
collect_ignore = ["clients", "data"]

Command = Callable[..., "Run"]
EXAMPLES = Path(autopar.__file__).parent / "catalog" / "examples"


def heed_ctrl_c() -> None:
    """Lets a child process answer Ctrl-C where its parents ignore it, as background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Run:
    """What a command did: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Returns a function that runs a command line in an empty folder, `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Run:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Run(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def small() -> autopar.Problem:
    """Returns a problem that takes milliseconds: Llama2-7B on one node of A800."""
    return autopar.problem("llama2-7b", "a800:8", global_batch_size=64, sequence_length=4096)


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    """Returns the catalogs that rows of measured runs are read with."""
    return Shelf()
