"""The client against a real broker process."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla_client.errors import CannotConnect, TopicAlreadyExists, UnknownTopicOrPartition
from ottla_core.errors import InvalidConfig
from ottla_core.records.batch import HEADER_BYTES
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.encoded import EncodedRecords

pytestmark = pytest.mark.integration


@pytest.fixture
def topic() -> str:
    return f"client-{uuid4().hex[:8]}"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_written_and_read_in_every_compression(
    local_cluster: LocalCluster, topic: str, compression: str
) -> None:
    address = local_cluster.grpc_bootstrap
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(topic, 3)])
    async with Producer(address, compression=compression, batch_size=4000) as producer:
        sent = {await producer.send(topic, b"%05d" % n * 10, key=b"key-%d" % n): n for n in range(1000)}
        await producer.flush()
        placed = {(d.result().partition, d.result().offset): n for d, n in sent.items()}
    got: dict[tuple[int, int], int] = {}
    async with Consumer(address, auto_offset_reset="earliest") as consumer, asyncio.timeout(20):
        consumer.assign([TopicPartition(topic, n) for n in range(3)])
        while len(got) < 1000:
            for record in await consumer.poll(1000):
                got[record.partition, record.offset] = int(record.value[:5])
                assert record.key == b"key-%d" % int(record.value[:5])
    assert got == placed


async def test_encoded_batches_keep_their_order_and_are_split_where_the_topic_is_strict(
    local_cluster: LocalCluster, topic: str
) -> None:
    values = [b"%05d" % n * 20 for n in range(300)]
    async with Admin(local_cluster.grpc_bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "5000"})])
    async with Producer(local_cluster.grpc_bootstrap) as producer:
        for start in range(0, 300, 100):
            made = build_batch([Record(0, 1, None, value, []) for value in values[start : start + 100]])
            records = EncodedRecords(made[HEADER_BYTES:], 100, base_timestamp_ms=1, max_timestamp_ms=1)
            delivery = await producer.send_encoded(topic, 0, records)
            assert (await delivery).offset == start
        assert producer.batch_bytes(topic) < 11_000
        with pytest.raises(UnknownTopicOrPartition, match="has partitions 0 to 0, not 4"):
            await producer.send_encoded(topic, 4, records)
    async with Consumer(local_cluster.grpc_bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(20):
            assert [(await consumer.getone()).value for _ in values] == values


async def test_offsets_times_and_deleted_records(local_cluster: LocalCluster, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    async with Admin(local_cluster.grpc_bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1)])
        async with Producer(local_cluster.grpc_bootstrap, batch_size=500) as producer:
            base_ms = 1_700_000_000_000
            await producer.send(topic, b"warm", timestamp_ms=base_ms)
            for number in range(1, 100):
                await producer.send(topic, b"%d" % number, timestamp_ms=base_ms + number * 1000)
        async with Consumer(local_cluster.grpc_bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            found = await consumer.offsets_for_times({tp: base_ms + 49_500})
            assert found[tp] == (50, base_ms + 50_000)
            assert (await consumer.offsets_for_times({tp: base_ms + 99_001}))[tp] is None
            consumer.seek(tp, 77)
            assert (await consumer.getone()).value == b"77"
            assert await admin.delete_records({tp: 80}) == {tp: 80}
            assert await consumer.beginning_offsets([tp]) == {tp: 80}
            consumer.seek(tp, 5)
            assert (await consumer.poll(5000))[0].offset == 80


async def test_topics_and_configs(local_cluster: LocalCluster, topic: str) -> None:
    async with Admin(local_cluster.grpc_bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic(topic, 2, configs={"retention.ms": "60000"})])
        assert len(made.partitions) == 2
        with pytest.raises(TopicAlreadyExists):
            await admin.create_topics([topic])
        await admin.create_partitions(topic, 4)
        (grown,) = await admin.describe_topics([topic])
        assert len(grown.partitions) == 4
        await admin.alter_configs({"max.message.bytes": "2000"}, topic=topic)
        with pytest.raises(InvalidConfig):
            await admin.alter_configs({"retention.ms": "soon"}, topic=topic)
        values = {
            entry.name: (entry.value, entry.source) for entry in await admin.describe_configs(topic=topic)
        }
        assert values["retention.ms"] == ("60000", "topic") and values["max.message.bytes"] == (
            "2000",
            "topic",
        )
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()


async def test_the_kafka_port_by_mistake(local_cluster: LocalCluster) -> None:
    with pytest.raises(CannotConnect, match="speaks the Kafka protocol"):
        async with Admin(local_cluster.kafka_bootstrap):
            pass


async def test_a_producer_lives_through_a_killed_broker(make_cluster: object) -> None:
    """Every acknowledged record is there, once and in order, whatever was on its way when the broker died."""
    cluster: LocalCluster = await asyncio.to_thread(make_cluster)  # type: ignore[arg-type]
    tp = TopicPartition("t", 0)
    async with Producer(cluster.grpc_bootstrap, retry_backoff_ms=50, batch_size=2000) as producer:
        deliveries = []
        running = True

        async def keep_sending() -> None:
            number = 0
            while running:
                for _ in range(20):
                    deliveries.append(await producer.send("t", b"%08d" % number, partition=0))
                    number += 1
                await asyncio.sleep(0.001)

        sending = asyncio.ensure_future(keep_sending())
        for _ in range(2):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cluster.kill, 0)
            await asyncio.to_thread(cluster.restart, 0)
        await asyncio.sleep(0.3)
        running = False
        await sending
        await producer.flush()
    offsets = [delivery.result().offset for delivery in deliveries]
    async with (
        Consumer(cluster.grpc_bootstrap, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(30),
    ):
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        values: list[bytes] = []
        while len(values) < end:
            values.extend(record.value for record in await consumer.poll(1000))
    assert values == [b"%08d" % n for n in range(len(deliveries))]
    assert offsets == list(range(len(deliveries)))
