"""Shell scripts as commands: read, never run.

Assignments, arrays, functions and the expansion of variables that the script sets itself are
understood. Whatever only a shell could tell (the environment, commands, what stands in a condition
or a loop, a file that it sources) is kept as an open word, which its reader refuses where it
matters.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autopar import files
from autopar.errors import SpecError
from autopar.frontends.shell_words import (
    BETWEEN,
    CLOSERS,
    NAME,
    OPENERS,
    Piece,
    Raw,
    Statement,
    statements,
)

# Commands that set the variables that they name, each to what only a shell could tell.
SETTERS = {"read", "unset", "let", "eval", "mapfile", "readarray", "getopts"}
PERHAPS = "set where only a running script knows it"
# The folder of the script itself, as scripts write it.
HERE = re.compile(r'\$\(dirname "?(?:\$0|\$\{?BASH_SOURCE(?:\[0\]\})?)"?\)|\$\{0%/\*\}')
# So many calls of functions are followed; those that call each other would have no end.
MOST_CALLS = 100


@dataclass(frozen=True, slots=True)
class Open:
    """A part of a word that could not be resolved, and why not where the script itself sets it."""

    start: int
    end: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command.

    Attributes:
        text: The word; open parts of it stand as they are written.
        line: Its line, counted from 1.
        lines: Where further lines of the script begin in it: offset and line.
        opens: What could not be resolved; empty for a word that is known.
    """

    text: str
    line: int
    lines: tuple[tuple[int, int], ...] = ()
    opens: tuple[Open, ...] = ()

    @classmethod
    def unknown(cls, text: str, line: int, why: str = "") -> "Word":
        return cls(text, line, opens=(Open(0, len(text), why),))

    @property
    def open(self) -> str:
        """The first part that could not be resolved; empty for a word that is known."""
        return self.text[self.opens[0].start : self.opens[0].end] if self.opens else ""

    @property
    def why(self) -> str:
        """Why it could not, where the script itself sets it."""
        return self.opens[0].why if self.opens else ""

    @property
    def begins_open(self) -> bool:
        """Whether it begins with what could not be resolved, and so may be any words."""
        return bool(self.opens) and self.opens[0].start == 0

    def line_at(self, offset: int) -> int:
        """Returns the line on which a letter stands."""
        return next((line for start, line in reversed(self.lines) if start <= offset), self.line)

    def joined(self, other: "Word") -> "Word":
        """Returns the word with another's text behind its own."""
        if not self.text:
            return other
        at = len(self.text)
        begins = () if other.line == self.line_at(at) else ((at, other.line),)
        lines = tuple((at + start, line) for start, line in other.lines)
        opens = tuple(Open(at + each.start, at + each.end, each.why) for each in other.opens)
        text = self.text + other.text
        return Word(text, self.line, (*self.lines, *begins, *lines), (*self.opens, *opens))

    def parts(self) -> Iterator["Word"]:
        """Yields the words that a value falls apart into; what is open in it stays whole."""
        text = self.text
        for each in self.opens:
            text = text[: each.start] + "\0" * (each.end - each.start) + text[each.end :]
        for match in re.finditer(r"\S+", text):
            first, end = match.span()
            inside = tuple(
                Open(each.start - first, each.end - first, each.why)
                for each in self.opens
                if first <= each.start < end
            )
            yield Word(self.text[first:end], self.line_at(first), opens=inside)


def commands(text: str, file: str) -> list[list[Word]]:
    """Returns the commands of a script, each as its words, variables put in.

    A function's commands are those of its calls. A file that the script sources is read where it
    stands beside it and only sets variables.

    Args:
        text: The script.
        file: Its path, as errors name it.

    Raises:
        SpecError: A quote or bracket is not closed.

    Example:
        >>> [[word.text for word in c] for c in commands('N=2; run --n $N "a b" # end', "f")]
        [['run', '--n', '2', 'a b']]
    """
    reader = _Reader(file)
    reader.take(statements(text, file))
    return reader.found


@dataclass(slots=True)
class _Body:
    """A function that is being read."""

    name: str
    statements: list[Statement]
    depth: int = 0


