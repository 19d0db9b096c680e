"""Recovery point of a log, and the files that the next fsync has to cover. [S]

The blocking part is returned as a function without arguments and runs on an offload thread, while the log continues:
it only calls `sync`. Its files are fixed on the loop, before. If the log is truncated while a flush runs, the
flush makes nothing durable beyond the truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla_broker.log.epochs import EpochCache
from ottla_broker.log.files import PARTITION_METADATA
from ottla_broker.log.segment import Segment
from ottla_core.ports.disk import Disk, File

_NO_LIMIT = 1 << 63


class Flushing:
    __slots__ = (
        "_disk",
        "_files",
        "_folder",
        "_limit",
        "_names",
        "_own_name",
        "_under_way",
        "claimed",
        "point",
    )

    def __init__(self, disk: Disk, folder: str, point: int) -> None:
        #: The recovery point: all below is durable.
        self.point = point
        #: The recovery point in the checkpoint file, which can be greater after a truncation.
        self.claimed = point
        self._disk = disk
        self._folder = folder
        #: Whether the folder's own name, and the partition.metadata in it, may not be durable. Creating a
        #: partition syncs nothing, and nobody tells the next process: so the first flush of each does it.
        self._own_name = True
        #: Names were made in the folder since it was last synced.
        self._names = True
        #: Small files that were written without fsync.
        self._files: list[str] = []
        self._under_way = 0
        self._limit = _NO_LIMIT

    def add_name(self) -> None:
        self._names = True

    def add_file(self, path: str) -> None:
        self._files.append(path)
        self._names = True

    def is_needed(self, end_offset: int) -> bool:
        """Whether a power loss now could take anything that was written."""
        return self.point < end_offset or bool(self._files)

    def cut(self, offset: int, *, restart: bool = False) -> None:
        """The log was truncated: everything after `offset` from now on is new."""
        self.point = offset if restart else min(self.point, offset)
        if self._under_way:
            self._limit = min(self._limit, offset)

    def work(self, segments: Sequence[Segment], epochs: EpochCache, upto: int) -> Callable[[], None]:
        touched: list[Segment] = []
        for segment in reversed(segments):
            if segment.base_offset < upto:
                touched.append(segment)
            if segment.base_offset <= self.point:
                break
        files = [file for segment in touched for file in segment.synced_files()]
        paths, self._files = self._files, []
        unsynced = epochs.take_unsynced()
        if unsynced is not None:
            paths.append(unsynced)
        folders = [self._folder] if self._names or unsynced is not None else []
        if self._own_name:
            paths.append(f"{self._folder}/{PARTITION_METADATA}")
            folders.append(self._folder.rpartition("/")[0] or ".")
        self._names = self._own_name = False
        self._under_way += 1
        return lambda: _sync_all(self._disk, files, paths, folders)

    @property
    def is_under_way(self) -> bool:
        return self._under_way > 0

    @property
    def is_overstated(self) -> bool:
        """After a truncation the checkpoint may include offsets that were written again and not flushed since."""
        return self.point < self.claimed

    def done(self, upto: int) -> None:
        self._under_way -= 1
        self.point = max(self.point, min(upto, self._limit))
        if not self._under_way:
            self._limit = _NO_LIMIT


def _sync_all(disk: Disk, files: Sequence[File], paths: Sequence[str], folders: Sequence[str]) -> None:
    for file in files:
        try:
            file.sync()
        except ValueError:
            # Closed meanwhile: its segment was removed, or the log was (which flushes by itself), or it is an index
            # that went back to memory and is checked before it is trusted again. There is nothing to keep.
            pass
    for path in paths:
        try:
            small = disk.open(path)
        except FileNotFoundError:
            continue  # Removed since, with its segment; or a folder without partition.metadata.
        try:
            small.sync()
        finally:
            small.close()
    for folder in folders:
        disk.sync_dir(folder)
