"""Truncation, restarts, retention, replaced segments, flushes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.replacing import complete
from ottla_broker.log.segment import Mark, Segment
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import InvariantViolation, KafkaStorageError
from ottla_core.records.batch import header_at
from sim.batches import Rec, make_batch, make_marker, read_batches
from sim.disk import SimDisk
from sim.places import Place, purge

NOW_MS = 1_700_000_000_000
BATCH = make_batch([Rec(b"k", b"v" * 20, NOW_MS)] * 5)
#: Two batches per segment.
CONFIG = TopicConfig(segment_bytes=2 * len(BATCH), index_interval_bytes=50, file_delete_delay_ms=1000)


def fill(place: Place, batches: int, config: TopicConfig = CONFIG, *, epoch: int = 0) -> Log:
    log = Log.open(place.disk, f"{place.path}/t-0", config, clean=True, now_ms=NOW_MS)
    for number in range(batches):
        log.append(BATCH, leader_epoch=epoch + number // 2, now_ms=NOW_MS)
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def names(log: Log, place: Place) -> list[str]:
    return place.disk.list(log.path)


# ---------------------------------------------------------------------- truncation


@pytest.mark.parametrize("offset", [0, 1, 5, 7, 10, 12, 15, 20, 23, 25, 30, 99])
def test_truncation_drops_batches_that_reach_the_offset(place: Place, offset: int) -> None:
    log = fill(place, 6)
    log.truncate_to(offset)
    kept = min(offset // 5 * 5, 30)
    assert log.end_offset == kept
    assert [h.base_offset for h in log.verify()] == list(range(0, kept, 5))
    assert log.epochs.entries == [(e, s) for e, s in [(0, 0), (1, 10), (2, 20)] if s < kept]
    assert log.append(BATCH, leader_epoch=9, now_ms=NOW_MS).base_offset == kept
    log.close(clean=False)
    again = Log.open(place.disk, log.path, CONFIG, clean=False, now_ms=NOW_MS)
    assert again.end_offset == kept + 5
    assert again.epochs.latest_epoch == 9
    for at in range(again.end_offset):
        extent = again.read(at, 1, limit_offset=again.end_offset)
        assert extent is not None and extent.first_offset == at // 5 * 5


def test_truncation_below_the_first_segment_starts_again(place: Place) -> None:
    log = fill(place, 6)
    log.advance_start(20)
    log.housekeeping(NOW_MS, 30)
    assert bases(log) == [20]
    log.truncate_to(12)
    assert (log.start_offset, log.end_offset, bases(log)) == (12, 12, [12])
    assert log.append(BATCH, leader_epoch=9, now_ms=NOW_MS).base_offset == 12


def test_truncation_takes_producers_back(place: Place) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", CONFIG, clean=True, now_ms=NOW_MS)
    sent = [make_batch([Rec(b"k", b"v" * 60, NOW_MS)], producer_id=7, epoch=0, sequence=n) for n in range(8)]
    for batch in sent:
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    log.truncate_to(5)
    assert log.append(sent[4], leader_epoch=1, now_ms=NOW_MS).duplicate
    assert log.append(sent[5], leader_epoch=1, now_ms=NOW_MS).base_offset == 5


def test_truncation_takes_aborted_transactions_back(place: Place) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", TopicConfig(), clean=True, now_ms=NOW_MS)
    for sequence in range(3):
        batch = make_batch(
            [Rec(b"k", b"v", NOW_MS)], producer_id=7, epoch=0, sequence=sequence, transactional=True
        )
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.TRANSACTION)
        log.append(
            make_marker(commit=sequence == 1, producer_id=7),
            leader_epoch=0,
            now_ms=NOW_MS,
            origin=AppendOrigin.COORDINATOR,
        )
    first, last = AbortedTransaction(7, 0, 1, 2), AbortedTransaction(7, 4, 5, 6)
    assert log.aborted(0, 6) == [first, last]
    assert log.aborted(2, 4) == []
    assert log.producers.first_undecided_offset is None
    log.truncate_to(5)
    assert log.aborted(0, 6) == [first]
    assert log.producers.first_undecided_offset == 4
    assert place.disk.read_file(f"{log.path}/{0:020d}.txnindex") == struct.pack(">hqqqq", 0, 7, 0, 1, 2)


def test_restart_at_drops_everything(place: Place) -> None:
    log = fill(place, 6)
    log.restart_at(1000, now_ms=NOW_MS)
    assert (log.start_offset, log.end_offset, log.recovery_point) == (1000, 1000, 1000)
    assert (bases(log), log.epochs.entries) == ([1000], [])
    assert log.append(BATCH, leader_epoch=0, now_ms=NOW_MS).base_offset == 1000
    purge(log, NOW_MS + 1000)
    assert not [n for n in names(log, place) if n.endswith(".deleted")]


def test_the_first_batch_of_a_truncated_log_may_not_be_trusted_by_an_old_checkpoint() -> None:
    """A checkpoint from before a cut vouches for offsets that were written again, and lost with the power."""
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 6)
    log.flush()
    log.mark_checkpointed(log.recovery_point)
    log.truncate_to(10)
    for _ in range(4):
        log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)
    sealed = log.segments[-2]
    assert sealed.base_offset < 30
    assert disk.unsynced_bytes(sealed.path(".log")) == 0


# ---------------------------------------------------------------------- retention


def test_retention_renames_at_once_and_removes_later(place: Place) -> None:
    log = fill(
        place, 6, TopicConfig(segment_bytes=2 * len(BATCH), retention_ms=500, file_delete_delay_ms=1000)
    )
    assert log.housekeeping(NOW_MS + 501, 20) == 2, "nothing above the committed offset goes"
    assert (log.start_offset, bases(log)) == (20, [20])
    gone = [n for n in names(log, place) if n.endswith(".deleted")]
    assert "00000000000000000010.log.deleted" in gone
    purge(log, NOW_MS + 501 + 999)
    assert [n for n in names(log, place) if n.endswith(".deleted")] == gone
    purge(log, NOW_MS + 501 + 1000)
    assert not [n for n in names(log, place) if n.endswith(".deleted")]
    assert log.epochs.entries == [(2, 20)]


def test_an_expired_active_segment_is_rolled_and_goes(place: Place) -> None:
    log = fill(place, 1, TopicConfig(retention_ms=500))
    assert log.housekeeping(NOW_MS + 500, 5) == 0
    assert log.housekeeping(NOW_MS + 501, 5) == 1
    assert (log.start_offset, log.end_offset, bases(log)) == (5, 5, [5])
    assert log.append(BATCH, leader_epoch=9, now_ms=NOW_MS).base_offset == 5


def test_an_idle_log_is_not_looked_at_again() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 6)
    log.housekeeping(NOW_MS, 30)
    before = disk.counts.total()
    for step in range(100):
        log.housekeeping(NOW_MS + step, 30)
    assert disk.counts.total() == before


# ---------------------------------------------------------------------- replacing


def cleaned(log: Log, base: int, keep: list[int]) -> Segment:
    """A segment with some of the batches, as compaction makes it."""
    made = log.new_segment(base, now_ms=NOW_MS)
    for segment in log.segments:
        for offset in keep:
            found = segment.locate(offset)
            if found is not None and found[1].base_offset == offset:
                data = segment.file.read(found[0], found[1].size)
                header = header_at(data)
                made.append([data], [Mark(header.last_offset, header.max_timestamp, header.size)])
    complete(made)
    return made


def swap(log: Log, old: Sequence[Segment], new: Segment) -> None:
    for work in log.replace_segments(old, new, now_ms=NOW_MS):
        work()


def test_replaced_segments_keep_offsets(place: Place) -> None:
    log = fill(place, 8)
    old = log.segments[:3]
    new = cleaned(log, 0, [5, 25])
    assert not [n for n in names(log, place) if n.endswith(".swap")]
    swap(log, old, new)
    assert bases(log) == [0, 30]
    assert [h.base_offset for h in log.verify()] == [5, 25, 30, 35]
    for asked, first in ((0, 5), (7, 5), (10, 25), (29, 25), (30, 30)):
        extent = log.read(asked, 1, limit_offset=log.end_offset)
        assert extent is not None and extent.first_offset == first
    purge(log, NOW_MS + 1000)
    assert {n.split(".", 1)[1] for n in names(log, place) if n[0] == "0"} <= {
        "log",
        "index",
        "timeindex",
        "snapshot",
    }
    log.close()
    again = Log.open(place.disk, log.path, CONFIG, clean=True, now_ms=NOW_MS)
    assert [h.base_offset for h in again.verify()] == [5, 25, 30, 35]


def test_segments_before_an_empty_active_one_expire(place: Place) -> None:
    """Nothing changes any more in a log that was cut to the beginning of its last segment, but time goes on."""
    log = fill(place, 6)
    log.update_config(replace(CONFIG, retention_ms=500))
    log.truncate_to(log.active.base_offset + 1, now_ms=NOW_MS)
    assert not log.active.size and len(log.segments) > 1
    for now_ms in (NOW_MS, NOW_MS + 1):
        assert log.housekeeping(now_ms, log.end_offset) == 0
    assert log.housekeeping(NOW_MS + 501, log.end_offset) == 2
    assert log.start_offset == log.end_offset


def test_replacing_waits_for_the_disk_only_where_others_can_wait_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on the loop; what it yields runs on a thread. Files and their names were synced by the cleaner."""
    log = fill(place, 8)
    new = cleaned(log, 0, [5, 25])
    waits: list[str] = []
    for kind, method in ((type(place.disk), "sync_dir"), (type(new.file), "sync")):
        monkeypatch.setattr(kind, method, lambda *_, method=method: waits.append(method))
    for count, work in enumerate(log.replace_segments(log.segments[:3], new, now_ms=NOW_MS)):
        assert waits == ["sync_dir"] * count
        work()
        assert [h.base_offset for h in log.verify()] == list(range(0, 40, 5)), (
            "the old ones are read meanwhile"
        )
    assert waits == ["sync_dir"] * 2
    assert [h.base_offset for h in log.verify()] == [5, 25, 30, 35]


