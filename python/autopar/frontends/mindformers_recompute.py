"""What MindFormers' recompute settings have each stage compute again.

The rules are those of its `LayerSetting`: a count of a stage's layers is dealt out to its chunks in
turn, and is of the first of each; layers that are computed again whole pass over their operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from autopar.errors import SpecError
from autopar.framework import Named
from autopar.frontends import mindformers_operators as operators
from autopar.report import NamedLayers, Recompute, chunk_layers, dealt

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

    def of_stage(self, stage: int) -> list[int]:
        """Returns the layers of each chunk of a stage."""
        return chunk_layers(self.layers, self.vpp, stage)

    def counted(self, asked: Setting, key: str) -> tuple[int, ...]:
        """Returns of how many layers of each stage a truth value or a list speaks.

        Raises:
            UnsaidError: Chunks of a stage differ otherwise than if layers are dealt out in turn.
            SpecError: It is neither.

        Example:
            >>> Chunks((8, 8), 2).counted([[3, 4], [2, True]], "recompute")
            (5, 8)
        """
        if isinstance(asked, bool):
            return self.counted([asked] * len(self.layers), key)
        rows = asked if isinstance(asked, list) else [None]
        if rows and all(isinstance(row, list | bool) for row in rows) and not self._flat(rows):
            every = [self._row(row, key) for row in rows]
            if len(every) != self.vpp:
                raise self._malformed(key)
            by_stage = [[row[stage] for row in every] for stage in range(len(self.layers))]
        elif self._flat(rows):
            by_stage = [self._dealt(stage, count) for stage, count in enumerate(rows)]
        else:
            raise self._malformed(key)
        return tuple(self._total(stage, counts, key) for stage, counts in enumerate(by_stage))

    def _flat(self, row: Any) -> bool:
        """Returns whether a list has a count, or a truth value, for each stage."""
        return (
            isinstance(row, list)
            and len(row) == len(self.layers)
            and all(isinstance(count, int) and count >= 0 for count in row)
        )

    def _row(self, row: Any, key: str) -> list[int]:
        """Returns the counts of one chunk of each stage; more than it has for all."""
        row = [row] * len(self.layers) if isinstance(row, bool) else row
        if not self._flat(row):
            raise self._malformed(key)
        return [max(self.layers) if count is True else int(count) for count in row]

    def _dealt(self, stage: int, count: int) -> list[int]:
        """Returns the layers of each chunk where those that are full are passed over."""
        sizes = self.of_stage(stage)
        left = sum(sizes) if count is True else min(count, sum(sizes))
        found = [0] * self.vpp
        while left:
            for chunk, size in enumerate(sizes):
                if left and found[chunk] < size:
                    found[chunk] += 1
                    left -= 1
        return found

    def _total(self, stage: int, counts: Sequence[int], key: str) -> int:
        """Returns the layers that are dealt out so, as many to each chunk if that is one way to.

        A full chunk may be passed over.
        """
        sizes = self.of_stage(stage)
        wanted = [min(count, size) for count, size in zip(counts, sizes, strict=True)]
        totals = range(sum(wanted), self.vpp * max(sizes) + 1)
        for total in sorted(totals, key=lambda total: total % self.vpp > 0):
            found = zip(dealt(total, self.vpp), sizes, strict=True)
            if [min(count, size) for count, size in found] == wanted:
                return total
        what = f"has {_listed(wanted)} layers in the chunks of stage {stage}, as no plan does"
        raise UnsaidError(key, what, "Deal them out in turn, first chunks first.")

    def _malformed(self, key: str) -> SpecError:
        form = f"must be true, false, or list {len(self.layers)} stages"
        if self.vpp > 1:
            form += f", or such for each of {self.vpp} chunks"
        return SpecError(key, form, "Give a count of layers for each stage.")


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


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
                Recompute("selective") if row != NONE else _block(count, chunks.vpp)
                for row, count in zip(rows, whole, strict=True)
            ),
            selection,
        )
    found = tuple(
        Recompute("parts", count, regathers=asked.regathers and count > 0, operators=row)
        if row != NONE or (asked.regathers and count)
        else _block(count, chunks.vpp)
        for row, count in zip(rows, whole, strict=True)
    )
    return _one_of_all(found, chunks), None


def _one_of_all(found: tuple[Recompute, ...], chunks: Chunks) -> tuple[Recompute, ...]:
    """Returns one block for all stages where that says the same: some may have fewer layers."""
    deepest = max((each.layers or 0 for each in found if each.granularity == "block"), default=0)
    alike = all(
        each.granularity == "block"
        and (each.layers or 0) >= min(deepest, max(chunks.of_stage(stage)))
        for stage, each in enumerate(found)
    )
    return (Recompute("block", deepest),) * len(found) if alike else found


def _block(count: int, vpp: int) -> Recompute:
    """Returns what recomputes so many layers of a stage: as many of each chunk, if they divide."""
    if count == 0:
        return Recompute()
    if count % vpp:
        return Recompute("parts", count, regathers=False, operators=NONE)
    return Recompute("block", count // vpp)


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
        every = chunks.vpp * max(chunks.of_stage(stage))
        if count or set(counts.values()) - {0, chunks.layers[stage], every}:
            return None
        gather = counts.pop("gather")
        if (gather > 0) != (counts["norm"] > 0 and cut_sequence):
            return None
        found.add(Named(**{name: count > 0 for name, count in counts.items()}))
    return found.pop() if len(found) == 1 else None
