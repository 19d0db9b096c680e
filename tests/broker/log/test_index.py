"""The two sparse indexes, in memory and on disk, against a plain list."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.log.offset_index import BadIndex, IndexEntry, OffsetIndex, SealedOffsetIndex
from ottla_broker.log.time_index import SealedTimeIndex, TimeEntry, TimeIndex
from ottla_core.ports.disk import File
from ottla_core.real.disk import RealDisk
from sim.disk import SimDisk

BASE = 1_000_000


def on_disk(data: bytes) -> File:
    file = SimDisk().open("/index", create=True)
    file.append([data])
    return file


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(61, 5000)), max_size=1500)


@given(steps, st.integers(-10, 80_000), st.integers(0, 5_000_000))
def test_both_forms_find_what_a_list_finds(gaps: list[tuple[int, int]], relative: int, position: int) -> None:
    index, entries, at = OffsetIndex(BASE), [], IndexEntry(BASE, 0)
    for offset_gap, bytes_gap in gaps:
        at = IndexEntry(at.last_offset + offset_gap, at.position + bytes_gap)
        entries.append(at)
        index.append(*at)
    sealed = SealedOffsetIndex(on_disk(index.encode()), BASE)
    floor = max((e.position for e in entries if e.last_offset <= BASE + relative), default=0)
    before = max((e for e in entries if e.position <= position), default=None)
    for form in (index, sealed, OffsetIndex.decode(BASE, index.encode())):
        assert len(form) == len(entries)
        assert form.last() == (entries[-1] if entries else None)
        assert form.floor(BASE + relative) == floor
        assert form.at_or_before(position) == before
        assert form.floor(BASE + relative) == floor, "the kept page answers otherwise than the disk"


def test_offset_entries_are_as_kafka_writes_them() -> None:
    index = OffsetIndex(BASE)
    index.append(BASE + 7, 4200)
    index.append(BASE + 300, 70_000)
    assert index.encode() == struct.pack(">iiii", 7, 4200, 300, 70_000)
    assert index.encode(from_entry=1) == struct.pack(">ii", 300, 70_000)


def test_time_entries_are_as_kafka_writes_them() -> None:
    index = TimeIndex(BASE)
    index.maybe_append(1000, BASE + 7)
    index.maybe_append(1000, BASE + 9)
    index.maybe_append(-1, BASE + 10)
    index.maybe_append(2000, BASE + 11)
    assert index.encode() == struct.pack(">qiqi", 1000, 7, 2000, 11)


@given(st.lists(st.integers(1, 1000), max_size=200), st.integers(-10, 120_000))
def test_time_search_finds_what_a_list_finds(gaps: list[int], wanted: int) -> None:
    index, entries, now = TimeIndex(BASE), [], 0
    for number, gap in enumerate(gaps):
        now += gap
        entries.append(TimeEntry(now, BASE + number))
        index.maybe_append(*entries[-1])
    sealed = SealedTimeIndex(on_disk(index.encode()), BASE)
    floor = max((e for e in entries if e.timestamp_ms <= wanted), default=None)
    for form in (index, sealed, TimeIndex.decode(BASE, index.encode())):
        assert form.floor(wanted) == floor
        assert form.last() == (entries[-1] if entries else None)


@given(steps, st.integers(0, 80_000))
def test_truncation_leaves_batches_that_end_before(gaps: list[tuple[int, int]], relative: int) -> None:
    index, times, kept, at = OffsetIndex(0), TimeIndex(0), 0, IndexEntry(0, 0)
    for number, (offset_gap, bytes_gap) in enumerate(gaps):
        at = IndexEntry(at.last_offset + offset_gap, at.position + bytes_gap)
        index.append(*at)
        times.maybe_append(number, at.last_offset)
        kept += at.last_offset < relative
    index.truncate_to(relative)
    times.truncate_to(relative)
    assert (len(index), len(times)) == (kept, kept)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        struct.pack(">iiii", 5, 100, 5, 200),
        struct.pack(">iiii", 5, 100, 6, 100),
        struct.pack(">ii", -1, 100),
        struct.pack(">ii", 3, -100),
    ],
)
def test_an_offset_index_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(BadIndex):
        OffsetIndex.decode(BASE, data)
    with pytest.raises(BadIndex):
        SealedOffsetIndex(on_disk(data), BASE).floor(BASE + 10)


@pytest.mark.parametrize(
    "data", [b"\0" * 11, struct.pack(">qiqi", 9, 1, 9, 2), struct.pack(">qiqi", 9, 5, 10, 4)]
)
def test_a_time_index_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(BadIndex):
        TimeIndex.decode(BASE, data)


def test_a_file_that_shrank_is_an_error_and_not_a_dead_process(tmp_path: Path) -> None:
    index = OffsetIndex(0)
    for number in range(5000):
        index.append(number, number * 100)
    disk, path = RealDisk(), str(tmp_path / "index")
    disk.open(path, create=True).append([index.encode()])
    sealed = SealedOffsetIndex(disk.open(path), 0)
    disk.open(path).truncate(8)
    with pytest.raises(BadIndex):
        sealed.floor(4000)
