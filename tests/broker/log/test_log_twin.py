"""The log against a dumb list, over random operations: appends, cuts, deaths, reads anywhere.

The twin keeps records in a list and knows nothing of files. What it says must be there must be there, byte
for byte after decoding, whatever happened to the disk underneath; what it says is gone must be gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from budget import examples
from ottla_broker.log.cleaner import Cleaning
from ottla_broker.log.compaction import KEY_COST_BYTES
from ottla_broker.log.log import Log
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import OffsetOutOfRange, OutOfOrderSequenceNumber
from ottla_core.real.chance import RealChance
from ottla_core.records.batch import complete_batches
from sim.batches import CODECS, Rec, make_batch, read_batches
from sim.disk import SimDisk
from sim.places import purge

PATH = "/data/t-0"
NOW_MS = 1_700_000_000_000
#: Small, so that a few batches make several segments with several index entries each.
CONFIG = TopicConfig(segment_bytes=2000, index_interval_bytes=120, retention_ms=-1)


@dataclass
class TwinBatch:
    base: int
    last: int
    records: list[tuple[int, Rec]]


class Twin:
    def __init__(self) -> None:
        self.batches: list[TwinBatch] = []
        self.start = 0
        self.end = 0
        #: (pid) -> next sequence, and the batches that a duplicate may repeat: (sequence, records, base,
        #: last).
        self.sequence: dict[int, int] = {}
        self.sent: dict[int, list[tuple[int, list[Rec], int, int]]] = {}

    def append(self, records: list[Rec]) -> int:
        base = self.end
        self.batches.append(
            TwinBatch(base, base + len(records) - 1, [(base + n, r) for n, r in enumerate(records)])
        )
        self.end = base + len(records)
        return base

    def records(self, first: int, end: int | None = None) -> list[tuple[int, Rec]]:
        stop = self.end if end is None else end
        return [(o, r) for b in self.batches for o, r in b.records if first <= o < stop and b.last < stop]

    def cut(self, offset: int) -> None:
        """Batches that reach `offset` go as a whole."""
        while self.batches and self.batches[-1].last >= offset:
            self.end = self.batches.pop().base
        self.end = min(self.end, max(offset, self.start))
        self.forget_cut_producers()

    def forget_cut_producers(self) -> None:
        for pid, sent in self.sent.items():
            left = [s for s in sent if s[3] < self.end]
            if len(left) != len(sent):
                self.sent[pid] = left
                if left:
                    self.sequence[pid] = left[-1][0] + len(left[-1][1])
                else:
                    self.sequence.pop(pid, None)

    def compact(self, end: int) -> None:
        """Of each key only the newest record below `end` stays."""
        newest = {r.key: o for o, r in self.records(self.start) if o < end}
        for batch in self.batches:
            batch.records = [
                (o, r) for o, r in batch.records if o >= end or o < self.start or newest[r.key] == o
            ]

    def boundaries(self) -> list[int]:
        return [b.base for b in self.batches if b.base >= self.start] + [self.end]


def read_all(log: Log, offset: int, limit: int, max_bytes: int) -> list[tuple[int, Rec]]:
    """Read as a consumer does, checking each answer on the way."""
    found: list[tuple[int, Rec]] = []
    while (extent := log.read(offset, max_bytes, limit_offset=limit)) is not None:
        data = extent.file.read(extent.position, extent.size)
        assert len(data) == extent.size
        headers = [header for _, header in complete_batches(data)]
        assert headers, "an answer without a complete batch would never end"
        assert headers[0].base_offset == extent.first_offset
        assert headers[0].last_offset >= offset
        assert extent.size <= max_bytes or len(headers) == 1
        assert headers[-1].next_offset <= limit
        found += [(o, r) for o, r in read_batches(data) if o >= offset]
        offset = headers[-1].next_offset
    return found


KEYS = (b"a", b"b", b"c", b"d" * 20)


def make_record(key: int, size: int, shift_ms: int) -> Rec:
    """Few choices for hypothesis, which makes it quick; bytes that do not compress, headers now and then."""
    value = random.Random(size).randbytes(size)
    return Rec(KEYS[key], value, NOW_MS + shift_ms, (("h", value[:3]),) if size % 7 == 0 else ())


records = st.lists(
    st.builds(make_record, st.integers(0, 3), st.integers(0, 60), st.integers(-50, 50)),
    min_size=1,
    max_size=6,
)


class LogMachine(RuleBasedStateMachine):
    config = CONFIG

    @initialize()
    def begin(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.twin = Twin()
        self.epoch = 0
        self.first_pid = 0
        #: Nothing below was ever cut, and compaction stays below.
        self.committed = 0
        self.log = Log.open(self.disk, PATH, self.config, clean=True, now_ms=NOW_MS)

    # ------------------------------------------------------------------ writing

    @rule(batches=st.lists(st.tuples(records, st.sampled_from(sorted(CODECS))), min_size=1, max_size=3))
    def append(self, batches: list[tuple[list[Rec], str]]) -> None:
        data = b"".join(make_batch(recs, codec=codec) for recs, codec in batches)
        info = self.log.append(data, leader_epoch=self.epoch, now_ms=NOW_MS)
        bases = [self.twin.append(recs) for recs, _ in batches]
        assert (info.base_offset, info.last_offset) == (bases[0], self.twin.end - 1)
        assert not info.duplicate
        assert info.max_timestamp == max(r.timestamp for recs, _ in batches for r in recs)

    @rule(count=st.integers(2, 12), size=st.sampled_from([40, 60]), shift_ms=st.integers(-50, 50))
    def append_many(self, count: int, size: int, shift_ms: int) -> None:
        """Several segments in one go, of batches that are all of one size: what a cut brought back fits in."""
        for number in range(count):
            recs = [make_record(number % 4, size, shift_ms)] * 3
            info = self.log.append(make_batch(recs), leader_epoch=self.epoch, now_ms=NOW_MS)
            assert info.base_offset == self.twin.append(recs)

    @rule(pid=st.integers(1, 2), recs=records)
    def append_idempotent(self, pid: int, recs: list[Rec]) -> None:
        pid += self.first_pid
        sequence = self.twin.sequence.get(pid, 0)
        info = self.log.append(self._batch_of(pid, sequence, recs), leader_epoch=self.epoch, now_ms=NOW_MS)
        base = self.twin.append(recs)
        assert (info.base_offset, info.duplicate) == (base, False)
        self.twin.sequence[pid] = sequence + len(recs)
        self.twin.sent.setdefault(pid, []).append((sequence, recs, base, self.twin.end - 1))

    @precondition(lambda self: any(self.twin.sent.values()))
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from([p for p, sent in self.twin.sent.items() if sent]))
        # After a restart only the last batch is sure to be known.
        sequence, recs, base, last = self.twin.sent[pid][-1]
        info = self.log.append(self._batch_of(pid, sequence, recs), leader_epoch=self.epoch, now_ms=NOW_MS)
        assert (info.base_offset, info.last_offset, info.duplicate) == (base, last, True)

    @precondition(lambda self: any(self.twin.sent.values()))
    @rule(data=st.data())
    def append_with_a_gap(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from([p for p, sent in self.twin.sent.items() if sent]))
        gap = self.twin.sequence[pid] + 1
        with pytest.raises(OutOfOrderSequenceNumber):
            self.log.append(
                self._batch_of(pid, gap, [Rec(b"a", b"", NOW_MS)]), leader_epoch=self.epoch, now_ms=NOW_MS
            )

    def _batch_of(self, pid: int, sequence: int, recs: list[Rec]) -> bytes:
        return make_batch(recs, producer_id=pid, epoch=0, sequence=sequence)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    # ------------------------------------------------------------------ reading

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 61, 200, 1000, 100_000]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.twin.start, self.twin.end))
        limit = data.draw(st.sampled_from(self.twin.boundaries()))
        expected = self.twin.records(offset, limit) if limit > offset else []
        assert read_all(self.log, offset, limit, max_bytes) == expected

    @rule(distance=st.integers(1, 3))
    def read_outside(self, distance: int) -> None:
        for offset in (self.twin.start - distance, self.twin.end + distance):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, 1000, limit_offset=self.twin.end)

    @rule(timestamp=st.integers(NOW_MS - 55, NOW_MS + 55))
    def find_time(self, timestamp: int) -> None:
        found = self.log.find_time(timestamp, limit_offset=self.twin.end)
        expected = next(
            ((o, r.timestamp) for o, r in self.twin.records(self.twin.start) if r.timestamp >= timestamp),
            None,
        )
        assert (None if found is None else (found.offset, found.timestamp_ms)) == expected

    # ------------------------------------------------------------------ losing on purpose

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([b for b in self.twin.boundaries() if b >= self.committed]))
        self.log.truncate_to(offset)
        self.twin.cut(offset)
        # A cut is followed by a new leadership, never by the same one.
        self.epoch += 1

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.twin.start, self.twin.end))
        self.log.advance_start(offset, limit_offset=self.twin.end)
        self.twin.start = offset

    @rule()
    def housekeeping(self) -> None:
        """Segments below the start go; nothing that can be read does."""
        self.log.housekeeping(NOW_MS, self.twin.end)
        purge(self.log, NOW_MS + CONFIG.file_delete_delay_ms + 1)

    @rule(data=st.data(), retention_bytes=st.sampled_from([0, 1000, 3000]))
    def retention(self, data: st.DataObject, retention_bytes: int) -> None:
        """Segments go from the front, never above the committed offset, and never so that too little is left."""
        committed = data.draw(st.sampled_from(self.twin.boundaries()))
        size = self.log.size_bytes
        self.log.update_config(
            replace(self.config, cleanup_policy=frozenset({"delete"}), retention_bytes=retention_bytes)
        )
        removed = self.log.housekeeping(NOW_MS, committed)
        self.log.update_config(self.config)
        start = self.log.start_offset
        assert start == self.twin.start or self.twin.start < start <= committed
        assert self.log.size_bytes >= min(size, retention_bytes) or self.log.start_offset == self.twin.start
        assert bool(removed) >= (start > self.twin.start)
        self.twin.start = start

    # ------------------------------------------------------------------ dying and coming back

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.twin.end

    @rule()
    def stop_cleanly(self) -> None:
        point, start = self.log.recovery_point, self.log.start_offset
        self.log.close()
        self.disk.kill()
        self._reopen(clean=True, recovery_point=max(point, self.twin.end), start=start)
        assert self.log.end_offset == self.twin.end

    @rule(forget=st.booleans())
    def kill(self, forget: bool) -> None:
        """kill -9 loses nothing that was written, whatever the checkpoint said."""
        point, start = self.log.recovery_point, self.log.start_offset
        self.disk.kill()
        self._reopen(clean=False, recovery_point=0 if forget else point, start=start)
        assert self.log.end_offset == self.twin.end

    @rule(seed=st.integers(0, 2**32), forget=st.booleans())
    def lose_power(self, seed: int, forget: bool) -> None:
        """Whatever was not flushed may be gone, from the end backwards; nothing else, and nothing comes back."""
        point, start = self.log.recovery_point, self.log.start_offset
        self.disk.crash(RealChance(seed))
        self._reopen(clean=False, recovery_point=0 if forget else point, start=start)
        assert point <= self.log.end_offset <= self.twin.end
        if self.log.end_offset == start:
            # All that was left is gone; the start offset is never taken back.
            self.twin.batches.clear()
            self.twin.end = start
        else:
            self.twin.cut(self.log.end_offset)
        assert self.log.end_offset == self.twin.end, "half a batch was kept"
        if self.log.end_offset == start or any(
            sent[-1][2] < start for sent in self.twin.sent.values() if sent
        ):
            # Whether a producer is remembered whose last batch was deleted depends on snapshots that nobody
            # synced. Later ones get other ids.
            self.twin.sent.clear()
            self.twin.sequence.clear()
            self.first_pid += 10

    def _reopen(self, *, clean: bool, recovery_point: int, start: int) -> None:
        self.log = Log.open(
            self.disk,
            PATH,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start=start,
            now_ms=NOW_MS,
        )
        self.epoch += 1

    # ------------------------------------------------------------------ always

    @invariant()
    def agrees(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.twin.start, self.twin.end)
        assert self.log.recovery_point <= self.log.end_offset
        assert read_all(self.log, self.twin.start, self.twin.end, 100_000) == self.twin.records(
            self.twin.start
        )

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)


class CompactedLogMachine(LogMachine):
    """The same, with compaction at any time; the next life may or may not know how far it had come."""

    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)

    @initialize()
    def begin_dirty(self) -> None:
        self.first_dirty = 0

    @rule(keys_max=st.sampled_from([1, 3, 1000]))
    def compact(self, keys_max: int) -> None:
        cleaning = Cleaning.begin(
            self.log,
            now_ms=NOW_MS,
            first_dirty_offset=self.first_dirty,
            stable_offset=self.twin.end,
            key_map_bytes=keys_max * KEY_COST_BYTES,
        )
        if cleaning is None:
            return
        while cleaning.step():
            pass
        assert cleaning.unreadable_batches == 0
        for work in cleaning.finish(self.log, NOW_MS):
            work()
        end = cleaning.end_offset
        assert max(self.first_dirty, self.twin.start) <= end or self.first_dirty > self.twin.end
        self.twin.compact(end)
        self.first_dirty = end
        self.committed = max(self.committed, cleaning.plan.end_offset)

    @rule()
    def forget_where_it_was(self) -> None:
        self.first_dirty = 0


QUICK = settings(
    max_examples=examples(80),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogAgainstTwin = LogMachine.TestCase
TestLogAgainstTwin.settings = QUICK
TestCompactedLogAgainstTwin = CompactedLogMachine.TestCase
TestCompactedLogAgainstTwin.settings = QUICK
