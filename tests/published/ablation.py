"""What each effect is worth: the error on the published runs without it, in docs/ablation.md.

python tests/published/ablation.py           # writes
python tests/published/ablation.py --check   # fails, and prints the cure, where it is out of date

An effect is left out by an input that lacks it, or by taking its part off the step that the
estimate adds up; nothing in the core can be switched off.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from left_out import source_of

from autopar import planner
from autopar.cluster import Chip
from autopar.framework import Framework, Fused, Graphs, Overlap
from autopar.report import Plan
from autopar.runs import read_runs
from autopar.spec import Problem
from autopar.validate import Checked, check

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "ablation.md"
NOTHING = 1e-9  # of a rate's inverse: the core asks for positive figures
MOVED = 0.01

Question = tuple[Problem, Plan]


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that the estimate counts.

    Attributes:
        name: What it is.
        without: How it is left out, in words.
        seconds: The step of a row without it.
    """

    name: str
    without: str
    seconds: Callable[[Checked], float]


def part(name: str) -> Callable[[Checked], float]:
    """Returns the step of a row less one of the parts that it adds up from."""

    def seconds(row: Checked) -> float:
        assert row.estimate is not None
        return (row.estimate.step_ps - getattr(row.estimate.time, name)) / 1e12

    return seconds


def asked(change: Callable[[Question], Question]) -> Callable[[Checked], float]:
    """Returns the step of a row whose problem or plan is changed."""

    def seconds(row: Checked) -> float:
        assert row.setup is not None
        return planner.estimate(*change((row.setup.problem, row.setup.plan))).step_s

    return seconds


def on(change: Callable[[Chip], Chip]) -> Callable[[Checked], float]:
    """Returns the step of a row on changed chips."""

    def changed(question: Question) -> Question:
        problem, plan = question
        groups = tuple(replace(group, chip=change(group.chip)) for group in problem.cluster.groups)
        return replace(problem, cluster=replace(problem.cluster, groups=groups)), plan

    return asked(changed)


def by(change: Callable[[Framework], Framework]) -> Callable[[Checked], float]:
    """Returns the step of a row in a changed framework."""
    return asked(lambda q: (replace(q[0], framework=change(q[0].framework)), q[1]))


def _flat(chip: Chip) -> Chip:
    curve = replace(chip.gemm, half_k=NOTHING, fp8_half_k=NOTHING, tile_m=1, tile_n=1,
                    processors=1, alignment_bytes=1, unaligned_slowdown=1.0)  # fmt: skip
    return replace(chip, gemm=curve)


def _flash(question: Question) -> Question:
    problem, plan = question
    framework = replace(problem.framework, attention_kernels=("fa2",))
    workload = replace(problem.workload, attention="flash")
    return replace(problem, framework=framework, workload=workload), plan


FUSED = Fused(
    norm="tuned", activation=True, rope="fused", softmax="fused", residual=True, cross_entropy=True,
    grouped_gemm=True, gradient_accumulation=True, permutation=True,
)  # fmt: skip

EFFECTS = (
    Effect("recompute", "its part taken off", part("recompute_ps")),
    Effect("tensor-parallel communication", "its part taken off", part("tensor_ps")),
    Effect("context-parallel communication", "its part taken off", part("context_ps")),
    Effect("expert all-to-all", "its part taken off", part("expert_ps")),
    Effect("sharded parameters' gathers, offload", "its part taken off", part("shard_ps")),
    Effect("pipeline sends", "their part taken off", part("pipeline_ps")),
    Effect("bubble", "its part taken off", part("bubble_ps")),
    Effect("data-parallel communication", "its part taken off", part("data_ps")),
    Effect("gradient norm and optimizer", "their part taken off", part("optimizer_ps")),
    Effect(
        "overlap",
        "a framework that hides no communication",
        by(
            lambda f: replace(
                f,
                overlap=Overlap(
                    gradient_reduce=False,
                    parameter_gather=False,
                    tensor="none",
                    pipeline=False,
                    context=False,
                    expert=False,
                ),
            )
        ),
    ),
    Effect("attention kernel class", "FlashAttention-2 in every run", asked(_flash)),
    Effect(
        "memory-bound operators",
        "a memory 1000 times as fast",
        on(lambda c: replace(c, memory_bandwidth_gb_per_s=1e3 * c.memory_bandwidth_gb_per_s)),
    ),
    Effect(
        "unfused norms, activations and losses",
        "a framework that fuses all of them",
        by(lambda f: replace(f, fused=FUSED)),
    ),
    Effect("GEMM shape", "a flat efficiency: no tiles, waves, short k, alignment", on(_flat)),
    Effect(
        "output head and loss",
        "a vocabulary of 1",
        asked(lambda q: (replace(q[0], model=replace(q[0].model, vocab=1)), q[1])),
    ),
    Effect("host time", "launch_us = 0", by(lambda f: replace(f, launch_us=0.0))),
    Effect(
        "pace of the host",
        "pace = 1 on every chip",
        on(lambda c: replace(c, host=replace(c.host, pace=1.0))),
    ),
    Effect("CUDA graphs of parts of layers", "none", by(lambda f: replace(f, graphs=Graphs()))),
    Effect(
        "gap of a kernel",
        "kernel_us of almost 0",
        on(lambda c: replace(c, host=replace(c.host, kernel_us=NOTHING))),
    ),
    Effect(
        "start of a message",
        "latencies of almost 0",
        on(
            lambda c: replace(
                c,
                link=replace(c.link, latency_us=NOTHING),
                network=replace(c.network, latency_us=NOTHING),
            )
        ),
    ),
    Effect("the slowest device", "speed_spread = 0", on(lambda c: replace(c, speed_spread=0.0))),
)


