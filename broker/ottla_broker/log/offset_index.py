"""Sparse index from offset to file position: entries of int32 relative offset and int32 position. [P]

An entry names the *last* offset of a batch and the position where that batch begins, as Kafka ≥ 0.11 writes
it. Looking up an offset gives a position at or before the batch that holds it; the segment walks headers
from there.

Two forms. The active segment's index grows in memory (`OffsetIndex`) and is written out at roll and close;
after a dirty stop it is rebuilt from the log, so a flush need not write it. A sealed index
(`SealedOffsetIndex`) stays on disk and is searched by reading pages of it. Not by mmap: a mapped file that
shrinks meanwhile (a truncated volume, an operator's mistake) is a SIGBUS that kills the process, while a
short read is an error of one partition; and page reads come under the same bound of open files as all
others. One page is kept, so a sequential reader seldom reads the index at all.

Nothing here trusts its bytes: `BadIndex` is raised for entries that cannot be right, and the segment
rebuilds.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from ottla_broker.log.scan import CachedOnly, Readable
from ottla_core.ports.disk import File

ENTRY_BYTES = 8
#: Entries per page of a sealed index: 4 KB, one page of the page cache.
_PAGE_ENTRIES = 512
_BY_OFFSET, _BY_POSITION = 0, 1


class BadIndex(Exception):
    """The bytes cannot be an index of this segment. Never leaves the log package: the index is rebuilt."""


class IndexEntry(NamedTuple):
    last_offset: int
    position: int


def _numbers(data: bytes) -> array[int]:
    numbers = array("i")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _is_rising(numbers: array[int]) -> bool:
    before = numbers[:-1]
    return all(map(int.__lt__, before, numbers[1:]))


class OffsetIndex:
    """In memory, growing: two arrays of 32-bit numbers, searched without unpacking anything."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> OffsetIndex:
        if len(data) % ENTRY_BYTES:
            raise BadIndex(f"{len(data)} bytes are not whole entries of {ENTRY_BYTES}")
        made = cls(base_offset)
        numbers = _numbers(data)
        made._offsets, made._positions = numbers[0::2], numbers[1::2]
        made._check()
        return made

    def _check(self) -> None:
        if not self._offsets:
            return
        if self._offsets[0] < 0 or self._positions[0] < 0:
            raise BadIndex("an entry is negative")
        if not (_is_rising(self._offsets) and _is_rising(self._positions)):
            raise BadIndex("entries do not rise")

    def encode(self, from_entry: int = 0) -> bytes:
        """The entries from `from_entry` on, as they stand in the file."""
        numbers = array("i", bytes((len(self._offsets) - from_entry) * ENTRY_BYTES))
        numbers[0::2] = self._offsets[from_entry:]
        numbers[1::2] = self._positions[from_entry:]
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, last_offset: int, position: int) -> None:
        # Position first: a search by offset on another thread must find one for every offset it sees.
        self._positions.append(position)
        self._offsets.append(last_offset - self.base_offset)

    def last(self) -> IndexEntry | None:
        return self._entry(len(self._offsets) - 1)

    def floor(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        found = bisect_right(self._offsets, offset - self.base_offset)
        return self._positions[found - 1] if found else 0

    def at_or_before(self, position: int) -> IndexEntry | None:
        """The last entry whose batch begins at or before `position`."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget batches that end at `offset` or later."""
        keep = bisect_right(self._offsets, offset - self.base_offset - 1)
        del self._offsets[keep:], self._positions[keep:]

    def _entry(self, number: int) -> IndexEntry | None:
        if number < 0:
            return None
        return IndexEntry(self.base_offset + self._offsets[number], self._positions[number])


class SealedOffsetIndex:
    """On disk, searched page by page; the page used last is kept."""

    __slots__ = ("_count", "_file", "_page", "base_offset")

    def __init__(self, file: File, base_offset: int) -> None:
        self.base_offset = base_offset
        self._file = file
        self._count, rest = divmod(file.size(), ENTRY_BYTES)
        if rest:
            raise BadIndex(f"{file.size()} bytes are not whole entries of {ENTRY_BYTES}")
        #: Page number and its entries in one tuple: replaced whole, so that threads may search too.
        self._page: tuple[int, array[int], array[int]] | None = None

    def __len__(self) -> int:
        return self._count

    def last(self) -> IndexEntry | None:
        if not self._count:
            return None
        relative, position = _entries(self._file, self._count - 1, 1)
        return IndexEntry(self.base_offset + relative, position)

    def floor(self, offset: int, *, cached: bool = False) -> int:
        """`cached`: `ColdRead` where the disk would have to be waited for."""
        entry = self._search(_BY_OFFSET, offset - self.base_offset, cached)
        return entry.position if entry else 0

    def at_or_before(self, position: int, *, cached: bool = False) -> IndexEntry | None:
        return self._search(_BY_POSITION, position, cached)

    def close(self) -> None:
        self._file.close()

    def _search(self, column: int, value: int, cached: bool) -> IndexEntry | None:
        if not self._count:
            return None
        page = self._page
        if page is None or not self._covers(page, column, value):
            page = self._page = self._load(CachedOnly(self._file) if cached else self._file, column, value)
        _, offsets, positions = page
        found = bisect_right(positions if column else offsets, value) - 1
        if found < 0:
            return None
        return IndexEntry(self.base_offset + offsets[found], positions[found])

    def _covers(self, page: tuple[int, array[int], array[int]], column: int, value: int) -> bool:
        number, entries = page[0], page[2] if column else page[1]
        if number and value < entries[0]:
            return False
        is_last = (number + 1) * _PAGE_ENTRIES >= self._count
        # Each page carries the first entry of the next, which says where it ends.
        return is_last or value < entries[-1]

    def _load(self, file: Readable, column: int, value: int) -> tuple[int, array[int], array[int]]:
        pages = -(-self._count // _PAGE_ENTRIES)

        def first_of(page: int) -> int:
            return _entries(file, page * _PAGE_ENTRIES, 1)[column]

        key: Callable[[int], int] = first_of
        number = max(0, bisect_right(range(pages), value, key=key) - 1)
        first = number * _PAGE_ENTRIES
        numbers = _entries(file, first, min(_PAGE_ENTRIES + 1, self._count - first))
        offsets, positions = numbers[0::2], numbers[1::2]
        if offsets[0] < 0 or positions[0] < 0 or not (_is_rising(offsets) and _is_rising(positions)):
            raise BadIndex("entries do not rise")
        return number, offsets, positions


def _entries(file: Readable, first: int, count: int) -> array[int]:
    data = file.read(first * ENTRY_BYTES, count * ENTRY_BYTES)
    if len(data) != count * ENTRY_BYTES:
        raise BadIndex("the file is shorter than it was")
    return _numbers(data)
