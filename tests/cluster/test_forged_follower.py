"""A client that speaks as a follower to a real broker: it is refused on every port, and moves no high watermark."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from grpc import aio

from ottla_broker.config import resolve_store
from ottla_broker.etcd_access import etcd_store
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOPIC = "letters"
#: Far above what an acknowledgement takes, far below replica.lag.time.max.ms.
PATIENCE_S = 6.0


class Facts(NamedTuple):
    """What an attacker needs; here even what only etcd has."""

    key: bytes
    leader: int
    epoch: int
    incarnations: dict[int, bytes]


async def _facts(etcd: str) -> Facts:
    store = etcd_store(*resolve_store({"etcd.endpoints": etcd}, {}, None))
    try:
        brokers = [BROKERS.decode(entry) for entry in (await store.scan("brokers/")).entries]
        topic = TOPICS.decode((await store.scan(f"topics/{TOPIC}")).entries[0])
        partitions = (await store.scan("partitions/")).entries
        state = next(
            PARTITIONS.decode(entry) for entry in partitions if PARTITIONS.id_of(entry.key) == (topic.id, 0)
        )
    finally:
        await store.close()
    incarnations = {broker.id: broker.incarnation.bytes for broker in brokers}
    return Facts(wire.partition_key(topic.id, 0), state.leader, state.leader_epoch, incarnations)


async def _forge(address: str, facts: Facts, follower: int, end: int) -> grpc.StatusCode | None:
    """Say to have `end` records, as the follower would; gives how the stream ended, None if it did not."""
    me, leader = facts.incarnations[follower], facts.incarnations[facts.leader]
    async with aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream("/ottla.v1.Replication/Follow")()
        frames = [wire.encode_hello(me, leader, follower, facts.leader)]
        for says, last_epoch, have in ((PositionKind.WANT, -1, 0), (PositionKind.HAVE, facts.epoch, end)):
            entry = PositionEntry(facts.key, says, facts.epoch, last_epoch, have, have)
            frames.append(wire.encode_positions(me, leader, [entry]))
        try:
            for frame in frames:
                await call.write(frame)
                await asyncio.sleep(0.3)
            async with asyncio.timeout(1.0):
                return await call.code()
        except TimeoutError:
            return None
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return await call.code()


async def _forge_everywhere(
    addresses: Sequence[str], facts: Facts, follower: int
) -> list[grpc.StatusCode | None]:
    return [await _forge(address, facts, follower, 1) for address in addresses]


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _addresses(cluster: LocalCluster, broker_id: int) -> Sequence[str]:
    broker = cluster.brokers[broker_id]
    return (broker.grpc, broker.internal)


def test_forged_positions_acknowledge_nothing() -> None:
    with LocalCluster(brokers=2) as cluster, asyncio.Runner() as runner:
        admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
        new = NewTopic(TOPIC, 1, 2, config={"min.insync.replicas": "2"})
        for made in admin.create_topics([new], request_timeout=20).values():
            made.result(20)
        facts = runner.run(_facts(cluster.etcd_endpoint))
        follower = 1 - facts.leader
        outcome: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": cluster.brokers[facts.leader].kafka,
                "acks": "all",
                "delivery.timeout.ms": int(PATIENCE_S * 1000),
                "log_level": 0,
            }
        )
        producer.list_topics(TOPIC, timeout=20)
        with paused(cluster.brokers[follower].pid):
            producer.produce(
                TOPIC,
                b"only the leader has it",
                partition=0,
                on_delivery=lambda error, _: outcome.append(error),
            )
            producer.poll(1.0)  # It is written, and waits for the follower.
            ends = runner.run(_forge_everywhere(_addresses(cluster, facts.leader), facts, follower))
            deadline = time.monotonic() + 2 * PATIENCE_S
            while not outcome and time.monotonic() < deadline:
                producer.poll(0.1)
        assert outcome != [None], "a write was acknowledged that only the leader has"
        # INTERNAL: the stream was reset while the forger was still writing, so its status came too late.
        assert ends[0] in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
        assert ends[1] in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL)


async def _call(address: str, method: str, request: bytes) -> grpc.StatusCode:
    async with aio.insecure_channel(address) as channel:
        try:
            await channel.unary_unary(f"/ottla.v1.Replication/{method}")(request, timeout=5)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", ["Probe", "Ask"])
async def test_a_client_learns_and_asks_nothing(local_cluster: LocalCluster, method: str) -> None:
    codes = [await _call(where, method, b"") for where in _addresses(local_cluster, 0)]
    assert codes == [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED]
