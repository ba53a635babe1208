"""Where a launcher's file says what a problem and a plan hold, so that errors speak of its keys.

A frontend keeps one table from autopar's fields to the keys that it reads them from. With it
`Places.told` tells an error of any rule between fields, whoever found it broken, in the file's own
words: the line, the key, what was found, and the keys that a cure may change.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autopar.errors import SpecError

# How alike a key that is not known and one that is must be, so that the first is a slip of the pen.
ALIKE = 0.905
# Names of fields in sentences about them that mean nothing outside autopar.
SHORT = ("dp", "tp", "sp", "cp", "ep", "etp", "pp", "vpp", "mbs", "zero")


@dataclass(frozen=True, slots=True)
class Place:
    """A key of a launcher's file, or a flag of the command line.

    Attributes:
        key: The key as its user writes it, as `--num-layers`.
        line: Its line in the file, from 1; None for a flag and for a key that is not given.
        value: What was given, short enough for a message.
    """

    key: str
    line: int | None = None
    value: str = ""

    def __str__(self) -> str:
        line = "" if self.line is None else f" (line {self.line})"
        return f"{self.said}{line}"

    @property
    def said(self) -> str:
        """The key with its value."""
        return f"{self.key} {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Keys:
    """How a launcher says one of autopar's fields.

    Attributes:
        names: The keys that it is read from or follows from, most telling first.
        called: What the launcher calls it; the first key unless given.
    """

    names: tuple[str, ...]
    called: str = ""


def keys(*names: str, called: str = "") -> Keys:
    """Returns the keys of a field, most telling first, and what the launcher calls it."""
    return Keys(names, called)


class Source(Protocol):
    """A launcher's file as it was read."""

    @property
    def file(self) -> str: ...

    def place(self, name: str) -> Place:
        """Returns where a key stands; without a line where the file does not give it."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """Where a file says fields of a problem and a plan.

    Attributes:
        file: The file, as errors name it.
        given: By field, as `plan.tp`, the keys of the file that say it.
        keys: By field the key that would say it.
        words: By field what the launcher calls it.
    """

    file: str = ""
    given: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def missing(self, name: str) -> str:
        """Returns that the file does not say a field, or not so that it is understood."""
        first = self.given[name][0] if name in self.given else None
        if first is not None and first.key == self.keys[name]:
            return f"{self.file}:{first.line}: {first.said} is not known"
        if name in self.keys:
            return f"{self.file} does not give {self.keys[name]}"
        return f"{self.file} does not say it"

    def of(self, name: str) -> str:
        """Returns where the file says a field, as an error begins; the file where it does not."""
        places = self.given.get(name, ())
        return f"{self.file}:{places[0].line}: {places[0].key}" if places else self.file

    def told(self, error: SpecError, flags: Mapping[str, Place]) -> SpecError:
        """Returns an error about fields as one about the file's keys.

        Args:
            error: The error as whoever found it tells it.
            flags: The fields that flags say instead, under their names.

        Returns:
            The same error where neither the file nor a flag says what it is about.
        """
        found = [place for name in error.about for place in self._find(name, flags)]
        if not any(place.line for place in found):
            left = [self.keys[name] for name in error.about if self._is_left_out(name)]
            if not left or any(name in flags for name in error.about):
                return error
            return SpecError(f"{self.file}: {left[0]}", error.what, error.hint, error.about)
        first = next(place for place in found if place.line)
        others = list(dict.fromkeys(place for place in found if place != first))
        if not others:
            others = [Place(self.keys[name]) for name in error.about if self._is_left_out(name)]
        what = self._renamed(error.what, error.about)
        hint = self._renamed(error.hint, error.about)
        if len(error.about) > 1:
            hint = f"Change {_either(['it', *map(str, others)])}."
        where = f"{self.file}:{first.line}: {first.said}"
        return SpecError(where, what.removeprefix(f"{first.said} "), hint)

    def _is_left_out(self, name: str) -> bool:
        """Returns whether the file could say a field and does not."""
        return name in self.keys and name not in self.given

    def _find(self, name: str, flags: Mapping[str, Place]) -> tuple[Place, ...]:
        """Returns where a field, or what it is a part of, is said."""
        path = re.sub(r"\[\d+\]", "", name)
        if path.startswith("model.") and "model" in flags:
            return (flags["model"],)
        while path:
            if path in flags:
                return (flags[path],)
            if path in self.given:
                return self.given[path]
            path = path.rpartition(".")[0]
        return ()

    def _renamed(self, text: str, about: Iterable[str]) -> str:
        """Returns a sentence with autopar's names of fields replaced by the launcher's."""
        words = {}
        for name in about:
            last = name.rpartition(".")[2]
            if name in self.words and (last in SHORT or "_" in last):
                words[last] = self.words[name]
        if not words:
            return text
        return re.sub(rf"(?<![\w.-])({'|'.join(words)})(?![\w-])", lambda m: words[m[1]], text)


def places(source: Source, table: Mapping[str, Keys]) -> Places:
    """Returns where a file says the fields of a table."""
    given = {}
    for name, of in table.items():
        found = [source.place(key) for key in of.names]
        if there := tuple(place for place in found if place.line is not None):
            given[name] = there
    first = {name: source.place(of.names[0]).key for name, of in table.items()}
    words = {name: of.called or first[name] for name, of in table.items()}
    return Places(source.file, given, first, words)


def all_keys(table: Mapping[str, Keys]) -> set[str]:
    """Returns every key of a table."""
    return {name for of in table.values() for name in of.names}


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Returns the known key that another is a slip of the pen of; None for one of its own.

    Example:
        >>> misspelt("tensor-model-paralel-size", ["tensor-model-parallel-size", "seq-length"])
        'tensor-model-parallel-size'
        >>> misspelt("hierarchical-context-parallel-sizes", ["context-parallel-size"]) is None
        True
    """
    from difflib import get_close_matches

    plain = {key.lower().replace("-", "_"): key for key in known}
    near = get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=ALIKE)
    return plain[near[0]] if near else None


def _either(names: list[str]) -> str:
    """Returns a list as a sentence has it."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
