"""Sparse index from timestamp to offset: entries of int64 timestamp and int32 relative offset. [P]

An entry (t, o) says: no record before or in the batch that ends at offset o has a timestamp above t.
Timestamps rise strictly, so a look-up gives the last place before which nothing can be new enough. The last
entry of a sealed segment is its greatest timestamp, which is what retention by time asks for.

As with the offset index, the active one lives in memory and a sealed one is searched by reads; searches by
time are rare, so no page is kept.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from ottla_broker.log.offset_index import BadIndex
from ottla_core.ports.disk import File

ENTRY_BYTES = 12
_ENTRY = struct.Struct(">qi")


class TimeEntry(NamedTuple):
    timestamp_ms: int
    offset: int


def _is_rising(data: bytes | bytearray, base_offset: int) -> bool:
    last_time, last_offset = -1, -1
    for timestamp, relative in _ENTRY.iter_unpack(data):
        if timestamp <= last_time or relative < last_offset:
            return False
        last_time, last_offset = timestamp, relative
    return True


class TimeIndex:
    """In memory, growing; kept as the very bytes of the file."""

    __slots__ = ("_data", "_last", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._data = bytearray()
        self._last: TimeEntry | None = None

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> TimeIndex:
        if len(data) % ENTRY_BYTES:
            raise BadIndex(f"{len(data)} bytes are not whole entries of {ENTRY_BYTES}")
        if not _is_rising(data, base_offset):
            raise BadIndex("entries do not rise")
        made = cls(base_offset)
        made._data += data
        made._last = made._entry(len(made) - 1)
        return made

    def encode(self, from_entry: int = 0) -> bytes:
        return bytes(self._data[from_entry * ENTRY_BYTES :])

    def __len__(self) -> int:
        return len(self._data) // ENTRY_BYTES

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Note a new greatest timestamp; one that is not greater adds nothing."""
        last = self._last
        if timestamp_ms < 0 or (last is not None and timestamp_ms <= last.timestamp_ms):
            return
        self._data += _ENTRY.pack(timestamp_ms, offset - self.base_offset)
        self._last = TimeEntry(timestamp_ms, offset)

    def last(self) -> TimeEntry | None:
        return self._last

    def floor(self, timestamp_ms: int) -> TimeEntry | None:
        """The last entry at or before a time; None if all are later."""
        return self._entry(bisect_right(range(len(self)), timestamp_ms, key=self._timestamp) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget batches that end at `offset` or later."""
        keep = bisect_right(range(len(self)), offset - self.base_offset - 1, key=self._relative)
        del self._data[keep * ENTRY_BYTES :]
        self._last = self._entry(keep - 1)

    def _timestamp(self, number: int) -> int:
        return int(_ENTRY.unpack_from(self._data, number * ENTRY_BYTES)[0])

    def _relative(self, number: int) -> int:
        return int(_ENTRY.unpack_from(self._data, number * ENTRY_BYTES)[1])

    def _entry(self, number: int) -> TimeEntry | None:
        if number < 0:
            return None
        timestamp, relative = _ENTRY.unpack_from(self._data, number * ENTRY_BYTES)
        return TimeEntry(timestamp, self.base_offset + relative)


class SealedTimeIndex:
    """On disk, searched entry by entry."""

    __slots__ = ("_count", "_file", "base_offset")

    def __init__(self, file: File, base_offset: int) -> None:
        self.base_offset = base_offset
        self._file = file
        self._count, rest = divmod(file.size(), ENTRY_BYTES)
        if rest:
            raise BadIndex(f"{file.size()} bytes are not whole entries of {ENTRY_BYTES}")

    def __len__(self) -> int:
        return self._count

    def last(self) -> TimeEntry | None:
        return self._entry(self._count - 1)

    def floor(self, timestamp_ms: int) -> TimeEntry | None:
        return self._entry(bisect_right(range(self._count), timestamp_ms, key=self._timestamp) - 1)

    def close(self) -> None:
        self._file.close()

    def _timestamp(self, number: int) -> int:
        entry = self._entry(number)
        return entry.timestamp_ms if entry else -1

    def _entry(self, number: int) -> TimeEntry | None:
        if number < 0:
            return None
        data = self._file.read(number * ENTRY_BYTES, ENTRY_BYTES)
        if len(data) != ENTRY_BYTES:
            raise BadIndex("the file is shorter than it was")
        timestamp, relative = _ENTRY.unpack(data)
        if timestamp < 0 or relative < 0:
            raise BadIndex("an entry is negative")
        return TimeEntry(timestamp, self.base_offset + relative)
