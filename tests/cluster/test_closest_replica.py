"""Three real brokers in three racks: consumers with client.rack read in theirs, and continue when its broker dies."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Consumer
from ottla_client.admin import Admin, NewTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TOPIC = "near"
RECORDS = 200
VALUE = b"v" * 1000
#: Replicas, the preferred leader first, and the follower that is read from.
REPLICAS, NEAR = (0, 1, 2), 1
#: From the kill of the follower until all that is written after it has been read from the leader. Half of it is the
#: brokers': an acks=all write waits until the dead follower has left the in-sync set.
CONTINUES_S = 1.0
#: librdkafka connects again first, and asks the leader when that has failed.
KAFKA_CONTINUES_S = 3.0


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with LocalCluster(brokers=3, settings=settings, racks=("a", "b", "c")) as cluster:
        yield cluster


def write(local: LocalCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": local.kafka_bootstrap, "acks": "all", "log_level": 0})
    for _ in range(RECORDS):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(60) == 0


def sent_bytes(local: LocalCluster, topic: str) -> dict[int, int]:
    """Record bytes that each broker has sent to consumers."""
    sent: dict[int, int] = {}
    for broker in local.brokers.values():
        page = urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10).read().decode()
        lines = [line for line in page.splitlines() if line.startswith("ottla_topic_sent_bytes_total{")]
        sent[broker.id] = sum(int(float(line.split()[-1])) for line in lines if f'"{topic}"' in line)
    return sent


async def prepare(local: LocalCluster, topic: str) -> None:
    async with Admin(local.grpc_bootstrap) as admin:
        new = NewTopic(topic, configs={"min.insync.replicas": "2"}, replica_assignments={0: REPLICAS})
        await admin.create_topics([new])
    write(local, topic)


def check_near(local: LocalCluster, topic: str) -> None:
    sent = sent_bytes(local, topic)
    assert sent[NEAR] >= RECORDS * len(VALUE), sent
    assert sum(sent.values()) - sent[NEAR] == 0, sent


def consume(consumer: KafkaConsumer, count: int) -> list[int]:
    offsets: list[int] = []
    deadline = time.monotonic() + 60
    while len(offsets) < count:
        assert time.monotonic() < deadline, f"{len(offsets)} of {count} records arrived"
        offsets += [message.offset() for message in consumer.consume(count, 0.2) if not message.error()]
    return offsets


def test_confluent_kafka_reads_in_its_rack_and_continues_when_the_follower_dies(local: LocalCluster) -> None:
    topic = f"{TOPIC}-kafka"
    asyncio.run(prepare(local, topic))
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": local.kafka_bootstrap,
            "group.id": "near",
            "client.rack": "b",
            "log_level": 0,
            "reconnect.backoff.ms": 20,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consume(consumer, RECORDS) == list(range(RECORDS))
        check_near(local, topic)
        killed = time.monotonic()
        local.kill(NEAR)
        write(local, topic)
        assert consume(consumer, RECORDS) == list(range(RECORDS, 2 * RECORDS))
        took_s = time.monotonic() - killed
        print(f"confluent-kafka continued {took_s:.3f} s after the kill")
        assert took_s < KAFKA_CONTINUES_S
    finally:
        consumer.close()
        local.restart(NEAR)


async def test_our_client_reads_in_its_rack_and_continues_when_the_follower_dies(
    local: LocalCluster,
) -> None:
    topic = f"{TOPIC}-ottla"
    await prepare(local, topic)
    async with Consumer(local.grpc_bootstrap, auto_offset_reset="earliest", client_rack="b") as consumer:
        consumer.assign([(topic, 0)])

        async def read() -> list[int]:
            offsets: list[int] = []
            async with asyncio.timeout(60):
                while len(offsets) < RECORDS:
                    offsets += [record.offset for record in await consumer.poll(timeout_ms=200)]
            return offsets

        assert await read() == list(range(RECORDS))
        check_near(local, topic)
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.5)  # So that a fetch waits at the follower.
        killed = time.monotonic()
        local.kill(NEAR)
        await asyncio.to_thread(write, local, topic)
        written_s = time.monotonic() - killed
        assert await reading == list(range(RECORDS, 2 * RECORDS))
        took_s = time.monotonic() - killed
        print(f"our client continued {took_s:.3f} s after the kill; written after {written_s:.3f} s")
        assert took_s < CONTINUES_S
    local.restart(NEAR)
