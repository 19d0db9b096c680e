"""Trouble in one place is no trouble elsewhere, and everything that waits has its bound."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import pytest

from client.fake_services import FakeCluster
from ottla_client import Admin, Consumer, Producer, TopicPartition, sync
from ottla_client.coordinator import Coordinator
from ottla_client.errors import CannotConnect, ClientClosed, RequestTimedOut
from ottla_core.errors import NotCoordinator
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import groups_pb2 as groups_pb
from ottla_core.real.clock import RealClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as made:
        made.add_topic("t", 2)
        yield made


async def test_a_partition_without_a_leader_does_not_keep_the_others_from_being_read(
    cluster: FakeCluster,
) -> None:
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"x", partition=0)
        await producer.send_and_wait("t", b"y", partition=1)
    cluster.move_leader(T1, -1)
    async with Consumer(cluster.address, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        consumer.assign([T1, T0])
        async with asyncio.timeout(10):  # far below request_timeout_ms
            assert (await consumer.getone()).value == b"x"
        cluster.move_leader(T1, 0)
        async with asyncio.timeout(10):
            assert (await consumer.getone()).value == b"y"


async def test_a_broker_that_is_cut_off_and_tells_what_was_does_not_keep_clients() -> None:
    async with FakeCluster(brokers=2) as cluster:
        cluster.add_topic("t", leaders=[0])
        async with (
            Producer(cluster.brokers[0].address, retry_backoff_ms=10) as producer,
            Consumer(cluster.brokers[0].address, fetch_max_wait_ms=50, retry_backoff_ms=10) as consumer,
        ):
            await producer.send_and_wait("t", b"x")
            consumer.assign([T0])
            consumer.seek(T0, 0)
            assert (await consumer.getone()).value == b"x"
            cluster.brokers[0].old_image = cluster.image
            cluster.move_leader(T0, 1)
            async with asyncio.timeout(10):
                assert (await producer.send_and_wait("t", b"y")).offset == 1
                assert (await consumer.getone()).value == b"y"
            # Asked again, the old one does not bring them back.
            producer._cluster._preferred = cluster.brokers[0].address
            await producer._cluster.refresh(["t"], timeout_s=5)
            assert producer._cluster.leader(T0) == 1


async def test_a_coordinator_that_is_none_any_more_is_not_found_again_and_again() -> None:
    """As long as another broker knows better than the one that is asked first."""

    brokers = {"old": "the old one", "new": "the new one"}

    class TwoBrokers:
        def broker_at(self, info: pb.BrokerInfo) -> str:
            return brokers[info.host]

        async def call(self, method: str, request: object, *, timeout_s: float) -> object:
            return self.named("old")

        async def second_opinion(self, method: str, request: object) -> object:
            return self.named("new")

        async def call_at(self, broker: str, method: str, request: object, timeout_s: float) -> object:
            if broker == brokers["old"]:
                raise NotCoordinator()
            return groups_pb.GroupHeartbeatResponse()

        def named(self, host: str) -> groups_pb.FindCoordinatorResponse:
            found = groups_pb.GroupCoordinator(broker=pb.BrokerInfo(host=host, port=1))
            return groups_pb.FindCoordinatorResponse(coordinators=[found])

    coordinator = Coordinator(TwoBrokers(), RealClock(), "g")  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await coordinator.ask("Heartbeat", groups_pb.GroupHeartbeatRequest(), 5)


async def test_an_iteration_ends_when_the_consumer_is_stopped(cluster: FakeCluster) -> None:
    consumer = Consumer(cluster.address, auto_offset_reset="earliest", fetch_max_wait_ms=50)
    await consumer.start()
    consumer.assign([T0])
    first = asyncio.Event()

    async def read() -> list[bytes]:
        seen = []
        async for record in consumer:
            seen.append(record.value)
            first.set()
        return seen

    reading = asyncio.ensure_future(read())
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"x", partition=0)
    async with asyncio.timeout(10):
        await first.wait()
        await consumer.stop()
        assert await reading == [b"x"]


async def test_calls_to_a_silent_broker_wait_in_parallel(cluster: FakeCluster) -> None:
    """Not one after the other, each for all of its time."""
    async with Producer(cluster.address, max_block_ms=400, retry_backoff_ms=10) as producer:
        await cluster.brokers[0].stop(0)
        began = time.monotonic()
        outcomes = await asyncio.gather(
            *(producer.send(f"unknown-{number}", b"x") for number in range(20)), return_exceptions=True
        )
        assert time.monotonic() - began < 4
    assert {type(each) for each in outcomes} <= {CannotConnect, RequestTimedOut}


async def test_partitions_that_were_added_can_be_written_to_at_once(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer, Admin(cluster.address) as admin:
        await producer.send_and_wait("t", b"x", partition=1)
        await admin.create_partitions("t", 5)
        assert (await producer.send_and_wait("t", b"y", partition=4)).partition == 4


def test_what_a_blocking_producer_queues_is_bounded_in_bytes() -> None:
    """Ten thousand records of a megabyte are more than most machines have."""
    producer = sync.Producer("127.0.0.1:1")
    producer._open, producer._moving = True, True  # as if the loop's thread were busy for long
    sent = 0

    def send() -> None:
        nonlocal sent
        with contextlib.suppress(ClientClosed):
            for _ in range(1000):
                producer.send("t", bytes(1 << 20))
                sent += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(2)
    assert thread.is_alive() and 0 < sent < 100
    producer._open = False
    thread.join(10)
    assert not thread.is_alive(), "and a stop lets it go"
