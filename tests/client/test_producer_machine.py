"""Order, retries, sequence numbers and timeouts: P1 to P4 of the producer machine."""

from __future__ import annotations

import random
from collections import deque

import pytest

from budget import some
from ottla_client.accumulator import Accumulator, Batch
from ottla_client.errors import DeliveryTimedOut
from ottla_client.producer_machine import Policy, ProducerMachine
from ottla_core.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    MessageTooLarge,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestError,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import header_at, verify

TP = TopicPartition("t", 0)


class Bench:
    """A machine with a topic of some partitions, each batch holding one record."""

    def __init__(self, partitions: int = 1, **policy: object) -> None:
        self.accumulator = Accumulator(
            batch_bytes=80,
            linger_s=0,
            buffer_bytes=1 << 20,
            delivery_timeout_s=100,
            record_bytes_max=1 << 16,
            compression=0,
        )
        self.policy = Policy(**{"backoff_s": 1.0, "backoff_max_s": 4.0, **policy})  # type: ignore[arg-type]
        self.machine = ProducerMachine(self.accumulator, self.policy, lambda: 0.5)
        self.lanes = [self.accumulator.lane(TopicPartition("t", n)) for n in range(partitions)]
        self.machine.leaders_changed("t", [0] * partitions)
        if self.policy.idempotent:
            self.machine.identified(7, 0)
        self.now = 0.0

    def put(self, count: int = 1, partition: int = 0) -> list[Batch]:
        made = []
        for _ in range(count):
            batch = self.accumulator.append(self.lanes[partition], 1, None, b"x" * 30, (), self.now)
            assert batch is not None
            if batch not in made:
                made.append(batch)
        return made

    def drain(self) -> list[Batch]:
        return [batch for send in self.machine.drain(self.now) for batch in send.batches]

    def header(self, batch: Batch) -> tuple[int, int, int]:
        header = header_at(batch.payload)
        assert verify(batch.payload, 0, header)
        return header.producer_id, header.producer_epoch, header.base_sequence


def test_at_most_max_in_flight_per_lane_go_out_in_order() -> None:
    bench = Bench(max_in_flight=3)
    batches = bench.put(5)
    assert bench.drain() == batches[:3]
    assert bench.drain() == []
    bench.machine.acknowledged(batches[0], 0, -1)
    assert bench.drain() == [batches[3]]


def test_sequences_go_on_without_gap_and_are_in_the_bytes() -> None:
    bench = Bench()
    batches = bench.put(3)
    bench.drain()
    assert [bench.header(batch) for batch in batches] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]


def test_lanes_of_one_leader_share_a_request_up_to_its_size() -> None:
    bench = Bench(partitions=4, request_bytes=850)
    bench.machine.leaders_changed("t", [0, 0, 0, 1])
    for partition in range(4):
        bench.put(1, partition)
    sends = bench.machine.drain(0.0)
    assert [(send.leader, [b.lane.partition for b in send.batches]) for send in sends] == [
        (0, [0, 1]),
        (0, [2]),
        (1, [3]),
    ]


def test_a_batch_that_brokers_do_not_take_is_halved_before_it_is_sent() -> None:
    bench = Bench()
    bench.lanes[0].batch_bytes = 4000
    bench.put(20)
    bench.machine.limit_requests(800)
    sent: list[Batch] = []
    while batches := bench.drain():
        sent += batches
        assert all(len(batch.payload) <= 500 for batch in batches)
        for batch in batches:
            bench.machine.acknowledged(batch, 0, -1)
    assert [batch.count for batch in sent] == [10, 10]


def test_a_record_that_brokers_do_not_take_is_refused_at_once() -> None:
    bench = Bench()
    (batch,) = bench.put(1)
    bench.machine.limit_requests(350)
    assert bench.drain() == []
    assert batch.outcome is not None and isinstance(batch.outcome.error, MessageTooLarge)
    assert "grpc.message.max.bytes" in str(batch.outcome.error)


def test_nothing_goes_without_an_identity_and_all_goes_with_it() -> None:
    bench = Bench()
    bench.machine.wants_identity = True
    batches = bench.put(2)
    assert bench.drain() == []
    bench.machine.identified(9, 3)
    assert bench.drain() == batches
    assert bench.header(batches[0]) == (9, 3, 0)


def test_without_a_leader_the_topic_is_stale_until_one_is_known() -> None:
    bench = Bench()
    bench.machine.leaders_changed("t", [-1])
    batches = bench.put(1)
    assert bench.drain() == [] and list(bench.machine.stale_topics) == ["t"]
    bench.machine.leaders_changed("t", [5])
    assert [(send.leader, send.batches) for send in bench.machine.drain(0.0)] == [(5, batches)]


