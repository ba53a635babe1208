"""A client's own Python environment, made once and kept."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path


class AbsentError(Exception):
    """A pinned package is not in the index: a reason to skip, not a failure."""


def environment(requirements: Path, gigabytes: int) -> str:
    """Returns the interpreter of an environment that holds what a requirements file pins.

    It lies under `AUTOPAR_CLIENTS`, or `~/.cache/autopar-clients`, in a folder named for the file's
    content and the Python version, and is made where it is not there yet.

    Args:
        requirements: Pinned packages.
        gigabytes: Free disk space without which nothing is installed.

    Raises:
        AbsentError: The index does not have a package.
        SystemExit: The disk is too full, or the installation failed.
    """
    pins = requirements.read_bytes()
    tag = hashlib.sha256(pins + sys.version.encode()).hexdigest()[:12]
    root = Path(os.environ.get("AUTOPAR_CLIENTS") or Path.home() / ".cache/autopar-clients")
    home = root / f"{requirements.stem}-{tag}"
    python = home / "bin/python"
    if (home / "complete").exists():
        return str(python)
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < gigabytes * 10**9:
        raise SystemExit(f"{root}: {free / 1e9:.0f} GB free, {requirements} needs {gigabytes}.")
    venv.create(home, with_pip=True, clear=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, "-r", requirements], stderr=subprocess.PIPE, text=True)
    if "No matching distribution found" in done.stderr:
        raise AbsentError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise SystemExit(f"{requirements}: the installation failed.\n{done.stderr}")
    (home / "complete").touch()
    return str(python)
