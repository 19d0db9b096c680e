"""The cleaner over files: what stays, what goes when, and that no death in the middle loses a record."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from budget import some
from ottla_broker.log.cleaner import Cleaning
from ottla_broker.log.compaction import KEY_COST_BYTES
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage, OutOfOrderSequenceNumber
from ottla_core.real.chance import RealChance
from ottla_core.records.batch import HEADER_BYTES, BatchHeader, complete_batches, header_at, reseal
from ottla_core.records.codec import delete_horizon_ms
from sim.batches import CODECS, Rec, make_batch, make_marker, read_batches
from sim.disk import SimDisk, Stopped

PATH = "/data/t-0"
NOW = 1_700_000_000_000
DAY = 86_400_000
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1200,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DAY,
)


def new_log(disk: SimDisk | None = None, config: TopicConfig = CONFIG) -> tuple[SimDisk, Log]:
    disk = disk or SimDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return disk, Log.open(disk, PATH, config, clean=True, now_ms=NOW)


def reopen(disk: SimDisk, config: TopicConfig = CONFIG, recovery_point: int = 0) -> Log:
    return Log.open(disk, PATH, config, clean=False, recovery_point=recovery_point, now_ms=NOW)


def put(
    log: Log, *pairs: tuple[str, str | None], codec: str = "none", now: int = NOW, **producer: int
) -> int:
    """One batch of key and value pairs; gives its base offset."""
    recs = [Rec(k.encode(), None if v is None else v.encode(), now) for k, v in pairs]
    batch = make_batch(recs, codec=codec, **producer)
    return log.append(batch, leader_epoch=0, now_ms=now, origin=AppendOrigin.TRANSACTION).base_offset


def marker(log: Log, pid: int, *, commit: bool, now: int = NOW) -> int:
    data = make_marker(commit=commit, producer_id=pid, timestamp=now)
    return log.append(data, leader_epoch=0, now_ms=now, origin=AppendOrigin.COORDINATOR).base_offset


def clean(
    log: Log, *, now: int = NOW, first_dirty: int = 0, stable: int | None = None, keys_max: int = 1000
) -> int:
    """One round; gives where the next one begins, or the same offset if none was due."""
    cleaning = Cleaning.begin(
        log,
        now_ms=now,
        first_dirty_offset=first_dirty,
        stable_offset=log.end_offset if stable is None else stable,
        key_map_bytes=keys_max * KEY_COST_BYTES,
    )
    if cleaning is None:
        return first_dirty
    while cleaning.step():
        pass
    return finish(cleaning, log, now)


def finish(cleaning: Cleaning, log: Log, now: int = NOW) -> int:
    for work in cleaning.finish(log, now):
        work()
    return cleaning.end_offset


def batches(log: Log) -> list[tuple[BatchHeader, bytes]]:
    found = []
    for segment in log.segments:
        data = segment.file.read(0, segment.size)
        found += [(h, data[at : at + h.size]) for at, h in complete_batches(data)]
    return found


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of every data record that is in the files."""
    return [
        (offset, rec.key, rec.value)
        for header, data in batches(log)
        if not header.is_control
        for offset, rec in read_batches(data)
    ]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_the_newest_of_each_key_stays_at_its_offset(codec: str) -> None:
    _, log = new_log()
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), codec=codec)
    put(log, ("a", "2"), ("d", "1"), codec=codec)
    whole = put(log, ("e", "1"), ("f", "1"), codec=codec)
    log.roll(NOW)
    put(log, ("b", "2"), codec=codec)
    log.roll(NOW)
    put(log, ("c", "active"), codec=codec)
    before = {h.base_offset: data for h, data in batches(log)}
    assert clean(log) == 8
    assert contents(log) == [
        (2, b"c", b"1"),  # the newer one is in the active segment, which is not looked at
        (3, b"a", b"2"),
        (4, b"d", b"1"),
        (5, b"e", b"1"),
        (6, b"f", b"1"),
        (7, b"b", b"2"),
        (8, b"c", b"active"),
    ]
    after = {h.base_offset: data for h, data in batches(log)}
    assert after[whole] == before[whole], "a batch of which all stays is copied as it is"
    shrunk = header_at(after[0])
    assert (shrunk.last_offset, shrunk.count, shrunk.compression) == (2, 1, CODECS[codec])


