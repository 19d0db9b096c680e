"""Where a partition begins and ends, and what came first after a moment, asked by each stock client."""

from __future__ import annotations

import asyncio
import re
import time

import aiokafka
import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from interop.clients import TIMEOUT_S, Sample, kafka, kcat, read_aiokafka, write_confluent
from interop.target import Target

pytestmark = pytest.mark.integration

STEP_MS = 1000
COUNT = 30
BATCHES = 3


@pytest.fixture
def first_ms(target: Target, topic: str) -> int:
    """Thirty records in three batches, a second apart, the first of them an hour ago."""
    first_ms = int(time.time() * 1000) - 3_600_000
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 1000})
    for n in range(COUNT):
        producer.produce(topic, b"%d" % n, partition=0, timestamp=first_ms + n * STEP_MS)
        if (n + 1) % (COUNT // BATCHES) == 0:
            assert producer.flush(TIMEOUT_S) == 0
    headers = target.batches(topic)
    assert len(headers) == BATCHES
    firsts = range(0, COUNT, COUNT // BATCHES)
    assert [header.base_timestamp for header in headers] == [first_ms + n * STEP_MS for n in firsts]
    return first_ms


#: Milliseconds after the first record, and the first offset at or after that moment (None: there is none).
MOMENTS = [
    (-5_000, 0),
    (0, 0),
    (1, 1),
    (9_500, 10),
    (14_000, 14),
    (14_999, 15),
    (29_000, 29),
    (29_001, None),
]


def test_confluent(target: Target, topic: str, first_ms: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        for after_ms, expected in MOMENTS:
            asked = [TopicPartition(topic, 0, first_ms + after_ms)]
            (found,) = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
            assert found.offset == (OFFSET_END if expected is None else expected), after_ms
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, COUNT)
    finally:
        consumer.close()


def test_aiokafka(target: Target, topic: str, first_ms: int) -> None:
    async def ask() -> None:
        partition = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=target.bootstrap, group_id=None) as consumer:
            for after_ms, expected in MOMENTS:
                found = (await consumer.offsets_for_times({partition: first_ms + after_ms}))[partition]
                assert (found.offset if found else None) == expected, after_ms
                if found:
                    assert found.timestamp == first_ms + found.offset * STEP_MS
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: COUNT}

    asyncio.run(asyncio.wait_for(ask(), TIMEOUT_S))


def test_kafka_python(target: Target, topic: str, first_ms: int) -> None:
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=target.bootstrap, group_id=None)
    try:
        for after_ms, expected in MOMENTS:
            found = consumer.offsets_for_times({partition: first_ms + after_ms})[partition]
            assert (found.offset if found else None) == expected, after_ms
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: COUNT}
    finally:
        consumer.close()


def test_kcat(target: Target, topic: str, first_ms: int) -> None:
    for after_ms, expected in MOMENTS:
        answer = kcat(target, "-Q", "-t", f"{topic}:0:{first_ms + after_ms}").decode()
        found = re.search(r"\[0\] offset (-?\d+)", answer)
        assert found, answer
        # kcat shows what the protocol says: -1 for "no record that late".
        assert int(found[1]) == (-1 if expected is None else expected), after_ms


def test_a_position_out_of_range_is_reset(target: Target, topic: str) -> None:
    """An offset beyond the end is refused, and the client starts again where its policy says."""
    write_confluent(target, topic, [Sample(None, b"%d" % n) for n in range(5)])
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 1000)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        assert (message.offset(), message.value()) == (0, b"0")
    finally:
        consumer.close()


def test_an_idle_consumer_sees_the_next_record_soon(target: Target, topic: str) -> None:
    """A fetch that waits is answered when something arrives, not when its time is up."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20_000,
            "socket.timeout.ms": 60_000,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(1.0) is None
        began = time.monotonic()
        write_confluent(target, topic, [Sample(b"k", b"now")], **{"linger.ms": 0})
        message = consumer.poll(15.0)
        assert message is not None
        assert message.value() == b"now"
        assert time.monotonic() - began < 10
    finally:
        consumer.close()


def test_small_fetches_still_bring_large_batches(target: Target, topic: str) -> None:
    """The first batch comes whole however small the limit is, or a consumer would stand still for ever."""
    samples = [Sample(b"%d" % n, bytes([n]) * 300_000) for n in range(3)]
    for sample in samples:
        write_confluent(target, topic, [sample])

    async def read() -> list[Sample]:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=target.bootstrap,
            group_id=None,
            fetch_max_bytes=1000,
            max_partition_fetch_bytes=1000,
        )
        found: list[Sample] = []
        async with consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while len(found) < len(samples):
                message = await consumer.getone()
                found.append(Sample(message.key, message.value, tuple(message.headers)))
        return found

    assert asyncio.run(asyncio.wait_for(read(), TIMEOUT_S)) == samples
    assert read_aiokafka(target, topic, len(samples)) == samples