class _Reader:
    """Follows the statements of a script, keeping the values of its variables."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[list[Word]] = []
        self.values: dict[str, list[Word]] = {}
        self.functions: dict[str, list[Statement]] = {}
        # Variables that were given a list, if perhaps.
        self.arrays: set[str] = set()
        self.body: _Body | None = None
        self.depth = 0
        # Calls of functions that stand around the statement at hand, and that may still follow.
        self.calls, self.left = 0, MOST_CALLS
        # Names that the function at hand declares its own.
        self.own: set[str] = set()
        # Whether the statement at hand runs at all, and in this shell.
        self.perhaps = False
        # Why a variable that is not set here may be set all the same; empty if it may not.
        self.foreign = ""
        # Whether something replaced the arguments of the script.
        self.passed = False

    def take(self, found: Iterator[Statement] | Sequence[Statement]) -> None:
        """Follows statements in their order; a function's body is kept until it is called."""
        for statement in found:
            if self.body is not None and self._keep(self.body, statement):
                continue
            if statement.defines:
                self.body = _Body(statement.defines, [])
                continue
            before = self.perhaps
            self.perhaps = before or statement.perhaps
            words = self._run(statement.words)
            if words and words[0].text == "eval" and not any(word.opens for word in words):
                self._evaluate(" ".join(word.text for word in words[1:]), words[0].line)
            elif words:
                self.found.append(words)
                self._follow(words)
            name = words[0].text if words else ""
            left = name == "return" and self.calls > 0
            if (left or name == "exit") and not self.perhaps and self.depth == 0:
                # What stands behind is never reached.
                return
            # Behind a return that may be taken the script goes on without the rest of the body.
            self.perhaps = before or left

    def _keep(self, body: _Body, statement: Statement) -> bool:
        """Adds a statement to a function's body; returns whether it is one of it."""
        words = list(statement.words)
        if not body.statements:
            if not words:
                return True
            if words[0].plain != "{":
                # Only bodies in braces are followed.
                self.body = None
                return False
        body.depth += _nesting(words)
        if not body.statements:
            words = words[1:]
        body.statements.append(replace(statement, words=tuple(words)))
        if body.depth <= 0:
            # The last holds the closing brace.
            self.functions[body.name] = body.statements[:-1]
            self.body = None
        return True

    def _follow(self, words: list[Word]) -> None:
        """Does what a command does to variables."""
        name, line = words[0].text, words[0].line
        if name in self.functions and not words[0].opens:
            self._call(self.functions[name], line)
        elif name in ("source", "."):
            self._source(words[1:], line)
        elif name == "set" and any(word.text == "--" for word in words):
            self.passed = True
        elif name == "eval" and any(word.opens for word in words):
            self._forget("eval may set it", line)
        elif name in SETTERS:
            for name in {name for word in words[1:] for name in NAME.findall(word.text)}:
                self._leave_open(name, line)
        elif name == "printf" and len(words) > 2 and words[1].text == "-v":
            self._leave_open(words[2].text, line)

    def _evaluate(self, text: str, line: int) -> None:
        """Follows the statements of a text that a script makes of words."""
        if self.left == 0:
            self._forget("eval may set it", line)
            return
        self.left -= 1
        self.take(statements(text, self.file, line))

    def _call(self, body: list[Statement], line: int) -> None:
        """Follows a function's body as if it stood where it is called."""
        if self.left == 0:
            self._forget("a function may set it", line)
            return
        outer = (self.perhaps, self.own, self.depth)
        before = dict(self.values)
        self.perhaps = self.perhaps or self.depth > 0
        self.own, self.depth = set(), 0
        self.left -= 1
        self.calls += 1
        self.take(body)
        self.calls -= 1
        for name in self.own:
            if name in before:
                self.values[name] = before[name]
            else:
                self.values.pop(name, None)
        self.perhaps, self.own, self.depth = outer

    def _source(self, words: list[Word], line: int) -> None:
        """Follows a file that only sets variables; of any other, all variables may be its own."""
        name = words[0].text if words else ""
        if name.endswith("bin/activate"):
            # A virtual environment's own: it sets the path and its name alone.
            return
        text = _beside(self.file, words[0]) if words else None
        if text is None:
            self._forget(f"{name} may set it", line)
            return
        try:
            inside = list(statements(text, name))
        except SpecError:
            inside = []
        if not inside or not all(_only_sets(statement) for statement in inside):
            self._forget(f"{name} may set it", line)
            return
        before = dict(self.values)
        self.take(inside)
        for name, value in self.values.items():
            if value is not before.get(name):
                self.values[name] = [replace(word, line=line, lines=()) for word in value]

    def _forget(self, why: str, line: int) -> None:
        """Leaves every variable open."""
        for name in self.values:
            self._leave_open(name, line, why)
        self.foreign = why

    def _run(self, raw: Sequence[Raw]) -> list[Word]:
        """Returns the words of one statement; assignments without a command are kept."""
        rest = list(raw)
        before, alone = dict(self.values), True
        while rest:
            plain = rest[0].plain
            if plain in OPENERS:
                self.depth += 1
                self._poison(rest)
                before = dict(self.values)
            elif plain in CLOSERS:
                self.depth -= 1
            elif plain in BETWEEN:
                alone = False
                if plain in ("local", "declare") and self.calls:
                    self.own |= {name for word in rest[1:] if (name := _assigned(word))}
            elif not self._assign(rest[0]):
                break
            rest = rest[1:]
        if rest and alone:
            # What stands before a command is set for that command only.
            self.values = before
        return [word for part in rest for word in self._expand(part)]

    def _poison(self, rest: list[Raw]) -> None:
        """Leaves open the variable of a loop."""
        if len(rest) > 1 and rest[0].plain in ("for", "select") and (name := rest[1].plain):
            self._leave_open(name, rest[1].line)

    def _leave_open(self, name: str, line: int, why: str = PERHAPS) -> None:
        self.values[name] = [Word.unknown(f"${name}", line, why)]

    def _assign(self, raw: Raw) -> bool:
        """Keeps the value of an assignment; returns whether the word is one."""
        head = 0
        while head < len(raw.pieces) and "=" not in raw.pieces[head].text:
            head += 1
        if head == len(raw.pieces):
            return False
        before = raw.pieces[: head + 1]
        if any(piece.quoted or piece.expansion for piece in before):
            return False
        name, _, start = "".join(piece.text for piece in before).partition("=")
        added = name.endswith("+")
        name = name.removesuffix("+")
        if not NAME.fullmatch(name):
            return False
        pieces = (Piece(start, raw.line), *raw.pieces[head + 1 :])
        value = self._value(Raw(pieces, raw.line))
        unset = [Word.unknown(f"${name}", raw.line, self.foreign)] if self.foreign else []
        old = self.values.get(name, unset)
        if any(piece.text.startswith("(") for piece in raw.pieces):
            value = old + value if added else value
            self.arrays.add(name)
        elif name in self.arrays and any(word.opens for word in old):
            # A text is given to the first item of an array; here nobody knows the others.
            value = [Word.unknown(f"${name}", raw.line, old[0].why)]
        elif old:
            value = [old[0].joined(value[0]) if added else value[0], *old[1:]]
        self._set(name, value, raw.line)
        return True

    def _set(self, name: str, value: list[Word], line: int) -> None:
        """Keeps a value, if what sets it is sure to run."""
        self.values[name] = value
        if self.depth > 0 or self.perhaps:
            # Whether a branch is taken is only known when the script runs.
            self._leave_open(name, line)

    def _value(self, raw: Raw) -> list[Word]:
        body = "".join(piece.text for piece in raw.pieces)
        if raw.pieces[0].text == "" and body.startswith("(") and body.endswith(")"):
            inside = statements(body[1:-1], self.file, raw.pieces[1].line)
            words = [word for each in inside for word in each.words]
            return [word for part in words for word in self._expand(part)]
        pieces = tuple(replace(piece, quoted=True) for piece in raw.pieces)
        text = Word("", raw.line)
        for i, word in enumerate(self._expand(Raw(pieces, raw.line))):
            # A list in a text is one text.
            text = (text.joined(Word(" ", word.line)) if i else text).joined(word)
        return [text]

    def _expand(self, raw: Raw) -> list[Word]:
        """Returns the words that one word becomes."""
        words = [Word("", raw.line)]
        begun = False
        for piece in raw.pieces:
            if not piece.expansion:
                words[-1] = words[-1].joined(Word(piece.text, piece.line))
                begun = begun or bool(piece.text) or piece.quoted
                continue
            for i, item in enumerate(self._resolve(piece)):
                if i > 0:
                    words.append(Word("", raw.line))
                words[-1] = words[-1].joined(item)
                begun = True
        return words if begun else []

    def _resolve(self, piece: Piece) -> list[Word]:
        """Returns the words of an expansion; unquoted values fall apart at blanks."""
        text, line = piece.text, piece.line
        if text in ("$@", "$*", "${@}", "${*}") and not self.calls and not self.passed:
            # Nothing was passed to the script that is read.
            return []
        if text.startswith("$((") and text.endswith("))"):
            return [self._sum(text, line)]
        if text.startswith(("$(", "`")):
            return [Word.unknown(text, line)]
        body = text[2:-1] if text.startswith("${") else text[1:]
        match = NAME.match(body)
        name, rest = (match[0], body[match.end() :]) if match else ("", body)
        whole = rest in ("[@]", "[*]")
        value = self.values.get(name) if name else None
        if rest.startswith((":-", "-", ":=", "=")) and value is None and name and not self.foreign:
            value = [Word(rest.removeprefix(":")[1:], line)]
            if rest.startswith((":=", "=")):
                self._set(name, value, line)
        elif value is None or (
            rest and not whole and not rest.startswith((":-", "-", ":=", "=", ":?", "?"))
        ):
            return [Word.unknown(text, line, self.foreign if name and value is None else "")]
        # Of an array, its name alone is the first item.
        items = value if whole else value[:1]
        return items if piece.quoted else [part for word in items for part in word.parts()]

    def _sum(self, text: str, line: int) -> Word:
        """Returns a product or quotient of numbers; other arithmetic stays open."""
        body = text[3:-2]
        for name in sorted(set(NAME.findall(body)), key=len, reverse=True):
            value = self.values.get(name)
            if value is None or value[0].opens or not value[0].text.isdecimal():
                why = value[0].why if value else self.foreign
                return Word.unknown(text, line, why)
            body = re.sub(rf"\$?\b{name}\b", value[0].text, body)
        parts = re.split(r"\s*([*/])\s*", body.strip())
        if not all(part.isdecimal() for part in parts[::2]):
            return Word.unknown(text, line)
        result = int(parts[0])
        for sign, number in zip(parts[1::2], map(int, parts[2::2]), strict=True):
            if sign == "/" and number == 0:
                return Word.unknown(text, line)
            result = result * number if sign == "*" else result // number
        return Word(str(result), line)


