"""Batching: size, linger, memory, order. Invariants A1 to A3 of the accumulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_client.accumulator import Accumulator, Batch, Outcome
from ottla_core.errors import MessageTooLarge
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import HEADER_BYTES, header_at
from ottla_core.records.codec import Record, build_batch, records_of
from ottla_core.records.encoded import EncodedRecords

TP = TopicPartition("t", 0)


def make(**changes: float) -> Accumulator:
    settings_: dict[str, float] = {
        "batch_bytes": 1000,
        "linger_s": 0.005,
        "buffer_bytes": 10_000,
        "delivery_timeout_s": 30,
        "record_bytes_max": 5_000,
        "compression": 0,
        **changes,
    }
    return Accumulator(**settings_)  # type: ignore[arg-type]


def put(accumulator: Accumulator, value: bytes, now: float = 0.0, tp: TopicPartition = TP) -> Batch | None:
    return accumulator.append(accumulator.lane(tp), 1, None, value, (), now)


def test_records_share_a_batch_until_linger_has_passed() -> None:
    accumulator = make()
    first = put(accumulator, b"a", 1.0)
    assert put(accumulator, b"b", 1.004) is first
    accumulator.end_linger(1.004)
    assert not accumulator.ready
    assert accumulator.linger_ends() == pytest.approx(1.005)
    accumulator.end_linger(1.005)
    assert list(accumulator.ready) == [TP]
    assert accumulator.linger_ends() is None
    assert put(accumulator, b"c", 1.006) is first, "a due batch takes records until it is sent"


def test_a_full_batch_is_ready_at_once_and_another_begins() -> None:
    accumulator = make()
    first = put(accumulator, b"x" * 600)
    second = put(accumulator, b"y" * 600)
    assert first is not None and second is not None and first is not second
    assert first.closed and list(accumulator.lane(TP).pending) == [first]
    assert accumulator.lane(TP).open is second and not accumulator.lane(TP).due


def test_without_linger_every_batch_is_due_from_its_first_record() -> None:
    accumulator = make(linger_s=0)
    put(accumulator, b"a")
    assert accumulator.lane(TP).due and list(accumulator.ready) == [TP]


def test_flush_makes_all_lanes_due() -> None:
    accumulator = make(linger_s=99)
    other = TopicPartition("t", 1)
    put(accumulator, b"a")
    put(accumulator, b"b", tp=other)
    accumulator.flush()
    assert list(accumulator.ready) == [TP, other]


def test_a_full_buffer_says_so_and_room_comes_with_settling() -> None:
    accumulator = make(buffer_bytes=2_000)
    first = put(accumulator, b"x" * 900)
    assert put(accumulator, b"x" * 900) is not None
    assert put(accumulator, b"x" * 900) is None
    assert first is not None
    accumulator.settle(first, Outcome(5))
    assert put(accumulator, b"x" * 900) is not None


def test_one_record_larger_than_the_buffer_passes_when_it_is_alone() -> None:
    accumulator = make(buffer_bytes=100)
    assert put(accumulator, b"x" * 900) is not None
    assert put(accumulator, b"y") is None


def test_a_record_too_large_for_any_request_is_refused_and_nothing_changes() -> None:
    accumulator = make()
    open_batch = put(accumulator, b"a")
    with pytest.raises(MessageTooLarge, match="max_request_size=5000"):
        put(accumulator, b"x" * 6_000)
    assert accumulator.lane(TP).open is open_batch
    assert put(accumulator, b"b") is open_batch


def test_what_cannot_be_a_record_leaves_no_empty_batch_behind() -> None:
    accumulator = make()
    with pytest.raises((TypeError, ValueError)):
        accumulator.append(accumulator.lane(TP), -5, None, b"", (), 0.0)
    assert not accumulator.unsettled and accumulator.lane(TP).open is None and accumulator.used_bytes == 0
    assert put(accumulator, b"fine") is not None


def encoded(*values: bytes) -> EncodedRecords:
    made = build_batch([Record(0, 1, None, value, []) for value in values])
    return EncodedRecords(made[HEADER_BYTES:], len(values), base_timestamp_ms=1, max_timestamp_ms=1)


def test_an_encoded_batch_goes_after_the_records_before_it_and_before_the_later_ones() -> None:
    accumulator = make(linger_s=99)
    lane = accumulator.lane(TP)
    first = put(accumulator, b"a")
    second = accumulator.append_encoded(lane, encoded(b"b", b"c"), 0.0)
    third = put(accumulator, b"d")
    assert second is not None and second.count == 2 and second.closed
    assert list(lane.pending) == [first, second] and lane.open is third
    assert accumulator.used_bytes == sum(batch.size_bytes for batch in accumulator.unsettled.values())
    accumulator.settle(second, Outcome())
    assert accumulator.freed_bytes == second.size_bytes


def test_an_encoded_batch_waits_for_room_and_must_fit_a_request() -> None:
    accumulator = make(buffer_bytes=300, record_bytes_max=400)
    lane = accumulator.lane(TP)
    assert accumulator.append_encoded(lane, encoded(b"x" * 320), 0.0) is not None, (
        "alone, it may exceed the buffer"
    )
    assert accumulator.append_encoded(lane, encoded(b"y"), 0.0) is None
    accumulator.settle(lane.pending[0], Outcome())
    with pytest.raises(MessageTooLarge, match="2 encoded records"):
        accumulator.append_encoded(lane, encoded(b"x" * 200, b"y" * 200), 0.0)
    assert accumulator.used_bytes == 0 and not accumulator.unsettled


def test_an_encoded_batch_is_split_as_any_other() -> None:
    accumulator = make()
    batch = accumulator.append_encoded(accumulator.lane(TP), encoded(b"a" * 90, b"b" * 90, b"c" * 90), 0.0)
    assert batch is not None
    batch.build()
    halves = accumulator.split(batch)
    assert [half.count for half in halves] == [1, 2]
    assert accumulator.batch_bytes(accumulator.lane(TP)) < 1000


def test_watchers_hear_of_the_outcome_once_also_when_they_come_late() -> None:
    accumulator = make()
    batch = put(accumulator, b"a")
    assert batch is not None
    heard: list[Outcome | None] = []
    batch.watch(lambda settled: heard.append(settled.outcome))
    accumulator.settle(batch, Outcome(7))
    accumulator.settle(batch, Outcome(8))
    batch.watch(lambda settled: heard.append(settled.outcome))
    assert heard == [Outcome(7), Outcome(7)]


def test_expired_batches_are_given_once_oldest_first() -> None:
    accumulator = make(delivery_timeout_s=10)
    first = put(accumulator, b"x" * 900, 0.0)
    second = put(accumulator, b"x" * 900, 5.0)
    assert accumulator.first_deadline() == 10.0
    assert accumulator.expired(9.9) == []
    assert accumulator.expired(15.0) == [first, second]
    assert accumulator.expired(99.0) == []


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 1500)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("tick"), st.integers(0, 9), st.just(0)),
        ),
        max_size=80,
    )
)
def test_memory_and_order_hold_over_random_steps(steps: list[tuple[str, int, int]]) -> None:
    """A1, A2, A3 against plain lists."""
    accumulator = make(buffer_bytes=4_000)
    now = 0.0
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    batches: dict[int, list[Batch]] = {0: [], 1: [], 2: []}
    for number, (step, which, size) in enumerate(steps):
        now += 0.001
        if step == "put":
            value = b"%06d" % number + b"." * size
            before = accumulator.used_bytes
            batch = put(accumulator, value, now, TopicPartition("t", which))
            if batch is None:
                assert before and before + size + 6 + 26 > 4_000
                continue
            sent[which].append(value)
            if batch not in batches[which]:
                batches[which].append(batch)
        elif step == "settle" and accumulator.unsettled:
            waiting = list(accumulator.unsettled.values())
            batch = waiting[which % len(waiting)]
            if not batch.closed:
                accumulator.close(batch)
            batch.lane.pending.remove(batch)
            batch.build()
            payload = batch.payload
            accumulator.settle(batch, Outcome())
            batch.payload = payload
        else:
            accumulator.end_linger(now)
        assert accumulator.used_bytes == sum(b.size_bytes for b in accumulator.unsettled.values())
    for which, made in batches.items():
        values: list[bytes | None] = []
        for batch in made:
            if not batch.payload:
                batch.build()
            header = header_at(batch.payload)
            assert header.count == batch.count
            values.extend(r.value for r in records_of(batch.payload, 0, header, limit_bytes=1 << 20))
        assert values == sent[which]
