"""The short parse of a produce request agrees with the general one, wherever sizes change their length."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.edge.kafka import produce_wire
from ottla_broker.edge.kafka.decode import Cursor, Malformed
from ottla_broker.edge.kafka.encode import uvarint

#: Around each size at which its number gets another byte, and what is too small or too large for the short parse.
SIZES = [0, 1, 61, 126, 127, 128, 16_382, 16_383, 16_384, (1 << 21) - 2, (1 << 21) - 1, 1 << 21]


def _body(size: int, name: bytes, by_id: bool) -> bytes:
    key = bytes(16) if by_id else uvarint(len(name) + 1) + name
    head = b"\x00" + struct.pack(">hi", 1, 30_000) + b"\x02" + key + b"\x02" + struct.pack(">i", 7)
    return head + uvarint(size + 1) + bytes(size) + b"\x00\x00\x00"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("name", [b"t", b"n" * 126, b"n" * 127, b"n" * 249])
def test_both_parsers_agree(size: int, by_id: bool, name: bytes) -> None:
    body = memoryview(_body(size, name, by_id))
    parsed = produce_wire.parse(body, 13 if by_id else 9)
    assert parsed == produce_wire._parse_flexible(Cursor(body), by_id)
    assert parsed.topics[0].partitions[0][0] == 7
    assert len(parsed.topics[0].partitions[0][1] or b"") == size


@pytest.mark.parametrize("size", [300, 20_000])
def test_the_short_parse_takes_the_usual_request(size: int) -> None:
    assert produce_wire._parse_one(memoryview(_body(size, b"topic", False)), False) is not None


@given(st.data())
def test_a_changed_byte_never_makes_the_parsers_differ(data: st.DataObject) -> None:
    body = bytearray(_body(data.draw(st.sampled_from([128, 300, 16_384])), b"topic", False))
    body[data.draw(st.integers(0, 20))] = data.draw(st.integers(0, 255))
    view = memoryview(bytes(body))
    short = None
    try:
        short = produce_wire._parse_one(view, False)
    except struct.error:
        pass
    if short is not None:
        try:
            assert short == produce_wire._parse_flexible(Cursor(view), False)
        except (Malformed, struct.error, IndexError, UnicodeDecodeError):
            pytest.fail("the short parse took what the general one refuses")
