"""Writes the benchmark problems as whole documents, so that a benchmark needs no catalog.

python benches/make_problems.py
"""

from pathlib import Path

from autopar import planner, wire
from autopar.planner import Limits

FOLDER = Path(__file__).parent / "problems"

# Name: model, chips with limits, devices, global batch, sequence.
CASES = {
    "llama2-70b-256-a800": ("llama2-70b", "a800", 256, 512, 4096),
    "llama2-70b-256-a800-h800": ("llama2-70b", "a800:128,h800:160", 256, 512, 4096),
    "llama2-70b-288-a800-h800": ("llama2-70b", "a800:128,h800:160", 288, 1152, 4096),
    "llama2-70b-288-a800-h800-mixed-tp": ("llama2-70b", "a800:128,h800:160", 288, 1152, 4096),
    "llama2-70b-384-three-mixed-tp": (
        "llama2-70b",
        "a800:128,h800:128,ascend_910b:128",
        384,
        768,
        4096,
    ),
    "gpt3-175b-4096-a100": ("gpt3-175b", "a100_80", 4096, 4096, 2048),
    "deepseek-v3-2048-h800": ("deepseek-v3", "h800", 2048, 15360, 4096),
    "llama2-70b-8000-h800": ("llama2-70b", "h800", 8000, 8000, 4096),
    "llama-175b-25000-h800": ("llama-175b", "h800", 25000, 25000, 4096),
    "llama-1800b-1048576-h800": ("llama-1800b", "h800", 1048576, 1048576, 4096),
    "llama-540b-1048576-two": ("llama-540b", "a800,h800", 1048576, 1048576, 4096),
    "llama-540b-1048576-three": (
        "llama-540b",
        "a800,h800,ascend_910b",
        1048576,
        1048576,
        4096,
    ),
    "llama-540b-1048576-three-limited": (
        "llama-540b",
        "a800:419432,h800:419432,ascend_910b:419432",
        1048576,
        1048576,
        4096,
    ),
}


# What is allowed beside what every search may choose.
ALLOWED: dict[str, Limits] = {
    "llama2-70b-288-a800-h800-mixed-tp": {"mixed_tp": True},
    "llama2-70b-384-three-mixed-tp": {"mixed_tp": True},
}


def main() -> None:
    """Writes every case."""
    FOLDER.mkdir(exist_ok=True)
    for name, (model, chips, devices, batch, sequence) in CASES.items():
        problem = planner.problem(
            model,
            chips,
            devices=devices,
            global_batch_size=batch,
            sequence_length=sequence,
            top=5,
            **ALLOWED.get(name, {}),
        )
        (FOLDER / f"{name}.json").write_text(wire.dumps(problem) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
