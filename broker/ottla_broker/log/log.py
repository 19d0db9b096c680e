"""One partition's log: an ordered list of segments, of which the last one is appended to. [S]

Owns everything in the partition's folder. Called by the partition on the loop; only what `flush_work` gives
back, searches by time and `verify` run on offload threads. Synchronous over the Disk port: an append is a copy
into the page cache.

Theory of operation. Offsets are assigned in order and never reused: `end_offset` is the next one. The marks:

    start_offset ≤ end_offset        recovery_point ≤ end_offset

* L1: all below `recovery_point` has been fsynced. After a dirty stop everything from there on is read again,
  checked, and truncated at the first bad batch.
* L2: a batch is written with one writev, after all others; on failure the file is truncated back and the log is
  `broken`: it accepts and serves nothing until it is opened again.
* L3: a leader's epoch is in the checkpoint before its first batch is in the log (see `epochs`).
* L4: no name is relied on before its folder was synced: a segment counts as flushed only after that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, TypeVar

from ottla_broker.log import recovery
from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.epochs import EpochCache
from ottla_broker.log.flushing import Flushing
from ottla_broker.log.offset_index import BadIndex
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.producers import ProducerStates
from ottla_broker.log.reading import Extent, ExtentFinder, NotLoaded
from ottla_broker.log.recovery import CleanStop
from ottla_broker.log.removal import Doomed, Housekeeper
from ottla_broker.log.replacing import Replacing
from ottla_broker.log.scan import SCAN_BYTES, BadBatch, walk
from ottla_broker.log.segment import Mark, Segment
from ottla_broker.log.snapshots import (
    drop_snapshots,
    load_snapshot,
    replay,
    replay_batch,
    snapshot_path,
    write_snapshot,
)
from ottla_broker.log.times import FoundTime, NextRecord, find_newest, find_time, next_record
from ottla_broker.log.validation import Accepted, Rules, Steps, accept, accepting, follow
from ottla_broker.metrics import LogProbe
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    KafkaStorageError,
    OffsetOutOfRange,
    RequestError,
    invariant,
)
from ottla_core.ports.disk import Buffer, Disk
from ottla_core.records.batch import LOG_OVERHEAD, NO_TIMESTAMP, PREFIX_BYTES, BatchHeader, stamp_prefix
from ottla_core.records.structure import RECORDS_PER_TURN

T = TypeVar("T")

#: Half of what a segment's relative offsets can express.
_GAP_MAX = 1 << 30


#: A search that loses its segments starts again; each time at least one segment was removed for good.
_SEARCHES_MAX = 10


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    #: The broker's time where the topic uses it, else -1.
    log_append_time_ms: int
    size_bytes: int
    #: True: these records were there already, and the offsets are those of the first time.
    duplicate: bool


class Log:
    __slots__ = (
        "_disk",
        "_doomed",
        "_finder",
        "_flushing",
        "_housekeeper",
        "_records_per_turn",
        "_replacing",
        "_rules",
        "_when_flushed",
        "broken",
        "config",
        "end_offset",
        "epochs",
        "is_closed",
        "on_broken",
        "on_cut",
        "path",
        "probe",
        "producers",
        "segments",
        "start_offset",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        config: TopicConfig,
        loaded: recovery.Loaded,
        probe: LogProbe,
        records_per_turn: int,
    ) -> None:
        self.path = path
        self.config = config
        self._records_per_turn = records_per_turn
        self._rules = Rules.of(config, records_per_turn)
        self.epochs: EpochCache = loaded.epochs
        self.epochs.from_log = self._written_epochs
        self.producers: ProducerStates = loaded.producers
        #: In order of their offsets; the last one is active.
        self.segments: list[Segment] = loaded.segments
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        #: Set once, by the first error of the disk; the log serves nothing from then on.
        self.broken: Exception | None = None
        #: Called when the log breaks; its directory takes all its logs offline.
        self.on_broken: Callable[[Exception], None] | None = None
        #: Called with the end offset after a truncation: later records are new, also to the cleaner.
        self.on_cut: Callable[[int], None] | None = None
        self._disk = disk
        self._finder = ExtentFinder()
        self._flushing = Flushing(disk, path, loaded.recovery_point)
        self._doomed = Doomed(disk)
        self._housekeeper = Housekeeper()
        self._replacing = Replacing(disk, path, self._doomed, self._flushing, self._finder)
        #: Its folder may be another log's by now: nothing is made or renamed there any more.
        self.is_closed = False
        #: Called once, when no flush is under way.
        self._when_flushed: Callable[[], None] | None = None
        self.probe = probe
        probe.recovered_bytes += loaded.scanned_bytes
        probe.recovery_cut_bytes += loaded.cut_bytes

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: TopicConfig,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start: int = 0,
        now_ms: int,
        facts: CleanStop | None = None,
        probe: LogProbe | None = None,
        on_damage: Callable[[], None] = lambda: None,
        records_per_turn: int = RECORDS_PER_TURN,
    ) -> Log:
        """Load the folder, or create an empty log. Without `clean`, check it and truncate a bad end.

        `facts` are what `clean_stop` gave when the log was last closed; they are used only if they fit.
        `on_damage` is called before records are truncated that were whole once.
        """
        loaded = recovery.load(
            disk,
            path,
            config,
            clean=clean,
            recovery_point=recovery_point,
            log_start=log_start,
            now_ms=now_ms,
            facts=facts,
            on_damage=on_damage,
        )
        return cls(disk, path, config, loaded, probe or LogProbe(), records_per_turn)

    def __repr__(self) -> str:
        return f"Log({self.path!r}, {self.start_offset}..{self.end_offset})"

    @property
    def recovery_point(self) -> int:
        return self._flushing.point

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._rules = Rules.of(config, self._records_per_turn)
        for segment in self.segments:
            segment.interval_bytes = config.index_interval_bytes

    # ------------------------------------------------------------------ appending

    def append(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        accepted: list[Accepted] | None = None,
        refusal: RequestError | None = None,
    ) -> AppendInfo:
        """As the leader: check the batches, give them offsets and the epoch, write them.

        `refusal` is raised instead of writing; for batches that are in the log already, their offsets are returned.

        `Unfinished` if checking them takes longer than the event loop can wait: then run `accepting` and give its
        result here as `accepted`.
        """
        if self.broken is not None:
            raise self._storage_error()
        rules = self._rules
        batches = accepted or accept(records, rules, now_ms=now_ms, origin=origin)
        if refusal is None and leader_epoch != self.epochs.latest_epoch:
            self._begin_epoch(leader_epoch)
        next_offset = self.end_offset
        buffers: list[Buffer] = []
        marks: list[Mark] = []
        produced: list[BatchHeader] = []
        for data, header in batches:
            length = header.length
            if header.producer_id >= 0:
                duplicate = self.producers.check(header, now_ms, origin=origin)
                if duplicate is not None:  # The only batch (`validation`): nothing else is passed over.
                    base, last, timestamp = duplicate
                    return AppendInfo(base, last, timestamp, NO_TIMESTAMP, 0, True)
                produced.append(BatchHeader(next_offset, length, leader_epoch, *header[3:]))
            buffers.append(stamp_prefix(next_offset, length, leader_epoch))
            buffers.append(data[PREFIX_BYTES:])
            next_offset += header.last_offset_delta + 1
            marks.append(Mark(next_offset - 1, header.max_timestamp, length + LOG_OVERHEAD))
        if refusal is not None:
            raise refusal
        append_time_ms = now_ms if rules.uses_append_time else NO_TIMESTAMP
        return self._write(buffers, marks, self.end_offset, produced, now_ms, append_time_ms)

    def accepting(self, records: Buffer, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT) -> Steps:
        """Check a client's batches in steps, for `append`."""
        return accepting(records, self._rules, now_ms=now_ms, origin=origin)

    def _begin_epoch(self, leader_epoch: int) -> None:
        latest = self.epochs.latest_epoch
        if leader_epoch < latest:
            raise FencedLeaderEpoch(f"The log has seen leader epoch {latest}; {leader_epoch} is stale.")
        self.epochs.assign(leader_epoch, self.end_offset)

    def append_as_follower(self, records: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append as a follower: offsets and epochs are the leader's and must continue this log."""
        if self.broken is not None:
            raise self._storage_error()
        batches = follow(records)
        next_offset, epoch = self.end_offset, self.epochs.latest_epoch
        for _, header in batches:
            if header.base_offset < next_offset:
                raise CorruptMessage(f"A replicated batch begins at {header.base_offset}, not {next_offset}.")
            if header.leader_epoch < epoch:
                raise CorruptMessage(f"A replicated batch has epoch {header.leader_epoch}, after {epoch}.")
            next_offset, epoch = header.next_offset, header.leader_epoch
        if not batches:
            return AppendInfo(next_offset, next_offset - 1, NO_TIMESTAMP, NO_TIMESTAMP, 0, False)
        headers = [header for _, header in batches]
        for header in headers:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        marks = [Mark(h.last_offset, h.max_timestamp, h.size) for h in headers]
        produced = [h for h in headers if h.producer_id >= 0]
        now = marks[-1].max_timestamp if now_ms is None else now_ms
        return self._write(
            [data for data, _ in batches], marks, headers[0].base_offset, produced, now, NO_TIMESTAMP
        )

    def _write(
        self,
        buffers: Sequence[Buffer],
        marks: Sequence[Mark],
        first_offset: int,
        produced: Sequence[BatchHeader],
        now_ms: int,
        append_time_ms: int,
    ) -> AppendInfo:
        last_offset, newest, size = marks[-1]
        if len(marks) > 1:
            newest = max(mark.max_timestamp for mark in marks)
            size = sum(mark.size for mark in marks)
        try:
            if not self.epochs.is_saved:
                self.epochs.save()  # L3
            segment = self.segments[-1]
            if segment.is_done(self.config, size, newest, last_offset, now_ms):
                segment = self._next_segment(first_offset, now_ms)
            segment.append(buffers, marks)
            self.end_offset = last_offset + 1
            for header in produced:
                self._note_producer(segment, header, now_ms)
        except OSError as error:
            raise self._break(error) from error
        return AppendInfo(first_offset, last_offset, newest, append_time_ms, size, False)

    def _note_producer(self, segment: Segment, header: BatchHeader, now_ms: int) -> None:
        if not header.is_control:
            self.producers.update(header, now_ms)
            return
        found = segment.locate(header.base_offset)
        invariant(found is not None, "a batch that was just written is there")
        aborted = replay_batch(self.producers, segment, found[0] if found else 0, header, now_ms)
        if aborted is not None:
            segment.aborted.append(aborted)

    def _next_segment(self, first_offset: int, now_ms: int) -> Segment:
        if self.active.size:
            # At the end offset, also where a follower's next batch lies behind a gap that compaction left:
            # segments join (R2 in recovery).
            near = first_offset - self.end_offset <= _GAP_MAX
            self._roll(self.end_offset if near else first_offset, now_ms)
        else:
            # Its base is so far behind that relative offsets would not fit 32 bits.
            self.segments.pop().remove()
            self._begin_segment(first_offset, now_ms)
        return self.segments[-1]

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and begin a new one at the end offset. An empty one stays as it is."""
        if self.broken is not None:
            raise self._storage_error()
        try:
            if self.active.size:
                self._roll(self.end_offset, now_ms)
        except OSError as error:
            raise self._break(error) from error

    def _roll(self, base_offset: int, now_ms: int) -> None:
        if self._flushing.is_overstated:
            self.flush()  # Else recovery would trust the sealed segment by a checkpoint from before a truncation.
        self.active.seal()
        self.probe.segments_rolled += 1
        self._flushing.add_file(write_snapshot(self._disk, self.path, self.producers, base_offset))
        self._begin_segment(base_offset, now_ms)

    def _begin_segment(self, base_offset: int, now_ms: int) -> None:
        interval = self.config.index_interval_bytes
        self._flushing.add_name()
        self.segments.append(Segment.create(self._disk, self.path, base_offset, interval, now_ms=now_ms))

    # ------------------------------------------------------------------ reading

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one: bool = True, wait: bool = True
    ) -> Extent | None:
        """Where the batches are from the one that holds `offset` on, below `limit_offset`; None if none are.

        At most `max_bytes`, but at least the first batch if `min_one`; never beyond the end of one segment.
        The last batch may be incomplete. Without `wait`, `NotLoaded` if this would wait for the disk.
        """
        if self.broken is not None:
            raise self._storage_error()
        end = self.end_offset
        if not self.start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"Offset {offset} is not in the log, which has {self.start_offset} to {end}."
            )
        if offset >= limit_offset or offset == end:
            return None
        try:
            return self._finder.find(self.segments, offset, max_bytes, limit_offset, end, min_one, wait)
        except CorruptMessage:
            self.probe.corruptions += 1
            raise
        except OSError as error:
            raise self._break(error) from error

    def find_time(self, timestamp_ms: int, *, limit_offset: int) -> FoundTime | None:
        """The first record below `limit_offset` with a timestamp of `timestamp_ms` or later. May block."""
        return self._search(
            lambda segments: find_time(segments, timestamp_ms, self.start_offset, limit_offset)
        )

    def next_record(self, offset: int, *, limit_offset: int) -> NextRecord:
        """About the first record for a consumer at `offset`, by its batch's header. May block."""
        return self._search(lambda segments: next_record(segments, offset, limit_offset))

    def max_timestamp(self, *, limit_offset: int | None = None) -> FoundTime | None:
        """The first of the records with the greatest timestamp. May block."""
        limit = self.end_offset if limit_offset is None else limit_offset
        return self._search(lambda segments: find_newest(segments, self.start_offset, limit))

    def _search(self, find: Callable[[list[Segment]], T]) -> T:
        """Run a search that may be on a thread, while the loop removes or replaces what it is looking at."""
        if self.broken is not None:
            raise self._storage_error()
        for _ in range(_SEARCHES_MAX):
            segments = list(self.segments)
            try:
                return find(segments)
            except (OSError, ValueError) as error:
                if any(segment.is_retired for segment in segments):
                    continue
                if isinstance(error, OSError):
                    raise self._break(error) from error
                raise
        raise KafkaStorageError(f"Segments of {self.path} are removed faster than they can be searched.")

    def aborted(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in the range: what a read_committed reader must skip."""
        found: list[AbortedTransaction] = []
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].base_offset if at + 1 < len(self.segments) else self.end_offset
            if following > first_offset:
                more, complete = segment.aborted.load().collect(first_offset, end_offset)
                found += more
                if complete:
                    break
        return found

    def verify(self, from_offset: int = 0) -> Iterator[BatchHeader]:
        """Every batch from an offset on, its CRC and its place checked; CorruptMessage at the first bad one."""
        expected = 0
        for segment in list(self.segments):
            found = segment.locate(from_offset)
            if found is None:
                continue
            try:
                for _, header in walk(
                    segment.file, found[0], segment.size, check_crc=True, chunk_bytes=SCAN_BYTES
                ):
                    if header.base_offset < max(expected, segment.base_offset):
                        raise CorruptMessage(f"{segment!r} has offset {header.base_offset} twice.")
                    expected = header.next_offset
                    yield header
            except BadBatch as error:
                raise CorruptMessage(f"{segment!r} has {error}.") from error

    def note_damage(self, offset: int, what: str) -> None:
        """Record that a read from `offset` on found damage."""
        self.probe.corruptions += 1
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        self.segments[max(at, 0)].damaged(what)

    @property
    def damage(self) -> str | None:
        """What is known to be wrong with some file of it."""
        return next((segment.damage for segment in self.segments if segment.damage is not None), None)

    # ------------------------------------------------------------------ cutting

    def drop_damaged(self, now_ms: int) -> None:
        """Truncate before the first damaged segment. Only for a replica in no ISR or ELR."""
        base = next((s.base_offset for s in self.segments if s.damage is not None), self.end_offset)
        try:
            if base > self.start_offset:
                self.truncate_to(base, now_ms=now_ms)
                return
        except CorruptMessage:
            pass  # What is before it is no better.
        self.restart_at(self.start_offset, now_ms=now_ms)

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> None:
        """Drop every batch that reaches to `offset` or beyond. Afterwards `end_offset` is at most `offset`."""
        if self.broken is not None:
            raise self._storage_error()
        if offset >= self.end_offset:
            return
        if offset < self.segments[0].base_offset:
            self.restart_at(offset, now_ms=now_ms)
            return
        try:
            self._truncate(offset, now_ms)
        except CorruptMessage:
            self.probe.corruptions += 1
            raise
        except OSError as error:
            raise self._break(error) from error

    def _truncate(self, offset: int, now_ms: int) -> None:
        # Newest first, and durably before the truncation: a crash must not leave a hole between two segments.
        if offset < self.active.base_offset:
            self._replacing.end(self, now_ms)
        gone = [s for s in self.segments[1:] if s.base_offset >= offset]
        for segment in reversed(gone):
            self._retire(segment, now_ms)
        if gone:
            self._disk.sync_dir(self.path)
        self.active.reactivate()
        cut = self.active.truncate_to(offset)
        self.end_offset = offset if cut is None else min(offset, cut)
        self.start_offset = min(self.start_offset, self.end_offset)
        self._settle(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Bring all that is known about the log down to its new end."""
        end = self.end_offset
        self._tell_cut()
        self._finder.forget()
        self._flushing.cut(end)
        self.epochs.truncate_end(end)
        names = self._disk.list(self.path)
        drop_snapshots(self._disk, self.path, names, lambda offset: offset <= end)
        found = load_snapshot(self._disk, self.path, names, end)
        self.producers = found or ProducerStates()
        replay(self.producers, self.segments, found.end_offset if found else 0, now_ms)

    def _tell_cut(self) -> None:
        if self.on_cut is not None:
            self.on_cut(self.end_offset)

    def restart_at(self, offset: int, *, now_ms: int = 0) -> None:
        """Drop everything and begin again, empty, at `offset`."""
        if self.broken is not None:
            raise self._storage_error()
        try:
            self._replacing.end(self, now_ms)
            for segment in reversed(list(self.segments)):
                self._retire(segment, now_ms)
            self._disk.sync_dir(self.path)
            self._begin_segment(offset, now_ms)
            self.start_offset = self.end_offset = offset
            self._tell_cut()
            self.epochs.clear()
            self.epochs.save()
            self._finder.forget()
            self._flushing.cut(offset, restart=True)
            drop_snapshots(self._disk, self.path, self._disk.list(self.path), lambda _: False)
        except OSError as error:
            raise self._break(error) from error
        self.producers = ProducerStates()
        self.producers.end_offset = offset

    def advance_start(self, offset: int, *, limit_offset: int | None = None) -> None:
        """DeleteRecords: nothing before `offset` is there any more. Its segments go with housekeeping."""
        limit = self.end_offset if limit_offset is None else limit_offset
        if offset > limit or offset < 0:
            raise OffsetOutOfRange(f"Records can be deleted up to offset {limit}, not {offset}.")
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        try:
            self.epochs.truncate_start(offset)
        except OSError as error:
            raise self._break(error) from error

    def _retire(self, segment: Segment, now_ms: int) -> None:
        """Take a segment out; its files go after file.delete.delay.ms."""
        self.segments.remove(segment)
        self._doomed.add(segment, now_ms + self.config.file_delete_delay_ms)

    # ------------------------------------------------------------------ keeping house

    def learn_work(self) -> Callable[[], list[str]] | None:
        """What asks the disk for all that `housekeeping` and a cleaning look at, if that is not known: run it on a
        thread before them. Gives the damage that it has found."""
        unknown = [segment for segment in self.segments[:-1] if not segment.is_known]

        def learn() -> list[str]:
            damage: list[str] = []
            for segment in unknown:
                try:
                    segment.learn()
                except CorruptMessage as error:
                    damage.append(str(error))
                except (OSError, ValueError, BadIndex):
                    continue  # Retired meanwhile, or its disk fails: then those who ask next find out.
            return damage

        return learn if unknown else None

    def housekeeping(self, now_ms: int, committed_offset: int) -> int:
        """Remove expired segments below the committed offset. Return the number of segments removed."""
        if self.broken is not None or self._replacing.is_under_way:
            return 0  # Segments that are being replaced go in the next round.
        try:
            count = self._housekeeper.removable(self, now_ms, committed_offset)
            for segment in self.segments[:count]:
                self._retire(segment, now_ms)
            if count:
                self._finder.forget()
                self.start_offset = max(self.start_offset, self.segments[0].base_offset)
                self.epochs.truncate_start(self.start_offset)
        except OSError as error:
            raise self._break(error) from error
        return count

    def purge_work(self, now_ms: int) -> Callable[[], None] | None:
        """What removes the files of segments that have been out for file.delete.delay.ms, if there are any. Run it
        anywhere: large files take their time. An `OSError` from it means `mark_broken`."""
        return None if self.broken is not None or self.is_closed else self._doomed.purge_work(now_ms)

    def new_segment(self, base_offset: int, *, now_ms: int) -> Segment:
        """A segment to copy survivors into, for `replace_segments`; until then it is no part of the log."""
        self.check_usable()
        return self._housekeeper.cleaned(self._disk, self.path, base_offset, self.config, now_ms)

    def replace_segments(
        self, old: Sequence[Segment], new: Segment, *, now_ms: int
    ) -> Generator[Callable[[], None], None, bool]:
        """Put a compacted segment, completed by `replacing.complete`, in the place of those it was made from.

        On the loop, but for what it yields: that blocks, and is run anywhere before it goes on. An `OSError` from it
        means `mark_broken`; a caller that stops calls `end_replacement`. True if it was done: a log that is cut
        meanwhile keeps its old segments.
        """
        return self._replacing.run(self, old, new, now_ms)

    def end_replacement(self, now_ms: int) -> None:
        """Undo or complete an abandoned `replace_segments`. May block shortly."""
        if self.broken is None and not self.is_closed:
            try:
                self._replacing.end(self, now_ms)
            except OSError as error:
                self.mark_broken(error)

    def check_usable(self) -> None:
        """KafkaStorageError if nothing may be changed any more."""
        if self.broken is not None:
            raise self._storage_error()
        if self.is_closed:
            raise KafkaStorageError(f"{self.path} is closed.")

    # ------------------------------------------------------------------ flushing

    @property
    def unflushed_roll(self) -> int | None:
        """The offset up to which sealed segments wait for an fsync; None if they do not."""
        base = self.segments[-1].base_offset
        return base if self._flushing.point < base else None

    def flush_work(self, upto: int | None = None) -> Callable[[], None]:
        """The blocking part of making all below `upto` (default: everything) durable; run it anywhere.

        An `OSError` from it means `mark_broken`; after success call `mark_flushed` with the same offset.
        """
        limit = self.end_offset if upto is None else upto
        return self._flushing.work(self.segments, self.epochs, limit)

    def mark_flushed(self, upto: int) -> None:
        """The flush work that was created when the end offset was `upto` is done."""
        self._flushing.done(min(upto, self.end_offset))
        if self._when_flushed is not None and not self._flushing.is_under_way:
            work, self._when_flushed = self._when_flushed, None
            work()

    def between_flushes(self, work: Callable[[], None] | None) -> None:
        """Call `work` on the loop while no flush is under way: now, or when the running one is done. None: no more."""
        if work is None or self._flushing.is_under_way:
            self._when_flushed = work
        else:
            work()

    def mark_checkpointed(self, recovery_point: int) -> None:
        """A checkpoint file is about to say so."""
        self._flushing.claimed = recovery_point

    @property
    def needs_flush(self) -> bool:
        """Whether a power loss now could take something."""
        return self._flushing.is_needed(self.end_offset) or not self.epochs.is_synced

    def flush(self) -> None:
        """Make everything durable, synchronously."""
        upto = self.end_offset
        try:
            self.flush_work()()
        except OSError as error:
            raise self._break(error) from error
        self.mark_flushed(upto)

    # ------------------------------------------------------------------ another directory

    def take_over(self, copy: Log, folder: str) -> None:
        """Go on in another folder, with a durable copy of all that this log has (`dir_moves`). To readers this is as if
        compaction had replaced all segments."""
        invariant(copy.end_offset == self.end_offset, "a copy that takes over has everything")
        invariant(copy.recovery_point == copy.end_offset, "a copy that takes over is durable")
        invariant(not (self._flushing.is_under_way or self._replacing.is_under_way), "nothing is under way")
        former = self.segments
        for segment in copy.segments:
            segment.relocate(folder)
        self.path, self.segments, self.epochs = folder, copy.segments, copy.epochs
        self.epochs.relocate(folder)
        self.epochs.from_log = self._written_epochs
        # What was claimed stays true; more is claimed only after a flush, which makes the folder's name durable first.
        self._flushing = Flushing(self._disk, folder, self.recovery_point)
        self._doomed = Doomed(self._disk)
        self._housekeeper = Housekeeper()
        self._replacing = Replacing(self._disk, folder, self._doomed, self._flushing, self._finder)
        self._finder.forget()
        copy.is_closed = True
        for segment in former:
            segment.is_retired = True
            segment.close()

    # ------------------------------------------------------------------ ending

    def _written_epochs(self) -> Iterator[tuple[int, int]]:
        return recovery.epochs_in(self.segments)

    def clean_stop(self) -> CleanStop:
        """What to remember of a log that is about to be closed cleanly."""
        active = self.active
        newest = active.max_timestamp
        return CleanStop(
            self.end_offset,
            len(self.segments),
            active.base_offset,
            active.size,
            newest.timestamp_ms,
            newest.offset,
            len(self.producers),
        )

    def close(self, clean: bool = True) -> None:
        """Release everything. `clean` flushes first, so that the next start can do without a scan."""
        try:
            if clean and self.broken is None:
                self._close_clean()
        finally:
            self.is_closed = True
            for segment in self.segments:
                segment.close()
            self._finder.forget()

    def _close_clean(self) -> None:
        try:
            active = self.active
            if active.is_loaded and active.size:
                active.write_indexes(final=True)
            snapshot = snapshot_path(self.path, self.end_offset)
            if len(self.producers) and not self._disk.exists(snapshot):
                self._flushing.add_file(
                    write_snapshot(self._disk, self.path, self.producers, self.end_offset)
                )
        except OSError as error:
            raise self._break(error) from error
        # The next start believes the file of epochs, and may come after a power loss.
        if self._flushing.is_needed(self.end_offset) or not self.epochs.is_synced:
            self.flush()

    def mark_broken(self, error: Exception) -> None:
        """Stop serving: what is on the disk is not known any more."""
        if self.broken is None:
            self.broken = error
            if self.on_broken is not None:
                self.on_broken(error)

    def _break(self, error: Exception) -> KafkaStorageError:
        self.mark_broken(error)
        return self._storage_error()

    def _storage_error(self) -> KafkaStorageError:
        return KafkaStorageError(f"{self.path} is offline: {self.broken}")


__all__ = ["AppendInfo", "CleanStop", "Extent", "FoundTime", "Log", "NotLoaded"]