def test_timestamps_and_headers_survive_in_a_batch_that_shrinks() -> None:
    _, log = new_log()
    kept = Rec(b"k", b"v", NOW - 500, (("trace", b"x"), ("none", None)))
    records = [Rec(b"gone", b"1", NOW - 900), kept, Rec(b"gone", b"2", NOW - 100)]
    log.append(make_batch(records, codec="zstd"), leader_epoch=3, now_ms=NOW)
    log.append(make_batch([Rec(b"gone", b"3", NOW)]), leader_epoch=3, now_ms=NOW)
    log.roll(NOW)
    clean(log)
    (header, data), _ = batches(log)
    assert read_batches(data) == [(1, kept)]
    assert (header.leader_epoch, header.max_timestamp) == (3, NOW - 500)


def test_log_append_time_survives() -> None:
    _, log = new_log(config=replace(CONFIG, message_timestamp_type="LogAppendTime"))
    put(log, ("a", "1"), ("b", "1"), now=NOW)
    put(log, ("a", "2"), now=NOW + 5)
    log.roll(NOW)
    clean(log)
    assert [(o, r.timestamp) for _, data in batches(log) for o, r in read_batches(data)] == [
        (1, NOW),
        (2, NOW + 5),
    ]


def test_a_tombstone_goes_a_while_after_what_it_deletes() -> None:
    _, log = new_log()
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"))
    put(log, ("last", "1"))
    log.roll(NOW)
    done = clean(log)
    assert contents(log)[:2] == [(1, b"b", b"1"), (2, b"a", None)]
    stamped = batches(log)[1][0]
    assert delete_horizon_ms(stamped) == NOW + DAY
    assert [r.timestamp for _, r in read_batches(batches(log)[1][1])] == [NOW, NOW]

    put(log, ("x", "1"))
    log.roll(NOW)
    done = clean(log, now=NOW + DAY - 1, first_dirty=done)
    assert (2, b"a", None) in contents(log)
    assert delete_horizon_ms(batches(log)[1][0]) == NOW + DAY, "the horizon is set once"

    put(log, ("y", "1"))
    log.roll(NOW)
    clean(log, now=NOW + DAY, first_dirty=done)
    assert contents(log)[:2] == [(1, b"b", b"1"), (3, b"c", b"1")]


def test_nothing_at_or_above_the_stable_offset() -> None:
    _, log = new_log()
    for n in range(4):
        put(log, ("a", str(n)))
        log.roll(NOW)
    assert clean(log, stable=2) == 2
    assert contents(log) == [(n, b"a", str(n).encode()) for n in (1, 2, 3)]


def test_a_small_map_takes_more_rounds_to_the_same_result() -> None:
    def filled() -> Log:
        _, log = new_log()
        for n in range(30):
            put(log, (f"k{n % 7}", str(n)), (f"k{n % 5}", str(n)))
        log.roll(NOW)
        return log

    once, often = filled(), filled()
    clean(once)
    done, rounds = 0, 0
    while (more := clean(often, first_dirty=done, keys_max=2)) != done:
        done, rounds = more, rounds + 1
    assert rounds > 3
    assert done == 60
    assert contents(often) == contents(once)
    assert len(contents(once)) == 7


def test_segments_are_joined_but_not_beyond_their_size() -> None:
    _, log = new_log()
    for n in range(40):
        put(log, (f"key{n % 20}", "x" * 40))
    log.roll(NOW)
    before = len(log.segments)
    clean(log)
    assert len(contents(log)) == 20
    clean(log)  # The first round made the small ones that the second can join.
    sizes = [segment.size for segment in log.segments[:-1]]
    assert len(sizes) < before - 1
    assert max(sizes) <= CONFIG.segment_bytes
    assert len(contents(log)) == 20


def test_every_segment_still_ends_where_the_next_begins() -> None:
    disk, log = new_log(config=replace(CONFIG, segment_bytes=300))
    for n in range(12):
        put(log, ("a", f"{n}" * 60))
    log.roll(NOW)
    clean(log)
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.next_offset() == following.base_offset
    disk.kill()
    again = reopen(disk, log.config)
    assert again.end_offset == 12
    assert contents(again) == [(11, b"a", b"11" * 60)]


