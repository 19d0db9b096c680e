"""The aborted-transaction index: Kafka's bytes, overlap search, truncation, and corruption."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.log.aborted import ENTRY_BYTES, AbortedIndex, AbortedTransaction, CorruptAbortedIndex

A = AbortedTransaction(1, 10, 20, 15)
B = AbortedTransaction(2, 15, 30, 31)
C = AbortedTransaction(1, 40, 45, 46)


def test_bytes_are_kafkas() -> None:
    assert A.encode() == struct.pack(">hqqqq", 0, 1, 10, 20, 15)
    assert ENTRY_BYTES == 34
    assert AbortedIndex([A, B]).encode() == A.encode() + B.encode()


def test_reads_back_what_it_wrote() -> None:
    index = AbortedIndex()
    data = b"".join(index.append(entry) for entry in (A, B, C))
    assert list(AbortedIndex.decode(data, 20)) == [A, B, C]
    assert list(AbortedIndex.decode(b"")) == []


@pytest.mark.parametrize(
    ("first", "end", "found", "complete"),
    [
        (0, 10, [], True),
        (0, 11, [A], True),
        (20, 21, [A, B], True),
        (21, 31, [B], True),
        (21, 32, [B], True),
        (31, 40, [], True),
        (0, 46, [A, B, C], True),
        (0, 47, [A, B, C], False),
        (46, 99, [], False),
    ],
)
def test_collect_overlapping(first: int, end: int, found: list[AbortedTransaction], complete: bool) -> None:
    assert AbortedIndex([A, B, C]).collect(first, end) == (found, complete)


def test_truncate_forgets_markers_from_the_offset_on() -> None:
    index = AbortedIndex([A, B, C])
    assert index.truncate_to(45) == 2 * ENTRY_BYTES
    assert index.truncate_to(30) == ENTRY_BYTES
    assert list(index) == [A]
    index.append(B)
    assert index.truncate_to(0) == 0


@pytest.mark.parametrize(
    "data",
    [
        A.encode()[:-1],
        B.encode() + A.encode(),
        A.encode() + A.encode(),
        struct.pack(">hqqqq", 1, *A),
        AbortedTransaction(1, 2, 3, 4).encode(),
        AbortedTransaction(1, 22, 21, 23).encode(),
    ],
    ids=[
        "half an entry",
        "wrong order",
        "twice",
        "newer version",
        "before the segment",
        "ends before it begins",
    ],
)
def test_corruption_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptAbortedIndex):
        AbortedIndex.decode(data, base_offset=20)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        index = AbortedIndex.decode(data)
    except CorruptAbortedIndex:
        return
    assert index.encode() == data