def test_a_retriable_refusal_waits_for_the_others_then_goes_one_by_one_with_the_same_numbers() -> None:
    bench = Bench(max_in_flight=3)
    one, two, three, four = bench.put(4)
    assert bench.drain() == [one, two, three]
    bench.machine.refused(one, NotLeaderOrFollower(), 0.0)
    assert list(bench.machine.stale_topics) == ["t"]
    bench.now = 50.0
    assert bench.drain() == [], "two and three are not answered yet"
    bench.machine.refused(two, OutOfOrderSequenceNumber(), 50.0)
    bench.machine.refused(three, OutOfOrderSequenceNumber(), 50.0)
    assert bench.drain() == []
    bench.now = 60.0
    for batch, sequence in ((one, 0), (two, 1), (three, 2)):
        assert bench.drain() == [batch], "one at a time"
        assert bench.header(batch) == (7, 0, sequence)
        bench.machine.acknowledged(batch, sequence, -1)
    assert bench.drain() == [four]
    assert bench.header(four) == (7, 0, 3)


def test_backoff_doubles_to_its_maximum_and_starts_over_after_success() -> None:
    bench = Bench()
    (batch,) = bench.put(1)
    waits = []
    for _ in range(4):
        assert bench.drain() == [batch]
        bench.machine.lost(batch, bench.now)
        wakes = bench.machine.wakes_at()
        assert wakes is not None
        waits.append(wakes - bench.now)
        bench.now = wakes
    assert waits == pytest.approx([1.0, 2.0, 4.0, 4.0])
    bench.drain()
    bench.machine.acknowledged(batch, 0, -1)
    assert bench.lanes[0].backoffs == 0 and not bench.lanes[0].recovering


def test_a_lost_batch_keeps_its_number_because_it_may_be_written() -> None:
    bench = Bench()
    (batch,) = bench.put(1)
    bench.drain()
    before = batch.payload
    bench.machine.lost(batch, 0.0)
    bench.now = 5.0
    assert bench.drain() == [batch]
    assert batch.payload == before


def test_the_oldest_being_out_of_order_starts_a_new_epoch_for_its_lane_only() -> None:
    bench = Bench(partitions=2)
    one, two = bench.put(2)
    (other,) = bench.put(1, partition=1)
    bench.drain()
    bench.machine.refused(one, OutOfOrderSequenceNumber(), 0.0)
    bench.machine.refused(two, OutOfOrderSequenceNumber(), 0.0)
    bench.now = 5.0
    assert bench.drain() == [one] and bench.header(one) == (7, 1, 0)
    bench.machine.acknowledged(one, 0, -1)
    assert bench.drain() == [two] and bench.header(two) == (7, 1, 1)
    assert bench.header(other) == (7, 0, 0)


def test_a_definite_refusal_gives_its_number_back_when_nothing_follows() -> None:
    bench = Bench()
    (one,) = bench.put(1)
    bench.drain()
    bench.machine.refused(one, MessageTooLarge(), 0.0)
    assert one.outcome is not None and isinstance(one.outcome.error, MessageTooLarge)
    (two,) = bench.put(1)
    assert bench.drain() == [two] and bench.header(two) == (7, 0, 0)


def test_a_refusal_after_a_lost_answer_keeps_its_number_taken() -> None:
    """The first attempt may be written; the next batch under the same number would pass for its repeat."""
    bench = Bench()
    (one,) = bench.put(1)
    bench.drain()
    bench.machine.lost(one, 0.0)
    bench.now = 5.0
    bench.drain()
    bench.machine.refused(one, MessageTooLarge(), 5.0)
    (two,) = bench.put(1)
    bench.now = 10.0
    assert bench.drain() == [two] and bench.header(two) == (7, 0, 1)


def test_a_fenced_lane_takes_a_new_producer_id() -> None:
    bench = Bench()
    (one,) = bench.put(1)
    bench.drain()
    bench.machine.refused(one, InvalidProducerEpoch(), 0.0)
    assert bench.machine.wants_identity
    bench.machine.identified(8, 0)
    bench.now = 5.0
    assert bench.drain() == [one] and bench.header(one) == (8, 0, 0)


def test_a_duplicate_is_a_success_at_an_unknown_offset() -> None:
    bench = Bench()
    (one,) = bench.put(1)
    bench.drain()
    bench.machine.refused(one, DuplicateSequenceNumber(), 0.0)
    assert one.outcome is not None and one.outcome.error is None and one.outcome.base_offset == -1


def test_retries_are_counted_and_a_refusal_for_good_is_told() -> None:
    bench = Bench(retries=1, idempotent=False)
    (one,) = bench.put(1)
    for _ in range(2):
        assert bench.drain() == [one]
        bench.machine.refused(one, NotLeaderOrFollower("moved"), bench.now)
        bench.now += 10
    assert one.outcome is not None and str(one.outcome.error) == "moved"
    assert bench.accumulator.used_bytes == 0


