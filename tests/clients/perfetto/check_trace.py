"""Holds the traces that `autopar apss --mode analytic` writes against Perfetto's own engine.

`tests/clients/run perfetto` starts it. The engine must import each trace without an error or a
loss, and hold exactly its events: each on the track of its stage, at its nanosecond.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# One kind and two, a single stage, and as many sends at a time as two kinds of link give.
COMMANDS = [
    ["--model-name", "llama2-7b", "--num-gpus", "8"],
    ["--model-name", "llama2-70b", "--gpu-infos", "a800:32,h800:224"],
]
MORE = [
    ["--model-name", "llama-1800b", "--num-gpus", "65536", "--global-batch-size", "65536"],
    ["--model-name", "llama2-70b", "--gpu-infos", "h800,ascend_910b", "--top", "8"],
    ["--model-name", "glm-130b", "--num-gpus", "1024", "--gpu-infos", "kunlun3", "--top", "20"],
    ["--model-name", "galactica-30b", "--num-gpus", "96", "--gpu-infos", "a800:64,h100:64"],
]


def events(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns what a trace says: stage, names of process and track, event, times, arguments."""
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    return sorted(
        (
            event["pid"], named["process_name", event["pid"], event["pid"]],
            named["thread_name", event["pid"], event["tid"]], event["name"], event["cat"],
            round(event["ts"] * 1e3), round(event["dur"] * 1e3),
            event["args"]["micro_batch"], event["args"]["chunk"],
        )
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    )  # fmt: skip


def differences(trace: dict[str, Any], held: dict[str, Any]) -> list[str]:
    """Returns how what the engine holds differs from what was written, a line each."""
    keys = "stage process track name category ts dur micro_batch chunk".split()
    slices = sorted(tuple(each[key] for key in keys) for each in held["slices"])
    lines = [f"{name}: {count}" for name, count in held["complaints"].items()]
    lines += [f"{held['count']} slices, {len(slices)} on tracks"] * (held["count"] != len(slices))
    said = events(trace)
    lines += [f"not held: {event}" for event in sorted(set(said) - set(slices))[:3]]
    lines += [f"not written: {event}" for event in sorted(set(slices) - set(said))[:3]]
    lines += [f"{len(slices)} of {len(said)} events"] * (len(slices) != len(said))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="Python with perfetto and viztracer")
    parser.add_argument("--all", action="store_true", help="more commands")
    asked = parser.parse_args()
    wrong = counted = traces = 0
    for words in COMMANDS + MORE * asked.all:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-m", "autopar", *words, "--mode", "analytic"],
                cwd=folder, check=True, capture_output=True,
            )  # fmt: skip
            files = sorted(Path(folder).glob("cache/*.json"))
            answers = subprocess.run(
                [asked.python, HERE / "oracle_trace.py", *files],
                check=True, stdout=subprocess.PIPE, text=True,
            ).stdout.splitlines()  # fmt: skip
            for file, answer in zip(files, answers, strict=True):
                trace = json.loads(file.read_text())
                lines = differences(trace, json.loads(answer))
                wrong += bool(lines)
                counted += len(events(trace))
                traces += 1
                for line in lines:
                    print(f"{' '.join(words)}, {file.name}: {line}")
    print(f"{traces} traces of {counted} events, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
