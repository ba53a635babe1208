"""Shell scripts as words: read, never run.

Assignments, arrays, quotes, comments, line ends and the expansion of variables that the script sets
itself are understood. Whatever only a shell could tell (the environment, commands, what stands in a
condition or a loop) is kept as an open word, which its reader refuses where it matters.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.errors import SpecError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPENERS = {"if", "for", "while", "until", "case", "{", "select"}
CLOSERS = {"fi", "done", "esac", "}"}
BETWEEN = {"then", "do", "else", "elif", "!", "time", "exec", "export", "local", "declare"}
# Commands that set the variables that they name, each to what only a shell could tell.
SETTERS = {"read", "unset", "let", "eval", "mapfile", "readarray", "getopts"}
PERHAPS = "set where only a running script knows it"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command.

    Attributes:
        text: The word; `open` parts of it stand as they are written.
        line: Its line, counted from 1.
        open: What could not be resolved; empty for a word that is known.
        why: Why not, where the script itself sets it.
    """

    text: str
    line: int
    open: str = ""
    why: str = ""

    @property
    def begins_open(self) -> bool:
        """Whether it begins with what could not be resolved, and so may be any words."""
        return bool(self.open) and self.text.startswith(self.open)


def commands(text: str, file: str) -> list[list[Word]]:
    """Returns the commands of a script, each as its words, variables put in.

    Raises:
        SpecError: A quote or bracket is not closed.

    Example:
        >>> [[word.text for word in c] for c in commands('N=2; run --n $N "a b" # end', "f")]
        [['run', '--n', '2', 'a b']]
    """
    return _Reader(text, file).commands()


# A piece of a raw word: its text, whether it stands in quotes, and whether it is an expansion.
@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    quoted: bool
    expansion: bool


