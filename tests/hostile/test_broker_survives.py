"""Hostile input against a whole broker process, both edges: its pid stays, others notice nothing, memory is bounded.

The edges have their own, finer suites over a fake (tests/broker/edge/test_*_hostile.py); here the same bytes meet the
real services, partitions and log. A fixed small budget; OTTLA_FUZZ_SECONDS asks for more.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import psutil
import pytest
from confluent_kafka import Producer

from broker.edge.test_kafka_hostile import (
    cut_off,
    fire_all,
    flipped_forever,
    maximal_counts,
    random_forever,
)
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb.broker_pb2_grpc import LogStub
from ottla_core.records.batch import reseal
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression, compress

pytestmark = pytest.mark.integration

SECONDS = float(os.environ.get("OTTLA_FUZZ_SECONDS", "3"))
RSS_GROWTH_MAX = 200 << 20
#: A healthy client's write may take this long while others misbehave.
PATIENCE_S = 10.0


class Healthy:
    """A stock producer that goes on writing; its failures are the test's."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._producer = Producer(
            {"bootstrap.servers": cluster.kafka_bootstrap, "message.timeout.ms": int(PATIENCE_S * 1000)}
        )
        self._stop = threading.Event()
        self.acknowledged = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        def on_delivery(error: object, _: object) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.failures.append(str(error))

        while not self._stop.is_set():
            self._producer.produce("healthy", b"still here", on_delivery=on_delivery)
            self._producer.poll(0.02)
        self._producer.flush(PATIENCE_S)

    def __enter__(self) -> Healthy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # Small limits, so that a leak or an unbounded buffer shows within seconds.
    with LocalCluster(settings={"socket.request.max.bytes": "4194304"}) as made:
        with Admin(made.grpc_bootstrap) as admin:
            admin.create_topics(["healthy", NewTopic("t", 4)])
        yield made


@pytest.fixture(autouse=True)
def unharmed(cluster: LocalCluster) -> Iterator[None]:
    pid = cluster.pids[0]
    before = psutil.Process(pid).memory_info().rss
    with Healthy(cluster) as healthy:
        deadline = time.monotonic() + PATIENCE_S
        while not healthy.acknowledged and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = healthy.acknowledged
        yield
    assert cluster.dead == [], "a process of the cluster ended"
    assert cluster.pids[0] == pid
    assert healthy.failures == []
    assert healthy.acknowledged > seen > 0, "the healthy client got nothing done meanwhile"
    grown = psutil.Process(pid).memory_info().rss - before
    assert grown < RSS_GROWTH_MAX, f"{grown >> 20} MB more than before"


@pytest.mark.parametrize("frames", [maximal_counts, cut_off, flipped_forever, random_forever])
async def test_kafka_frames(
    cluster: LocalCluster, frames: Callable[[random.Random], Iterator[bytes]]
) -> None:
    port = int(cluster.kafka_bootstrap.rpartition(":")[2])
    sent = await fire_all(port, frames(random.Random(7)), SECONDS)
    assert sent > 20


def _bombs() -> Iterator[tuple[str, bytes]]:
    """Batches whose few bytes become many when opened, and which a compacted topic has to open."""
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        honest = build_batch([Record(0, 0, b"k", b"v", [])])
        # Snappy saves no more than 95 in 100: a larger one would be refused for its size, unopened.
        packed = compress(codec, bytes((20 if codec is Compression.SNAPPY else 64) << 20))
        assert len(packed) < 1_000_000
        made = bytearray(honest[:61]) + packed
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
        made[21:23] = int(codec).to_bytes(2, "big")
        reseal(made, 0, len(made))
        yield codec.name, bytes(made)


def test_decompression_bombs_on_a_compacted_topic(cluster: LocalCluster) -> None:
    with Admin(cluster.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic("compacted", 1, configs={"cleanup.policy": "compact"})])
    with grpc.insecure_channel(cluster.grpc_bootstrap) as channel:
        for name, bomb in _bombs():
            part = pb.PartitionRecords(topic="compacted", partition=0, records=bomb)
            request = pb.ProduceRequest(correlation=1, acks=-1, timeout_ms=5000, partitions=[part])
            (answer,) = LogStub(channel).Produce(iter([request]), timeout=PATIENCE_S)
            error = answer.partitions[0].error
            assert "decompress" in error.message, f"a {name} bomb: {error.name} {error.message}"


async def test_garbage_on_the_grpc_port(cluster: LocalCluster) -> None:
    chance = random.Random(7)
    host, _, port = cluster.grpc_bootstrap.rpartition(":")
    deadline = time.monotonic() + SECONDS
    tries = 0
    while time.monotonic() < deadline:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            if chance.random() < 0.5:
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            writer.write(chance.randbytes(chance.randrange(1, 5000)))
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(2):
                await reader.read(1000)
        except (OSError, TimeoutError):
            pass  # Being cut off is a fine answer.
        finally:
            writer.close()
        tries += 1
    assert tries > 10