def main(arguments: list[str]) -> int:
    """Writes or checks the document; returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    new = document()
    if DOCUMENT.exists() and DOCUMENT.read_text("utf-8") == new:
        return 0
    if arguments:
        print("docs/ablation.md shows other errors than the estimate has now. Write them with\n"
              "python tests/published/ablation.py", file=sys.stderr)  # fmt: skip
        return 1
    DOCUMENT.write_text(new, "utf-8")
    return 0


def document() -> str:
    """Returns the table of effects as Markdown, the dearest first."""
    rows = [
        row
        for file in sorted(FOLDER.glob("*.csv"))
        for row in check(read_runs(file))
        if row.time_error is not None and not row.suspect and row.skipped is None
    ]
    whole = [row.predicted_step_s or 0.0 for row in rows]
    error, scaled = scores(rows, whole)
    table = []
    for effect in EFFECTS:
        seconds = [effect.seconds(row) for row in rows]
        moved = sum(abs(a / b - 1) > MOVED for a, b in zip(seconds, whole, strict=True))
        table.append((*scores(rows, seconds), moved, effect))
    table.sort(key=lambda line: (-line[1], line[3].name))
    lines = [
        f"| {effect.name} | {effect.without} | {moved} | {100 * one:.1f}"
        f" | {100 * (one - error):+.1f} | {100 * two:.1f} | {100 * (two - scaled):+.1f} |"
        for one, two, moved, effect in table
    ]
    return f"""# What each effect is worth

The error in step time on the {len(rows)} published runs of `tests/published` without one effect of
the estimate at a time, in per cent of the measured: for each source the mean, then the mean over
the sources. Nothing is left out in the core; each line says which input lacks the effect, or that
its part of the step is taken off.

A chip that is fitted again hides part of what is missing, so the last two columns give every chip
one free factor on its times, the one that makes the median error of its rows zero. An effect that
one factor cannot hide is told by the runs themselves. Where an error falls without an effect, that
effect is too large in these runs or makes up for something else.

With everything: {100 * error:.1f}, with a free factor for each chip {100 * scaled:.1f}.

| effect | without it | rows moved by over 1 % | error | change | with a factor a chip | change |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(lines)}

Written by `python tests/published/ablation.py`; the settings that rows leave open stay those of the
whole estimate. Recompute and communication that is hidden count only by what is not hidden.
"""


def scores(rows: Sequence[Checked], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the mean over sources of the mean error, as it is and with a factor a chip."""
    ratios = [s / (row.measured_step_s or 1.0) for row, s in zip(rows, seconds, strict=True)]
    chips: dict[str, list[float]] = {}
    for row, ratio in zip(rows, ratios, strict=True):
        chips.setdefault(_chips(row), []).append(math.log(ratio))
    factors = {name: math.exp(-median(logs)) for name, logs in chips.items()}
    plain: dict[str, list[float]] = {}
    scaled: dict[str, list[float]] = {}
    for row, ratio in zip(rows, ratios, strict=True):
        plain.setdefault(source_of(row), []).append(abs(ratio - 1))
        scaled.setdefault(source_of(row), []).append(abs(ratio * factors[_chips(row)] - 1))
    return mean(map(mean, plain.values())), mean(map(mean, scaled.values()))


def _chips(row: Checked) -> str:
    assert row.setup is not None
    return " ".join(group.chip.name for group in row.setup.problem.cluster.groups)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
