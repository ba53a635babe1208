"""Times whole processes of the main job: start of Python, catalogs, search, last line.

Prints, for each command, what the search counted, then the seconds. It asserts nothing: counts are
the program's, seconds the machine's. It needs autopar and the standard library.

    python benches/process.py [repeats]
"""

import json
import os
import platform
import subprocess
import sys
import time

from arguments import parser
from autopar import planner
from autopar.frontends import apss

COMMANDS = {
    "one kind of chip, 256 devices": {
        "model_name": "llama2-70b",
        "num_gpus": 256,
        "nproc_per_node": 8,
        "gpu_infos": "a800",
        "global_batch_size": 512,
        "sequence_length": 4096,
        "top": 3,
    },
    "two kinds, 256 of 288 devices": {
        "model_name": "llama2-70b",
        "num_gpus": 256,
        "nproc_per_node": 8,
        "gpu_infos": "a800:128,h800:160",
        "global_batch_size": 512,
        "sequence_length": 4096,
        "top": 3,
    },
    "two kinds, the published example": {
        "model_name": "llama2-70b",
        "gpu_infos": "a800:32,h800:224",
    },
    "a million devices": {
        "model_name": "llama-1800b",
        "num_gpus": 1048576,
        "gpu_infos": "h800",
        "global_batch_size": 1048576,
    },
}


def counters(flags: dict[str, str | int]) -> dict[str, object]:
    """Returns what the search of a command counted."""
    asked = apss.question(version=planner.__version__, **flags)
    report = json.loads(planner.solve_json(asked.problem))
    return {"proved": report["proved"], **report["counters"]}


def run(flags: dict[str, str | int]) -> tuple[float, float, float]:
    """Runs a command in a new process; returns its wall and CPU seconds and its peak in MiB."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "autopar", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"exit code {process.returncode}: python -m autopar {' '.join(words)}")
    # Linux counts the peak in KiB, macOS in bytes.
    unit = 1 << 20 if platform.system() == "Darwin" else 1 << 10
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def main() -> None:
    """Runs each command several times after a warm-up and prints the least and the median."""
    count = parser(__doc__, 5).parse_args().repeats
    print(f"autopar {planner.__version__}, Python {platform.python_version()},", end=" ")
    print(f"{platform.machine()}, {os.cpu_count()} cores, {count} runs each")
    for name, flags in COMMANDS.items():
        print(f"\n{name}")
        for key, value in counters(flags).items():
            print(f"  {key}: {value}")
        run(flags)
        runs = sorted(run(flags) for _ in range(count))
        (least, *_), (median, *_) = runs[0], runs[count // 2]
        cpu, peak = min(cpu for _, cpu, _ in runs), max(peak for *_, peak in runs)
        print(f"  wall: {least:.3f} s least, {median:.3f} s median")
        print(f"  cpu:  {cpu:.3f} s least; memory: {peak:.0f} MiB at the peak")


if __name__ == "__main__":
    main()
