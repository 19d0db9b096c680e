"""Batches that are too large for their topic are halved until they fit: same records, same order, same numbers."""

from __future__ import annotations

import random
from collections import deque

import pytest

from budget import some
from client.fake_services import FakeCluster
from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla_client.accumulator import Accumulator, Batch
from ottla_client.delivery import Delivery
from ottla_client.errors import DeliveryTimedOut
from ottla_client.producer_machine import Policy, ProducerMachine
from ottla_core.errors import (
    InvalidProducerEpoch,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestError,
)
from ottla_core.records.batch import header_at, verify
from ottla_core.records.codec import Record, records_of
from ottla_core.records.compression import Compression

T0 = TopicPartition("t", 0)


def records_in(batch: Batch) -> list[Record]:
    header = header_at(batch.payload)
    assert verify(batch.payload, 0, header)
    return records_of(batch.payload, 0, header, limit_bytes=1 << 20)


class Bench:
    """A machine with one partition, whose batches hold several records each."""

    def __init__(self, *, compression: int = 0, batch_bytes: int = 10_000, **policy: object) -> None:
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes,
            linger_s=0,
            buffer_bytes=1 << 20,
            delivery_timeout_s=100,
            record_bytes_max=1 << 16,
            compression=compression,
        )
        made = Policy(**{"backoff_s": 1.0, "backoff_max_s": 4.0, **policy})  # type: ignore[arg-type]
        self.machine = ProducerMachine(self.accumulator, made, lambda: 0.5)
        self.lane = self.accumulator.lane(T0)
        self.machine.leaders_changed("t", [0])
        self.machine.identified(7, 0)
        self.now = 0.0
        self.deliveries: list[Delivery] = []

    def put(self, *values: bytes, close: bool = True) -> Batch:
        """One batch of these."""
        for value in values:
            batch = self.accumulator.append(self.lane, 1, None, value, (), self.now)
            assert batch is not None
            self.deliveries.append(Delivery(batch, batch.count - 1, 1))
        if close:
            self.accumulator.close(batch)
        return batch

    def drain(self) -> list[Batch]:
        return [batch for send in self.machine.drain(self.now) for batch in send.batches]

    def drained(self) -> list[tuple[int, list[bytes | None]]]:
        """Sequence and values of each batch that goes out."""
        self.out = self.drain()
        return [(header_at(b.payload).base_sequence, [r.value for r in records_in(b)]) for b in self.out]


def test_halves_go_one_by_one_in_the_place_of_the_whole_under_its_numbers() -> None:
    bench = Bench()
    large, after = bench.put(b"1", b"2", b"3", b"4"), bench.put(b"5", b"6")
    assert bench.drained() == [(0, [b"1", b"2", b"3", b"4"]), (4, [b"5", b"6"])]
    bench.machine.refused(large, MessageTooLarge(), 0.0)
    assert bench.drain() == [], "one is not answered yet"
    bench.machine.refused(after, OutOfOrderSequenceNumber(), 0.0)
    bench.now = 5.0
    for offset, sequence, values in ((10, 0, [b"1", b"2"]), (20, 2, [b"3", b"4"]), (30, 4, [b"5", b"6"])):
        assert not large.outcome or offset == 30
        assert bench.drained() == [(sequence, values)]
        bench.machine.acknowledged(bench.out[0], offset, -1)
    assert [each.result().offset for each in bench.deliveries] == [10, 11, 20, 21, 30, 31]
    assert bench.accumulator.used_bytes == 0 and not bench.accumulator.unsettled
    bench.put(b"7")
    assert bench.drained() == [(6, [b"7"])], "and the numbers go on without a gap"


def test_a_half_is_not_held_back_and_later_batches_are_made_smaller() -> None:
    bench = Bench(batch_bytes=1000)
    bench.put(*[b"x" * 100] * 7)
    (large,) = bench.drain()
    bench.machine.refused(large, MessageTooLarge(), 0.0)
    assert bench.drain() == [large.parts[0]], "no backoff: the broker is well"
    bench.put(*[b"y" * 100] * 7, close=False)
    assert bench.lane.open is not None
    assert max(batch.count for batch in (*bench.lane.pending, bench.lane.open) if not batch.retried) <= 4