@dataclass(frozen=True, slots=True)
class _Raw:
    pieces: tuple[_Piece, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The word as it is written, if it has no quotes and no expansions."""
        if any(piece.quoted or piece.expansion for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)


def _is_number(raw: _Raw) -> bool:
    return (raw.plain or "").isdecimal()


class _Reader:
    """Walks over a script once, keeping the values of its variables."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.line = 1
        self.values: dict[str, list[Word]] = {}
        self.depth = 0
        self.shells = 0
        # Whether the statement at hand runs at all, and in this shell.
        self.perhaps = False

    def commands(self) -> list[list[Word]]:
        found = []
        for raw in self._statements():
            words = self._run(raw)
            if words:
                found.append(words)
        return found

    # --- Characters to raw words

    def _statements(self) -> Iterator[list[_Raw]]:
        words: list[_Raw] = []
        chained = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "\n" or char in ";&|":
                sign = char * (
                    2 if char in "&|" and self.text[self.at + 1 : self.at + 2] == char else 1
                )
                self.line += char == "\n"
                self.at += len(sign)
                self.perhaps = chained or sign in ("&", "|")
                yield words
                if words or sign != "\n":
                    sure = sign == "&&" and all(map(self._assigns, words))
                    chained = self.perhaps if sure else sign in ("&&", "||", "|")
                words = []
            elif char.isspace():
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            elif (
                self.text.startswith("<<", self.at) and self.text[self.at + 2 : self.at + 3] != "<"
            ):
                self._skip_document()
            elif char in "<>":
                # A redirection takes the next word, and a number right before it: no arguments.
                if words and self.text[self.at - 1].isdecimal() and _is_number(words[-1]):
                    words.pop()
                self.at += 1
                while self.text[self.at : self.at + 1] in ("<", ">", "&"):
                    self.at += 1
                self._skip_blanks()
                if self.text[self.at : self.at + 1] not in ("\n", ""):
                    self._word()
            elif char in "()":
                # A closing bracket alone ends a pattern of `case`.
                self.at += 1
                yield words
                words = []
                if char == "(" or self.shells > 0:
                    self.shells += 1 if char == "(" else -1
                    self.depth += 1 if char == "(" else -1
            else:
                words.append(self._word())
        self.perhaps = chained
        yield words

    def _skip_document(self) -> None:
        """Moves behind a here-document, which is input and no command."""
        match = re.compile(r"<<-?\s*[\"']?(\w*)[\"']?").match(self.text, self.at)
        name = match[1] if match else ""
        end = re.compile(rf"^\s*{name}$", re.M).search(self.text, self.at + 2)
        self._move(end.end() if end and name else self.at + 2)

    def _skip_blanks(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1

    def _word(self) -> _Raw:
        pieces: list[_Piece] = []
        line = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "\\":
                pieces.append(_Piece(self.text[self.at + 1 : self.at + 2], True, False))
                self.at += 2
            elif char == "'":
                end = self._close(self.text.find("'", self.at + 1), "quote", line)
                pieces.append(_Piece(self.text[self.at + 1 : end], True, False))
                self._move(end + 1)
            elif char == '"':
                self.at += 1
                pieces += self._double(line)
            elif char in "$`":
                pieces.append(_Piece(self._expansion(line), False, True))
            elif char == "(" and pieces and pieces[-1].text.endswith("="):
                end = self._close(self._bracket(self.at, "(", ")"), "bracket", line)
                pieces.append(_Piece(self.text[self.at : end + 1], False, False))
                self._move(end + 1)
            elif char.isspace() or char in ";&|()<>":
                break
            else:
                pieces.append(_Piece(char, False, False))
                self.at += 1
        return _Raw(tuple(pieces), line)

    def _double(self, line: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        while True:
            if self.at >= len(self.text):
                raise SpecError(f"{self.file}:{line}", "a quote is not closed", "Close it.")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                # Nothing in quotes is a word all the same.
                return pieces or [_Piece("", True, False)]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = self.text[self.at + 1]
                pieces.append(_Piece("" if escaped == "\n" else escaped, True, False))
                self.line += escaped == "\n"
                self.at += 2
            elif char in "$`":
                pieces.append(_Piece(self._expansion(line), True, True))
            else:
                pieces.append(_Piece(char, True, False))
                self.line += char == "\n"
                self.at += 1

    def _expansion(self, line: int) -> str:
        """Returns an expansion as it is written and moves behind it."""
        start = self.at
        if self.text[start] == "`":
            end = self._close(self.text.find("`", start + 1), "quote", line) + 1
        elif self.text.startswith("$(", start):
            end = self._close(self._bracket(start + 1, "(", ")"), "bracket", line) + 1
        elif self.text.startswith("${", start):
            end = self._close(self._bracket(start + 1, "{", "}"), "bracket", line) + 1
        elif match := NAME.match(self.text, start + 1):
            end = match.end()
        else:
            end = start + 2
        self._move(end)
        return self.text[start:end]

    def _bracket(self, start: int, opening: str, closing: str) -> int:
        depth = 0
        for i in range(start, len(self.text)):
            depth += (self.text[i] == opening) - (self.text[i] == closing)
            if depth == 0:
                return i
        return -1

    def _close(self, end: int, what: str, line: int) -> int:
        if end < 0:
            raise SpecError(f"{self.file}:{line}", f"a {what} is not closed", "Close it.")
        return end

    def _move(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    # --- Raw words to commands

    def _run(self, raw: list[_Raw]) -> list[Word]:
        """Returns the words of one statement; assignments in front of a command are kept."""
        rest = list(raw)
        while rest and (plain := rest[0].plain) is not None:
            if plain in OPENERS:
                self.depth += 1
                self._poison(rest)
            elif plain in CLOSERS:
                self.depth -= 1
            elif plain not in BETWEEN and not self._assign(rest[0]):
                break
            rest = rest[1:]
        else:
            while rest and self._assign(rest[0]):
                rest = rest[1:]
        words = [word for part in rest for word in self._expand(part)]
        if words and words[0].text in SETTERS:
            named = (name for word in words[1:] for name in NAME.findall(word.text))
            for name in {*named} & {*self.values}:
                self._leave_open(name, words[0].line)
        if [word.text for word in words[:2]] == ["printf", "-v"] and len(words) > 2:
            self._leave_open(words[2].text, words[0].line)
        return words

    def _poison(self, rest: list[_Raw]) -> None:
        """Leaves open the variable of a loop."""
        if len(rest) > 1 and rest[0].plain in ("for", "select") and (name := rest[1].plain):
            self._leave_open(name, rest[1].line)

    def _leave_open(self, name: str, line: int) -> None:
        self.values[name] = [Word(f"${name}", line, f"${name}", PERHAPS)]

    @staticmethod
    def _assigns(raw: _Raw) -> bool:
        """Returns whether a word sets a variable and so cannot fail."""
        start = "".join(piece.text for piece in raw.pieces if not piece.quoted)
        return raw.plain in BETWEEN or re.match(rf"{NAME.pattern}\+?=", start) is not None

    def _assign(self, raw: _Raw) -> bool:
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
        pieces = (_Piece(start, False, False), *raw.pieces[head + 1 :])
        value = self._value(_Raw(pieces, raw.line))
        if added:
            value = self._joined(self.values.get(name, []), value, raw)
        self.values[name] = value
        if self.depth > 0 or self.perhaps:
            # Whether a branch is taken is only known when the script runs.
            self._leave_open(name, raw.line)
        return True

    def _value(self, raw: _Raw) -> list[Word]:
        body = "".join(piece.text for piece in raw.pieces)
        if raw.pieces[0].text == "" and body.startswith("(") and body.endswith(")"):
            inner = _Reader(body[1:-1], self.file)
            inner.values = self.values
            inner.line = raw.line
            words = [word for parts in inner._statements() for word in parts]
            return [word for part in words for word in self._expand(part)]
        whole = self._expand(_Raw(tuple(self._quoted(raw)), raw.line))
        return whole or [Word("", raw.line)]

    def _quoted(self, raw: _Raw) -> Iterator[_Piece]:
        for piece in raw.pieces:
            yield _Piece(piece.text, True, piece.expansion)

    def _joined(self, old: list[Word], new: list[Word], raw: _Raw) -> list[Word]:
        """Returns an array with more items, or a text with more text."""
        if any(piece.text.startswith("(") for piece in raw.pieces) or not old:
            return old + new
        first, second = old[-1], new[0]
        unknown = first if first.open else second
        text = Word(first.text + second.text, first.line, unknown.open, unknown.why)
        return [*old[:-1], text]

    def _expand(self, raw: _Raw) -> list[Word]:
        """Returns the words that one word becomes."""
        words = [Word("", raw.line)]
        begun = False
        for piece in raw.pieces:
            if not piece.expansion:
                words[-1] = replace(words[-1], text=words[-1].text + piece.text)
                begun = begun or bool(piece.text) or piece.quoted
                continue
            items = self._resolve(piece.text, piece.quoted, raw.line)
            for i, item in enumerate(items):
                if i > 0:
                    words.append(Word("", raw.line))
                last = words[-1]
                unknown = last if last.open else item
                words[-1] = Word(last.text + item.text, raw.line, unknown.open, unknown.why)
                begun = True
        return words if begun else []

    def _resolve(self, text: str, quoted: bool, line: int) -> list[Word]:
        """Returns the words of an expansion; unquoted values fall apart at blanks."""
        if text in ("$@", "$*", "${@}", "${*}"):
            # Nothing was passed to the script that is read.
            return []
        if text.startswith("$((") and text.endswith("))"):
            return [self._sum(text, line)]
        if text.startswith(("$(", "`")):
            return [Word(text, line, text)]
        body = text[2:-1] if text.startswith("${") else text[1:]
        match = NAME.match(body)
        name, rest = (match[0], body[match.end() :]) if match else ("", body)
        whole = rest in ("[@]", "[*]")
        value = self.values.get(name) if name else None
        if rest.startswith((":-", "-")) and value is None:
            value = [Word(rest.removeprefix(":").removeprefix("-"), line)]
        elif value is None or (rest and not whole and not rest.startswith((":-", "-", ":?", "?"))):
            return [Word(text, line, text)]
        if quoted and not whole:
            return value[:1]
        if quoted:
            return value
        return [part for word in value for part in self._parts(word, line)]

    def _parts(self, word: Word, line: int) -> Iterator[Word]:
        """Yields the words that a value falls apart into; what is open in it stays whole."""
        if not word.open:
            yield from (Word(part, line) for part in word.text.split())
            return
        known = word.text.split(word.open)
        for part in "\0".join(known).split():
            text = part.replace("\0", word.open)
            yield Word(text, line, word.open, word.why) if "\0" in part else Word(text, line)

    def _sum(self, text: str, line: int) -> Word:
        """Returns a product or quotient of numbers; other arithmetic stays open."""
        body = text[3:-2]
        for name in sorted(set(NAME.findall(body)), key=len, reverse=True):
            value = self.values.get(name)
            if value is None or value[0].open or not value[0].text.isdecimal():
                return Word(text, line, text)
            body = re.sub(rf"\$?\b{name}\b", value[0].text, body)
        parts = re.split(r"\s*([*/])\s*", body.strip())
        if not all(part.isdecimal() for part in parts[::2]):
            return Word(text, line, text)
        result = int(parts[0])
        for sign, number in zip(parts[1::2], map(int, parts[2::2]), strict=True):
            if sign == "/" and number == 0:
                return Word(text, line, text)
            result = result * number if sign == "*" else result // number
        return Word(str(result), line)