def test_a_producers_last_batch_stays_as_an_empty_one() -> None:
    disk, log = new_log()
    put(log, ("a", "1"), producer_id=5, epoch=1, sequence=0)
    put(log, ("a", "2"), ("b", "2"), producer_id=5, epoch=1, sequence=1)
    put(log, ("a", "3"), ("b", "3"))
    log.roll(NOW)
    clean(log)
    assert contents(log) == [(3, b"a", b"3"), (4, b"b", b"3")]
    empty = batches(log)[0]
    assert len(empty[1]) == HEADER_BYTES
    assert (empty[0].base_offset, empty[0].last_offset, empty[0].last_sequence) == (1, 2, 2)
    disk.kill()
    # Without its snapshots the state can only come from the batches.
    for name in disk.list(PATH):
        if name.endswith(".snapshot"):
            disk.remove(f"{PATH}/{name}")
    again = reopen(disk)
    with pytest.raises(OutOfOrderSequenceNumber):
        put(again, ("a", "4"), producer_id=5, epoch=1, sequence=4)
    assert put(again, ("a", "4"), producer_id=5, epoch=1, sequence=3) == 5


def test_aborted_records_go_at_once_and_markers_later() -> None:
    disk, log = new_log()
    transactional = {"transactional": True, "producer_id": 7, "epoch": 0}
    put(log, ("a", "committed"))
    put(log, ("a", "aborted"), sequence=0, **transactional)
    put(log, ("b", "aborted"), sequence=1, **transactional)
    abort = marker(log, 7, commit=False)
    put(log, ("c", "committed"), sequence=2, **transactional)
    commit = marker(log, 7, commit=True)
    put(log, ("d", "1"))
    log.roll(NOW)
    put(log, ("active", "1"))
    assert [t.first_offset for t in log.aborted(0, 100)] == [1]

    done = clean(log)
    assert contents(log)[:2] == [(0, b"a", b"committed"), (4, b"c", b"committed")]
    control = [h for h, _ in batches(log) if h.is_control]
    assert [h.base_offset for h in control] == [abort, commit]
    assert [delete_horizon_ms(h) for h in control] == [None, None], "something of both was there this time"
    assert [t.first_offset for t in log.aborted(0, 100)] == [1]

    log.roll(NOW)
    done = clean(log, first_dirty=done)
    control = [h for h, _ in batches(log) if h.is_control]
    assert delete_horizon_ms(control[0]) == NOW + DAY, "nothing is left of the aborted one: its time runs"
    assert delete_horizon_ms(control[1]) is None
    assert log.aborted(0, 100) == []

    put(log, ("e", "1"))
    log.roll(NOW)
    clean(log, now=NOW + DAY, first_dirty=done)
    assert [h.base_offset for h, _ in batches(log) if h.is_control] == [commit]
    expected = contents(log)
    disk.kill()
    assert contents(reopen(disk)) == expected


def test_an_aborted_newer_record_does_not_displace_a_committed_one() -> None:
    _, log = new_log()
    put(log, ("a", "good"))
    log.roll(NOW)
    put(log, ("a", "bad"), transactional=True, producer_id=7, epoch=0, sequence=0)
    log.roll(NOW)
    marker(log, 7, commit=False)
    log.roll(NOW)
    clean(log)
    assert contents(log) == [(0, b"a", b"good")]


def test_what_cannot_be_read_is_kept() -> None:
    _, log = new_log()
    put(log, ("a", "1"))
    broken = bytearray(make_batch([Rec(b"x", b"y" * 30, NOW)]))
    broken[HEADER_BYTES + 1 :] = b"\xff" * (len(broken) - HEADER_BYTES - 1)
    struct.pack_into(">i", broken, 57, 1)
    reseal(broken, 0, len(broken))
    # As in a log from before records were checked.
    log.append(bytes(broken), leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    put(log, ("a", "2"))
    log.roll(NOW)
    cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=3)
    assert cleaning is not None
    while cleaning.step():
        pass
    finish(cleaning, log)
    assert cleaning.unreadable_batches == 2  # once for the map, once for the copy
    assert [h.base_offset for h, _ in batches(log)] == [1, 2]
    assert batches(log)[0][1][16:] == bytes(broken)[16:]


@pytest.mark.parametrize("position", [0, 8, 20, 65, 75], ids=["offset", "length", "crc", "record", "later"])
def test_damage_is_reported_and_not_copied(position: int) -> None:
    disk, log = new_log()
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW)
    disk.rot(log.segments[0].file.path, position)
    cleaning = None
    with pytest.raises(CorruptMessage):
        cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=2)
        while cleaning is not None and cleaning.step():
            pass
    if cleaning is not None:
        cleaning.abandon()
    assert not [name for name in disk.list(PATH) if name.endswith(".cleaned")]


