"""The walk over record lengths finds every record and trusts no length."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from ottla_core.records.walk import record_starts


def with_length(size: int) -> bytes:
    """A record of zeros with its length in front, as a zigzag varint."""
    left, prefix = size << 1, bytearray()
    while left >= 0x80:
        prefix.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(prefix) + bytes([left]) + bytes(size)


@given(st.lists(st.sampled_from([0, 1, 63, 64, 8191, 8192, 70_000]), max_size=8), st.integers(0, 3))
def test_every_record_is_found(sizes: list[int], before: int) -> None:
    records = [with_length(size) for size in sizes]
    data = bytes(before) + b"".join(records)
    starts: list[int] = []
    assert record_starts(data, before, len(data), starts)
    assert starts == [before + sum(map(len, records[:n])) for n in range(len(records))]


def test_a_length_of_1_mib_is_refused() -> None:
    data = with_length(1 << 20)
    assert not record_starts(data, 0, len(data), [])
    data = with_length((1 << 20) - 1)
    assert record_starts(data, 0, len(data), [])


@given(st.binary(max_size=40), st.data())
def test_wrong_lengths_stay_inside(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(at, len(data)))
    starts: list[int] = []
    with contextlib.suppress(IndexError):
        record_starts(data, at, end, starts)
    assert starts == sorted(set(starts))
    assert all(at <= start < end for start in starts)