def test_the_active_segment_is_never_replaced(place: Place) -> None:
    log = fill(place, 4)
    with pytest.raises(InvariantViolation):
        swap(log, log.segments, cleaned(log, 0, [5]))


# ---------------------------------------------------------------------- flushing


def test_flushing_moves_the_recovery_point(place: Place) -> None:
    log = fill(place, 5)
    assert (log.recovery_point, log.unflushed_roll) == (0, 20)
    work, upto = log.flush_work(20), 20
    log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)
    work()
    assert log.recovery_point == 0
    log.mark_flushed(upto)
    assert (log.recovery_point, log.unflushed_roll) == (20, None)
    log.flush()
    assert log.recovery_point == 30


def test_a_flush_vouches_for_nothing_beyond_a_cut(place: Place) -> None:
    log = fill(place, 6)
    work = log.flush_work()
    log.truncate_to(15)
    for _ in range(5):
        log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)
    work()
    log.mark_flushed(30)
    assert log.recovery_point == 15
    log.flush()
    assert log.recovery_point == 40


def test_a_flush_survives_that_its_segments_go(place: Place) -> None:
    log = fill(place, 6)
    work = log.flush_work()
    log.advance_start(20)
    log.housekeeping(NOW_MS, 30)
    purge(log, NOW_MS + 1000)
    work()
    log.mark_flushed(30)
    assert log.recovery_point == 30


def test_a_failed_flush_breaks_the_log() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 1)
    disk.fail("sync", ".log")
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)


def test_an_append_without_flush_settings_syncs_nothing() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 1)
    before = disk.counts["sync"] + disk.counts["sync_dir"]
    for _ in range(6):
        log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)
    assert disk.counts["sync"] + disk.counts["sync_dir"] == before == 0
    log.flush()
    log.append(BATCH, leader_epoch=9, now_ms=NOW_MS)
    before = disk.counts["sync"] + disk.counts["sync_dir"]
    log.flush()
    assert disk.counts["sync"] + disk.counts["sync_dir"] == before + 1, (
        "one fsync per flush of a growing file"
    )


def test_records_survive_round_trips(place: Place) -> None:
    log = fill(place, 4)
    log.close()
    again = Log.open(place.disk, log.path, CONFIG, clean=True, now_ms=NOW_MS)
    found = [pair for s in again.segments for pair in read_batches(s.file.read(0, s.size))]
    assert found == [(n, Rec(b"k", b"v" * 20, NOW_MS)) for n in range(20)]
