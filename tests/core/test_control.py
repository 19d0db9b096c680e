"""Markers as bytes: those of Kafka's own format, and refusals of what is none."""

from __future__ import annotations

import pytest

from ottla_core.errors import CorruptMessage
from ottla_core.records.batch import header_at, verify
from ottla_core.records.codec import Record, empty_batch, records_of
from ottla_core.records.control import Marker, MarkerType, build_marker, marker_in, marker_of


@pytest.mark.parametrize("kind", list(MarkerType))
def test_a_marker_comes_back(kind: MarkerType) -> None:
    batch = build_marker(
        Marker(kind, 12), producer_id=900, producer_epoch=3, timestamp_ms=1_700_000_000_000, base_offset=5
    )
    header = header_at(batch)
    assert verify(batch, 0, header)
    assert header.is_control and header.is_transactional
    assert (header.count, header.base_sequence) == (1, -1)
    assert (header.producer_id, header.producer_epoch, header.base_offset) == (900, 3, 5)
    assert marker_in(batch, 0, header) == Marker(kind, 12)


def test_the_bytes_are_kafkas() -> None:
    batch = build_marker(
        Marker(MarkerType.COMMIT, 0x01020304), producer_id=1, producer_epoch=0, timestamp_ms=7
    )
    [record] = records_of(batch, 0, header_at(batch), limit_bytes=100)
    assert record.key == bytes.fromhex("0000 0001")
    assert record.value == bytes.fromhex("0000 01020304")
    assert len(batch) == 78  # what Kafka's own control batch takes


def test_an_emptied_marker_says_nothing() -> None:
    batch = build_marker(Marker(MarkerType.ABORT, 1), producer_id=1, producer_epoch=0, timestamp_ms=7)
    empty = empty_batch(header_at(batch))
    assert marker_in(empty, 0, header_at(empty)) is None


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, -1, 32767])
def test_other_kinds_of_control_records_are_not_ours(kind: int) -> None:
    key = (0).to_bytes(2, "big") + kind.to_bytes(2, "big", signed=True)
    assert marker_of(Record(0, 0, key, b"", [])) is None


def test_newer_versions_are_read_as_ours() -> None:
    key = bytes.fromhex("0005 0001 ffff")
    value = bytes.fromhex("0005 00000009 ffff")
    assert marker_of(Record(0, 0, key, value, [])) == Marker(MarkerType.COMMIT, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\0\0\0", b""),
        (b"\xff\xff\0\1", b"\0" * 6),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0" * 5),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
    ],
)
def test_what_is_no_marker_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptMessage):
        marker_of(Record(0, 0, key, value, []))
