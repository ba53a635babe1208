#!/usr/bin/env python3
"""Environments of clients: packages that several share, installed once and kept.

Each is built from a complete list in `requirements/` and kept in $AUTOPAR_CLIENTS
(~/.cache/autopar-clients) under the hash of that list. Run by itself, this builds all that are not
kept, at the same time: `.ci/run` starts it first and compiles and tests beside it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("AUTOPAR_CLIENTS", "~/.cache/autopar-clients")).expanduser()
PYTHON = (3, 11)
# What pip prints where the index has no such package or version, and where it was not reached.
ABSENT = "No matching distribution found"
UNREACHED = ("Retrying", "ConnectionError", "Connection aborted", "Could not fetch URL")


@dataclass(frozen=True)
class Environment:
    """Packages that clients share.

    Attributes:
        name: Stem of its list in `requirements/`.
        gib: Free space that it needs while it is built, in GiB.
    """

    name: str
    gib: int


TORCH = Environment("torch", 8)
PERFETTO = Environment("perfetto", 1)
# MindFormers on the MindSpore that it is made for, and the MindSpore that is followed.
MINDFORMERS, MINDSPORE = Environment("mindspore-2.7", 5), Environment("mindspore-2.10", 5)
# The longest to install first.
ALL = (TORCH, MINDFORMERS, MINDSPORE, PERFETTO)


class AbsentError(Exception):
    """What an environment needs does not exist here: the one reason to pass a client over."""


def build(environment: Environment) -> Path:
    """Returns the Python of an environment, which is built unless it is kept.

    Raises:
        AbsentError: The index has not a package, or there is no Python of the pinned version.
        SystemExit: The disk is too full, or the installation failed.
    """
    requirements = HERE / f"requirements/{environment.name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    target = CACHE / f"{environment.name}-{digest}"
    python = target / "bin/python"
    if (target / "built").exists():
        return python
    base = _python()
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free / 2**30
    if free < environment.gib:
        sys.exit(f"{environment.name}: needs {environment.gib} GiB in {CACHE}, {free:.1f} are free")
    shutil.rmtree(target, ignore_errors=True)
    begun = time.monotonic()
    subprocess.run([base, "-m", "venv", target], check=True)
    # The list is complete: nothing is resolved, and nothing else is installed. Few of the modules
    # are ever read: these are compiled then.
    options = ["--quiet", "--no-deps", "--no-compile"]
    command = [python, "-m", "pip", "install", *options, "-r", requirements]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        shutil.rmtree(target, ignore_errors=True)
        if ABSENT in run.stderr and not any(sign in run.stderr for sign in UNREACHED):
            raise AbsentError(next(line for line in run.stderr.splitlines() if ABSENT in line))
        sys.exit(f"{requirements.name}: pip failed\n{run.stderr}")
    (target / "built").touch()
    size = sum(file.lstat().st_size for file in target.rglob("*")) / 2**30
    seconds = time.monotonic() - begun
    print(f"{environment.name}: built in {seconds:.0f} s, {size:.1f} GiB", flush=True)
    return python


def _python() -> str:
    """Returns a Python of the version for which the lists are pinned."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = f"python{PYTHON[0]}.{PYTHON[1]}"
    if (found := shutil.which(name)) is None:
        raise AbsentError(f"the packages are pinned for {name}, which is not there")
    return found


def main() -> int:
    """Builds every environment that is not kept; returns 1 where one failed."""
    with ThreadPoolExecutor(len(ALL)) as pool:
        return int(not all(pool.map(_is_there, ALL)))


def _is_there(environment: Environment) -> bool:
    """Returns whether an environment could be built, and prints why not."""
    try:
        build(environment)
    except AbsentError as reason:
        print(f"{environment.name}: skipped: {reason}", flush=True)
    except SystemExit as failure:
        print(failure, flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
