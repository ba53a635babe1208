"""Drop-ins for what MindSpore's networks say of stages, micro-batches and recompute.

A network is here its transformer layers, each a `Cell`, in order. `configured` gathers what they
say into a configuration, of which `autopar.compat.plans.meant` makes a plan.

Example:
    >>> layers = [Cell() for _ in range(32)]
    >>> for index, layer in enumerate(layers):
    ...     layer.pipeline_stage = index // 16
    ...     if index % 16 < 3:
    ...         layer.recompute()
    >>> config, counts = configured(PipelineCell(layers, 8), model_parallel=4)
    >>> config.to_diff_dict()["recompute"], config.micro_batch_num, counts
    ({'recompute': [3, 3]}, 8, (16, 16))
    >>> from autopar.compat import mindspore
    >>> mindspore.reset_auto_parallel_context()
"""

from collections.abc import Sequence
from typing import Any

from autopar.compat.mindformers import TransformerOpParallelConfig, TransformerRecomputeConfig
from autopar.compat.settings import boolean, wrong
from autopar.errors import SpecError

_FLAGS = ("mp_comm_recompute", "parallel_optimizer_comm_recompute", "recompute_slice_activation")


class Primitive:
    """A single operator.

    Args:
        name: The attributes that lead to it from its layer, as those of MindFormers' LLaMA:
            `feed_forward.mul`.

    Attributes:
        recomputed: Whether it is computed again in the backward pass.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.recomputed = False

    def recompute(self, mode: bool = True) -> "Primitive":
        """Has it computed again, or not; TypeError unless a truth value says which."""
        self.recomputed = boolean("mode", mode)
        return self


class Cell:
    """A transformer layer.

    Attributes:
        operators: Operators that are spoken of by themselves.
        recomputed: Keywords with which it is computed again; null where it is not.
    """

    def __init__(self, operators: Sequence[Primitive] = ()) -> None:
        self.operators = tuple(operators)
        self.recomputed: dict[str, bool] | None = None
        self._stage: int | None = None

    @property
    def pipeline_stage(self) -> int:
        """The pipeline stage that it belongs to; AttributeError until it is set.

        Setting raises TypeError for what is no integer, and ValueError below 0.
        """
        if self._stage is None:
            raise AttributeError("pipeline_stage: not set")
        return self._stage

    @pipeline_stage.setter
    def pipeline_stage(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(wrong("pipeline_stage", "an integer", value))
        if value < 0:
            raise ValueError(wrong("pipeline_stage", "an integer from 0", value))
        self._stage = value

    def recompute(self, **keywords: Any) -> None:
        """Has it computed again in the backward pass.

        Args:
            **keywords: mp_comm_recompute (True unless given): tensor-parallel communication is
                repeated. parallel_optimizer_comm_recompute: sharded parameters are gathered again,
                in MindSpore 2.3 without a pipeline; later releases pass over it.
                recompute_slice_activation: its input is kept in slices.

        Raises:
            TypeError: One of the first two is no truth value.
            ValueError: A keyword is unknown.
        """
        for name in _FLAGS[:2]:
            if keywords.get(name) is not None:
                boolean(name, keywords[name])
        for name in keywords:
            if name not in _FLAGS:
                raise ValueError(wrong("recompute", f"given {', '.join(_FLAGS)} only", name))
        self.recomputed = {name: bool(value) for name, value in keywords.items()}


class PipelineCell:
    """A network whose batch is split into micro-batches.

    Attributes:
        network: Its layers, first to last.
        micro_size: Micro-batches of a step.

    Raises:
        TypeError: micro_size is no integer.
        ValueError: It is below 1.
    """

    def __init__(self, network: Sequence[Cell], micro_size: int) -> None:
        if not isinstance(micro_size, int):
            raise TypeError(wrong("micro_size", "an integer", micro_size))
        if micro_size < 1:
            raise ValueError(wrong("micro_size", "an integer from 1", micro_size))
        self.network = tuple(network)
        self.micro_size = micro_size


def configured(
    pipeline: PipelineCell, **degrees: Any
) -> tuple[TransformerOpParallelConfig, tuple[int, ...]]:
    """Returns the configuration that says the same as a network, and the layers of each stage.

    Args:
        pipeline: The network.
        **degrees: Further keywords of `TransformerOpParallelConfig`, as `model_parallel=4`.

    Raises:
        SpecError: Stages are not in order or not all there, a stage computes other layers again
            than its first, or operators of others, or layers differ in how they do.
    """
    stages = [0 if cell._stage is None else cell._stage for cell in pipeline.network]
    if not stages or stages != sorted(stages) or stages[-1] != len(set(stages)) - 1:
        hint = "Number them from 0 without a gap, first layers first."
        raise SpecError("pipeline_stage", "the layers' stages are not in order", hint)
    counts = tuple(stages.count(stage) for stage in range(len(set(stages))))
    selected = _selected(pipeline.network, counts)
    marked: list[list[dict[str, bool] | None]] = [[] for _ in counts]
    for stage, cell in zip(stages, pipeline.network, strict=True):
        marked[stage].append(cell.recomputed)
    again = [sum(one is not None for one in of_stage) for of_stage in marked]
    first = [of_stage[:count] for of_stage, count in zip(marked, again, strict=True)]
    if any(one is None for of_stage in first for one in of_stage):
        what = "a stage computes other layers again than its first"
        raise SpecError("recompute", what, "Mark the first layers of each stage.")
    ways = [one for of_stage in first for one in of_stage if one is not None]
    if any(one != ways[0] for one in ways):
        raise SpecError("recompute", "layers differ in how they are computed again")
    whole = again == list(counts)
    recompute = TransformerRecomputeConfig(
        recompute=whole or (again if any(again) else False),
        select_recompute=selected,
        **(ways[0] if ways else {}),
    )
    config = TransformerOpParallelConfig(
        pipeline_stage=len(counts),
        micro_batch_num=int(pipeline.micro_size),
        recompute=recompute,
        **degrees,
    )
    return config, counts


def _selected(network: Sequence[Cell], counts: Sequence[int]) -> bool | list[str] | dict[str, Any]:
    """Returns the operators that are computed again by themselves as `select_recompute` has them.

    Layers that are computed again whole count among those of any operator.

    Raises:
        SpecError: One is in other layers of a stage than its first, or has no name.
    """
    own = [
        {each.name for each in cell.operators if each.recomputed and cell.recomputed is None}
        for cell in network
    ]
    if any("" in names for names in own):
        hint = "Name it by the attributes that lead to it: feed_forward.mul."
        raise SpecError("recompute", "an operator without a name is computed again", hint)
    found: dict[str, list[int]] = {}
    for name in sorted(set().union(*own)):
        by_stage = found[name.replace(".", r"\.")] = []
        first = 0
        for held in counts:
            marked = [index for index in range(held) if name in own[first + index]]
            count = marked[-1] + 1 if marked else 0
            whole = [
                index for index in range(count) if network[first + index].recomputed is not None
            ]
            if len(marked) + len(whole) < count:
                what = "a stage computes an operator of other layers again than its first"
                raise SpecError("recompute", what, "Mark it in the first layers of each stage.")
            by_stage.append(count)
            first += held
    if all(by_stage == list(counts) for by_stage in found.values()):
        return list(found) or False
    return dict(found)
