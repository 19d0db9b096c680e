"""Fetch requests are parsed before the receive buffer is used again, and their counts are bounded."""

from __future__ import annotations

import struct

import pytest

from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.fetch_wire import LONG_BODY_BYTES, parse, parse_in_steps

#: Replica, wait, least and most bytes, isolation, session id and epoch.
_HEAD = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1)


def test_a_body_that_is_not_copied_is_parsed_in_one_slice() -> None:
    """A second slice would read what another connection has received since."""
    count = (LONG_BODY_BYTES - len(_HEAD) - 4) // 3
    topics = struct.pack(">BB", (count + 1) & 0x7F | 0x80, (count + 1) >> 7) + b"\x01\x01\x00" * count
    body = _HEAD + topics + b"\x01\x01\x00"
    assert LONG_BODY_BYTES - 8 < len(body) <= LONG_BODY_BYTES
    with pytest.raises(StopIteration) as parsed:
        next(parse_in_steps(memoryview(body), 12))
    assert len(parsed.value.value.topics) == count


def test_a_negative_count_is_refused_and_gives_no_room_for_others() -> None:
    body = _HEAD + struct.pack(">i", -(1 << 31)) + bytes(64)
    with pytest.raises(Malformed):
        parse(memoryview(body), 11)


def test_missing_arrays_are_empty() -> None:
    body = _HEAD + struct.pack(">iih", -1, -1, 0)
    assert parse(memoryview(body), 11).topics == []
