"""A record reader in plain Python, for the few batches that the compiled reader refuses. [P]

Called by `records.codec` only. Header names are UTF-8 by definition, but a producer may send any bytes, and Kafka's
brokers store them; like Java, we show invalid bytes as replacement characters. Refusing them would block
compaction of a partition because of one header.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla_core.errors import CorruptMessage
from ottla_core.records.batch import BatchHeader

_Fields = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class _Cursor:
    """Position in a record, and its end."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def number(self) -> int:
        """A zigzag varint of up to 64 bits."""
        value = shift = 0
        while True:
            if self.at >= self.end or shift > 63:
                raise CorruptMessage("A number in a record is cut off or too long.")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def size(self, least: int = -1) -> int:
        size = self.number()
        if not least <= size <= self.end - self.at:
            raise CorruptMessage(f"A record declares {size} bytes where {self.end - self.at} are left.")
        return size

    def bytes_or_none(self) -> bytes | None:
        size = self.size()
        if size < 0:
            return None
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def text(self) -> str:
        size = self.size(least=0)
        self.at += size
        return str(self.data[self.at - size : self.at], "utf-8", "replace")


def read_leniently(records: memoryview, header: BatchHeader) -> Iterator[_Fields]:
    """Offset, timestamp, key, value and headers of each uncompressed record; CorruptMessage if they are not valid."""
    cursor = _Cursor(records, 0, len(records))
    for _ in range(header.count):
        size = cursor.size(least=0)
        inner = _Cursor(records, cursor.at, cursor.at + size)
        cursor.at += size
        inner.number()  # attributes: unused
        timestamp = header.base_timestamp + inner.number()
        offset = header.base_offset + inner.number()
        key, value = inner.bytes_or_none(), inner.bytes_or_none()
        headers = [(inner.text(), inner.bytes_or_none()) for _ in range(inner.size(least=0))]
        if inner.at != inner.end:
            raise CorruptMessage(f"A record has {inner.end - inner.at} bytes too many.")
        yield offset, header.max_timestamp if header.is_log_append_time else timestamp, key, value, headers
    if cursor.at != cursor.end:
        raise CorruptMessage(f"A batch has {cursor.end - cursor.at} bytes after its last record.")
