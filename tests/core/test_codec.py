"""Records into batches and back; compaction's rewriting; the odd cases of the compiled codec."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.record._crecords import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_core.errors import CorruptMessage
from ottla_core.records.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    header_at,
    reseal,
    restamp,
    verify,
)
from ottla_core.records.codec import (
    BatchBuilder,
    Record,
    build_batch,
    delete_horizon_ms,
    empty_batch,
    rebuild_batch,
    records_of,
)
from ottla_core.records.compression import Compression
from ottla_core.records.lenient import read_leniently

LIMIT_BYTES = 1 << 20

blobs = st.none() | st.binary(max_size=300)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
headers = st.lists(st.tuples(names, blobs), max_size=4)
times = st.integers(0, 2**50)


@st.composite
def record_lists(draw: st.DrawFn, times: st.SearchStrategy[int] = times) -> list[Record]:
    rows = draw(st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=30))
    return [Record(offset, *row) for offset, row in enumerate(rows)]


def read(batch: bytes | bytearray) -> list[Record]:
    header = header_at(batch)
    assert header.size == len(batch)
    assert verify(batch, 0, header)
    return records_of(batch, 0, header, limit_bytes=LIMIT_BYTES)


def simple(count: int = 10, **settings: Any) -> bytearray:
    return build_batch([Record(n, 1000 + n, b"k%d" % n, b"v", []) for n in range(count)], **settings)


@given(records=record_lists(), codec=st.sampled_from(list(Compression)))
def test_round_trip(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, compression=codec)
    header = header_at(batch)
    assert header.compression == codec
    assert header.count == len(records) == header.last_offset_delta + 1
    assert header.base_timestamp == records[0].timestamp_ms
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert read(batch) == records


@given(records=record_lists())
def test_the_lenient_reader_is_the_twin_of_the_compiled_one(records: list[Record]) -> None:
    batch = build_batch(records)
    rows = read_leniently(memoryview(batch)[HEADER_BYTES:], header_at(batch))
    assert [Record._make(row) for row in rows] == records == read(batch)


def test_header_fields_are_set() -> None:
    batch = simple(
        3, producer_id=2**40, producer_epoch=7, base_sequence=99, transactional=True, base_offset=1234
    )
    header = header_at(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 99)
    assert header.is_transactional and not header.is_control
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1234, 1236, -1)
    assert [record.offset for record in read(batch)] == [1234, 1235, 1236]


def test_records_in_the_middle_of_a_buffer() -> None:
    first, second = simple(3), simple(2, compression=Compression.ZSTD)
    restamp(second, 0, 3, 5)
    buffer = bytes(first + second + bytes(40))
    assert len(records_of(buffer, 0, header_at(buffer), limit_bytes=1000)) == 3
    records = records_of(memoryview(buffer), len(first), header_at(buffer, len(first)), limit_bytes=1000)
    assert [record.offset for record in records] == [3, 4]


def test_log_append_time_counts_for_all_records() -> None:
    batch = simple(3)
    struct.pack_into(">h", batch, 21, LOG_APPEND_TIME_FLAG)
    struct.pack_into(">q", batch, 35, 777)
    reseal(batch, 0, len(batch))
    assert [record.timestamp_ms for record in read(batch)] == [777, 777, 777]
    rows = read_leniently(memoryview(batch)[HEADER_BYTES:], header_at(batch))
    assert [row[1] for row in rows] == [777, 777, 777]
    rebuilt = rebuild_batch(header_at(batch), read(batch)[1:])
    assert header_at(rebuilt).max_timestamp == 777
    assert [record.timestamp_ms for record in read(rebuilt)] == [777, 777]


def test_a_header_name_that_is_no_text_is_shown_with_replacements() -> None:
    batch = build_batch(
        [Record(0, 5, b"k", b"v", [("name", b"x"), ("other", None)]), Record(1, 6, None, None, [])]
    )
    at = batch.index(b"name")
    batch[at : at + 4] = b"n\xffm\xfe"
    reseal(batch, 0, len(batch))
    records = read(batch)
    assert records[0] == Record(0, 5, b"k", b"v", [("n\ufffdm\ufffd", b"x"), ("other", None)])
    assert records[1] == Record(1, 6, None, None, [])


# --- the builder ---


def test_the_builder_is_full_at_its_limit_and_not_before() -> None:
    builder = BatchBuilder(200)
    assert builder.size_bytes == HEADER_BYTES
    while builder.append(1, None, b"x" * 20):
        assert builder.size_bytes <= 200
    assert builder.size_bytes + 27 > 200
    count = builder.count
    batch = builder.build()
    assert len(batch) == builder.size_bytes
    assert len(read(batch)) == count == 5
    exact = BatchBuilder(len(batch))
    assert [exact.append(1, None, b"x" * 20) for _ in range(count + 1)] == [True] * count + [False]


def test_the_first_record_fits_whatever_its_size() -> None:
    builder = BatchBuilder(100)
    assert builder.append(1, b"k", b"x" * 1000)
    assert not builder.append(1, b"k", b"")
    assert len(read(builder.build())) == 1


@pytest.mark.parametrize(
    "record",
    [
        (-1, b"k", b"v", []),
        (2**63, b"k", b"v", []),
        (1, "text", b"v", []),
        (1, b"k", 5, []),
        (1, b"k", b"v", [("a", "text")]),
        (1, b"k", b"v", [(b"a", b"b")]),
        (1, b"k", b"v", ["ab"]),
        (1, b"k", b"v", [("\ud800", b"")]),
        (1, b"k", b"v", None),
    ],
)
def test_what_is_no_record_is_refused_and_changes_nothing(record: tuple[object, ...]) -> None:
    builder = BatchBuilder(1000)
    builder.append(1, b"before", b"")
    size = builder.size_bytes
    with pytest.raises((TypeError, ValueError, OverflowError)):
        builder.append(*record)  # type: ignore[arg-type]
    assert (builder.count, builder.size_bytes) == (1, size)
    builder.append(2, b"after", b"")
    assert [record.key for record in read(builder.build())] == [b"before", b"after"]


def test_a_builder_builds_once() -> None:
    builder = BatchBuilder(1000)
    with pytest.raises(ValueError, match="Nothing"):
        builder.build()
    builder.append(1, memoryview(b"key"), bytearray(b"value"), (("a", b"b"),))
    assert read(builder.build()) == [Record(0, 1, b"key", b"value", [("a", b"b")])]
    with pytest.raises(ValueError, match="already"):
        builder.append(1, b"k", b"v")
    with pytest.raises(ValueError, match="already"):
        builder.build()


# --- compaction ---


@given(
    records=record_lists(times=st.integers(-1, 2**50)),
    codec=st.sampled_from(list(Compression)),
    keep=st.lists(st.booleans(), min_size=30, max_size=30),
    base_offset=st.integers(0, 2**60),
)
@settings(max_examples=examples(200))
def test_rebuilding_keeps_what_is_kept(
    records: list[Record], codec: Compression, keep: list[bool], base_offset: int
) -> None:
    records = [record._replace(offset=base_offset + record.offset) for record in records]
    original = header_at(simple(1))._replace(
        base_offset=base_offset,
        leader_epoch=3,
        attributes=codec | 0x10,
        last_offset_delta=len(records) + 4,
        base_timestamp=records[0].timestamp_ms,
        producer_id=8,
        producer_epoch=2,
        base_sequence=70,
    )
    kept = [record for record, kept in zip(records, keep, strict=False) if kept]
    batch = rebuild_batch(original, kept)
    header = header_at(batch)
    assert read(batch) == kept
    assert header.count == len(kept)
    assert header[:1] + header[2:4] == original[:1] + original[2:4]
    assert header[9:12] == original[9:12]
    assert header.last_offset == original.last_offset
    assert header.is_transactional
    if kept:
        assert header.compression == codec
        assert header.max_timestamp == max(record.timestamp_ms for record in kept)


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp_and_stays() -> None:
    batch = simple(4, compression=Compression.LZ4)
    records = read(batch)
    assert delete_horizon_ms(header_at(batch)) is None
    first = rebuild_batch(header_at(batch), records[1:], delete_horizon_ms=5_000_000)
    assert header_at(first).attributes & DELETE_HORIZON_FLAG
    assert delete_horizon_ms(header_at(first)) == 5_000_000
    assert read(first) == records[1:]
    second = rebuild_batch(header_at(first), records[2:])
    assert delete_horizon_ms(header_at(second)) == 5_000_000
    assert read(second) == records[2:]


def test_an_emptied_batch_is_a_bare_header() -> None:
    original = header_at(
        simple(5, compression=Compression.GZIP, producer_id=4, producer_epoch=1, base_sequence=30)
    )._replace(base_offset=100, leader_epoch=2)
    for batch in (empty_batch(original), rebuild_batch(original, [])):
        header = header_at(batch)
        assert len(batch) == HEADER_BYTES
        assert read(batch) == []
        assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 104, 2)
        assert (header.producer_id, header.base_sequence, header.last_sequence) == (4, 30, 34)
        assert header.compression == Compression.NONE
        assert header.base_timestamp == header.max_timestamp == original.max_timestamp


def test_a_control_batch_stays_one() -> None:
    original = header_at(simple(1))._replace(attributes=CONTROL_FLAG | 0x10)
    assert header_at(rebuild_batch(original, [Record(0, 5, b"\0\0\0\1", b"\0" * 6, [])])).is_control


def test_aiokafka_reads_what_we_rebuild() -> None:
    """A second opinion on gaps: offsets of compacted batches as another client sees them."""
    batch = simple(6, compression=Compression.SNAPPY)
    rebuilt = rebuild_batch(header_at(batch), read(batch)[1::2])
    assert [record.offset for record in DefaultRecordBatch(bytes(rebuilt))] == [1, 3, 5]


# --- refusals ---


def sealed(batch: bytearray) -> bytearray:
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    reseal(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 9, 11, 100, 2**31 - 1])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_count_that_is_not_true(count: int, codec: Compression) -> None:
    batch = simple(10, compression=codec)
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptMessage):
        read(sealed(batch))


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_compressed_batch_of_no_bytes(codec: Compression) -> None:
    batch = simple(1)[:HEADER_BYTES]
    struct.pack_into(">h", batch, 21, codec)
    with pytest.raises(CorruptMessage):
        read(sealed(batch))


@pytest.mark.parametrize("deltas", [(1, 0), (0, 0), (0, 9), (-1, 0)])
def test_offsets_must_rise_within_the_range(deltas: tuple[int, int]) -> None:
    header = header_at(simple(2))
    records = [Record(delta, 5, None, b"v", []) for delta in deltas]
    with pytest.raises(CorruptMessage, match="do not rise"):
        read(rebuild_batch(header, records))


def test_a_size_beyond_the_buffer() -> None:
    batch = simple(2)
    header = header_at(batch)
    for wrong in (header._replace(length=header.length + 1), header._replace(length=10)):
        with pytest.raises(CorruptMessage):
            records_of(batch, 0, wrong, limit_bytes=1000)
    with pytest.raises(CorruptMessage):
        records_of(batch, 1, header, limit_bytes=1000)
    with pytest.raises(CorruptMessage):
        records_of(batch, -5, header, limit_bytes=1000)
    with pytest.raises(CorruptMessage, match="magic"):
        records_of(batch, 0, header._replace(magic=1), limit_bytes=1000)
