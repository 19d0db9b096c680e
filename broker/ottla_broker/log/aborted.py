"""The aborted transactions of one segment: Kafka's `.txnindex`, as entries in memory. [P]

An entry belongs to the segment that holds the abort marker; its records may lie in earlier segments. A reader
with read_committed gets the entries that overlap what it fetched and skips those producers' records.

The segment owns the file: it writes what `append` returns and truncates the file to what `truncate_to` returns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
ENTRY_BYTES = _ENTRY.size


class CorruptAbortedIndex(ValueError):
    """The file is damaged; rebuild it from the log."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    #: The abort marker's offset.
    last_offset: int
    #: The last stable offset when the marker was written: nothing that began before it was still open. A
    #: search may stop at the first entry whose last stable offset is beyond what is read.
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(_VERSION, *self)


class AbortedIndex:
    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries: list[AbortedTransaction] = []
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def append(self, entry: AbortedTransaction) -> bytes:
        """Add an entry, in the order of the markers; return the bytes to append to the file."""
        if self._entries and entry.last_offset <= self._entries[-1].last_offset:
            raise CorruptAbortedIndex(
                f"An abort marker at {entry.last_offset} cannot follow one at "
                f"{self._entries[-1].last_offset}."
            )
        self._entries.append(entry)
        return entry.encode()

    def truncate_to(self, offset: int) -> int:
        """Remove markers at or after `offset`; return the new size of the file."""
        while self._entries and self._entries[-1].last_offset >= offset:
            self._entries.pop()
        return len(self._entries) * ENTRY_BYTES

    def collect(self, first: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Aborted transactions with records in [first, end), and whether later segments cannot add any."""
        found = []
        for entry in self._entries:
            if entry.last_offset >= first and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def encode(self) -> bytes:
        return b"".join(entry.encode() for entry in self._entries)

    @classmethod
    def decode(cls, data: bytes, base_offset: int = 0) -> AbortedIndex:
        """Read a whole file. A marker before the segment's base offset, or half an entry, is corruption."""
        if len(data) % ENTRY_BYTES:
            raise CorruptAbortedIndex(f"{len(data)} bytes are not a number of {ENTRY_BYTES}-byte entries.")
        made = cls()
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise CorruptAbortedIndex(f"Version {version} of an aborted transaction is unknown.")
            entry = AbortedTransaction(*fields)
            if entry.last_offset < base_offset or entry.first_offset > entry.last_offset:
                raise CorruptAbortedIndex(f"{entry} cannot be in a segment that begins at {base_offset}.")
            made.append(entry)
        return made
