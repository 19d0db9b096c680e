"""The `.txnindex` file of one segment: the aborted index on disk. [S]

Most segments have none: the file is made with the first abort. Read on first use, kept in memory then (34 bytes per
aborted transaction). Damage is `CorruptAbortedIndex`; after a dirty stop the segment is then read again.
"""

from __future__ import annotations

from ottla_broker.log.aborted import AbortedIndex, AbortedTransaction
from ottla_core.ports.disk import Disk, File


class AbortedFile:
    __slots__ = ("_base_offset", "_disk", "_file", "_index", "_path")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self._path = path
        self._base_offset = base_offset
        self._index: AbortedIndex | None = None
        self._file: File | None = None

    @property
    def file(self) -> File | None:
        """The open file, if this process has written to it."""
        return self._file

    def load(self) -> AbortedIndex:
        if self._index is None:
            try:
                data = self._disk.read_file(self._path)
            except FileNotFoundError:
                data = b""
            self._index = AbortedIndex.decode(data, self._base_offset)
        return self._index

    def snapshot(self) -> AbortedIndex:
        """For a thread beside appends: it must not keep what it loads, because an append may load it as well."""
        loaded = self._index
        return AbortedFile(self._disk, self._path, self._base_offset).load() if loaded is None else loaded

    def append(self, entry: AbortedTransaction) -> None:
        data = self.load().append(entry)
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        self._file.append([data])

    def truncate_to(self, offset: int) -> None:
        index = self.load()
        before, size = len(index), index.truncate_to(offset)
        if len(index) != before:
            if self._file is None:
                self._file = self._disk.open(self._path)
            self._file.truncate(size)

    def replace(self, index: AbortedIndex) -> None:
        """What a scan of the segment has found. A file that says so already stays as it is: it may lie below the
        recovery point, and no flush would sync it again. Another one is replaced at once, atomically and durably."""
        self.close()
        self._index = index
        data = index.encode()
        try:
            before = self._disk.read_file(self._path)
        except FileNotFoundError:
            before = b""
        if data != before:
            self._disk.write_file(self._path, data)
        if data:
            # What is above the recovery point may not be durable: the next flush syncs open files.
            self._file = self._disk.open(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
