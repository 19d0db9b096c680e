"""Lag in time on transactional topics: what no consumer is waiting for is not lag."""

from __future__ import annotations

import pytest

from ottla_broker.log import times
from ottla_broker.log.log import Log
from ottla_broker.log.validation import AppendOrigin
from ottla_broker.service.group_lag import Lag, behind
from ottla_broker.topic_config import TopicConfig
from ottla_core.ids import TopicPartition
from sim.batches import Rec, make_batch, make_marker
from sim.disk import SimDisk

TP = TopicPartition("t", 0)
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PID = 7


class OneLog:
    """A log, and a group at an offset of it, an hour after the last record."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        disk = SimDisk()
        disk.make_dirs("/data")
        config = TopicConfig(segment_bytes=segment_bytes)
        self.log = Log.open(disk, "/data/t-0", config, clean=True, now_ms=START_MS)
        self.now_ms = START_MS
        self._sequence = 0

    def records(self, count: int = 1, *, pid: int = -1) -> None:
        self.now_ms += 1000
        recs = [Rec(b"k", b"v", self.now_ms)] * count
        batch, origin = make_batch(recs), AppendOrigin.CLIENT
        if pid >= 0:
            origin = AppendOrigin.TRANSACTION
            batch = make_batch(recs, producer_id=pid, epoch=0, sequence=self._sequence, transactional=True)
            self._sequence += count
        self.log.append(batch, leader_epoch=0, now_ms=self.now_ms, origin=origin)

    def marker(self, *, commit: bool = True) -> None:
        self.now_ms += 1000
        made = make_marker(commit=commit, producer_id=PID, timestamp=self.now_ms)
        self.log.append(made, leader_epoch=0, now_ms=self.now_ms, origin=AppendOrigin.COORDINATOR)

    def lag_at(self, offset: int) -> tuple[int | None, float | None]:
        lag = Lag("g", TP, offset, behind(self.log, offset, self.log.end_offset))
        return lag.records, lag.seconds(self.now_ms + HOUR_MS)


def test_a_marker_after_the_last_committed_record_is_no_lag_in_time() -> None:
    one = OneLog()
    one.records(3, pid=PID)
    one.marker()
    assert one.lag_at(3) == (1, 0.0), "librdkafka commits the last record plus one, before the marker"
    assert one.lag_at(4) == (0, 0.0), "the Java client commits after it"
    assert one.lag_at(0) == (4, 3600.0 + 1)


def test_the_first_record_after_markers_counts() -> None:
    one = OneLog()
    one.records(3, pid=PID)
    one.marker()
    one.records()
    one.records()
    assert one.lag_at(3) == (3, 3600.0 + 1), "of the record at offset 4, not of the marker"


def test_records_of_an_aborted_transaction_are_no_lag_in_time() -> None:
    one = OneLog()
    one.records()
    one.records(2, pid=PID)
    one.records(2, pid=PID)
    one.marker(commit=False)
    assert one.lag_at(1) == (5, 0.0), "a read_committed consumer gets none of them"
    one.records(pid=PID)
    assert one.lag_at(1) == (6, 3600.0), "of a transaction that is open"


def test_other_producers_records_between_aborted_ones_count() -> None:
    one = OneLog()
    one.records(2, pid=PID)
    one.records()
    one.marker(commit=False)
    assert one.lag_at(0) == (4, 3600.0 + 1)
    assert one.lag_at(3) == (1, 0.0)


def test_markers_are_skipped_across_segments() -> None:
    one = OneLog(segment_bytes=300)
    one.records(2, pid=PID)
    for _ in range(9):
        one.marker()
    assert len(one.log.segments) > 2
    assert one.lag_at(2) == (9, 0.0)
    one.records()
    assert one.lag_at(2) == (10, 3600.0)


def test_a_long_row_of_markers_costs_a_bounded_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "SKIPPED_MAX", 5)
    one = OneLog()
    one.records(2, pid=PID)
    for _ in range(9):
        one.marker()
    assert one.lag_at(2) == (9, None), "not known, rather than wrong"


def test_an_offset_before_the_log_starts_counts_from_its_start() -> None:
    one = OneLog()
    one.records()
    one.records()
    one.log.advance_start(1)
    assert one.lag_at(0) == (2, 3600.0)


def test_aborted_transactions_are_looked_up_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_ABORTED_WINDOW", 1)
    one = OneLog(segment_bytes=300)
    for _ in range(5):
        one.records(pid=PID)
        one.marker(commit=False)
    assert one.lag_at(0) == (10, 0.0)
    one.records(pid=PID)
    one.marker()
    assert one.lag_at(0) == (12, 3600.0 + 1)
