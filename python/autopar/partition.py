"""Graph partitioning as ATC is asked for it: a question in its form, the answer, and its files."""

import math
from collections.abc import Mapping
from pathlib import Path

from autopar import catalog, planner
from autopar.export import mindspore_strategy, sharding_table
from autopar.frontends import graphdef, onnx
from autopar.frontends.atc import Question
from autopar.frontends.draft import Shape
from autopar.sharding import Sharding, ShardingProblem

MB = 10**6


def solve(
    asked: Question, input_shapes: Mapping[str, Shape] | None = None
) -> tuple[Sharding, tuple[str, ...]]:
    """Returns the fastest sharding that fits, or one of the least memory, and notes.

    In automatic mode each size of tensor parallelism is solved with each way to divide optimizer
    state, gradients and weights, divided weights with and without being gathered ahead.

    Raises:
        SpecError: The graph or an option is wrong.
        SolverError: The solver found no choice.
    """
    read = onnx.read if asked.framework == "onnx" else graphdef.read
    reading = read(asked.model, input_shapes, asked.gradients)
    best = planner.best_sharding(
        ShardingProblem(
            version=planner.__version__,
            catalog=catalog.version([asked.chip.digest]),
            graph=reading.graph,
            cluster=asked.cluster,
            options=options,
        )
        for options in asked.options
    )
    return best, (*reading.notes, *([chosen(best)] if asked.option.auto else []))


def chosen(found: Sharding) -> str:
    """Returns what automatic mode chose, under the names of the options that would set it.

    The size is the number of parts that any parameter is cut into by the operators.
    """
    weights = {t.name for t in found.problem.graph.tensors if t.role == "parameter"}
    axes = {axis for t in found.tensors if t.name in weights for dim in t.axes for axis in dim}
    size = math.prod(found.mesh[axis] for axis in axes)
    zero = found.problem.options.zero
    flags = ("optimizer_state_sharding", "gradient_sharding", "model_weight_sharding")
    values = [f"{flag} {str(zero >= stage).lower()}" for stage, flag in enumerate(flags, 1)]
    if zero >= 3:
        values.append(f"model_weight_prefetch {str(found.overlap is not None).lower()}")
    if found.overlap is not None:
        buffer = math.ceil(found.overlap.buffer_bytes / MB)
        values.append(f"model_weight_prefetch_buffer_size {buffer}")
    return f"chosen: tensor_parallel_size {size}, {', '.join(values)}"


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
