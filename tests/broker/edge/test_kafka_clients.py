"""Stock clients against the edge over fake services: produce and fetch work with each, unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.edge.fakes import FakeBroker
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import header_at

pytestmark = pytest.mark.integration

COUNT = 300
VALUES = [f"value {number}".encode() * 5 for number in range(COUNT)]
#: The codec bits of a batch's attributes.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        running.services.add_topic("t")
        yield running


def codecs_written(broker: FakeBroker) -> set[int]:
    batches = broker.services.records.find(TopicPartition("t", 0)).batches
    return {header_at(data).compression for _, _, _, data in batches}


def confluent_round_trip(address: str, codec: str, acks: str) -> list[bytes]:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as Place

    failures: list[object] = []
    producer = Producer({"bootstrap.servers": address, "compression.type": codec, "acks": acks})
    for value in VALUES:
        producer.produce("t", value, partition=0, on_delivery=lambda e, _: failures.append(e) if e else None)
    assert producer.flush(20) == 0
    assert failures == []
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([Place("t", 0, COUNT // 2)])
    got: list[bytes] = []
    while len(got) < COUNT - COUNT // 2:
        message = consumer.poll(10)
        assert message is not None, "nothing came within 10 s"
        assert message.error() is None
        got.append(message.value())
    assert consumer.get_watermark_offsets(Place("t", 0)) == (0, COUNT)
    consumer.close()
    return got


@pytest.mark.parametrize("codec", CODECS)
async def test_confluent_kafka(broker: FakeBroker, codec: str) -> None:
    acks = "all" if codec in ("none", "lz4") else "1"
    got = await asyncio.to_thread(confluent_round_trip, broker.address, codec, acks)
    assert got == VALUES[COUNT // 2 :]
    assert codecs_written(broker) == {CODECS[codec]}, "librdkafka falls back to none without a word"


async def test_aiokafka(broker: FakeBroker) -> None:
    import aiokafka

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.address, enable_idempotence=True, compression_type="gzip"
    )
    await producer.start()
    for value in VALUES:
        await producer.send("t", value, partition=0)
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.address)
    await consumer.start()
    place = aiokafka.TopicPartition("t", 0)
    consumer.assign([place])
    consumer.seek(place, 10)
    got: list[bytes] = []
    async with asyncio.timeout(20):
        while len(got) < COUNT - 10:
            got += [m.value for ms in (await consumer.getmany(timeout_ms=5000)).values() for m in ms]
    assert await consumer.end_offsets([place]) == {place: COUNT}
    await consumer.stop()
    assert got == VALUES[10:]
    assert codecs_written(broker) == {1}


def kafka_python_round_trip(address: str) -> list[bytes]:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=address, acks="all", compression_type="gzip")
    for value in VALUES:
        producer.send("t", value, partition=0)
    producer.flush(20)
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=10_000)
    place = kafka.TopicPartition("t", 0)
    consumer.assign([place])
    consumer.seek(place, 10)
    got: list[bytes] = []
    for message in consumer:
        got.append(message.value)
        if len(got) == COUNT - 10:
            break
    assert consumer.end_offsets([place]) == {place: COUNT}
    assert consumer.beginning_offsets([place]) == {place: 0}
    consumer.close()
    return got


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files")
async def test_kafka_python(broker: FakeBroker) -> None:
    assert await asyncio.to_thread(kafka_python_round_trip, broker.address) == VALUES[10:]
    assert codecs_written(broker) == {1}