def test_only_a_record_that_is_too_large_by_itself_fails() -> None:
    bench = Bench()
    whole = bench.put(b"a", b"b", b"c" * 500, b"d", b"e")
    settled: list[Batch] = []
    whole.watch(settled.append)
    offset = 0
    while bench.accumulator.unsettled:
        for batch in bench.drain():
            if len(batch.payload) > 200:
                bench.machine.refused(batch, MessageTooLarge("Too large."), 0.0)
            else:
                bench.machine.acknowledged(batch, offset, -1)
                offset += batch.count
            bench.now += 5
    failed = [index for index, each in enumerate(bench.deliveries) if each.exception()]
    assert failed == [2]
    assert sorted(each.result().offset for each in bench.deliveries if not each.exception()) == [0, 1, 2, 3]
    assert settled == [whole] and whole.outcome is not None and whole.outcome.error is not None
    assert bench.accumulator.used_bytes == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_records_stay_as_they_were(codec: Compression) -> None:
    bench = Bench(compression=codec)
    given = [
        (
            n,
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 5 == 0 else b"v" * n,
            [("h", b"%d" % n), ("", None)],
        )
        for n in range(1, 30)
    ]
    for timestamp_ms, key, value, headers in given:
        bench.accumulator.append(bench.lane, timestamp_ms, key, value, headers, 0.0)
    (batch,) = bench.drain()
    bench.machine.refused(batch, MessageTooLarge(), 0.0)
    got: list[Record] = []
    while sent := bench.drain():
        assert header_at(sent[0].payload).compression == codec
        got.extend(records_in(sent[0]))
        bench.machine.acknowledged(sent[0], 0, -1)
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in got] == given


def test_what_may_be_written_is_not_split_under_idempotence() -> None:
    """Halves under the old numbers would be out of order, under new ones they would be written twice."""
    for idempotent in (True, False):
        bench = Bench(idempotent=idempotent)
        batch = bench.put(b"1", b"2")
        bench.drain()
        bench.machine.lost(batch, 0.0)
        bench.now = 5.0
        assert bench.drain() == [batch]
        bench.machine.refused(batch, MessageTooLarge(), 5.0)
        assert bool(batch.parts) is not idempotent
        assert (batch.outcome is not None) is idempotent


def test_what_was_refused_before_it_was_appended_may_be_split() -> None:
    bench = Bench()
    batch = bench.put(b"1", b"2")
    bench.drain()
    bench.machine.refused(batch, NotEnoughReplicas(), 0.0)
    bench.now = 5.0
    assert bench.drain() == [batch]
    bench.machine.refused(batch, MessageTooLarge(), 5.0)
    assert bench.drained() == [(0, [b"1"])]


def test_halves_time_out_with_their_whole() -> None:
    bench = Bench()
    whole = bench.put(b"1", b"2")
    bench.drain()
    bench.machine.refused(whole, MessageTooLarge(), 0.0)
    (first,) = bench.drain()
    bench.machine.expire(100.0)
    for each in bench.deliveries:
        assert isinstance(each.exception(), DeliveryTimedOut)
    assert bench.accumulator.used_bytes == 0 and not bench.accumulator.unsettled
    bench.machine.acknowledged(first, 0, -1)
    assert whole.outcome is not None and isinstance(whole.outcome.error, DeliveryTimedOut)


