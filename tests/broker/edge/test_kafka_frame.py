"""Framing and the shared memory budget, without sockets."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.frame import Framer
from ottla_broker.edge.memory import Memory


def receive(framer: Framer, stream: bytes, cuts: random.Random) -> list[bytes]:
    """Feed a stream in pieces of random size, as a loop would; give what came out."""
    frames: list[bytes] = []
    while stream:
        space = framer.space()
        assert len(space) > 0
        count = min(len(space), len(stream), cuts.randrange(1, 60))
        space[:count], stream = stream[:count], stream[count:]
        framer.filled(count)
        while (frame := framer.next()) is not None:
            frames.append(bytes(frame))
        if framer.left == 0:
            framer.drop()
        elif size := framer.missing():
            framer.keep(size)
    return frames


@given(st.lists(st.binary(max_size=120), max_size=12), st.integers())
def test_frames_come_out_as_they_went_in(frames: list[bytes], seed: int) -> None:
    shared = memoryview(bytearray(64))
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    framer = Framer(shared, Memory(1 << 20), 1000)
    assert receive(framer, stream, random.Random(seed)) == frames
    assert framer.left == 0


def test_two_connections_share_the_receive_buffer() -> None:
    shared = memoryview(bytearray(64))
    memory = Memory(1 << 20)
    one, two = Framer(shared, memory, 1000), Framer(shared, memory, 1000)
    frame = struct.pack(">i", 10) + b"0123456789"
    assert receive(one, frame[:7], random.Random(1)) == []
    assert receive(two, frame, random.Random(2)) == [b"0123456789"]
    assert receive(one, frame[7:], random.Random(3)) == [b"0123456789"]


@pytest.mark.parametrize("length", [-1, 1001, 0x7FFFFFFF, -(2**31)])
def test_impossible_length_is_malformed_at_once(length: int) -> None:
    framer = Framer(memoryview(bytearray(64)), Memory(1 << 20), 1000)
    framer.space()[:4] = struct.pack(">i", length)
    framer.filled(4)
    with pytest.raises(Malformed, match="a frame of"):
        framer.next()


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS handshake on a listener without TLS"),
        (b"\x16\x03\x03\x00\xf8\x01", "TLS handshake"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2; gRPC clients"),
        (b"GET /metrics HTTP/1.1\r\n", "HTTP request; metrics and health"),
        (b"\x16\x04\x00\x00", "a frame of"),
    ],
)
def test_other_protocols_are_named(first: bytes, named: str) -> None:
    framer = Framer(memoryview(bytearray(64)), Memory(1 << 20), 100 << 20)
    framer.space()[: len(first)] = first
    framer.filled(len(first))
    with pytest.raises(Malformed, match=named):
        framer.next()


def test_a_claimed_length_takes_memory_only_as_bytes_come() -> None:
    framer = Framer(memoryview(bytearray(64)), Memory(1 << 30), 100 << 20)
    framer.space()[:4] = struct.pack(">i", 90 << 20)
    framer.filled(4)
    assert framer.next() is None
    framer.keep(framer.missing())
    assert len(framer.space()) < 2 << 20


def test_reservations_are_granted_in_order_and_never_overtaken() -> None:
    memory = Memory(100)
    log: list[str] = []

    def first() -> None:
        log.append("first")

    def second() -> None:
        log.append("second")

    assert memory.reserve(80, lambda: None)
    assert not memory.reserve(60, first)
    assert not memory.reserve(1, second), "would fit, but must not overtake"
    memory.release(20)
    assert log == []
    memory.release(60)
    assert log == ["first", "second"]
    assert memory.used == 61


def test_a_request_above_the_budget_goes_alone() -> None:
    memory = Memory(100)
    assert memory.reserve(500, lambda: None)
    assert memory.used == 500 and memory.room == 0
    assert not memory.reserve(1, lambda: None)


def test_what_is_parked_never_keeps_others_out() -> None:
    memory = Memory(100)
    granted: list[str] = []
    assert memory.reserve(80, lambda: None)
    assert not memory.reserve(90, lambda: granted.append("waiter"))
    memory.park(60)  # what the waiter has received already
    memory.release(80)
    assert granted == ["waiter"]


def test_unsent_answers_keep_requests_out_but_never_all_of_them() -> None:
    memory = Memory(100)
    granted: list[str] = []
    memory.owe(90)
    assert memory.reserve(50, lambda: None), "one is always let in"
    assert not memory.reserve(50, lambda: granted.append("next"))
    memory.owe(-90)
    assert granted == ["next"]


def test_leaving_the_queue_admits_the_next_waiter() -> None:
    memory = Memory(100)
    granted: list[str] = []

    def big() -> None:
        granted.append("big")

    def small() -> None:
        granted.append("small")

    assert memory.reserve(50, lambda: None)
    assert not memory.reserve(90, big)
    assert not memory.reserve(10, small)
    memory.forget(big)
    assert granted == ["small"]


def test_buffers_are_used_again_up_to_a_limit() -> None:
    memory = Memory(100)
    buffer = memory.take(100_000)
    memory.give(buffer)
    assert memory.take(90_000) is buffer
    for _ in range(100):
        memory.give(bytearray(1 << 20))
    assert memory._pooled <= 8 << 20
