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

    def clear(self) -> None:
        """Forget all, as when the segment is about to be read again."""
        self.close()
        self._disk.remove(self._path)
        self._index = AbortedIndex()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