class ModelBroker:
    """Kafka's sequence rules for one partition with a limit on batches, and the values that were written."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.values: list[bytes | None] = []
        self.epoch = -1
        #: First and last sequence, and offset, of the latest batches.
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=5)

    def append(self, payload: bytes) -> int | RequestError:
        header = header_at(payload)
        if len(payload) > self.limit_bytes:
            return MessageTooLarge()
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch < self.epoch:
            return InvalidProducerEpoch()
        if epoch > self.epoch:
            if first != 0:
                return OutOfOrderSequenceNumber()
            self.epoch = epoch
            self.recent.clear()
        last = first + header.count - 1
        for known_first, known_last, offset in self.recent:
            if (known_first, known_last) == (first, last):
                return offset
        if first != (self.recent[-1][1] + 1 if self.recent else 0):
            return OutOfOrderSequenceNumber()
        offset = len(self.values)
        self.recent.append((first, last, offset))
        self.values.extend(r.value for r in records_of(payload, 0, header, limit_bytes=1 << 20))
        return offset


@pytest.mark.parametrize("seed", some(range(30)))
def test_over_a_bad_network_splitting_doubles_reorders_and_loses_nothing(seed: int) -> None:
    chance = random.Random(seed)
    bench, broker = Bench(batch_bytes=600, backoff_s=0.02, backoff_max_s=0.1), ModelBroker(limit_bytes=300)
    wire: deque[Batch] = deque()
    number = 0
    for _ in range(300):
        bench.now += chance.random() / 10
        if chance.random() < 0.5:
            values = [
                b"%05d" % (number + n) + b"." * chance.randrange(60) for n in range(chance.randrange(1, 9))
            ]
            number += len(values)
            bench.put(*values, close=chance.random() < 0.5)
        wire.extend(bench.drain())
        if chance.random() < 0.2:  # somebody changes the topic's setting
            broker.limit_bytes = chance.choice((150, 300, 1000))
        while wire and chance.random() < 0.7:
            _deliver(chance, bench, broker, wire.popleft())
    while bench.accumulator.unsettled:
        bench.now += 0.1
        bench.machine.expire(bench.now)
        wire.extend(bench.drain())
        while wire:
            _deliver(None, bench, broker, wire.popleft())
    written = [value[:5] for value in broker.values if value is not None]
    assert written == sorted(set(written)), "nothing is doubled or reordered"
    at = {int(value): offset for offset, value in enumerate(written)}
    acknowledged = {n: each.result() for n, each in enumerate(bench.deliveries) if not each.exception()}
    assert len(acknowledged) > number / 2, "the check would be vacuous"
    for n, where in acknowledged.items():
        assert at[n] == where.offset, "each delivery knows where its record is"
    assert bench.accumulator.used_bytes == 0


def _deliver(chance: random.Random | None, bench: Bench, broker: ModelBroker, batch: Batch) -> None:
    draw = 1.0 if chance is None else chance.random()
    if draw < 0.03:
        bench.machine.refused(batch, NotLeaderOrFollower(), bench.now)
        return
    answer = broker.append(batch.payload)
    if draw < 0.06:
        bench.machine.lost(batch, bench.now)
    elif isinstance(answer, RequestError):
        bench.machine.refused(batch, answer, bench.now)
    else:
        bench.machine.acknowledged(batch, answer, -1)


async def test_a_producer_gets_its_records_through() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 1)
        cluster.max_message_bytes = 2000
        values = [b"%04d" % n + b"x" * 200 for n in range(500)]
        async with Producer(cluster.address, compression="zstd") as compressed:
            deliveries = await compressed.send_many("t", values)
            await compressed.flush()
        async with Producer(cluster.address) as producer:
            deliveries += await producer.send_many("t", values)
            awaited = [(await delivery).offset for delivery in deliveries]
    assert awaited == list(range(1000))
    assert cluster.values(T0) == values * 2


@pytest.mark.integration
async def test_a_topic_with_small_messages_takes_large_batches(local_cluster: LocalCluster) -> None:
    bootstrap = local_cluster.grpc_bootstrap
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic("splitting", 2, configs={"max.message.bytes": "20000"})])
    values = [b"%05d" % n + b"x" * 1000 for n in range(2000)]
    async with Producer(bootstrap) as producer:
        deliveries = await producer.send_many("splitting", values, partition=1)
        alone = await producer.send("splitting", b"x" * 30_000, partition=1)
        await producer.flush()
        assert [each.result().offset for each in deliveries] == list(range(2000))
        assert isinstance(alone.exception(), MessageTooLarge)
    got: list[bytes] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("splitting", 1)])
        while len(got) < len(values):
            got.extend(record.value for record in await consumer.poll(10_000))
    assert got == values