def _nesting(words: list[Raw]) -> int:
    """Returns how many more groups a statement opens than it closes."""
    depth = 0
    for word in words:
        plain = word.plain
        if plain not in OPENERS | CLOSERS | BETWEEN:
            break
        depth += (plain in OPENERS) - (plain in CLOSERS)
    return depth


def _assigned(raw: Raw) -> str:
    """Returns the variable that a word of a declaration names."""
    match = NAME.match("".join(piece.text for piece in raw.pieces if not piece.quoted))
    return match[0] if match else ""


def _only_sets(statement: Statement) -> bool:
    """Returns whether a statement does nothing but set variables, whatever else happens."""
    words = statement.words
    if statement.defines or statement.perhaps or (words and words[0].plain in OPENERS):
        return False
    first = words[0].plain if words else None
    return first == "export" or all(word.sets for word in words)


def _beside(file: str, named: Word) -> str | None:
    """Returns the text of a file that a script names beside itself; None where there is none."""
    name = named.text
    if named.opens:
        here = HERE.match(name)
        if here is None or named.opens[0].end != here.end() or len(named.opens) > 1:
            return None
        name = name[here.end() :].lstrip("/")
    path = Path(file).parent / name
    if not name or not path.is_file():
        return None
    try:
        return files.read_bytes(path).decode("utf-8-sig")
    except (SpecError, UnicodeDecodeError):
        return None
