"""Opens a partition's folder after a clean or an unclean stop. [S]

Three ways in, each with less to trust:

* a clean stop whose facts (`CleanStop`) match the folder: nothing is read but a directory and one file's size;
* a clean stop without facts: the end of the active segment is walked, and producers replayed from a snapshot;
* an unclean stop: every segment that reaches beyond the recovery point is read, every CRC checked, and the log
  truncated at the first bad batch (L1 in `log`). Indexes, producer state, aborted index and epochs are rebuilt from
  what was read. Then all of it is synced, so that the recovery point is the end again: a topic that acknowledges
  after fsync may show all it has.

R1: leader epochs never fall along a log. An old batch that reappears behind a newer one (a truncation that the
    disk forgot) is bad, even if its CRC is right.
R2: a segment ends where the next one begins. A tail that was lost on a batch boundary leaves no bad batch to
    see; what comes after it would be served with a hole before it. (Compaction keeps the last batch of every
    segment it writes, if need be without records.) Synced segments are checked for that too: one between them may
    have been deleted.
R3: facts that do not match the segments mean that files were changed while the broker was stopped. Then the whole log
    is scanned, and its directory is torn. Only missing first segments are accepted without repair, because no other
    start can tell them from what retention removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla_broker.log.aborted import AbortedIndex, CorruptAbortedIndex
from ottla_broker.log.checkpoint import BadCheckpoint
from ottla_broker.log.epochs import EpochCache
from ottla_broker.log.files import LEADER_EPOCHS, LOG, file_name, parse_name
from ottla_broker.log.leftovers import settle
from ottla_broker.log.producers import ProducerStates
from ottla_broker.log.scan import BadBatch, walk
from ottla_broker.log.segment import Segment
from ottla_broker.log.snapshots import drop_snapshots, drop_strays, load_snapshot, replay, replay_batch
from ottla_broker.log.time_index import TimeEntry
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage
from ottla_core.ports.disk import Disk
from ottla_core.records.batch import BatchHeader


def segment_bases(names: Sequence[str]) -> list[int]:
    """Base offsets of the segments among the file names of a folder."""
    return sorted(p.base_offset for n in names if (p := parse_name(n)) and p.kind == LOG and not p.suffix)


class CleanStop(NamedTuple):
    """What a log knew when it was closed cleanly; saves the next start all reading."""

    end_offset: int
    #: Number of segments.
    segments: int
    active_base: int
    active_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    #: Producers in the snapshot at the end offset; with none there is no such file.
    producers: int

    def matches(self, disk: Disk, folder: str, names: Sequence[str]) -> bool:
        """R3: whether these are the segments of that stop. Reads no file."""
        bases = segment_bases(names)
        if len(bases) != self.segments or bases[-1] != self.active_base:
            return False
        file = disk.open(f"{folder}/{file_name(self.active_base, LOG)}")
        try:
            return file.size() == self.active_bytes
        finally:
            file.close()


class Loaded(NamedTuple):
    segments: list[Segment]
    epochs: EpochCache
    producers: ProducerStates
    start_offset: int
    end_offset: int
    recovery_point: int
    #: Bytes scanned after an unclean stop, and bytes truncated then.
    scanned_bytes: int = 0
    cut_bytes: int = 0


def load(
    disk: Disk,
    path: str,
    config: TopicConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start: int,
    now_ms: int,
    facts: CleanStop | None = None,
    on_damage: Callable[[], None] = lambda: None,
) -> Loaded:
    """`on_damage` is called before truncating anything that a killed process does not leave behind."""
    try:
        names = settle(disk, path, disk.list(path))
    except FileNotFoundError:
        disk.make_dirs(path)
        names = []
    bases = segment_bases(names)
    if facts is not None and not facts.matches(disk, path, names):
        on_damage()  # R3
        clean, recovery_point = False, 0
    epochs = EpochCache(disk, path, exists=LEADER_EPOCHS in names)
    if not bases:
        return _begin(disk, path, config, epochs, names, log_start, now_ms)
    drop_strays(disk, path, names, bases)
    interval = config.index_interval_bytes
    segments = [Segment(disk, path, base, interval, created_ms=now_ms) for base in bases]
    segments[-1].is_active = True
    loader = _Loader(disk, path, segments, epochs, names, now_ms, on_damage)
    end, durable = None, None
    if clean:
        end = loader.by_facts(facts) if facts is not None else None
        if end is None:
            end = loader.by_tail()
    if end is None:
        scanned_from = bases[-1] if clean else recovery_point
        end = loader.by_scan(scanned_from)
        epochs.begin_at(max(log_start, bases[0]), epochs_in(segments))
        durable = end if loader.is_synced else min(scanned_from, end)
    if end < log_start:
        # More was lost than DeleteRecords had left: nothing in the log is to be seen again.
        for segment in segments:
            segment.remove()
        return _begin(disk, path, config, epochs, names, log_start, now_ms)
    start = max(log_start, bases[0])
    return Loaded(
        segments,
        epochs,
        loader.producers,
        start,
        end,
        end if durable is None else durable,
        loader.scanned_bytes,
        loader.cut_bytes,
    )


def epochs_in(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """(epoch, offset) of every batch, up to an invalid one, which reads will find and report."""
    try:
        for segment in segments:
            for _, header in walk(segment.file, 0, segment.size):
                yield header.leader_epoch, header.base_offset
    except BadBatch:
        return


def _begin(
    disk: Disk, path: str, config: TopicConfig, epochs: EpochCache, names: list[str], start: int, now_ms: int
) -> Loaded:
    drop_snapshots(disk, path, names, lambda _: False)
    segment = Segment.create(disk, path, start, config.index_interval_bytes, now_ms=now_ms)
    if LEADER_EPOCHS in names:
        epochs.clear()
    producers = ProducerStates()
    producers.end_offset = start
    return Loaded([segment], epochs, producers, start, start, start)


class _Loader:
    def __init__(
        self,
        disk: Disk,
        path: str,
        segments: list[Segment],
        epochs: EpochCache,
        names: list[str],
        now_ms: int,
        on_damage: Callable[[], None],
    ) -> None:
        self._on_damage = on_damage
        self.producers = ProducerStates()
        #: Whether a scan has made everything durable, because it had to change something.
        self.is_synced = False
        self.scanned_bytes = 0
        self.cut_bytes = 0
        self._disk = disk
        self._path = path
        self._segments = segments
        self._epochs = epochs
        self._names = names
        self._now_ms = now_ms
        self._last_epoch = -1

    # ------------------------------------------------------------------ after a clean stop

    def by_facts(self, facts: CleanStop) -> int | None:
        producers = None
        if facts.producers:
            producers = load_snapshot(self._disk, self._path, self._names, facts.end_offset)
            if producers is None or producers.end_offset != facts.end_offset:
                return None
        self.producers = producers or ProducerStates()
        self.producers.end_offset = facts.end_offset
        self._segments[-1].believe(TimeEntry(facts.max_timestamp, facts.max_timestamp_offset))
        return facts.end_offset

    def by_tail(self) -> int | None:
        """From the last index entry to the end of the file; None if the checkpoint or the tail is damaged."""
        try:
            self._epochs.load()
            end = self._segments[-1].next_offset()
            self._load_producers(end, self._segments)
        except (BadCheckpoint, CorruptMessage):
            return None
        return end

    def _load_producers(self, at_most: int, segments: list[Segment]) -> None:
        """State at the end of `segments`, from the best snapshot and the batches after it."""
        found = load_snapshot(self._disk, self._path, self._names, at_most)
        self.producers = found or ProducerStates()
        replay(self.producers, segments, found.end_offset if found else 0, self._now_ms)

    # ------------------------------------------------------------------ after a dirty stop

    def by_scan(self, recovery_point: int) -> int:
        segments = self._segments
        first = self._first_suspect(recovery_point)
        self._load_epochs(segments[:first])
        self._load_producers(segments[first].base_offset, segments[:first])
        end, whole = segments[first].base_offset, True
        for at in range(first, len(segments)):
            end, whole = self._scan(segments[at])
            if at + 1 < len(segments) and end != segments[at + 1].base_offset:
                whole = False  # R2
                self._on_damage()
            if not whole:
                self._drop_from(at + 1)
                break
        for segment in segments[first:-1]:
            segment.seal()
        segments[-1].is_active = True
        self._epochs.truncate_end(end)
        drop_snapshots(self._disk, self._path, self._names, lambda offset: offset <= end)
        if not whole:
            # A power loss can undo a truncation that is not synced, after new records were written. If
            # nothing was truncated there is nothing to undo, and ten thousand partitions start without as many fsyncs.
            self._sync(segments[first:])
            self.is_synced = True
        return end

    def _first_suspect(self, recovery_point: int) -> int:
        """The first segment that reaches beyond what was synced, that does not end where the next one begins (R2), or
        whose aborted index is damaged."""
        segments = self._segments
        for at, segment in enumerate(segments[:-1]):
            if segments[at + 1].base_offset > recovery_point:
                return at
            try:
                segment.aborted.load()
                if segment.next_offset() != segments[at + 1].base_offset:
                    return at
            except CorruptAbortedIndex:
                return at
            except CorruptMessage:
                continue  # Remembered by the segment: reads report it, and it is copied again from the leader.
        return len(segments) - 1

    def _load_epochs(self, trusted: list[Segment]) -> None:
        try:
            self._epochs.load()
        except BadCheckpoint:
            self._epochs.rebuild(epochs_in(trusted))

    def _scan(self, segment: Segment) -> tuple[int, bool]:
        """Scan one segment; return the offset after its last good batch, and whether all were good."""
        aborted = AbortedIndex()

        def on_batch(position: int, header: BatchHeader) -> None:
            if header.leader_epoch < self._last_epoch:  # R1
                raise BadBatch(position, f"leader epoch {header.leader_epoch} after {self._last_epoch}")
            self._last_epoch = header.leader_epoch
            self._epochs.assign(header.leader_epoch, header.base_offset)
            entry = replay_batch(self.producers, segment, position, header, self._now_ms)
            if entry is not None:
                aborted.append(entry)

        found = segment.rescan(check_crc=True, on_batch=on_batch)
        self.scanned_bytes += segment.size
        if found.problem is not None:
            if not (found.is_cut_off and segment is self._segments[-1]):
                self._on_damage()
            self.cut_bytes += segment.size - found.end_position
            segment.file.truncate(found.end_position)
        segment.aborted.replace(aborted)
        return found.next_offset, found.problem is None

    def _drop_from(self, at: int) -> None:
        for segment in reversed(self._segments[at:]):
            self.cut_bytes += segment.size
            segment.remove()
        del self._segments[at:]

    def _sync(self, segments: list[Segment]) -> None:
        for segment in segments:
            for file in segment.synced_files():
                file.sync()
        epochs = self._epochs.take_unsynced()
        if epochs is not None:
            file = self._disk.open(epochs)
            file.sync()
            file.close()
        self._disk.sync_dir(self._path)
        # The process that made the folder may have died before its name was synced.
        self._disk.sync_dir(self._path.rpartition("/")[0] or ".")
