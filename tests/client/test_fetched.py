"""Bytes of a fetch to records: positions, cut batches, markers, aborted transactions, damage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_client.errors import SerializationFailed
from ottla_client.fetched import Chunk, Decoding
from ottla_core.errors import CorruptMessage
from ottla_core.ids import TopicPartition
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression
from ottla_core.records.control import Marker, MarkerType, build_marker

TP = TopicPartition("t", 3)


def batch(base: int, count: int, *, producer_id: int = -1, compression: int = 0) -> bytes:
    records = [Record(0, 1000 + base + n, b"k%d" % (base + n), b"v%d" % (base + n), []) for n in range(count)]
    return bytes(
        build_batch(
            records,
            base_offset=base,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
    )


def marker(kind: MarkerType, producer_id: int, at: int) -> bytes:
    return bytes(
        build_marker(
            Marker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1, base_offset=at
        )
    )


def chunk(
    data: bytes, position: int = 0, aborted: list[tuple[int, int]] | None = None, **how: object
) -> Chunk:
    return Chunk(TP, data, position, aborted or [], Decoding(**how))  # type: ignore[arg-type]


def test_records_carry_all_that_was_written() -> None:
    records = [
        Record(0, 1234, b"key", b"value", [("trace", b"1"), ("none", None)]),
        Record(0, 1235, None, None, []),
    ]
    first, second = chunk(bytes(build_batch(records, base_offset=40))).take(10)
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == ("t", 3, 40, 1234)
    assert (first.key, first.value, list(first.headers)) == (
        b"key",
        b"value",
        [("trace", b"1"), ("none", None)],
    )
    assert (second.offset, second.key, second.value, second.timestamp_type) == (41, None, None, 0)


def test_a_position_inside_a_batch_skips_what_is_before_it() -> None:
    made = chunk(batch(0, 10), position=7)
    assert [r.offset for r in made.take(99)] == [7, 8, 9]
    assert made.position == 10


def test_a_cut_last_batch_is_left_for_the_next_fetch() -> None:
    made = chunk(batch(0, 3) + batch(3, 3)[:-1])
    assert made.next_offset == 3
    assert [r.offset for r in made.take(99)] == [0, 1, 2]
    assert made.exhausted or made.take(1) == []


def test_only_a_part_of_a_batch_is_empty() -> None:
    assert chunk(batch(0, 3)[:70]).is_empty


@settings(max_examples=examples(50))
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    start=st.integers(0, 20),
    compression=st.sampled_from(list(Compression)),
)
def test_whatever_the_bites_every_record_comes_once_in_order(
    counts: list[int], limits: list[int], start: int, compression: int
) -> None:
    data, base = b"", 0
    for count in counts:
        data += batch(base, count, compression=compression)
        base += count
    start = min(start, base)
    made = chunk(data, start)
    taken: list[int] = []
    while not made.exhausted:
        limit = limits[len(taken) % len(limits)]
        bite = [r.offset for r in made.take(limit)]
        assert len(bite) <= limit
        taken.extend(bite)
        assert made.position == (taken[-1] + 1 if taken else start)
    assert taken == list(range(start, base))
    assert made.position == made.next_offset == base


def test_markers_are_never_seen_but_move_the_position() -> None:
    made = chunk(batch(0, 2, producer_id=5) + marker(MarkerType.COMMIT, 5, 2))
    assert [r.offset for r in made.take(99)] == [0, 1]
    assert made.position == 3


def test_read_committed_hides_aborted_transactions_and_only_those() -> None:
    data = (
        batch(0, 2, producer_id=5)  # aborted
        + batch(2, 2, producer_id=6)  # committed, in between
        + marker(MarkerType.ABORT, 5, 4)
        + batch(5, 2, producer_id=5)  # the same producer again, committed
        + marker(MarkerType.COMMIT, 5, 7)
        + marker(MarkerType.COMMIT, 6, 8)
        + batch(9, 1)
    )
    committed = chunk(data, aborted=[(5, 0)], read_committed=True)
    assert [r.offset for r in committed.take(99)] == [2, 3, 5, 6, 9]
    assert committed.position == 10
    assert [r.offset for r in chunk(data, aborted=[(5, 0)]).take(99)] == [0, 1, 2, 3, 5, 6, 9]


def test_damage_is_told_where_it_is_after_what_is_whole_and_stays() -> None:
    damaged = bytearray(batch(0, 2) + batch(2, 2))
    damaged[-3] ^= 0xFF  # in the last value
    made = chunk(bytes(damaged))
    assert [r.offset for r in made.take(99)] == [0, 1], "what is whole is not lost with what is not"
    for _ in range(2):
        with pytest.raises(CorruptMessage, match=r"offset 2 of t-3 fails its CRC.*offset 4"):
            made.take(1)
        assert made.position == 2
    trusting = chunk(bytes(damaged), check_crcs=False)
    assert len(trusting.take(99)) == 4


def test_what_cannot_be_deserialized_names_its_offset() -> None:
    made = chunk(batch(0, 2), value_deserializer=int)
    with pytest.raises(SerializationFailed, match=r"offset 0 of t-3.*Seek to 1"):
        made.take(1)
    fine = chunk(batch(0, 1), key_deserializer=bytes.decode, value_deserializer=lambda data: data[1:])
    assert [(r.key, r.value) for r in fine.take(1)] == [("k0", b"0")]


def test_records_before_one_that_cannot_be_deserialized_are_not_lost_with_it() -> None:
    def picky(data: bytes) -> bytes:
        if data == b"v3":
            raise ValueError("not mine")
        return data

    made = chunk(batch(0, 6) + batch(6, 2), value_deserializer=picky)
    assert [r.offset for r in made.take(99)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(SerializationFailed, match=r"offset 3 of t-3.*Seek to 4"):
            made.take(99)
        assert made.position == 3
    after = chunk(batch(0, 6) + batch(6, 2), position=4, value_deserializer=picky)
    assert [r.offset for r in after.take(99)] == [4, 5, 6, 7]


def test_garbage_is_refused_at_once() -> None:
    with pytest.raises(CorruptMessage):
        chunk(b"\xff" * 200)


def test_a_marker_before_the_position_ends_its_transaction() -> None:
    """Else the producer's next transaction, which is committed, would be skipped."""
    data = batch(0, 2, producer_id=7) + marker(MarkerType.ABORT, 7, 2)
    data += batch(3, 2, producer_id=7) + marker(MarkerType.COMMIT, 7, 5)
    found = chunk(data, 3, [(7, 0)], read_committed=True).take(10)
    assert [each.offset for each in found] == [3, 4]
