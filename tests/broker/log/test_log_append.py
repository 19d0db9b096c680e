"""What a leader accepts, refuses and writes; what a follower does."""

from __future__ import annotations

import errno
import struct

import pytest

from ottla_broker.log.log import Log
from ottla_broker.log.validation import Unfinished
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    KafkaStorageError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    RequestError,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from ottla_core.records.batch import header_at, reseal
from sim.batches import CODECS, Rec, make_batch, read_batches
from sim.disk import SimDisk
from sim.places import Place

NOW_MS = 1_700_000_000_000


def records(count: int, *, key: bytes | None = b"k", timestamp: int = NOW_MS) -> list[Rec]:
    return [Rec(key, b"v%d" % number, timestamp) for number in range(count)]


def open_log(place: Place, config: TopicConfig | None = None, *, clean: bool = True) -> Log:
    return Log.open(place.disk, f"{place.path}/t-0", config or TopicConfig(), clean=clean, now_ms=NOW_MS)


def bytes_of(log: Log, offset: int = 0) -> bytes:
    extent = log.read(offset, 1 << 30, limit_offset=log.end_offset)
    return b"" if extent is None else extent.file.read(extent.position, extent.size)


def patched(batch: bytes, at: int, pattern: str, *values: int, seal: bool = True) -> bytes:
    made = bytearray(batch)
    struct.pack_into(pattern, made, at, *values)
    if seal:
        reseal(made, 0, len(made))
    return bytes(made)


def test_only_base_offset_and_epoch_of_a_batch_change(place: Place) -> None:
    log = open_log(place)
    first, second = make_batch(records(3), codec="lz4"), make_batch(records(2), base_offset=77)
    assert log.append(first, leader_epoch=4, now_ms=NOW_MS)[:2] == (0, 2)
    info = log.append(second, leader_epoch=4, now_ms=NOW_MS)
    assert info == (3, 4, NOW_MS, -1, len(second), False)
    stored = bytes_of(log)
    assert stored[: len(first)] == struct.pack(">q", 0) + first[8:12] + struct.pack(">i", 4) + first[16:]
    assert header_at(stored, len(first))[:3] == (3, len(second) - 12, 4)
    assert [offset for offset, _ in read_batches(stored)] == [0, 1, 2, 3, 4]


def test_several_batches_are_one_append(place: Place) -> None:
    log = open_log(place)
    sent = [make_batch(records(n), codec=codec) for n, codec in enumerate(CODECS, start=1)]
    info = log.append(b"".join(sent), leader_epoch=0, now_ms=NOW_MS)
    assert (info.base_offset, info.last_offset, info.size_bytes) == (0, 14, sum(map(len, sent)))
    assert [offset for offset, _ in read_batches(bytes_of(log))] == list(range(15))


