"""Records behind a batch header: what no client could read is refused, what all can read is accepted."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_core.errors import InvalidRecord
from ottla_core.records import structure
from ottla_core.records.batch import HEADER_BYTES, header_at, reseal
from ottla_core.records.codec import Record, build_batch, records_of
from ottla_core.records.structure import Found, check_records

NOW_MS = 1_700_000_000_000
#: 0x80 behind a number says that it goes on; a number of six bytes is more than Java reads.
LONG_ZERO = b"\x80\x80\x80\x80\x80\x00"


def checked(data: bytes | bytearray, count: int, **wanted: object) -> Found:
    steps = check_records(memoryview(data), count, **wanted)  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Found = done.value
            return found


def record(body: bytes) -> bytes:
    assert len(body) < 64
    return bytes((len(body) * 2,)) + body


#: Attributes, timestamp delta, offset delta, no key, a value of one byte, no headers.
GOOD = b"\x00\x00\x00\x01\x02v\x00"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 70_000])
@pytest.mark.parametrize("count", [1, 70, 9_000])
def test_what_a_producer_writes_is_sound(size: int, count: int) -> None:
    if size * count > 1 << 22:
        count = 70
    records = [
        Record(
            0, NOW_MS + n * 37 % 5000, None if n % 3 else b"k" * n, b"v" * size, [("h", b"x"), ("ü", None)]
        )
        for n in range(count)
    ]
    batch = build_batch(records)
    found = checked(batch[HEADER_BYTES:], count, needs_keys=True)
    assert header_at(batch).base_timestamp + found.newest_delta == header_at(batch).max_timestamp
    assert found.keyless == [n for n in range(count) if n % 3][: structure.NAMED_MAX]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(b"", 1, id="nothing"),
        pytest.param(b"", 0, id="no records"),
        pytest.param(record(GOOD), 0, id="none announced"),
        pytest.param(record(GOOD), -1, id="a negative count"),
        pytest.param(record(GOOD), 1000, id="a thousand announced"),
        pytest.param(record(GOOD), (1 << 31) - 1, id="two thousand million announced"),
        pytest.param(record(GOOD) * 2, 1, id="more than announced"),
        pytest.param(record(GOOD) * 2, 2, id="the same offset twice"),
        pytest.param(record(GOOD) + b"\x00", 1, id="a byte behind"),
        pytest.param(record(GOOD)[:-1], 1, id="cut off"),
        pytest.param(b"\xff" * 40, 1, id="garbage"),
        pytest.param(b"\x01" + GOOD, 1, id="a negative size"),
        pytest.param(record(b"\x80" + GOOD[1:]), 1, id="attributes that aiokafka reads as a longer number"),
        pytest.param(record(b"\x00\x00\x02\x01\x02v\x00"), 1, id="offset delta 1 first"),
        pytest.param(record(b"\x00\x00\x00\x03\x02v\x00"), 1, id="a key of -2 bytes"),
        pytest.param(record(b"\x00\x00\x00\x01\x03\x00\x00"), 1, id="a value of -2 bytes"),
        pytest.param(record(b"\x00\x00" + LONG_ZERO + b"\x01\x01\x00"), 1, id="an offset of six bytes"),
        pytest.param(record(b"\x00\x00\x00" + LONG_ZERO + b"\x01\x00"), 1, id="a key size of six bytes"),
        pytest.param(record(b"\x00\x00\x00\x01" + LONG_ZERO + b"\x00"), 1, id="a value size of six bytes"),
        pytest.param(record(b"\x00\x00\x00\x01\x01" + LONG_ZERO), 1, id="a header count of six bytes"),
        pytest.param(record(b"\x00\x00\x00\x01\x01\x01"), 1, id="a negative number of headers"),
        pytest.param(record(b"\x00\x00\x00\x01\x01\x02\x01\x01"), 1, id="a header without a name"),
        pytest.param(record(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"), 1, id="a header name that is no text"),
        pytest.param(record(b"\x00\x00\x00\x01\x01\x02\x02a\x03"), 1, id="a header value of -2 bytes"),
        pytest.param(record(b"\x00\x00\x00\x01\x7e\x00"), 1, id="a value beyond the record"),
        pytest.param(
            record(b"\x00" + b"\xff" * 9 + b"\x03\x00\x01\x01\x00"), 1, id="a timestamp beyond 64 bits"
        ),
    ],
)
def test_what_some_client_cannot_read_is_refused(data: bytes, count: int) -> None:
    with pytest.raises(InvalidRecord):
        checked(data, count)


def test_longer_numbers_than_needed_are_read_by_all_and_accepted() -> None:
    assert checked(record(b"\x00\x80\x00\x80\x80\x00\x01\x82\x00v\x80\x00"), 1).newest_delta == 0


def test_untimely_records_are_named() -> None:
    batch = build_batch([Record(0, NOW_MS + ms, b"k", b"v", []) for ms in (0, 10, -10, 300, -300)])
    found = checked(batch[HEADER_BYTES:], 5, least_delta=-20, most_delta=20)
    assert found.untimely == [(3, 300), (4, -300)]
    assert found.newest_delta == 300


def test_it_lets_others_have_a_turn() -> None:
    """Also within one record, which may have half a million headers."""
    many = build_batch([Record(0, NOW_MS, None, b"", []) for _ in range(structure.RECORDS_PER_TURN * 2 + 1)])
    headers = build_batch([Record(0, NOW_MS, None, b"", [("", None)] * (structure.RECORDS_PER_TURN * 2 + 1))])
    for batch in (many, headers):
        assert len(list(check_records(memoryview(batch)[HEADER_BYTES:], header_at(batch).count))) == 2


_BYTES = st.binary(max_size=70) | st.none()
_RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(NOW_MS - 10_000, NOW_MS),
        _BYTES,
        _BYTES,
        st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3) | st.none()), max_size=3),
    ),
    min_size=1,
    max_size=5,
)


@given(_RECORDS, st.data())
@settings(max_examples=examples(1500), deadline=None)
def test_any_mutation_is_refused_or_read_by_all(records: list[Record], data: st.DataObject) -> None:
    """With a CRC that is made right again: aiokafka and our own decoder read all that was accepted, and its count."""
    batch = build_batch(records)
    for _ in range(data.draw(st.integers(1, 2))):
        where = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
        how = data.draw(st.sampled_from(("set", "insert", "delete", "count")))
        byte = data.draw(st.sampled_from((0, 1, 2, 3, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
        if how == "set":
            batch[where] = byte
        elif how == "insert":
            batch.insert(where, byte)
        elif how == "delete" and len(batch) > HEADER_BYTES + 1:
            del batch[where]
        else:
            count = data.draw(st.sampled_from((0, 1, 2, 1000, (1 << 31) - 1)))
            struct.pack_into(">i", batch, 57, count)
            struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    reseal(batch, 0, len(batch))
    header = header_at(batch)
    try:
        checked(batch[HEADER_BYTES:], header.count)
    except InvalidRecord:
        return
    theirs = [(r.offset, r.timestamp, r.key, r.value) for r in DefaultRecordBatch(bytes(batch))]
    ours = records_of(batch, 0, header, limit_bytes=1 << 20)
    assert [r[0] for r in theirs] == [r.offset for r in ours] == list(range(header.last_offset_delta + 1))
    assert [r[1:] for r in theirs] == [(r.timestamp_ms, r.key, r.value) for r in ours]
