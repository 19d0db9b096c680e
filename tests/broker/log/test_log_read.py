"""Finding batches: by offset, by time, within limits, and what happens when they are damaged."""

from __future__ import annotations

import random

import pytest

from ottla_broker.log.log import Extent, Log
from ottla_broker.log.segment import Segment
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage, OffsetOutOfRange
from ottla_core.records.batch import complete_batches, header_at
from sim.batches import CODECS, Rec, make_batch, read_batches
from sim.disk import SimDisk
from sim.places import Place, purge

NOW_MS = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=4000, index_interval_bytes=300)


def fill(place: Place, batches: int = 60, *, seed: int = 1, config: TopicConfig = SMALL) -> Log:
    log = Log.open(place.disk, f"{place.path}/t-0", config, clean=True, now_ms=NOW_MS)
    chance = random.Random(seed)
    for number in range(batches):
        recs = [
            Rec(b"k", chance.randbytes(chance.randrange(120)), NOW_MS + number * 10 + n)
            for n in range(chance.randrange(1, 5))
        ]
        log.append(
            make_batch(recs, codec=chance.choice(list(CODECS))), leader_epoch=number // 20, now_ms=NOW_MS
        )
    return log


def content(extent: Extent | None) -> bytes:
    return b"" if extent is None else extent.file.read(extent.position, extent.size)


def test_every_offset_is_found_in_its_batch(place: Place) -> None:
    log = fill(place)
    headers = list(log.verify())
    assert len(log.segments) > 2
    for offset in range(log.end_offset):
        extent = log.read(offset, 1, limit_offset=log.end_offset)
        header = header_at(content(extent))
        assert header in headers
        assert (
            extent is not None and extent.first_offset == header.base_offset <= offset <= header.last_offset
        )


@pytest.mark.parametrize("max_bytes", [1, 500, 1000, 3999, 1 << 20])
def test_a_sequential_reader_gets_everything_once_and_whole(place: Place, max_bytes: int) -> None:
    log = fill(place)
    expected = [h.base_offset for h in log.verify()]
    offset, seen, wasted = 0, [], 0
    while (extent := log.read(offset, max_bytes, limit_offset=log.end_offset)) is not None:
        data = content(extent)
        headers = [header for _, header in complete_batches(data)]
        assert extent.size <= max_bytes or len(headers) == 1
        wasted += len(data) - sum(h.size for h in headers)
        seen += [h.base_offset for h in headers]
        offset = headers[-1].next_offset
    assert seen == expected
    assert offset == log.end_offset
    assert wasted <= log.size_bytes // 2, "answers should end with a batch where the index knows one"


def test_nothing_beyond_the_limit_is_given(place: Place) -> None:
    log = fill(place)
    bases = [h.base_offset for h in log.verify()]
    for limit in [*bases, log.end_offset]:
        got: list[int] = []
        offset = 0
        while (extent := log.read(offset, 1 << 20, limit_offset=limit)) is not None:
            got += [h.base_offset for _, h in complete_batches(content(extent))]
            offset = [h for _, h in complete_batches(content(extent))][-1].next_offset
        assert got == [base for base in bases if base < limit]


def test_a_limit_inside_a_batch_hides_all_of_it(place: Place) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", SMALL, clean=True, now_ms=NOW_MS)
    for _ in range(2):
        log.append(make_batch([Rec(b"k", b"v", NOW_MS)] * 10), leader_epoch=0, now_ms=NOW_MS)
    first = content(log.read(0, 1 << 20, limit_offset=15))
    assert [h.base_offset for _, h in complete_batches(first)] == [0]
    assert log.read(10, 1 << 20, limit_offset=15) is None


def test_too_small_a_limit_without_min_one_gives_nothing(place: Place) -> None:
    log = fill(place)
    assert log.read(0, 10, limit_offset=log.end_offset, min_one=False) is None
    assert log.read(0, 10, limit_offset=log.end_offset) is not None


def test_outside_is_outside(place: Place) -> None:
    log = fill(place)
    end = log.end_offset
    assert log.read(end, 100, limit_offset=end) is None
    log.advance_start(20)
    for offset in (-1, 19, end + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100, limit_offset=end)
    with pytest.raises(OffsetOutOfRange):
        log.advance_start(end + 1)
    with pytest.raises(OffsetOutOfRange):
        log.advance_start(25, limit_offset=24)


def test_readers_see_appends_rolls_and_cuts_through_their_remembered_places(place: Place) -> None:
    """The place after the last answer is remembered; it must not outlive what it points at."""
    log = fill(place, 3)
    tail = log.end_offset
    assert log.read(0, 1 << 20, limit_offset=tail) is not None  # remembers `tail`
    log.roll(NOW_MS)
    log.append(make_batch([Rec(b"k", b"new", NOW_MS)]), leader_epoch=3, now_ms=NOW_MS)
    (found,) = read_batches(content(log.read(tail, 1 << 20, limit_offset=log.end_offset)))
    assert (found[0], found[1].value) == (tail, b"new")
    log.truncate_to(tail)
    log.append(make_batch([Rec(b"k", b"other", NOW_MS)]), leader_epoch=4, now_ms=NOW_MS)
    (found,) = read_batches(content(log.read(tail, 1 << 20, limit_offset=log.end_offset)))
    assert found[1].value == b"other"


