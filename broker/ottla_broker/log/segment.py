"""One log file with its offset and time index, over the Disk port. [S]

Owned by `Log`, which decides when to roll, truncate and delete; a segment only knows its own files. The last
segment of a log is *active*: its indexes grow in memory. All others are *sealed*: their indexes are read
from disk, on demand.

Everything is opened on first use: a broker with ten thousand partitions starts without touching their
segments. Loading may happen on the loop or on an offload thread (searches by time run there), hence the
lock around it; the active segment is appended to and truncated only on the loop.

S1: an index is never trusted. It is checked against the log when it is loaded and rebuilt if it is missing,
    short or wrong. `CorruptMessage` means that the log file itself is damaged. That is remembered: reading the whole
    file again for everyone who asks for what is damaged would find the same.
S2: a look that is `cached` never waits for the disk: `ColdRead` means that the same look has to be taken on a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

from ottla_broker.log.aborted_file import AbortedFile
from ottla_broker.log.files import INDEX, KINDS, LOG, TIME_INDEX, TXN_INDEX, file_name
from ottla_broker.log.offset_index import ENTRY_BYTES, BadIndex, IndexEntry, OffsetIndex, SealedOffsetIndex
from ottla_broker.log.scan import SCAN_BYTES, BadBatch, CachedOnly, ColdRead, complaint, walk
from ottla_broker.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from ottla_broker.log.time_index import SealedTimeIndex, TimeEntry, TimeIndex
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage
from ottla_core.ports.disk import Buffer, Disk, File
from ottla_core.records.batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, header_at

INT32_MAX = (1 << 31) - 1
#: A sealed index that lacks this many entries at its end counts as truncated. Fewer can be missing for good
#: reasons: after a restart the distance to the next entry is counted from zero.
_MISSING_ENTRIES_MAX = 4


class Mark(NamedTuple):
    """What a segment needs to know of a batch to append."""

    last_offset: int
    max_timestamp: int
    size: int


class Rescan(NamedTuple):
    """What reading a whole segment gave: where good batches end, the next offset, and what stopped it."""

    end_position: int
    next_offset: int
    problem: str | None
    #: It is no more than the end of the file in the midst of a batch.
    is_cut_off: bool = False


class Segment:
    __slots__ = (
        "_aborted",
        "_file",
        "_first_timestamp",
        "_index",
        "_index_file",
        "_index_written",
        "_lock",
        "_max_timestamp",
        "_since_index_bytes",
        "_times",
        "_times_file",
        "_times_written",
        "base_offset",
        "created_ms",
        "cuts",
        "damage",
        "disk",
        "folder",
        "interval_bytes",
        "is_active",
        "is_retired",
        "suffix",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        interval_bytes: int,
        *,
        active: bool = False,
        suffix: str = "",
        created_ms: int = 0,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.is_active = active
        #: Renamed to `.deleted` or dropped: errors of work that was under way on it mean nothing.
        self.is_retired = False
        #: Number of truncations: results from before a truncation are no longer valid.
        self.cuts = 0
        #: What is wrong with the log file, once that is known.
        self.damage: str | None = None
        self.suffix = suffix
        #: When the segment was made or opened; the age of one that has no timestamps yet.
        self.created_ms = created_ms
        self._lock = threading.Lock()
        self._file: File | None = None
        self._aborted: AbortedFile | None = None
        self._index: OffsetIndex | SealedOffsetIndex | None = None
        self._times: TimeIndex | SealedTimeIndex | None = None
        self._index_file: File | None = None
        self._times_file: File | None = None
        #: Entries that are in the files already.
        self._index_written = 0
        self._times_written = 0
        self._since_index_bytes = 0
        #: Greatest timestamp and the last offset of its batch; None until known (sealed: on demand).
        self._max_timestamp: TimeEntry | None = None
        #: Timestamp of the first batch, which segment.ms counts from; None until known.
        self._first_timestamp: int | None = None

    @classmethod
    def create(
        cls, disk: Disk, folder: str, base_offset: int, interval_bytes: int, *, now_ms: int, suffix: str = ""
    ) -> Segment:
        """A new, empty, active segment. Its index files come when there is something to write in them."""
        made = cls(disk, folder, base_offset, interval_bytes, active=True, suffix=suffix, created_ms=now_ms)
        made._file = disk.open(made.path(LOG), create=True)
        if made._file.size():
            # A leftover of the same name from before a crash: what it holds was never part of this log.
            made._file.truncate(0)
        made._become_empty()
        return made

    def _become_empty(self) -> None:
        self._index = OffsetIndex(self.base_offset)
        self._times = TimeIndex(self.base_offset)
        self._index_written = self._times_written = self._since_index_bytes = 0
        self._max_timestamp = TimeEntry(NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None

    def path(self, kind: str) -> str:
        return f"{self.folder}/{file_name(self.base_offset, kind, self.suffix)}"

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)!r})"

    # ------------------------------------------------------------------ what is inside

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self.disk.open(self.path(LOG))
        return file

    @property
    def size(self) -> int:
        return self.file.size()

    @property
    def max_timestamp(self) -> TimeEntry:
        """Greatest timestamp and the last offset of its batch; (-1, base offset) if there is none."""
        known = self._max_timestamp
        if known is None:
            self.load()
            known = self._max_timestamp
            if known is None:
                raise CorruptMessage(f"{self.path(LOG)} could not be read.")
        return known

    @property
    def first_timestamp(self) -> int | None:
        """Timestamp of the first batch; None while the segment is empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self.header_at(0).max_timestamp
        return self._first_timestamp

    @property
    def aborted(self) -> AbortedFile:
        """Transactions whose abort markers are in this segment."""
        if self._aborted is None:
            self._aborted = AbortedFile(self.disk, self.path(TXN_INDEX), self.base_offset)
        return self._aborted

    @property
    def is_loaded(self) -> bool:
        """Whether the indexes are at hand, and may know more than their files."""
        return self._index is not None and self._times is not None and self._max_timestamp is not None

    @property
    def is_known(self) -> bool:
        """Whether size and timestamps are known without reading the disk."""
        file = self._file
        return (
            file is not None
            and self._max_timestamp is not None
            and (self._first_timestamp is not None or not file.size())
        )

    def learn(self) -> None:
        """Make it so. Blocks; runs anywhere."""
        self.load()
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self.header_at(0).max_timestamp

    def next_offset(self) -> int:
        """The offset after the last batch, found from the last index entry."""
        self.load()
        try:
            last = self._index.last() if self._index is not None else None
            found = self.base_offset
            for _, header in walk(self.file, last.position if last else 0, self.size):
                found = header.next_offset
        except BadBatch as error:
            raise CorruptMessage(f"{self.path(LOG)} has {error}.") from error
        return found

    def believe(self, newest: TimeEntry) -> None:
        """Take the greatest timestamp from a clean stop's notes, to answer for it without reading."""
        if self._max_timestamp is None:
            self._max_timestamp = newest

    def is_done(self, config: TopicConfig, size: int, newest_ms: int, last_offset: int, now_ms: int) -> bool:
        """Whether the log must begin a new segment before it writes these batches (Kafka's rules)."""
        if last_offset - self.base_offset > INT32_MAX:
            return True
        held = self.file.size()
        if not held:
            return False
        index, times = self._index, self._times
        if index is None or times is None:
            self.load()
            return self.is_done(config, size, newest_ms, last_offset, now_ms)
        since = self.first_timestamp
        waited = newest_ms - since if since is not None and since >= 0 else now_ms - self.created_ms
        overdue = waited - config.roll_after_ms
        return (
            held + size > config.segment_bytes
            # Asked at every append: what this segment's own jitter is matters only close to the end.
            or (overdue > -config.segment_jitter_ms and overdue > -self._jitter_ms(config))
            or (len(index) + 1) * ENTRY_BYTES > config.segment_index_bytes
            or (len(times) + 1) * TIME_ENTRY_BYTES > config.segment_index_bytes
        )

    def _jitter_ms(self, config: TopicConfig) -> int:
        """Taken off segment.ms: some number below segment.jitter.ms, another one for every segment of every log."""
        limit = min(config.segment_jitter_ms, config.roll_after_ms)
        return crc32(self.path(LOG).encode()) % limit if limit > 0 else 0

    # ------------------------------------------------------------------ writing

    def append(self, buffers: Sequence[Buffer], marks: Sequence[Mark]) -> int:
        """Append whole batches; `marks` describes them in order. Return the position of the first."""
        index, times, newest = self._index, self._times, self._max_timestamp
        if not isinstance(index, OffsetIndex) or not isinstance(times, TimeIndex) or newest is None:
            self.load()
            return self.append(buffers, marks)
        first = position = self.file.append(buffers)
        since = self._since_index_bytes
        for last_offset, timestamp, size in marks:
            if timestamp > newest.timestamp_ms:
                newest = self._max_timestamp = TimeEntry(timestamp, last_offset)
            if since > self.interval_bytes:
                index.append(last_offset, position)
                times.maybe_append(newest.timestamp_ms, newest.offset)
                since = 0
            position += size
            since += size
        self._since_index_bytes = since
        if self._first_timestamp is None:
            self._first_timestamp = marks[0].max_timestamp
        return first

    def write_indexes(self, *, final: bool = False) -> None:
        """Bring the index files of the active segment up to date. `final` adds the closing time entry."""
        self.load()
        index, times, newest = self._index, self._times, self._max_timestamp
        if not isinstance(index, OffsetIndex) or not isinstance(times, TimeIndex):
            return
        if final and newest is not None:
            times.maybe_append(newest.timestamp_ms, newest.offset)
        if self._index_file is None:
            self._index_file = self.disk.open(self.path(INDEX), create=True)
        if self._times_file is None:
            self._times_file = self.disk.open(self.path(TIME_INDEX), create=True)
        _continue(self._index_file, self._index_written * ENTRY_BYTES, index.encode(self._index_written))
        _continue(self._times_file, self._times_written * TIME_ENTRY_BYTES, times.encode(self._times_written))
        self._index_written, self._times_written = len(index), len(times)

    def seal(self) -> None:
        """Stop being the active segment: indexes go to disk and out of memory."""
        self.write_indexes(final=True)
        self.is_active = False
        self._index = self._times = None

    def synced_files(self) -> list[File]:
        """The files an fsync of this segment covers."""
        aborted = self._aborted.file if self._aborted is not None else None
        return [f for f in (self._file, self._index_file, self._times_file, aborted) if f is not None]

    # ------------------------------------------------------------------ finding

    def header_at(self, position: int, *, cached: bool = False) -> BatchHeader:
        """The header at a position that is believed to be a batch's; CorruptMessage if it cannot be one."""
        file = self.file
        data = CachedOnly(file).read(position, HEADER_BYTES) if cached else file.read(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            raise self.damaged(f"no batch at byte {position}")
        header = header_at(data)
        problem = complaint(header, file.size() - position)
        if problem is not None:
            raise self.damaged(f"{problem} at byte {position}")
        return header

    def locate(self, offset: int, *, cached: bool = False) -> tuple[int, BatchHeader] | None:
        """The first batch that ends at or after `offset`; None if all end before it."""
        try:
            return self._locate(offset, cached)
        except (BadIndex, BadBatch) as error:
            # S1. The index may point into the middle of a batch; if a fresh one fails too, the log is
            # damaged.
            if self.damage is not None:
                raise CorruptMessage(self.damage) from error
            if cached:
                raise ColdRead from error
            self.rebuild(keep=isinstance(error, BadBatch))
        try:
            return self._locate(offset, cached)
        except (BadIndex, BadBatch) as error:
            raise self.damaged(str(error)) from error

    def _locate(self, offset: int, cached: bool) -> tuple[int, BatchHeader] | None:
        self.load()
        index, start = self._index, 0
        if isinstance(index, SealedOffsetIndex):
            start = index.floor(offset, cached=cached)
        elif index is not None:
            start = index.floor(offset)
        for position, header in walk(CachedOnly(self.file) if cached else self.file, start, self.size):
            if position == start and start and header.base_offset > offset:
                raise BadIndex("an entry points behind its offset")
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
        return None

    def boundary_before(self, position: int, *, cached: bool = False) -> IndexEntry | None:
        """The last batch start at or before `position` that the index knows."""
        self.load()
        index = self._index
        try:
            if isinstance(index, SealedOffsetIndex):
                return index.at_or_before(position, cached=cached)
            return index.at_or_before(position) if index is not None else None
        except BadIndex as error:
            if self.damage is not None:
                return None
            if cached:
                raise ColdRead from error
            self.rebuild()
            return self.boundary_before(position)

    def find_time(self, timestamp_ms: int, from_offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch, not wholly before `from_offset`, with a timestamp of `timestamp_ms` or later."""
        self.load()
        try:
            floor = self._times.floor(timestamp_ms) if self._times is not None else None
            first = max(from_offset, floor.offset if floor else self.base_offset)
            start = self._index.floor(first) if self._index is not None else 0
            for position, header in walk(self.file, start, self.size):
                if header.max_timestamp >= timestamp_ms and header.last_offset >= from_offset:
                    return position, header
        except BadIndex:
            self.rebuild()
            return self.find_time(timestamp_ms, from_offset)
        except BadBatch as error:
            raise self.damaged(str(error)) from error
        return None

    def damaged(self, what: str, *, cuts: int | None = None) -> CorruptMessage:
        """Record damage of the log file; return the error to raise.

        `cuts`, for threads: the number of truncations when they started. If it was truncated or removed since, they
        have seen that, and no damage.
        """
        damage = f"{self.path(LOG)} has {what}."
        if cuts is None or (cuts == self.cuts and not self.is_retired):
            self.damage = damage
        return CorruptMessage(damage)

    # ------------------------------------------------------------------ loading and rebuilding

    def load(self) -> None:
        """Make the indexes usable. Cheap when they are."""
        if self.is_loaded:
            return
        with self._lock:
            if self.is_loaded:
                return
            try:
                self._load_checked()
            except (BadIndex, BadBatch, FileNotFoundError):
                self._rebuild()

    def _load_checked(self) -> None:
        file = self.file
        index_file, times_file = self.disk.open(self.path(INDEX)), self.disk.open(self.path(TIME_INDEX))
        index: OffsetIndex | SealedOffsetIndex
        times: TimeIndex | SealedTimeIndex
        if self.is_active:
            index = OffsetIndex.decode(self.base_offset, index_file.read(0, index_file.size()))
            times = TimeIndex.decode(self.base_offset, times_file.read(0, times_file.size()))
        else:
            index = SealedOffsetIndex(index_file, self.base_offset)
            times = SealedTimeIndex(times_file, self.base_offset)
        last, newest = index.last(), times.last() or TimeEntry(NO_TIMESTAMP, self.base_offset)
        if newest.timestamp_ms != NO_TIMESTAMP:
            self._check_newest(index, newest)
        since, missing, checked = 0, 0, last is None
        for _, header in walk(file, last.position if last else 0, file.size()):
            if not checked and last is not None and header.last_offset != last.last_offset:
                raise BadIndex("the last entry is not a batch's")
            checked = True
            if header.max_timestamp > newest.timestamp_ms:
                if not self.is_active:
                    raise BadIndex("the greatest timestamp is missing")
                newest = TimeEntry(header.max_timestamp, header.last_offset)
            if since > self.interval_bytes:
                missing, since = missing + 1, 0
            since += header.size
        if not checked or missing > _MISSING_ENTRIES_MAX:
            raise BadIndex("entries are missing or point past the log")
        self._index_file, self._times_file = index_file, times_file
        self._index_written, self._times_written = len(index), len(times)
        self._since_index_bytes, self._max_timestamp = since, newest
        self._index, self._times = index, times

    def _check_newest(self, index: OffsetIndex | SealedOffsetIndex, newest: TimeEntry) -> None:
        """The last time entry decides when retention drops the segment: its batch must be there and have it."""
        for _, header in walk(self.file, index.floor(newest.offset), self.size):
            if header.last_offset >= newest.offset:
                if header.last_offset == newest.offset and header.max_timestamp == newest.timestamp_ms:
                    return
                break
        raise BadIndex("the last time entry is not a batch's")

    def rebuild(self, *, keep: bool = False) -> None:
        """Rebuild both indexes from the log; `keep` the old ones if that is damaged, since they know what lies
        behind the damage."""
        if self.damage is not None:
            raise CorruptMessage(self.damage)
        with self._lock:
            self._rebuild(keep=keep)

    def _rebuild(self, *, keep: bool = False) -> None:
        cuts = self.cuts
        found = self.rescan(check_crc=False, keep=keep)
        if found.problem is not None:
            raise self.damaged(f"{found.problem} at byte {found.end_position}", cuts=cuts)
        if not self.is_active:
            self.write_indexes(final=True)
            self._index = self._times = None
            try:
                self._load_checked()
            except (BadIndex, BadBatch) as error:
                raise self.damaged(str(error), cuts=cuts) from error

    def rescan(
        self,
        *,
        check_crc: bool,
        on_batch: Callable[[int, BatchHeader], object] | None = None,
        keep: bool = False,
    ) -> Rescan:
        """Read the whole log file, building both indexes in memory, up to its end or the first bad batch.

        A batch is bad also if its offsets do not continue those before it, or if `on_batch` says so by
        `BadBatch`. `keep`: then the indexes stay as they were.
        """
        index, times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        newest, since, end, next_offset = TimeEntry(NO_TIMESTAMP, self.base_offset), 0, 0, self.base_offset
        problem: str | None = None
        is_cut_off, file = False, self.file
        try:
            for position, header in walk(file, 0, file.size(), check_crc=check_crc, chunk_bytes=SCAN_BYTES):
                if (
                    not next_offset
                    <= header.base_offset
                    <= header.last_offset
                    <= self.base_offset + INT32_MAX
                ):
                    raise BadBatch(position, f"offset {header.base_offset} after {next_offset - 1}")
                if on_batch is not None:
                    on_batch(position, header)
                if header.max_timestamp > newest.timestamp_ms:
                    newest = TimeEntry(header.max_timestamp, header.last_offset)
                if since > self.interval_bytes:
                    index.append(header.last_offset, position)
                    times.maybe_append(newest.timestamp_ms, newest.offset)
                    since = 0
                since += header.size
                end, next_offset = position + header.size, header.next_offset
        except BadBatch as error:
            problem, is_cut_off = error.reason, error.is_cut_off
        if problem is None or not keep:
            self._become_empty()
            self._index, self._times, self._max_timestamp = index, times, newest
            self._since_index_bytes = since
        return Rescan(end, next_offset, problem, is_cut_off)

    # ------------------------------------------------------------------ cutting and going

    def truncate_to(self, offset: int) -> int | None:
        """Truncate: drop all batches that end at `offset` or later. The truncation is synced, or old batches could
        come back after new ones after a power loss. Return the base offset of the first one dropped."""
        found = self.locate(offset)
        if found is None:
            return None
        position, header = found
        index, times = self._index, self._times
        self.file.truncate(position)
        self.file.sync()
        # After the truncation: damage that a thread finds meanwhile is either not recorded or cleared now.
        self.cuts += 1
        self.damage = None
        self.aborted.truncate_to(offset)
        if not isinstance(index, OffsetIndex) or not isinstance(times, TimeIndex):
            return header.base_offset
        index.truncate_to(offset)
        times.truncate_to(offset)
        self._index_written = min(self._index_written, len(index))
        self._times_written = min(self._times_written, len(times))
        self._settle_after_cut(index, times)
        return header.base_offset

    def _settle_after_cut(self, index: OffsetIndex, times: TimeIndex) -> None:
        """The greatest timestamp may lie behind the last time entry: look from there on."""
        newest, since = times.last() or TimeEntry(NO_TIMESTAMP, self.base_offset), 0
        for _, header in walk(self.file, index.floor(newest.offset), self.size):
            if header.max_timestamp > newest.timestamp_ms:
                newest = TimeEntry(header.max_timestamp, header.last_offset)
            since += header.size
        self._max_timestamp, self._since_index_bytes = newest, since
        if not self.size:
            self._first_timestamp = None

    def reactivate(self) -> None:
        """A sealed segment becomes the last one again: its indexes go back to memory."""
        if self.is_active:
            return
        self._drop_indexes()
        self.is_active = True
        self.load()

    def _drop_indexes(self) -> None:
        for file in (self._index_file, self._times_file):
            if file is not None:
                file.close()
        self._index = self._times = None
        self._index_file = self._times_file = None
        self._index_written = self._times_written = 0

    def close(self) -> None:
        """Release the files. The segment may be used again: they are reopened."""
        self._drop_indexes()
        if self._aborted is not None:
            self._aborted.close()
            self._aborted = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._max_timestamp = self._first_timestamp = self.damage = None

    def relocate(self, folder: str) -> None:
        """Its folder has another name now. What the active one has in memory stays; nothing may be unsynced."""
        self.folder = folder
        if not self.is_active:
            self._drop_indexes()
        for file in (self._file, self._index_file, self._times_file):
            if file is not None:
                file.close()
        self._file = self._index_file = self._times_file = None
        if self._aborted is not None:
            self._aborted.close()
            self._aborted = None
        if self.is_active:
            self.file.size()  # Open: a flush syncs the open files.

    def remove(self) -> None:
        """Remove all files of this segment, the log file first: what is left then belongs to nothing."""
        self.is_retired = True
        self.close()
        for kind in KINDS:
            self.disk.remove(self.path(kind))

    def all_paths(self) -> list[str]:
        """Where its files are, if they are there."""
        return [self.path(kind) for kind in KINDS]

    def rename_to(self, suffix: str, *, keep: Sequence[str] = (), log_first: bool = False) -> list[str]:
        """Give all files of this segment another suffix; the log file last, so that a crash in between leaves
        a segment without indexes rather than indexes without a segment. Return the new paths."""
        self.close()
        kinds = KINDS if log_first else KINDS[::-1]
        old, self.suffix = [self.path(kind) for kind in kinds], suffix
        new = [self.path(kind) for kind in kinds]
        made: list[str] = []
        for source, target in zip(old, new, strict=True):
            if not source.endswith(tuple(keep)) and self.disk.exists(source):
                self.disk.rename(source, target)
                made.append(target)
        return made


def _continue(file: File, size: int, data: bytes) -> None:
    """Append `data` behind the first `size` bytes; what else is there is of another time."""
    if file.size() > size:
        file.truncate(size)
    if data:
        file.append([data])
