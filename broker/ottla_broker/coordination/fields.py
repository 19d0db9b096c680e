"""Reader and writer of Kafka's primitive fields. [P]

For records of internal topics and for the metadata of consumers; requests have their own, generated codecs. Any
error in the bytes is `Undecodable`, never another exception and never an allocation larger than the input.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_BYTE = struct.Struct(">b")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class Undecodable(ValueError):
    """The bytes do not have the expected format."""


class FieldReader:
    __slots__ = ("_at", "_data", "flexible")

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self.flexible = flexible

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def int8(self) -> int:
        return self._fixed(_BYTE)

    def int16(self) -> int:
        return self._fixed(_SHORT)

    def int32(self) -> int:
        return self._fixed(_INT)

    def int64(self) -> int:
        return self._fixed(_LONG)

    def text(self) -> str:
        made = self.text_or_none()
        if made is None:
            raise Undecodable("a required string is missing")
        return made

    def text_or_none(self) -> str | None:
        size = self.uvarint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise Undecodable(str(error)) from None

    def blob(self) -> bytes:
        size = self.uvarint() - 1 if self.flexible else self.int32()
        return b"" if size == -1 else self._take(size)

    def count(self) -> int:
        """The length of an array, each of whose elements has at least one byte."""
        number = self.count_or_none()
        if number is None:
            raise Undecodable("a required array is missing")
        return number

    def count_or_none(self) -> int | None:
        """The same for an array that may be null."""
        number = self.uvarint() - 1 if self.flexible else self.int32()
        if number == -1:
            return None
        if not 0 <= number <= self.left:
            raise Undecodable(f"{number} elements in {self.left} bytes")
        return number

    def int32s(self, number: int) -> tuple[int, ...]:
        return struct.unpack(f">{number}i", self._take(4 * number))

    def raw(self, size: int) -> bytes:
        return self._take(size)

    def tagged(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self._take(self.uvarint())
        return found

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Undecodable("a variable-length number is too long")

    def _fixed(self, form: struct.Struct) -> int:
        try:
            made: int = form.unpack_from(self._data, self._at)[0]
        except struct.error as error:
            raise Undecodable(str(error)) from None
        self._at += form.size
        return made

    def _take(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if size < 0 or end > len(self._data):
            raise Undecodable(f"{size} bytes are wanted where {self.left} are left")
        self._at = end
        return self._data[start:end]


class FieldWriter:
    __slots__ = ("_flexible", "_parts")

    def __init__(self, *, flexible: bool) -> None:
        self._flexible = flexible
        self._parts: list[bytes] = []

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def int8(self, value: int) -> None:
        self._parts.append(_BYTE.pack(value))

    def int16(self, value: int) -> None:
        self._parts.append(_SHORT.pack(value))

    def int32(self, value: int) -> None:
        self._parts.append(_INT.pack(value))

    def int64(self, value: int) -> None:
        self._parts.append(_LONG.pack(value))

    def text(self, value: str | None) -> None:
        if value is None:
            self._parts.append(b"\x00" if self._flexible else b"\xff\xff")
            return
        encoded = value.encode()
        length = _uvarint(len(encoded) + 1) if self._flexible else _SHORT.pack(len(encoded))
        self._parts.append(length + encoded)

    def blob(self, value: bytes) -> None:
        length = _uvarint(len(value) + 1) if self._flexible else _INT.pack(len(value))
        self._parts.append(length + value)

    def int32s(self, values: Sequence[int]) -> None:
        self._parts.append(struct.pack(f">{len(values)}i", *values))

    def count(self, number: int) -> None:
        """The length of an array; -1 for one that is null."""
        self._parts.append(_uvarint(number + 1) if self._flexible else _INT.pack(number))

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        """Tagged fields, in the order of their numbers; a version that is not flexible has none."""
        if self._flexible:
            self._parts.append(_uvarint(len(fields)))
            for tag in sorted(fields):
                self._parts.append(_uvarint(tag) + _uvarint(len(fields[tag])) + fields[tag])

    def made(self) -> bytes:
        return b"".join(self._parts)


def _uvarint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
