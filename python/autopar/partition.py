"""Graph partitioning as ATC is asked for it: a question in its form, the answer, and its files."""

from collections.abc import Mapping
from pathlib import Path

from autopar import catalog, planner
from autopar.export import mindspore_strategy, sharding_table
from autopar.frontends import graphdef, onnx
from autopar.frontends.atc import Question
from autopar.frontends.draft import Shape
from autopar.sharding import Sharding, ShardingProblem


def solve(
    asked: Question, input_shapes: Mapping[str, Shape] | None = None
) -> tuple[Sharding, tuple[str, ...]]:
    """Returns the fastest sharding that fits, or one of the least memory, and notes.

    In automatic mode each way to divide optimizer state, gradients and weights is solved.

    Raises:
        SpecError: The graph or an option is wrong.
        SolverError: The solver found no choice.
    """
    read = onnx.read if asked.framework == "onnx" else graphdef.read
    reading = read(asked.model, input_shapes, asked.gradients)
    found = [
        planner.solve_sharding(
            ShardingProblem(
                version=planner.__version__,
                catalog=catalog.version([asked.chip.digest]),
                graph=reading.graph,
                cluster=asked.cluster,
                options=options,
            )
        )
        for options in asked.options
    ]
    fitting = [answer for answer in found if answer.fits]
    if fitting:
        return min(fitting, key=lambda answer: answer.cost.total_ps), reading.notes
    return min(found, key=lambda answer: answer.cost.memory_bytes), reading.notes


def results(asked: Question, found: Sharding) -> dict[Path, bytes]:
    """Returns the files that answer a question: the sharding table and the strategies.

    Raises:
        SpecError: MindSpore's form cannot say the strategies.
    """
    strategies = mindspore_strategy.strategy_file(found)
    return {
        Path(f"{asked.output}.json"): sharding_table.table_bytes(found, asked.topology.devices),
        Path(f"{asked.output}.strategy.json"): mindspore_strategy.json_bytes(strategies),
    }
