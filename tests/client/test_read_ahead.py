"""What an iteration has taken and not given out: not consumed, given first, dropped when its partition moved."""

from __future__ import annotations

from ottla_client.consumer_machine import COMMITTED, EARLIEST, ConsumerMachine, ConsumerPolicy
from ottla_client.errors import NoOffset
from ottla_client.fetched import Decoding
from ottla_client.read_ahead import ReadAhead
from ottla_client.record import ConsumerRecord
from ottla_core.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def record(tp: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(*tp, offset, 0, None, None, ())


def test_first_offsets_are_those_not_given_out() -> None:
    ahead = ReadAhead()
    ahead.put([record(A, 5), record(A, 6), record(B, 9)])
    assert ahead.first_offsets() == {A: 5, B: 9}
    assert ahead.pop() == record(A, 5)
    assert ahead.first_offsets() == {A: 6, B: 9}
    assert ahead.take(10) == [record(A, 6), record(B, 9)]
    assert ahead.pop() is None and ahead.first_offsets() == {}


def test_what_was_sought_or_revoked_is_dropped() -> None:
    made = machine("earliest")
    ahead = made.ahead
    ahead.put([record(A, 5), record(B, 9), record(A, 6)])
    made.seek(A, 3)
    assert ahead.first_offsets() == {B: 9}
    made.assign([A])
    assert ahead.take(10) == []


def test_what_is_paused_stays_in_its_place_and_is_still_dropped_when_it_moves() -> None:
    made = machine("earliest")
    ahead = made.ahead
    ahead.put([record(A, 5), record(B, 9), record(A, 6)])
    made.pause(A)
    assert ahead.take(10) == [record(B, 9)] and ahead.first_offsets() == {A: 5}
    ahead.put([record(B, 10)])
    made.resume(A)
    assert ahead.take(2) == [record(A, 5), record(A, 6)], "before what was taken later"
    assert ahead.take(10) == [record(B, 10)]
    ahead.put([record(A, 7)])
    made.pause(A)
    made.seek(A, 1)
    made.resume(A)
    assert ahead.take(10) == []


def test_an_iteration_keeps_one_object_through_all_of_it() -> None:
    made = machine("earliest")
    ready = made.ahead.ready
    made.ahead.put([record(A, 5), record(B, 9)])
    made.pause(A)
    made.resume(A)
    made.seek(B, 1)
    assert made.ahead.ready is ready and list(ready) == [record(A, 5)]


def machine(reset: str) -> ConsumerMachine:
    made = ConsumerMachine(ConsumerPolicy(), Decoding(), reset, lambda: 0.5)
    made.assign([A, B], committed=True)
    made.leaders_changed("t", [0, 0])
    return made


def test_new_partitions_of_a_group_start_where_it_is() -> None:
    made = machine("earliest")
    first, second = made.lookups(0.0)
    assert (first.timestamp_ms, second.timestamp_ms) == (COMMITTED, COMMITTED) and made.lookups(0.0) == []
    made.found(first, 42)
    made.nothing_committed(second)
    assert made.positions() == {A: 42}
    (reset,) = made.lookups(0.0)
    assert (reset.tp, reset.timestamp_ms) == (B, EARLIEST)
    made.found(reset, 7)
    assert made.positions() == {A: 42, B: 7}


def test_a_seek_makes_the_lookup_void() -> None:
    made = machine("earliest")
    first, _ = made.lookups(0.0)
    made.seek(A, 5)
    made.found(first, 42)
    made.nothing_committed(first)
    assert made.positions() == {A: 5}


def test_nothing_committed_and_no_reset_is_an_error() -> None:
    made = machine("none")
    for lookup in made.lookups(0.0):
        made.nothing_committed(lookup)
    error = made.state(A).error
    assert isinstance(error, NoOffset) and "no committed offset" in str(error)
