"""What MindFormers' recompute settings have each stage compute again.

The rules are those of its `LayerSetting`: a count is of the first layers of a stage, dealt out to
its chunks in turn; layers that are computed again whole pass over their operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from autopar.errors import SpecError
from autopar.frontends import mindformers_operators as operators
from autopar.report import NamedLayers, Recompute
from autopar.spec import Named

NONE = NamedLayers()
# Counts of layers for each stage; such for each chunk; one of the two or a truth value a pattern.
Setting = Any


class UnsaidError(SpecError):
    """A setting that MindFormers takes and no plan says."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The layers of a model as stages hold them.

    Attributes:
        layers: Layers of each stage.
        vpp: Chunks of a stage.
    """

    layers: Sequence[int]
    vpp: int

    def of_stage(self, stage: int) -> int:
        """Returns the layers of a stage's largest chunk."""
        return -(-self.layers[stage] // self.vpp)

    def counted(self, asked: Setting, key: str) -> tuple[int, ...]:
        """Returns of how many layers of each stage's chunks a truth value or a list speaks.

        Raises:
            UnsaidError: Chunks of a stage differ.
            SpecError: It is neither.

        Example:
            >>> Chunks((8, 8), 2).counted([6, True], "recompute")
            (3, 4)
        """
        if isinstance(asked, bool):
            return self.counted([asked] * len(self.layers), key)
        rows = asked if isinstance(asked, list) else [None]
        if rows and all(isinstance(row, list | bool) for row in rows) and not self._flat(rows):
            every = [self._whole(row, key) for row in rows]
            if len(every) != self.vpp:
                raise self._malformed(key)
            if any(row != every[0] for row in every):
                what = "differs between the chunks of a stage, as no plan does"
                raise UnsaidError(key, what, "Give each chunk as many layers.")
            return every[0]
        if not self._flat(rows):
            raise self._malformed(key)
        return tuple(self._dealt(stage, count, key) for stage, count in enumerate(rows))

    def _flat(self, row: Any) -> bool:
        """Returns whether a list has a count, or a truth value, for each stage."""
        return (
            isinstance(row, list)
            and len(row) == len(self.layers)
            and all(isinstance(count, int) and count >= 0 for count in row)
        )

    def _whole(self, row: Any, key: str) -> tuple[int, ...]:
        """Returns the counts of one chunk of each stage, at most the layers that it has."""
        row = [row] * len(self.layers) if isinstance(row, bool) else row
        if not self._flat(row):
            raise self._malformed(key)
        return tuple(
            min(count, self.of_stage(stage)) if count is not True else self.of_stage(stage)
            for stage, count in enumerate(row)
        )

    def _dealt(self, stage: int, count: int, key: str) -> int:
        """Returns the layers of each chunk where a stage's are dealt out to them in turn."""
        if count is True or count >= self.layers[stage]:
            return self.of_stage(stage)
        share, rest = divmod(count, self.vpp)
        if rest:
            what = f"deals {count} layers out to {self.vpp} chunks, which then differ"
            raise UnsaidError(key, what, "Give multiples.")
        return share

    def _malformed(self, key: str) -> SpecError:
        form = f"must be true, false, or list {len(self.layers)} stages"
        if self.vpp > 1:
            form += f", or such for each of {self.vpp} chunks"
        return SpecError(key, form, "Give a count of layers for each stage.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of a recompute configuration.

    Attributes:
        recompute: Layers that are computed again whole.
        select_recompute: Operators that are by themselves.
        select_comm_recompute: Operators whose communication is.
        regathers: Whether sharded parameters of whole layers are gathered again too.
    """

    recompute: Setting = False
    select_recompute: Setting = False
    select_comm_recompute: Setting = False
    regathers: bool = False


def stages(
    asked: Settings, chunks: Chunks, *, cut_sequence: bool
) -> tuple[tuple[Recompute, ...], Named | None]:
    """Returns what each stage computes again, and the framework's selection if stages take that.

    Args:
        asked: The settings.
        chunks: The layers that stages hold.
        cut_sequence: Whether sequence parallel gathers the inputs of products.

    Raises:
        UnsaidError: No plan says it.
        SpecError: A value is malformed.

    Example:
        >>> found, _ = stages(Settings([2, 0], [10, 4]), Chunks((16, 16), 1), cut_sequence=False)
        >>> found[0].layers, found[0].operators.activation, found[1].operators.activation
        (2, 10, 4)
    """
    if asked.recompute is True and not asked.regathers:
        return (Recompute("uniform", 1),) * len(chunks.layers), None
    whole = chunks.counted(asked.recompute, "recompute")
    rows = [
        _effective(row, count)
        for row, count in zip(_operators(asked, chunks, cut_sequence), whole, strict=True)
    ]
    selection = _selection(whole, rows, chunks, cut_sequence)
    if selection is not None:
        return (
            tuple(
                Recompute("selective") if row != NONE else _block(count)
                for row, count in zip(rows, whole, strict=True)
            ),
            selection,
        )
    return (
        tuple(
            Recompute("parts", count, regathers=asked.regathers and count > 0, operators=row)
            if row != NONE or (asked.regathers and count)
            else _block(count)
            for row, count in zip(rows, whole, strict=True)
        ),
        None,
    )


def _block(count: int) -> Recompute:
    return Recompute("block", count) if count else Recompute()


def _operators(asked: Settings, chunks: Chunks, cut_sequence: bool) -> list[NamedLayers]:
    """Returns the operators that each stage computes again by themselves."""
    key = "select_recompute"
    by_pattern = _patterns(asked.select_recompute, operators.DEFAULT, chunks, key)
    counts = _said(operators.counted, by_pattern, key)
    key = "select_comm_recompute"
    by_pattern = _patterns(asked.select_comm_recompute, operators.COMMUNICATION, chunks, key)
    gathers = _said(operators.gathered, by_pattern, key)
    if gathers and cut_sequence:
        counts["gather"] = gathers
    return [
        NamedLayers(**{field: each[stage] for field, each in counts.items()})
        for stage in range(len(chunks.layers))
    ]


def _said(read: Any, by_pattern: dict[str, tuple[int, ...]], key: str) -> Any:
    """Returns what patterns say; what the estimate does not tell apart is no malformed value."""
    try:
        return read(by_pattern, key)
    except SpecError as error:
        raise UnsaidError(error.path, error.what, error.hint) from None


def _patterns(
    asked: Setting, default: tuple[str, ...], chunks: Chunks, key: str
) -> dict[str, tuple[int, ...]]:
    """Returns for each pattern in how many layers of each stage's chunks it acts, if in any."""
    if isinstance(asked, dict):
        said = asked
    elif isinstance(asked, list) and asked and all(isinstance(item, str) for item in asked):
        said = dict.fromkeys(asked, True)
    else:
        said = dict.fromkeys(default, asked)
    counts = {pattern: chunks.counted(value, key) for pattern, value in said.items()}
    return {pattern: each for pattern, each in counts.items() if any(each)}


def _effective(row: NamedLayers, whole: int) -> NamedLayers:
    """Returns the counts that act beside so many whole layers."""
    counts = {field.name: getattr(row, field.name) for field in fields(row)}
    return NamedLayers(**{name: count if count > whole else 0 for name, count in counts.items()})


def _selection(
    whole: Sequence[int], rows: Sequence[NamedLayers], chunks: Chunks, cut_sequence: bool
) -> Named | None:
    """Returns the operators that all layers of some stages compute again, and no layer else.

    Null where stages do not have this form. Of a framework's selection norms have their gathers.
    """
    found: set[Named] = set()
    for stage, (count, row) in enumerate(zip(whole, rows, strict=True)):
        if row == NONE:
            continue
        counts = {field.name: getattr(row, field.name) for field in fields(row)}
        if count or set(counts.values()) - {0, chunks.of_stage(stage)}:
            return None
        gather = counts.pop("gather")
        if gather != (counts["norm"] if cut_sequence else 0):
            return None
        found.add(Named(**{name: count > 0 for name, count in counts.items()}))
    return found.pop() if len(found) == 1 else None
