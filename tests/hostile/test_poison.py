"""Batches that would stop every reader of a partition, against a real broker: refused, and librdkafka reads on."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin
from ottla_core.records.batch import DELETE_HORIZON_FLAG, HEADER_BYTES, TRANSACTIONAL_FLAG, reseal
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression

pytestmark = pytest.mark.integration

INVALID_RECORD, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 87, 53


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        with Admin(made.grpc_bootstrap) as admin:
            admin.create_topics(
                [NewTopic("t", 1), NewTopic("compacted", 1, configs={"cleanup.policy": "compact"})]
            )
        yield made


def good(count: int = 1, *, compression: int = 0, keyless: tuple[int, ...] = ()) -> bytearray:
    now_ms = int(time.time() * 1000)
    return build_batch(
        [Record(0, now_ms, None if n in keyless else b"k", b"v" * 20, []) for n in range(count)],
        compression=compression,
    )


def patched(batch: bytearray, at: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, batch, at, value)
    return batch


def announcing(batch: bytearray, count: int) -> bytearray:
    return patched(patched(batch, 23, ">i", count - 1), 57, ">i", count)


def poisons() -> Iterator[tuple[str, bytearray, int]]:
    yield "1,000 announced", announcing(good(), 1000), INVALID_RECORD
    yield "2^31-1 announced", announcing(good(), (1 << 31) - 1), INVALID_RECORD
    yield "no payload", good()[:HEADER_BYTES], INVALID_RECORD
    garbage = good()
    garbage[HEADER_BYTES:] = b"\xff" * (len(garbage) - HEADER_BYTES)
    yield "garbage", garbage, INVALID_RECORD
    gzip = good(50, compression=Compression.GZIP)
    gzip[-20] ^= 0xFF
    yield "broken gzip", gzip, INVALID_RECORD
    yield "more than announced", announcing(good(3), 2), INVALID_RECORD
    yield "producer id -2", patched(good(), 43, ">q", -2), INVALID_RECORD
    yield "a delete horizon", patched(good(), 21, ">h", DELETE_HORIZON_FLAG), INVALID_RECORD
    yield "undefined flags", patched(good(), 21, ">h", 0x100), INVALID_RECORD
    yield (
        "a transaction",
        patched(good(), 21, ">h", TRANSACTIONAL_FLAG),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )


def produce(cluster: LocalCluster, topic: str, batch: bytearray) -> tuple[int, list[tuple[int, str]]]:
    """One Produce request, version 8; gives the error code and the records that it names."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    reseal(batch, 0, len(batch))
    name = topic.encode()
    body = struct.pack(">hhihh", 0, 8, 1, -1, -1) + struct.pack(">hii", -1, 5000, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, _, port = cluster.kafka_bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            data = answer.read(size)
    at = 4 + 4 + 2 + len(name) + 4
    _, code, _, _, _, named = struct.unpack_from(">ihqqqi", data, at)
    at += 34
    records = []
    for _ in range(named):
        index, length = struct.unpack_from(">ih", data, at)
        records.append((index, data[at + 6 : at + 6 + length].decode()))
        at += 6 + length
    return code, records


def test_poison_is_refused_and_a_stock_consumer_reads_on(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap})
    expected = []
    for number, (name, batch, code) in enumerate(poisons()):
        assert produce(cluster, "t", batch)[0] == code, name
        producer.produce("t", b"%d" % number)
        assert producer.flush(10) == 0
        expected.append(b"%d" % number)
    consumer = Consumer(
        {"bootstrap.servers": cluster.kafka_bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    seen: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + 20
    while len(seen) < len(expected) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            seen.append((message.offset(), message.value()))
    consumer.close()
    assert seen == list(enumerate(expected)), "a refused batch has used offsets, or stopped the reader"


def test_records_without_keys_are_named_on_a_compacted_topic(cluster: LocalCluster) -> None:
    keyless = tuple(range(3, 100, 10))
    code, records = produce(cluster, "compacted", good(100, keyless=keyless))
    assert code == INVALID_RECORD
    assert [index for index, _ in records] == list(keyless)
    assert all("key" in message for _, message in records)
    assert produce(cluster, "compacted", good(100)) == (0, [])
