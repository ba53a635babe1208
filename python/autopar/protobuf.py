"""The wire format of Protocol Buffers, without descriptors: a message is its fields by number.

Source: https://protobuf.dev/programming-guides/encoding/. The caller knows what a field's number
means and which type it has; a field that has another one, or bytes that end too soon, are refused
with the place of the byte.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autopar.errors import SpecError
from autopar.wire import join

VARINT, FIXED64, CHUNK, FIXED32 = 0, 1, 2, 5
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """One message inside a file.

    Attributes:
        data: The whole file.
        values: The values of each field in the order of the file: a whole number, or where the
            bytes of a text, a message or a packed list begin and end.
        path: Where the message stands, for errors; a file as `sh.ckpt: `.
    """

    data: memoryview
    values: dict[int, list[tuple[int, int | Span]]]
    path: str

    def integers(self, number: int, name: str) -> Iterator[int]:
        """Yields the signed whole numbers of a field, packed or not."""
        for kind, value in self.values.get(number, ()):
            if isinstance(value, int):
                self._expect(kind, VARINT, name)
                yield _signed(value)
            else:
                at, end = value
                while at < end:
                    item, at = _varint(self.data, at, end, join(self.path, name))
                    yield _signed(item)

    def integer(self, number: int, name: str, default: int | None = None) -> int:
        """Returns the last whole number of a field; without one the default, or it is an error."""
        found = list(self.integers(number, name))
        if found:
            return found[-1]
        if default is None:
            raise SpecError(
                join(self.path, name), "missing", "The file is damaged or of another kind."
            )
        return default

    def floats(self, number: int, name: str) -> Iterator[float]:
        """Yields the 32-bit floating-point numbers of a field, packed or not."""
        return self._fixed(number, name, FIXED32, 4, "f")

    def doubles(self, number: int, name: str) -> Iterator[float]:
        """Yields the 64-bit floating-point numbers of a field, packed or not."""
        return self._fixed(number, name, FIXED64, 8, "d")

    def chunks(self, number: int, name: str) -> Iterator[memoryview]:
        """Yields the byte strings of a field."""
        for kind, value in self.values.get(number, ()):
            if isinstance(value, int):
                raise self._wrong(name, f"wire type {kind} where {CHUNK} is meant")
            yield self.data[value[0] : value[1]]

    def texts(self, number: int, name: str) -> Iterator[str]:
        """Yields the texts of a field."""
        for chunk in self.chunks(number, name):
            try:
                yield bytes(chunk).decode()
            except UnicodeDecodeError:
                raise self._wrong(name, "not UTF-8") from None

    def text(self, number: int, name: str, default: str | None = None) -> str:
        """Returns the last text of a field; without one the default, or it is an error."""
        found = list(self.texts(number, name))
        if found:
            return found[-1]
        if default is None:
            raise SpecError(
                join(self.path, name), "missing", "The file is damaged or of another kind."
            )
        return default

    def messages(self, number: int, name: str) -> Iterator["Message"]:
        """Yields the messages of a field."""
        for index, (kind, value) in enumerate(self.values.get(number, ())):
            if isinstance(value, int):
                raise self._wrong(name, f"wire type {kind} where {CHUNK} is meant")
            yield _message(self.data, *value, f"{join(self.path, name)}[{index}]")

    def message(self, number: int, name: str) -> "Message | None":
        """Returns the last message of a field, if there is one."""
        found = list(self.messages(number, name))
        return found[-1] if found else None

    def _fixed(self, number: int, name: str, wire: int, size: int, code: str) -> Iterator[float]:
        """Yields numbers of a fixed size, packed or not."""
        for kind, value in self.values.get(number, ()):
            if isinstance(value, int):
                self._expect(kind, wire, name)
                yield struct.unpack(f"<{code}", value.to_bytes(size, "little"))[0]
            else:
                at, end = value
                if (end - at) % size:
                    what = f"{end - at} bytes are no list of numbers of {size} bytes"
                    raise self._wrong(name, what)
                yield from struct.unpack(f"<{(end - at) // size}{code}", self.data[at:end])

    def __contains__(self, number: int) -> bool:
        return number in self.values

    def _expect(self, kind: int, wanted: int, name: str) -> None:
        if kind != wanted:
            raise self._wrong(name, f"wire type {kind} where {wanted} is meant")

    def _wrong(self, name: str, what: str) -> SpecError:
        return SpecError(join(self.path, name), what, "The file is damaged or of another kind.")


def read(data: bytes | memoryview, path: str) -> Message:
    """Returns the message that a file holds; what lies in it is read when it is asked for.

    Raises:
        SpecError: The bytes are no message.

    Example:
        >>> list(read(bytes([8, 2, 8, 1]), "sh.ckpt: ").integers(1, "dim"))
        [2, 1]
    """
    view = memoryview(data)
    return _message(view, 0, len(view), path)


def integer(number: int, value: int) -> bytes:
    """Returns a field with a whole number; a negative one takes ten bytes.

    Example:
        >>> integer(1, 2).hex(), integer(1, -1).hex()
        ('0802', '08ffffffffffffffffff01')
    """
    return _spell(number << 3 | VARINT) + _spell(value % 2**64)


def integers(number: int, values: Iterable[int]) -> bytes:
    """Returns the fields of a list of whole numbers, not packed, as proto2 writes it."""
    return b"".join(integer(number, value) for value in values)


def chunk(number: int, value: bytes) -> bytes:
    """Returns a field with bytes: a text or a message.

    Example:
        >>> chunk(1, b"w1").hex()
        '0a027731'
    """
    return _spell(number << 3 | CHUNK) + _spell(len(value)) + value


def _message(data: memoryview, at: int, end: int, path: str) -> Message:
    values: dict[int, list[tuple[int, int | Span]]] = {}
    while at < end:
        start = at
        key, at = _varint(data, at, end, path)
        number, kind = key >> 3, key & 7
        value: int | Span
        if kind == VARINT:
            value, at = _varint(data, at, end, path)
        else:
            if kind == CHUNK:
                size, at = _varint(data, at, end, path)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
            else:
                what = f"byte {start} begins a field of wire type {kind}"
                raise SpecError(
                    path.rstrip(": "), what, "The file is damaged or no protobuf of this kind."
                )
            if size > end - at:
                what = f"truncated: the field at byte {start} has {size} bytes, {end - at} follow"
                raise SpecError(path.rstrip(": "), what, "Copy the whole file.")
            fixed = kind != CHUNK
            value = int.from_bytes(data[at : at + size], "little") if fixed else (at, at + size)
            at += size
        if number == 0:
            what = f"byte {start} begins a field of number 0"
            raise SpecError(
                path.rstrip(": "), what, "The file is damaged or no protobuf of this kind."
            )
        values.setdefault(number, []).append((kind, value))
    return Message(data, values, path)


def _varint(data: memoryview, at: int, end: int, path: str) -> tuple[int, int]:
    """Returns a number of seven bits a byte, lowest first, and where it ends."""
    value = shift = 0
    for place in range(at, min(at + 10, end)):
        value |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return value % 2**64, place + 1
        shift += 7
    if end - at < 10:
        raise SpecError(
            path.rstrip(": "),
            f"truncated: a number at byte {at} has no end",
            "Copy the whole file.",
        )
    what = f"a number at byte {at} is longer than ten bytes"
    raise SpecError(path.rstrip(": "), what, "The file is damaged or no protobuf of this kind.")


def _spell(value: int) -> bytes:
    spelled = bytearray()
    while value > 0x7F:
        spelled.append(value & 0x7F | 0x80)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)


def _signed(value: int) -> int:
    """Returns a number of 64 bits with its sign."""
    return value - 2**64 if value >= 2**63 else value