def test_reading_costs_few_system_calls() -> None:
    """A sequential reader does not search; one that jumps reads an index page and a header."""
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 400)
    offset, answers = 0, 0
    before = disk.counts["read"]
    while (extent := log.read(offset, 1000, limit_offset=log.end_offset)) is not None:
        offset = list(complete_batches(extent.file.read(extent.position, extent.size)))[-1][1].next_offset
        answers += 1
    # One for our own look at the data, one for the header, one at the boundary; index pages now and then.
    assert (disk.counts["read"] - before) / answers < 4


# ---------------------------------------------------------------------- by time


def test_times_are_found_to_the_record(place: Place) -> None:
    log = fill(place)
    everything = [
        (offset, record.timestamp)
        for segment in log.segments
        for offset, record in read_batches(segment.file.read(0, segment.size))
    ]
    for wanted in range(NOW_MS - 5, NOW_MS + 610, 7):
        expected = next((o for o, t in everything if t >= wanted), None)
        found = log.find_time(wanted, limit_offset=log.end_offset)
        assert (found and found.offset) == expected
        if found is not None:
            assert found.epoch == log.epochs.epoch_at(found.offset)
    newest = log.max_timestamp()
    assert newest is not None and (newest.offset, newest.timestamp_ms) == max(everything, key=lambda e: e[1])
    assert log.find_time(NOW_MS + 300, limit_offset=10) is None


def test_times_that_run_backwards(place: Place) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", SMALL, clean=True, now_ms=NOW_MS)
    for timestamp in (50, 90, 20, 90, 10, 95):
        log.append(make_batch([Rec(b"k", b"v" * 300, timestamp)]), leader_epoch=0, now_ms=NOW_MS)
    found_by_time = [log.find_time(t, limit_offset=6) for t in (5, 51, 91, 96)]
    assert [found and found.offset for found in found_by_time] == [0, 1, 5, None]
    log.advance_start(2)
    found = log.find_time(51, limit_offset=6)
    assert found is not None and found.offset == 3
    newest = log.max_timestamp()
    assert newest is not None and newest.offset == 5


def test_a_search_goes_on_when_retention_takes_what_it_looks_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(place)
    kept = log.segments[-1].base_offset
    search, taken = Segment.find_time, []

    def interrupted(self: Segment, timestamp_ms: int, from_offset: int) -> object:
        if not taken:
            taken.append(self)
            log.advance_start(kept)
            log.housekeeping(NOW_MS, log.end_offset)
            purge(log, NOW_MS + SMALL.file_delete_delay_ms)
        return search(self, timestamp_ms, from_offset)

    monkeypatch.setattr(Segment, "find_time", interrupted)
    found = log.find_time(NOW_MS, limit_offset=log.end_offset)
    assert taken and taken[0].is_retired
    assert found is not None and found.offset == kept
    assert log.broken is None


def test_no_timestamps_and_no_records(place: Place) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", SMALL, clean=True, now_ms=NOW_MS)
    assert log.max_timestamp() is None
    assert log.find_time(0, limit_offset=0) is None


# ---------------------------------------------------------------------- damage


def reopened(log: Log, disk: SimDisk) -> Log:
    log.close()
    return Log.open(disk, "/d/t-0", SMALL, clean=True, now_ms=NOW_MS)


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "empty", "half an entry", "garbage", "of another time", "rot"])
def test_a_bad_index_is_rebuilt(kind: str, harm: str) -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"))
    expected = [h.base_offset for h in log.verify()]
    paths = [segment.path(kind) for segment in log.segments]
    log.close()
    good = {path: disk.read_file(path) for path in paths}
    for number, path in enumerate(paths):
        if harm == "missing":
            disk.remove(path)
        elif harm == "rot" and good[path]:
            disk.rot(path, len(good[path]) // 2, 0x40)
        else:
            disk.write_file(
                path,
                {
                    "rot": b"",
                    "empty": b"",
                    "half an entry": good[path][:-3],
                    "garbage": random.Random(number).randbytes(len(good[path])),
                    "of another time": good[paths[number - 1]],
                }[harm],
            )
    log = Log.open(disk, "/d/t-0", SMALL, clean=True, now_ms=NOW_MS)
    for offset in range(log.end_offset):
        extent = log.read(offset, 1, limit_offset=log.end_offset)
        assert extent is not None and extent.first_offset == max(b for b in expected if b <= offset)
    for wanted in (NOW_MS, NOW_MS + 333):
        assert log.find_time(wanted, limit_offset=log.end_offset) is not None
    log.close()
    for segment in log.segments[:-1]:
        assert len(disk.read_file(segment.path(kind))) >= len(good[segment.path(kind)]) * 0.5


def test_a_damaged_header_is_an_error_and_is_not_served() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"))
    headers = list(log.verify())
    segment = log.segments[0]
    disk.rot(segment.path(".log"), headers[0].size + 16, 0x40)  # the second batch's magic
    with pytest.raises(CorruptMessage):
        log.read(headers[1].base_offset, 1000, limit_offset=log.end_offset)
    assert log.probe.corruptions == 1
    with pytest.raises(CorruptMessage):
        list(log.verify())
    later = log.segments[-1].base_offset
    assert log.read(later, 1000, limit_offset=log.end_offset) is not None, (
        "the rest of the log is still there"
    )


def test_verify_finds_a_flipped_bit_in_the_records() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"))
    headers = list(log.verify())
    disk.rot(log.segments[0].path(".log"), headers[0].size + 65)
    assert next(log.verify()) == headers[0]
    with pytest.raises(CorruptMessage, match="CRC"):
        list(log.verify())
    assert list(log.verify(headers[2].base_offset)) == headers[2:]
