"""The cleaner: copies segments without the records that compaction removes. [S]

`compaction.py` decides, this module reads and writes. A cleaning has three parts, so that the loop never
waits for it and no thread is held for long:

1. `Cleaning.begin` on the loop takes what it needs to know from the log.
2. `step` on an offload thread, repeated while it returns True, works on a bounded piece each time.
3. `finish` on the loop swaps the new segments in, one after the other, unless the log has moved on underneath. What
   it yields blocks and runs on a thread. `abandon` removes what was made and is not wanted, as it does after an error.

New segments are written with the suffix `.cleaned`, which recovery deletes, and synced before they are
swapped in: the old ones are removed on the strength of the new.

Batches are checked before anything is copied: damage is reported, never copied under a new, right CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla_broker.log.compaction import (
    KEY_MAP_BYTES,
    CleanableSegment,
    CleanPlan,
    Fate,
    KeyMap,
    Transactions,
    group,
    judge,
    keeps_record,
    new_horizon,
    plan,
)
from ottla_broker.log.contents import records
from ottla_broker.log.log import Log
from ottla_broker.log.markers import marker_in
from ottla_broker.log.replacing import complete
from ottla_broker.log.segment import Mark, Segment
from ottla_broker.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from ottla_core.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from ottla_core.ports.disk import Buffer, File
from ottla_core.records.batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    complete_batches,
    header_at,
    verify,
)
from ottla_core.records.codec import Record, empty_batch, rebuild_batch

#: Read and written at once; also about how much one step does. Small enough that fsyncs of others, which wait
#: for the same threads, do not wait long.
CHUNK_BYTES = 1 << 20


class Swap(NamedTuple):
    """Old neighbours and the one segment that takes their place."""

    old: tuple[Segment, ...]
    new: Segment


class _Source(NamedTuple):
    segment: Segment
    file: File
    facts: CleanableSegment
    #: Number of truncations then: the size may be the same again.
    cuts: int


class Cleaning:
    """One round over one log. Made by `begin`, used once."""

    def __init__(
        self,
        log: Log,
        due: CleanPlan,
        sources: Sequence[_Source],
        now_ms: int,
        key_map_bytes: int,
    ) -> None:
        self.plan = due
        #: Start of the next round; known when `step` has returned False.
        self.end_offset = due.first_dirty_offset
        self.read_bytes = 0
        self.written_bytes = 0
        #: Batches whose records could not be read (too large, or written by a broken client): kept as they
        #: are.
        self.unreadable_batches = 0
        self._new_segment = log.new_segment
        self._config = log.config
        self._sources = sources
        self._now_ms = now_ms
        self._keys = KeyMap(key_map_bytes)
        self._aborted = tuple(log.aborted(log.segments[0].base_offset, due.end_offset))
        self._last_records = log.producers.last_records()
        self._swaps: list[Swap] = []
        self._unfinished: Segment | None = None
        self._work = self._run()

    @classmethod
    def begin(
        cls,
        log: Log,
        *,
        now_ms: int,
        first_dirty_offset: int,
        stable_offset: int,
        key_map_bytes: int = KEY_MAP_BYTES,
    ) -> Cleaning | None:
        """A cleaning of this log, if one is due; `CorruptMessage` if the log is damaged.

        `stable_offset`: nothing at or above it is touched (C2).
        """
        if not log.config.compacts or len(log.segments) < 2 or log.broken is not None or log.is_closed:
            return None
        if log.start_offset <= log.active.base_offset <= first_dirty_offset <= log.end_offset:
            return None  # Nothing was sealed since the last round.
        if log.damage is not None:
            raise CorruptMessage(log.damage)  # Reading all of it again would find the same.
        ends = [segment.base_offset for segment in log.segments[1:]] + [log.end_offset]
        facts = [_facts(segment, end) for segment, end in zip(log.segments[:-1], ends[:-1], strict=True)]
        # Of the active one nothing is taken, and it need not be asked for its timestamps.
        facts.append(CleanableSegment(ends[-2], ends[-1], 0, NO_TIMESTAMP, NO_TIMESTAMP))
        due = plan(
            facts,
            now_ms=now_ms,
            config=log.config,
            first_dirty_offset=first_dirty_offset,
            start_offset=log.start_offset,
            stable_offset=stable_offset,
        )
        if due is None:
            return None
        sources = [
            _Source(segment, segment.file, fact, segment.cuts)
            for segment, fact in zip(log.segments, facts, strict=True)
            if fact.end_offset <= due.end_offset
        ]
        return cls(log, due, sources, now_ms, key_map_bytes)

    @property
    def is_outdated(self) -> bool:
        """Its segments were truncated or removed: errors are expected, and the next round starts again."""
        return any(s.segment.is_retired or s.segment.cuts != s.cuts for s in self._sources)

    def step(self) -> bool:
        """Do a bounded piece of work; False when there is nothing left but `finish`. Blocks on the disk."""
        return next(self._work, None) is not None

    def finish(self, log: Log, now_ms: int) -> Iterator[Callable[[], None]]:
        """Swap the new segments in; afterwards `end_offset` is where the next round begins. See `Log.replace_segments`
        for what it yields.

        If the log was truncated or lost segments in the meantime, the affected swaps are dropped: the next round
        does them again.
        """
        cuts = {id(source.segment): source.cuts for source in self._sources}
        while self._swaps:
            old, new = self._swaps[0]
            sealed = {id(segment) for segment in log.segments[:-1]}
            done = False
            if all(id(s) in sealed and s.cuts == cuts[id(s)] for s in old):
                self._swaps.pop(0)  # From here on it is the log's.
                done = yield from log.replace_segments(old, new, now_ms=now_ms)
            if not done:
                self.end_offset = min(self.end_offset, old[0].base_offset)
                yield self.abandon

    def abandon(self) -> None:
        """Remove what was made and not swapped in."""
        unwanted = [swap.new for swap in self._swaps]
        if self._unfinished is not None:
            unwanted.append(self._unfinished)
        self._swaps, self._unfinished = [], None
        for segment in unwanted:
            segment.remove()

    # ------------------------------------------------------------------ the work, piece by piece

    def _run(self) -> Iterator[int]:
        yield from self._map_keys()
        self.end_offset = min(self._keys.latest_offset + 1, self.plan.end_offset)
        transactions = Transactions(self._aborted)
        by_base = {source.segment.base_offset: source for source in self._sources}
        covered = [s.facts for s in self._sources if s.facts.base_offset < self.end_offset]
        for together in group(covered, self._config):
            yield from self._clean_group([by_base[f.base_offset] for f in together], transactions)

    def _map_keys(self) -> Iterator[int]:
        """The newest offset of each key in the dirty part, until the map is full (C6)."""
        first, transactions = self.plan.first_dirty_offset, Transactions(self._aborted)
        for source in self._sources:
            if source.facts.end_offset <= first:
                continue
            for chunk in self._chunks(source):
                for data, header in chunk:
                    if not self._map_batch(data, header, transactions, first):
                        return
                yield len(chunk)
            self._keys.skip_to(source.facts.end_offset - 1)

    def _map_batch(
        self, data: memoryview, header: BatchHeader, transactions: Transactions, first: int
    ) -> bool:
        if header.is_control:
            transactions.is_needless(header, marker_in(data, header))
        elif not transactions.is_aborted(header) and header.last_offset >= first:
            inside = self._records(data, header) or ()
            found = [(r.key, r.offset) for r in inside if r.key is not None and r.offset >= first]
            return self._keys.add_batch(found, header.last_offset)
        self._keys.skip_to(header.last_offset)
        return True

    def _clean_group(self, sources: Sequence[_Source], transactions: Transactions) -> Iterator[int]:
        base = sources[0].segment.base_offset
        made = self._unfinished = self._new_segment(base, now_ms=sources[-1].segment.created_ms)
        transactions.kept.clear()
        end = sources[-1].facts.end_offset
        for source in sources:
            for chunk in self._chunks(source):
                self._copy(chunk, made, transactions, end)
                yield len(chunk)
        for entry in transactions.kept:
            made.aborted.append(entry)
        complete(made)
        self._swaps.append(Swap(tuple(source.segment for source in sources), made))
        self._unfinished = None

    def _copy(
        self,
        chunk: Sequence[tuple[memoryview, BatchHeader]],
        made: Segment,
        transactions: Transactions,
        end_offset: int,
    ) -> None:
        buffers: list[Buffer] = []
        marks: list[Mark] = []
        for data, header in chunk:
            kept = self._filter(data, header, transactions, end_offset)
            if kept is not None:
                buffers.append(kept)
                new = header_at(kept)
                marks.append(Mark(new.last_offset, new.max_timestamp, new.size))
                self.written_bytes += new.size
        if buffers:
            made.append(buffers, marks)

    def _filter(
        self, data: memoryview, header: BatchHeader, transactions: Transactions, segment_end: int
    ) -> Buffer | None:
        """What stays of one batch: itself, a smaller one, an empty one, or nothing."""
        if header.is_control:
            discardable = transactions.is_needless(header, marker_in(data, header))
        else:
            discardable = transactions.is_aborted(header)
        if header.base_offset >= self.end_offset:
            return data  # C6: not mapped; the next round's business.
        verdict = judge(
            header,
            discardable=discardable,
            now_ms=self._now_ms,
            last_records=self._last_records,
            end_offset=segment_end,
        )
        if verdict.fate is Fate.DROP:
            return None
        kept: list[Record] = []
        if not verdict.drop_records:
            inside = self._records(data, header)
            if inside is None:
                return data
            kept = inside if header.is_control else self._newest_of(inside, header)
        if not kept:
            return empty_batch(header) if verdict.fate is Fate.KEEP_EMPTY else None
        horizon = new_horizon(
            header,
            verdict,
            keeps_tombstone=not header.is_control and any(r.value is None for r in kept),
            now_ms=self._now_ms,
            config=self._config,
        )
        if len(kept) == header.count and horizon is None:
            return data
        return rebuild_batch(header, kept, delete_horizon_ms=horizon)

    def _newest_of(self, inside: list[Record], header: BatchHeader) -> list[Record]:
        keys, now_ms = self._keys, self._now_ms
        return [r for r in inside if keeps_record(r.key, r.value is not None, r.offset, header, keys, now_ms)]

    def _records(self, data: memoryview, header: BatchHeader) -> list[Record] | None:
        """None if they cannot be read although the CRC is right, or only at the price of too much memory: then
        the batch stays, whatever it holds."""
        try:
            return records(data, header)
        except (CorruptMessage, MessageTooLarge, UnsupportedCompressionType):
            self.unreadable_batches += 1
            return None

    def _chunks(self, source: _Source) -> Iterator[list[tuple[memoryview, BatchHeader]]]:
        """The batches of a segment, some at a time, with right CRCs."""
        position, end, next_offset = 0, source.facts.size_bytes, source.facts.base_offset
        wanted = CHUNK_BYTES
        while position < end:
            data = source.file.read(position, min(wanted, end - position))
            view = memoryview(data)
            batches = [(view[at : at + header.size], header) for at, header in complete_batches(data)]
            if not batches:
                # One batch larger than a chunk: read it whole.
                whole = header_at(data).size if len(data) >= HEADER_BYTES else 0
                if whole <= wanted or whole > end - position:
                    raise source.segment.damaged(f"no whole batch at byte {position}", cuts=source.cuts)
                wanted = whole
                continue
            for batch, header in batches:
                # Offsets are outside of the CRC; they are checked by their order.
                rises = next_offset <= header.base_offset <= header.last_offset < source.facts.end_offset
                next_offset = header.next_offset
                if not rises or not verify(batch, 0, header):
                    raise source.segment.damaged(
                        f"a damaged batch at offset {header.base_offset}", cuts=source.cuts
                    )
            size = sum(len(batch) for batch, _ in batches)
            position, wanted = position + size, CHUNK_BYTES
            self.read_bytes += size
            yield batches


def _facts(segment: Segment, end_offset: int) -> CleanableSegment:
    first, size = segment.first_timestamp, segment.size
    # An upper bound that needs no index: entries are at least the interval, or one header, apart.
    entries = size // max(segment.interval_bytes, HEADER_BYTES) + 1
    return CleanableSegment(
        segment.base_offset,
        end_offset,
        size,
        segment.max_timestamp.timestamp_ms,
        NO_TIMESTAMP if first is None else first,
        entries * TIME_ENTRY_BYTES,
    )
