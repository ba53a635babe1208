"""Shell scripts as statements of raw words: quotes, comments, line ends, documents, brackets."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autopar.errors import SpecError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPENERS = {"if", "for", "while", "until", "case", "{", "select"}
CLOSERS = {"fi", "done", "esac", "}"}
BETWEEN = {"then", "do", "else", "elif", "!", "time", "exec", "export", "local", "declare"}
_FUNCTION = re.compile(r"\(\s*\)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a raw word.

    Attributes:
        text: As it is written, without quotes.
        line: Its line, counted from 1.
        quoted: Whether it stands in quotes.
        expansion: Whether it is `$...` or a command in backquotes.
    """

    text: str
    line: int
    quoted: bool = False
    expansion: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """A word as a script has it.

    Attributes:
        pieces: What it is made of.
        line: The line on which it begins.
    """

    pieces: tuple[Piece, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The word as it is written, if it has no quotes and no expansions."""
        if any(piece.quoted or piece.expansion for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)

    @property
    def sets(self) -> bool:
        """Whether it sets a variable, or stands before what does, and so cannot fail."""
        start = "".join(piece.text for piece in self.pieces if not piece.quoted)
        return self.plain in BETWEEN or re.match(rf"{NAME.pattern}\+?=", start) is not None


@dataclass(frozen=True, slots=True)
class Statement:
    """What stands between two signs that end a command.

    Attributes:
        words: Its words; none between two signs.
        perhaps: Whether it runs at all, and in the script's own shell, is open.
        defines: The function that the next statement's braces are the body of; else empty.
    """

    words: tuple[Raw, ...]
    perhaps: bool = False
    defines: str = ""


def statements(text: str, file: str, line: int = 1) -> Iterator[Statement]:
    """Yields the statements of a script, whose first line is counted as `line`.

    Raises:
        SpecError: A quote or bracket is not closed.

    Example:
        >>> [[word.plain for word in each.words] for each in statements("N=2; run $N", "f")]
        [['N=2'], ['run', None]]
    """
    return _Lexer(text, file, line).statements()


class _Lexer:
    """Walks over a script once."""

    def __init__(self, text: str, file: str, line: int) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.line = line

    def statements(self) -> Iterator[Statement]:
        words: list[Raw] = []
        chained, shells = False, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._move(self.at + 2)
            elif char == "\n" or char in ";&|":
                sign = char * (1 + (char in "&|" and self.text.startswith(char, self.at + 1)))
                self._move(self.at + len(sign))
                yield Statement(tuple(words), chained or shells > 0 or sign in ("&", "|"))
                if words or sign != "\n":
                    perhaps = chained or sign in ("&", "|")
                    sure = sign == "&&" and all(word.sets for word in words)
                    chained = perhaps if sure else sign in ("&&", "||", "|")
                words = []
            elif char.isspace():
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            elif self._at_document():
                self._skip_document()
            elif char in "<>":
                self._skip_redirection(words)
            elif (match := _FUNCTION.match(self.text, self.at)) and (name := _defined(words)):
                self._move(match.end())
                yield Statement((), chained or shells > 0, defines=name)
                words = []
            elif self.text.startswith("((", self.at) and self.text.find("))", self.at) > 0:
                # Arithmetic, which sets what it names.
                end = self.text.find("))", self.at)
                said = Piece(self.text[self.at + 2 : end], self.line, quoted=True)
                words += [Raw((Piece("let", self.line),), self.line), Raw((said,), self.line)]
                self._move(end + 2)
            elif char in "()":
                # A closing bracket alone ends a pattern of `case`.
                self.at += 1
                yield Statement(tuple(words), chained or shells > 0)
                words = []
                shells = max(shells + (1 if char == "(" else -1), 0)
            else:
                words.append(self._word())
                if len(words) == 2 and words[0].plain == "function":
                    match = _FUNCTION.match(self.text, self.at)
                    self._move(match.end() if match else self.at)
                    yield Statement((), chained or shells > 0, defines=words[1].plain or "")
                    words = []
        yield Statement(tuple(words), chained or shells > 0)

    def _at_document(self) -> bool:
        return self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at)

    def _skip_document(self) -> None:
        """Moves behind a here-document, which is input and no command."""
        match = re.compile(r"<<-?\s*[\"']?(\w*)[\"']?").match(self.text, self.at)
        name = match[1] if match else ""
        end = re.compile(rf"^\s*{name}$", re.M).search(self.text, self.at + 2)
        self._move(end.end() if end and name else self.at + 2)

    def _skip_redirection(self, words: list[Raw]) -> None:
        """Moves behind a redirection, the next word, and takes a number right before it back."""
        if words and self.text[self.at - 1].isdecimal() and (words[-1].plain or "").isdecimal():
            words.pop()
        self.at += 1
        while self.text[self.at : self.at + 1] in ("<", ">", "&"):
            self.at += 1
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        if self.text[self.at : self.at + 1] not in ("\n", ""):
            self._word()

    def _word(self) -> Raw:
        pieces: list[Piece] = []
        line = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._move(self.at + 2)
            elif char == "\\":
                pieces.append(Piece(self.text[self.at + 1 : self.at + 2], self.line, quoted=True))
                self.at += 2
            elif char == "'":
                end = self._close(self.text.find("'", self.at + 1), "quote", line)
                parts = self.text[self.at + 1 : end].splitlines(keepends=True) or [""]
                pieces += (Piece(part, self.line + i, True) for i, part in enumerate(parts))
                self._move(end + 1)
            elif char == '"':
                self.at += 1
                pieces += self._double(line)
            elif char in "$`":
                pieces.append(self._expansion(quoted=False))
            elif char == "(" and pieces and pieces[-1].text.endswith("="):
                end = self._close(self._bracket(self.at, "(", ")"), "bracket", line)
                pieces.append(Piece(self.text[self.at : end + 1], self.line))
                self._move(end + 1)
            elif char.isspace() or char in ";&|()<>":
                break
            else:
                pieces.append(Piece(char, self.line))
                self.at += 1
        return Raw(tuple(pieces), line)

    def _double(self, line: int) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            if self.at >= len(self.text):
                raise SpecError(f"{self.file}:{line}", "a quote is not closed", "Close it.")
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                # Nothing in quotes is a word all the same.
                return pieces or [Piece("", line, quoted=True)]
            if self.text.startswith("\\\n", self.at):
                self._move(self.at + 2)
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                pieces.append(Piece(self.text[self.at + 1], self.line, quoted=True))
                self.at += 2
            elif char in "$`":
                pieces.append(self._expansion(quoted=True))
            else:
                pieces.append(Piece(char, self.line, quoted=True))
                self._move(self.at + 1)

    def _expansion(self, quoted: bool) -> Piece:
        """Returns an expansion as it is written and moves behind it."""
        start, line = self.at, self.line
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
        return Piece(self.text[start:end], line, quoted, expansion=True)

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


def _defined(words: list[Raw]) -> str:
    """Returns the name of the function that words before empty brackets define, if they do."""
    name = words[0].plain if len(words) == 1 else None
    return name if name is not None and re.fullmatch(r"[\w.:-]+", name) else ""