GOOD = make_batch(records(3))
REFUSED = {
    "nothing": (b"", CorruptMessage),
    "half a header": (GOOD[:40], CorruptMessage),
    "cut off": (GOOD[:-1], CorruptMessage),
    "something behind": (GOOD + b"x", CorruptMessage),
    "flipped bit": (patched(GOOD, 70, ">B", 0xFF, seal=False), CorruptMessage),
    "old magic": (patched(GOOD, 16, ">b", 1, seal=False), UnsupportedForMessageFormat),
    "length too small": (patched(GOOD, 8, ">i", 10, seal=False), CorruptMessage),
    "negative length": (patched(GOOD, 8, ">i", -1, seal=False), CorruptMessage),
    "length too large": (patched(GOOD, 8, ">i", 1 << 30, seal=False), CorruptMessage),
    "wrong count": (patched(GOOD, 57, ">i", 2), InvalidRecord),
    "no records": (patched(patched(GOOD, 57, ">i", 0), 23, ">i", -1), InvalidRecord),
    "negative delta": (patched(patched(GOOD, 57, ">i", -4), 23, ">i", -5), InvalidRecord),
    "compression 5": (patched(GOOD, 21, ">h", 5), UnsupportedCompressionType),
    "control batch": (make_batch(records(1), control=True), InvalidRecord),
    "negative timestamp": (patched(GOOD, 35, ">q", -2), InvalidTimestamp),
    "far future": (make_batch(records(1, timestamp=NOW_MS + 3_600_001)), InvalidTimestamp),
    "sequence without epoch": (make_batch(records(1), producer_id=5, sequence=0), InvalidRecord),
    "negative sequence": (make_batch(records(1), producer_id=5, epoch=0, sequence=-3), InvalidRecord),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_trace(place: Place, name: str) -> None:
    log = open_log(place)
    log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    data, error = REFUSED[name]
    with pytest.raises(error):
        log.append(data, leader_epoch=0, now_ms=NOW_MS)
    assert (log.end_offset, log.size_bytes, log.broken) == (3, len(GOOD), None)
    assert log.append(GOOD, leader_epoch=0, now_ms=NOW_MS).base_offset == 3


def test_sizes_have_limits(place: Place) -> None:
    log = open_log(place, TopicConfig(max_message_bytes=len(GOOD), segment_bytes=2 * len(GOOD)))
    log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(MessageTooLarge):
        log.append(make_batch(records(4)), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(RecordListTooLarge):
        log.append(GOOD * 3, leader_epoch=0, now_ms=NOW_MS)


def test_an_epoch_is_in_the_checkpoint_with_its_first_batch(place: Place) -> None:
    log = open_log(place)
    log.epochs.assign(5, 0)
    assert "leader-epoch-checkpoint" not in place.disk.list(log.path), (
        "a leadership that writes nothing costs nothing"
    )
    log.append(GOOD, leader_epoch=5, now_ms=NOW_MS)
    assert place.disk.read_file(f"{log.path}/leader-epoch-checkpoint") == b"0\n1\n5 0\n"


def test_an_older_leader_is_fenced(place: Place) -> None:
    log = open_log(place)
    log.append(GOOD, leader_epoch=5, now_ms=NOW_MS)
    with pytest.raises(FencedLeaderEpoch):
        log.append(GOOD, leader_epoch=4, now_ms=NOW_MS)
    assert log.epochs.entries == [(5, 0)]


def test_append_time_is_stamped_and_sealed(place: Place) -> None:
    log = open_log(place, TopicConfig(message_timestamp_type="LogAppendTime"))
    info = log.append(make_batch(records(2, timestamp=5), codec="zstd"), leader_epoch=0, now_ms=NOW_MS)
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW_MS, NOW_MS)
    header = header_at(bytes_of(log))
    assert (header.is_log_append_time, header.max_timestamp, header.compression) == (True, NOW_MS, 4)
    assert [r.timestamp for _, r in read_batches(bytes_of(log))] == [NOW_MS, NOW_MS]
    found = log.find_time(NOW_MS, limit_offset=2)
    assert found is not None and found.offset == 0


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_compression_wins(place: Place, stored: str) -> None:
    log = open_log(place, TopicConfig(compression_type=stored))
    for codec in CODECS:
        log.append(make_batch(records(3), codec=codec), leader_epoch=0, now_ms=NOW_MS)
    wanted = CODECS.get(stored, 0)
    assert {header.compression for header in log.verify()} == {wanted}
    assert [r for _, r in read_batches(bytes_of(log))] == records(3) * len(CODECS)


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topics_need_keys(place: Place, codec: str) -> None:
    log = open_log(place, TopicConfig(cleanup_policy=frozenset({"compact"})))
    log.append(make_batch(records(2), codec=codec), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(InvalidRecord, match="key"):
        log.append(
            make_batch([*records(2), *records(1, key=None)], codec=codec), leader_epoch=0, now_ms=NOW_MS
        )
    assert log.end_offset == 2


def test_old_records_are_refused_where_the_topic_says_so(place: Place) -> None:
    log = open_log(place, TopicConfig(message_timestamp_before_max_ms=1000))
    mixed = [*records(1), *records(1, timestamp=NOW_MS - 1001), *records(1)]
    with pytest.raises(InvalidTimestamp):
        log.append(make_batch(mixed), leader_epoch=0, now_ms=NOW_MS)
    log.append(make_batch(records(1, timestamp=NOW_MS - 1000)), leader_epoch=0, now_ms=NOW_MS)


def test_a_bomb_is_refused_before_it_is_inflated(place: Place) -> None:
    log = open_log(place, TopicConfig(compression_type="gzip"))
    bomb = make_batch([Rec(b"k", bytes(40 << 20), NOW_MS)], codec="zstd")
    assert len(bomb) < 1 << 20
    with pytest.raises(Unfinished):
        log.append(bomb, leader_epoch=0, now_ms=NOW_MS)
    steps = log.accepting(bomb, NOW_MS)
    work = next(steps)
    assert work is not None
    with pytest.raises(MessageTooLarge):
        work()


def test_a_duplicate_gets_its_old_offsets(place: Place) -> None:
    log = open_log(place)
    batches = [make_batch(records(2), producer_id=9, epoch=0, sequence=n * 2) for n in range(3)]
    for batch in batches:
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    again = log.append(batches[1], leader_epoch=0, now_ms=NOW_MS)
    assert (again.base_offset, again.last_offset, again.duplicate) == (2, 3, True)
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(make_batch(records(1), producer_id=9, epoch=0, sequence=9), leader_epoch=0, now_ms=NOW_MS)
    assert log.end_offset == 6


def test_an_append_with_a_producer_has_one_batch(place: Place) -> None:
    """Else [duplicate, new] would be answered with the duplicate's offsets, and the new batch not be written."""
    log = open_log(place)
    batches = [make_batch(records(2), producer_id=9, epoch=0, sequence=n) for n in (0, 2, 4)]
    log.append(batches[0], leader_epoch=0, now_ms=NOW_MS)
    plain = make_batch(records(2))
    stranger = make_batch(records(2), producer_id=10, epoch=0, sequence=0)
    for wrong in (
        batches[0] + batches[1],
        batches[1] + batches[2],
        batches[1] + stranger,
        plain + batches[1],
    ):
        with pytest.raises(InvalidRecord):
            log.append(wrong, leader_epoch=0, now_ms=NOW_MS)
    assert log.end_offset == 2
    assert log.append(plain + plain, leader_epoch=0, now_ms=NOW_MS).last_offset == 5


# ---------------------------------------------------------------------- following


def test_a_follower_keeps_offsets_and_epochs(place: Place) -> None:
    leader, follower = (
        open_log(place),
        Log.open(place.disk, f"{place.path}/t-1", TopicConfig(), clean=True, now_ms=NOW_MS),
    )
    for epoch in (1, 1, 3):
        leader.append(
            make_batch(records(4), producer_id=1, epoch=0, sequence=leader.end_offset),
            leader_epoch=epoch,
            now_ms=NOW_MS,
        )
    data = bytes_of(leader)
    assert follower.append_as_follower(data) == (0, 11, NOW_MS, -1, len(data), False)
    assert bytes_of(follower) == data
    assert follower.epochs.entries == leader.epochs.entries == [(1, 0), (3, 8)]
    assert follower.producers.encode(12) == leader.producers.encode(12)
    for wrong in (
        data,
        make_batch(records(1), base_offset=12, leader_epoch=2),
        patched(data, 100, ">B", 7, seal=False),
    ):
        with pytest.raises(CorruptMessage):
            follower.append_as_follower(wrong)
    assert follower.end_offset == 12


def test_a_follower_takes_gaps_that_compaction_left(place: Place) -> None:
    log = open_log(place)
    log.append_as_follower(make_batch(records(2), base_offset=10, leader_epoch=0))
    far = 5 + (1 << 33)
    log.append_as_follower(make_batch(records(1), base_offset=far, leader_epoch=0))
    assert (log.start_offset, log.end_offset) == (0, far + 1)
    assert [s.base_offset for s in log.segments] == [0, far], "relative offsets have 32 bits"
    extent = log.read(3, 1000, limit_offset=log.end_offset)
    assert extent is not None and extent.first_offset == 10
    extent = log.read(12, 1000, limit_offset=log.end_offset)
    assert extent is not None and extent.first_offset == far


def test_the_first_followed_offset_may_be_far_away(place: Place) -> None:
    log, far = open_log(place), 1 << 40
    log.append_as_follower(make_batch(records(1), base_offset=far, leader_epoch=0))
    assert [s.base_offset for s in log.segments] == [far]
    log.close(clean=False)
    assert open_log(place, clean=False).end_offset == far + 1


# ---------------------------------------------------------------------- rolling


def test_rolls_by_bytes(place: Place) -> None:
    log = open_log(place, TopicConfig(segment_bytes=len(GOOD) * 2 + 1))
    for _ in range(5):
        log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    assert [s.base_offset for s in log.segments] == [0, 6, 12]
    assert {n for n in place.disk.list(f"{place.path}/t-0") if n.endswith(".snapshot")} == {
        "00000000000000000006.snapshot",
        "00000000000000000012.snapshot",
    }


def test_rolls_by_the_first_records_age(place: Place) -> None:
    log = open_log(place, TopicConfig(segment_ms=1000, message_timestamp_after_max_ms=1 << 40))
    for timestamp in (0, 1000, 1001, 1500):
        log.append(make_batch(records(1, timestamp=NOW_MS + timestamp)), leader_epoch=0, now_ms=NOW_MS)
    assert [s.base_offset for s in log.segments] == [0, 2]


def test_rolls_when_an_index_is_full(place: Place) -> None:
    log = open_log(place, TopicConfig(segment_index_bytes=16, index_interval_bytes=1))
    for _ in range(8):
        log.append(make_batch(records(1)), leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) > 1
    assert all(place.disk.open(s.path(".index")).size() <= 16 for s in log.segments[:-1])


def test_an_empty_segment_is_not_rolled(place: Place) -> None:
    log = open_log(place)
    log.roll(NOW_MS)
    log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert [s.base_offset for s in log.segments] == [0, 3]


# ---------------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("operation", ["append", "create", "write_file"])
def test_a_failing_disk_breaks_the_log_and_nothing_half_written_is_served(operation: str) -> None:
    disk = SimDisk()
    log = Log.open(disk, "/d/t-0", TopicConfig(segment_bytes=len(GOOD) * 2), clean=True, now_ms=NOW_MS)
    log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    log.append(GOOD, leader_epoch=0, now_ms=NOW_MS)
    told: list[Exception] = []
    log.on_broken = told.append
    disk.fail(operation, code=errno.ENOSPC)
    for call in (
        lambda: log.append(GOOD, leader_epoch=0, now_ms=NOW_MS),  # this one rolls
        lambda: log.append(GOOD, leader_epoch=0, now_ms=NOW_MS),
        lambda: log.read(0, 1000, limit_offset=6),
    ):
        with pytest.raises(KafkaStorageError):
            call()
    assert len(told) == 1 and isinstance(log.broken, OSError)
    disk.kill()
    again = Log.open(disk, "/d/t-0", TopicConfig(), clean=False, now_ms=NOW_MS)
    assert [h.base_offset for h in again.verify()] == [0, 3]
    assert again.append(GOOD, leader_epoch=1, now_ms=NOW_MS).base_offset == 6


def test_errors_are_request_errors() -> None:
    for _, error in REFUSED.values():
        assert issubclass(error, RequestError)
