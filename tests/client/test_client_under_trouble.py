"""Brokers that refuse, move, stop, restart or fall silent: retries, order, timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from client.fake_services import FakeCluster
from ottla_client import Admin, Consumer, Producer, TopicPartition
from ottla_client.cluster import Cluster
from ottla_client.errors import CannotConnect, DeliveryTimedOut
from ottla_core.errors import (
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)

T0 = TopicPartition("t", 0)


@pytest.fixture
async def two() -> AsyncIterator[FakeCluster]:
    """Two brokers; t-0 is led by broker 0."""
    async with FakeCluster(brokers=2) as made:
        made.add_topic("t", leaders=[0])
        yield made


async def test_retriable_refusals_are_retried_in_order_without_repeats(two: FakeCluster) -> None:
    two.refusals.extend(
        [NotEnoughReplicas(), None, NotEnoughReplicas(), NotLeaderOrFollower(), NotEnoughReplicas()]
    )
    async with Producer(two.address, batch_size=200, retry_backoff_ms=5) as producer:
        deliveries = await producer.send_many("t", [b"%03d" % n * 10 for n in range(60)], partition=0)
        await producer.flush()
    assert [delivery.result().offset for delivery in deliveries] == list(range(60))
    assert two.values(T0) == [b"%03d" % n * 10 for n in range(60)]


async def test_a_refusal_for_good_fails_its_records_and_spares_the_rest(
    two: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Exception | None] = []
    async with Producer(two.address, retry_backoff_ms=5) as producer:
        two.refusals.append(TopicAuthorizationFailed("Not yours."))
        failed = await producer.send("t", b"bad", on_delivery=lambda _metadata, error: heard.append(error))
        await producer.flush()
        with pytest.raises(TopicAuthorizationFailed, match="Not yours"):
            await failed
        two.refusals.append(MessageTooLarge())
        with pytest.raises(MessageTooLarge):
            await producer.send_and_wait("t", b"large")
        assert (await producer.send_and_wait("t", b"good")).offset == 0
    assert isinstance(heard[0], TopicAuthorizationFailed)
    assert two.values(T0) == [b"good"]
    assert "were not written" in caplog.text, "failures nobody looks at are logged"


async def test_a_moved_leader_is_found_by_producer_and_consumer(two: FakeCluster) -> None:
    async with (
        Producer(two.address, retry_backoff_ms=10) as producer,
        Consumer(
            two.address, auto_offset_reset="earliest", fetch_max_wait_ms=50, retry_backoff_ms=10
        ) as consumer,
    ):
        consumer.assign([T0])
        got: list[bytes] = []
        for number in range(6):
            two.move_leader(T0, number % 2)
            await producer.send_and_wait("t", b"%d" % number)
            async with asyncio.timeout(10):
                while len(got) <= number:
                    got.extend(record.value for record in await consumer.poll(500))
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert two.values(T0) == got


async def test_a_stopping_broker_answers_what_it_took_and_clients_go_on_after_its_restart(
    two: FakeCluster,
) -> None:
    async with Producer(two.address, retry_backoff_ms=20, batch_size=2_000) as producer:
        deliveries = []
        sending = True

        async def keep_sending() -> None:
            while sending:
                deliveries.extend(
                    await producer.send_many("t", [b"x%06d" % n for n in range(50)], partition=0)
                )
                await asyncio.sleep(0.002)

        task = asyncio.ensure_future(keep_sending())
        for _ in range(3):
            await asyncio.sleep(0.1)
            await two.brokers[0].stop(1.0)
            await asyncio.sleep(0.05)
            await two.brokers[0].start()
        await asyncio.sleep(0.1)
        sending = False
        await task
        await producer.flush()
    offsets = [delivery.result().offset for delivery in deliveries]
    assert offsets == list(range(len(offsets))) and len(offsets) > 100
    assert len(two.values(T0)) == len(offsets), "every record once"


async def test_a_lost_broker_is_left_for_the_new_leader_and_nothing_is_doubled(two: FakeCluster) -> None:
    async with Producer([b.address for b in two.brokers], retry_backoff_ms=20, batch_size=500) as producer:
        await producer.send_and_wait("t", b"first")
        two.hold = asyncio.Event()
        pending = await producer.send_many("t", [b"%04d" % n for n in range(100)], partition=0)
        await asyncio.sleep(0.1)
        await two.brokers[0].stop(0)  # acknowledgements are lost; what was written is written
        two.hold = None
        two.move_leader(T0, 1)
        async with asyncio.timeout(20):
            await producer.flush()
    assert [delivery.result().offset for delivery in pending] == list(range(1, 101))
    assert two.values(T0) == [b"first", *(b"%04d" % n for n in range(100))]


async def test_what_cannot_be_delivered_in_time_fails_and_says_so(two: FakeCluster) -> None:
    async with Producer(two.address, delivery_timeout_ms=400, retry_backoff_ms=20) as producer:
        await producer.send_and_wait("t", b"first")
        await two.brokers[0].stop(0)
        delivery = await producer.send("t", b"late")
        with pytest.raises(DeliveryTimedOut, match=r"t-0 .*delivery_timeout_ms"):
            async with asyncio.timeout(5):
                await delivery


async def test_a_silent_broker_is_given_up_and_asked_anew(
    two: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    two.hold = asyncio.Event()
    async with Producer(two.address, request_timeout_ms=300, retry_backoff_ms=10) as producer:
        # The broker itself would wait as long as it is told to; it is asked for less than that by nobody.
        delivery = await producer.send("t", b"x")
        await asyncio.sleep(0.7)
        assert not delivery.done()
        two.hold.set()
        async with asyncio.timeout(5):
            assert (await delivery).offset == 0
    assert two.values(T0) == [b"x"]


async def test_acks_0_forgets_and_a_refusal_is_logged(
    two: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer(two.address, acks=0) as producer:
        two.refusals.append(RequestError("No room."))
        assert (await producer.send_and_wait("t", b"x")).offset == -1
        await producer.send_and_wait("t", b"y")
        async with asyncio.timeout(5):
            while "No room" not in caplog.text or two.values(T0) != [b"y"]:
                await asyncio.sleep(0.01)


async def test_grown_partitions_are_noticed_by_age(two: FakeCluster) -> None:
    async with Producer(two.address, metadata_max_age_ms=50, partitioner="round_robin") as producer:
        await producer.send_and_wait("t", b"x")
        two.add_topic("t", 3)
        async with asyncio.timeout(5):
            while {(await producer.send_and_wait("t", b"x")).partition for _ in range(3)} != {0, 1, 2}:
                await asyncio.sleep(0.02)


async def test_what_was_told_of_a_topic_outlasts_a_last_question_that_nobody_answers(
    two: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.auto_create = False
    two.move_leader(T0, -1)
    async with Producer(two.address, max_block_ms=300, retry_backoff_ms=10) as producer:
        monkeypatch.setattr(producer._cluster, "call", _answering_once(producer._cluster))
        with pytest.raises(UnknownTopicOrPartition, match="missing"):
            await producer.send("missing", b"x")
    async with Admin(two.address) as admin:
        monkeypatch.setattr(admin._cluster, "call", _answering_once(admin._cluster))
        with pytest.raises(LeaderNotAvailable, match="t-0 has no leader right now"):
            await admin.delete_records({T0: 1})


def _answering_once(cluster: Cluster) -> Callable[..., Awaitable[Any]]:
    ask, asked = cluster.call, 0

    async def call(method: str, request: Any, **options: Any) -> Any:
        nonlocal asked
        asked += method == "Metadata"
        if asked > 1:
            raise CannotConnect("The rest of the time was too short for an answer.")
        return await ask(method, request, **options)

    return call


async def test_calls_wait_for_an_election(two: FakeCluster) -> None:
    async with (
        Producer(two.address) as producer,
        Admin(two.address) as admin,
        Consumer(two.address) as consumer,
    ):
        await producer.send_and_wait("t", b"x")
        two.move_leader(T0, -1)

        async def elect() -> None:
            await asyncio.sleep(0.3)
            two.move_leader(T0, 1)

        electing = asyncio.ensure_future(elect())
        async with asyncio.timeout(10):
            deleted, listed, ends, sent = await asyncio.gather(
                admin.delete_records({T0: 1}),
                admin.list_offsets({T0: "latest"}),
                consumer.end_offsets([T0]),
                producer.send_and_wait("t", b"y"),
            )
        assert deleted == {T0: 1} and sent.offset == 1
        assert listed[T0].offset in (1, 2) and ends[T0] in (1, 2)
        await electing


async def test_a_call_does_not_wait_for_an_election_forever(two: FakeCluster) -> None:
    two.move_leader(T0, -1)
    async with Admin(two.address, request_timeout_ms=300) as admin:
        with pytest.raises(LeaderNotAvailable, match="t-0 has no leader right now"):
            await admin.delete_records({T0: 1})
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 5"):
            await admin.list_offsets({TopicPartition("t", 5): "latest"})