@pytest.mark.parametrize("move", ["truncate", "retention"])
def test_a_log_that_moved_on_is_left_alone(move: str) -> None:
    disk, log = new_log(config=replace(CONFIG, segment_bytes=200))
    for n in range(6):
        put(log, ("a", str(n) * 50))
    cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=6)
    assert cleaning is not None
    while cleaning.step():
        pass
    if move == "truncate":
        log.truncate_to(2)
    else:
        log.advance_start(4)
        log.housekeeping(NOW, 6)
    expected = contents(log)
    resume = finish(cleaning, log)
    assert resume <= log.end_offset
    if move == "retention":
        assert contents(log) == expected
    else:
        assert contents(log)[-1] == expected[-1]
    assert not [name for name in disk.list(PATH) if name.endswith(".cleaned")]
    assert log.broken is None


def test_what_waits_for_its_removal_takes_nothing_along_that_has_its_name_by_now() -> None:
    """Compacted a second time: the time of the first file of that name is up while the second is still read."""
    config = replace(CONFIG, file_delete_delay_ms=1000)
    _, log = new_log(config=config)
    for now in (NOW, NOW + 900):
        for value in (b"1", b"2"):
            log.append(make_batch([Rec(b"k", value, NOW)]), leader_epoch=0, now_ms=NOW)
            log.roll(NOW)
        cleaning = Cleaning.begin(
            log, now_ms=now, first_dirty_offset=0, stable_offset=log.end_offset, key_map_bytes=1 << 20
        )
        assert cleaning is not None
        while cleaning.step():
            pass
        for work in cleaning.finish(log, now):
            work()
            if log.segments[0].suffix:  # Renamed, and in use until the next step.
                purge = log.purge_work(NOW + 1500)
                if now != NOW and purge is not None:
                    purge()
            assert contents(log)[-1][1:] == (b"k", b"2")
    assert [value for _, _, value in contents(log)] == [b"2"]


def test_a_cut_under_the_cleaner_is_no_damage() -> None:
    _, log = new_log()
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW)
    cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=2)
    assert cleaning is not None
    log.truncate_to(1)
    with pytest.raises(CorruptMessage):
        while cleaning.step():
            pass
    assert cleaning.is_outdated and log.damage is None


def test_a_follower_of_a_compacted_log_keeps_what_lies_behind_gaps() -> None:
    """Segments that begin behind a gap would look, after a crash, like a log that has lost its middle."""
    disk, log = new_log(config=replace(CONFIG, segment_bytes=200))
    for base in (0, 7, 8, 30, 55):
        records = [Rec(b"k", b"v" * 60, NOW)]
        log.append_as_follower(make_batch(records, base_offset=base, leader_epoch=0), now_ms=NOW)
    assert len(log.segments) > 2
    disk.kill()
    again = reopen(disk, log.config)
    assert again.end_offset == 56
    assert [offset for offset, *_ in contents(again)] == [0, 7, 8, 30, 55]


def _filled(disk: SimDisk) -> Log:
    _, log = new_log(disk, replace(CONFIG, segment_bytes=400))
    for n in range(14):
        put(log, (f"k{n % 4}", str(n) * 20), (f"k{n % 3}", str(n)))
    log.roll(NOW)
    log.flush()
    return log


@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
def test_death_at_any_point_loses_nothing(power_loss: bool) -> None:
    """At every changing operation of a cleaning: what must stay is there, and nothing that never was."""
    disk = SimDisk()
    log = _filled(disk)
    before = contents(log)
    counted = disk.counts.total()
    clean(log)
    after, operations = contents(log), disk.counts.total() - counted
    assert len(after) < len(before)
    seen: set[int] = set()
    for fuse in {*some(range(operations)), operations - 1}:
        disk = SimDisk()
        log = _filled(disk)
        disk.stop_after(fuse, RealChance(fuse))
        try:
            clean(log)
        except Stopped:
            pass
        die: Callable[[], None] = (lambda d=disk, f=fuse: d.crash(RealChance(f))) if power_loss else disk.kill
        die()
        again = reopen(disk, log.config, recovery_point=28)
        found = contents(again)
        assert set(after) <= set(found) <= set(before)
        assert [o for o, *_ in found] == sorted({o for o, *_ in found})
        assert again.end_offset == 28
        seen.add(len(found))
        clean(again)
        assert contents(again) == after
    assert {len(before), len(after)} <= seen