def test_a_batch_past_its_deadline_fails_wherever_it_is_and_a_late_answer_changes_nothing() -> None:
    bench = Bench(max_in_flight=1)
    sent, waiting = bench.put(2)
    bench.drain()
    bench.machine.expire(100.0)
    for batch, words in ((sent, "not acknowledged"), (waiting, "could not be sent")):
        assert batch.outcome is not None and isinstance(batch.outcome.error, DeliveryTimedOut)
        assert words in str(batch.outcome.error)
    outcome = sent.outcome
    bench.machine.acknowledged(sent, 3, -1)
    assert sent.outcome is outcome
    assert bench.accumulator.used_bytes == 0 and not bench.accumulator.unsettled


class ModelBroker:
    """Kafka's sequence rules for one partition, and what was written."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.epoch = -1
        self.recent: deque[tuple[int, int]] = deque(maxlen=5)

    def append(self, epoch: int, sequence: int, batch_id: int) -> int | RequestError:
        if epoch < self.epoch:
            return InvalidProducerEpoch()
        if epoch > self.epoch:
            if sequence != 0:
                return OutOfOrderSequenceNumber()
            self.epoch, self.recent = epoch, deque(maxlen=5)
        for known, offset in self.recent:
            if known == sequence:
                return offset
        expected = self.recent[-1][0] + 1 if self.recent else 0
        if sequence != expected:
            return OutOfOrderSequenceNumber()
        self.recent.append((sequence, len(self.written)))
        self.written.append(batch_id)
        return len(self.written) - 1


@pytest.mark.parametrize("seed", some(range(40)))
def test_over_a_bad_network_nothing_is_doubled_reordered_or_lost(seed: int) -> None:
    """Answers get lost, connections break, batches are refused or time out; the broker sees what it sees.

    Whatever happens: what was acknowledged is written, in order, once; what was not acknowledged is written
    at most once; and everything is settled in the end.
    """
    chance = random.Random(seed)
    bench, broker = Bench(max_in_flight=5), ModelBroker()
    wire: deque[Batch] = deque()
    late: deque[tuple[int, int, int]] = deque()
    everything: list[Batch] = []
    for _ in range(400):
        bench.now += chance.random()
        action = chance.random()
        if action < 0.4:
            everything.extend(bench.put(chance.randrange(1, 4)))
        elif action < 0.9 and wire:
            _deliver(chance, bench, broker, wire)
        elif action < 0.93:
            arriving = chance.random() < 0.7
            while wire:  # the connection breaks; a part of what was on it arrives all the same, perhaps late
                batch = wire.popleft()
                arriving = arriving and chance.random() < 0.9
                if arriving:
                    _, epoch, sequence = bench.header(batch)
                    late.append((epoch, sequence, batch.id))
                bench.machine.lost(batch, bench.now)
        elif action < 0.95 and late:
            broker.append(*late.popleft())
        elif action < 0.96:
            bench.machine.expire(bench.now)
        wire.extend(bench.drain())
    while bench.accumulator.unsettled:
        bench.now += 5
        bench.machine.expire(bench.now)
        wire.extend(bench.drain())
        while wire:
            _deliver(None, bench, broker, wire)
    acknowledged = [b.id for b in everything if b.outcome is not None and b.outcome.error is None]
    assert len(acknowledged) > 20, "the check would be vacuous"
    assert len(set(broker.written)) == len(broker.written), "nothing is doubled"
    assert broker.written == sorted(broker.written), "nothing is reordered"
    assert set(acknowledged) <= set(broker.written), "nothing acknowledged is lost"
    for batch in everything:
        if batch.outcome is not None and batch.outcome.base_offset >= 0:
            assert broker.written[batch.outcome.base_offset] == batch.id
    assert bench.accumulator.used_bytes == 0


def _deliver(chance: random.Random | None, bench: Bench, broker: ModelBroker, wire: deque[Batch]) -> None:
    batch = wire.popleft()
    _, epoch, sequence = bench.header(batch)
    draw = 1.0 if chance is None else chance.random()
    if draw < 0.08:
        bench.machine.refused(batch, NotLeaderOrFollower(), bench.now)
    elif draw < 0.10:
        bench.machine.refused(batch, MessageTooLarge(), bench.now)
    else:
        answer = broker.append(epoch, sequence, batch.id)
        if isinstance(answer, RequestError):
            bench.machine.refused(batch, answer, bench.now)
        elif chance is not None and draw < 0.15:
            bench.machine.lost(batch, bench.now)
        else:
            bench.machine.acknowledged(batch, answer, -1)
