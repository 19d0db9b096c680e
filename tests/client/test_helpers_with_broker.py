"""Exactly once, the worker pool and the commits that interceptors see, against a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.test_group_with_broker import PARTITIONS, Place, eventually
from ottla_cli.local_cluster import LocalCluster
from ottla_client import (
    Admin,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    ExactlyOnce,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ProducerRecord,
    TopicPartition,
    WorkerPool,
)
from ottla_client.errors import CannotConnect, CommitFailed, ProducerFenced, TransactionFailed
from ottla_client.transform import may_pass
from ottla_core.errors import NotCoordinator, TopicAuthorizationFailed

pytestmark = pytest.mark.integration

#: Rebalances in tests should not wait for heartbeats.
SETTINGS = {"consumer.heartbeat.interval.ms": "100", "consumer.session.timeout.ms": "6000"}


@pytest.fixture
async def place(local_cluster: LocalCluster) -> Place:
    made = Place(local_cluster)
    async with Admin(made.address) as admin:
        await admin.create_topics([NewTopic(made.topic, PARTITIONS), NewTopic(f"{made.topic}-out", 2)])
        await admin.alter_configs(SETTINGS, group=made.group)
    return made


def worker(place: Place, transform: Any, name: str = "0", **settings: Any) -> ExactlyOnce:
    return ExactlyOnce(
        place.address,
        [place.topic],
        transform,
        group_id=place.group,
        transactional_id=f"{place.group}-{name}",
        max_poll_records=7,
        **settings,
    )


@asynccontextmanager
async def running(*workers: Any) -> Any:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(each.run(stop)) for each in workers]
        try:
            yield made
        finally:
            stop.set()


async def written(place: Place, count: int) -> list[int]:
    values: list[int] = []
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with Consumer(place.address, **settings) as consumer, asyncio.timeout(30):
        consumer.assign([TopicPartition(f"{place.topic}-out", n) for n in (0, 1)])
        while len(values) < count:
            values += [int(record.value) for record in await consumer.poll(500)]
        values += [int(record.value) for record in await consumer.poll(200)]
    return sorted(values)


async def test_each_record_is_transformed_once_while_workers_fail_and_come(place: Place) -> None:
    await place.fill(0, 90)
    output = f"{place.topic}-out"
    failures = iter([3, 1])

    async def double(record: ConsumerRecord) -> Iterable[ProducerRecord]:
        number = int(record.value)
        if number % 40 == 33 and next(failures, 0):
            raise TransactionFailed("as if a batch had not been written")
        return [
            ProducerRecord(output, b"%d" % (2 * number)),
            ProducerRecord(output, b"%d" % (2 * number + 1)),
        ]

    one, other = worker(place, double), worker(place, double, "1")
    async with running(one):
        await eventually(lambda: one.commits > 2)
        async with running(other):
            await eventually(lambda: len(other._consumer.assignment()) == 3)
            await place.fill(90, 60)
            assert await written(place, 300) == list(range(300))
            assert one.commits and other.commits
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values()} == {0}


async def test_errors_of_the_transformation_and_of_a_second_worker_end_it(place: Place) -> None:
    await place.fill(0, 12)

    def broken(record: ConsumerRecord) -> ProducerRecord | None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(worker(place, broken).run(), 30)
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(record: ConsumerRecord) -> None:
        begun.set()
        await go.wait()

    first = asyncio.create_task(worker(place, slow).run())
    await asyncio.wait_for(begun.wait(), 30)
    async with Producer(place.address, transactional_id=f"{place.group}-0"):
        go.set()
        with pytest.raises(ProducerFenced):
            await asyncio.wait_for(first, 30)
    assert await written(place, 0) == []


def test_what_another_attempt_may_fix() -> None:
    wrapped = TransactionFailed("x")
    wrapped.__cause__ = TopicAuthorizationFailed()
    assert not may_pass(wrapped) and not may_pass(ZeroDivisionError())
    assert may_pass(TransactionFailed("x")) and may_pass(NotCoordinator()) and may_pass(CannotConnect("x"))


async def test_only_a_member_has_group_metadata(place: Place) -> None:
    """Offsets of a consumer that was removed from its group would be committed unchecked."""
    async with Consumer(place.address, group_id=place.group) as consumer, asyncio.timeout(30):
        assert consumer.group_metadata().member_id == ""  # It has assigned by hand.
        consumer.subscribe([place.topic])
        with pytest.raises(CommitFailed, match="not a member"):
            consumer.group_metadata()
        while not consumer.assignment():
            await consumer.poll(100)
        assert consumer.group_metadata().member_id


async def test_interceptors_see_commits(place: Place) -> None:
    class Ledger(ConsumerInterceptor):
        def __init__(self) -> None:
            self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

        def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            self.commits.append(offsets)
            raise RuntimeError("an interceptor's bug does not fail a commit")

    ledger, tp = Ledger(), TopicPartition(place.topic, 0)
    async with Consumer(
        place.address, group_id=place.group, enable_auto_commit=False, interceptors=[ledger]
    ) as consumer:
        await consumer.commit({tp: 3})
        done = asyncio.Event()
        consumer.commit_nowait(lambda offsets, error: done.set(), {tp: OffsetAndMetadata(4, "note")})
        await asyncio.wait_for(done.wait(), 30)
    assert ledger.commits == [{tp: OffsetAndMetadata(3)}, {tp: OffsetAndMetadata(4, "note")}]


# ---------------------------------------------------------------------- the worker pool


async def keyed(place: Place, count: int) -> None:
    async with Producer(place.address) as producer:
        for number in range(count):
            await producer.send(place.topic, b"%d" % number, key=b"k%d" % (number % 10))


def pool_of(place: Place, handle: Any, **settings: Any) -> tuple[Consumer, WorkerPool]:
    consumer = Consumer(
        place.address, group_id=place.group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    return consumer, WorkerPool(consumer, [place.topic], handle, commit_interval_ms=50, **settings)


async def test_a_pool_keeps_the_order_of_keys_and_hands_over(place: Place) -> None:
    await keyed(place, 200)
    seen: dict[bytes, list[int]] = defaultdict(list)
    busy: set[bytes] = set()
    most = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal most
        assert record.key not in busy
        busy.add(record.key)
        most = max(most, len(busy))
        await asyncio.sleep(0.02)
        seen[record.key].append(int(record.value))
        busy.discard(record.key)

    total = lambda: sum(map(len, seen.values()))  # noqa: E731
    consumer, pool = pool_of(place, handle, workers=5, max_pending=30)
    async with consumer, running(pool):
        await eventually(lambda: total() >= 60)
        other, second = pool_of(place, handle, workers=5)
        async with other, running(second):
            await eventually(lambda: total() >= 200)
            assert len(consumer.assignment()) == len(other.assignment()) == 3
    assert 1 < most <= 10
    # Completed records were committed before their partitions moved: nothing came twice.
    assert sorted(n for found in seen.values() for n in found) == list(range(200))
    assert all(found == sorted(found) for found in seen.values())
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values() if lag.end} == {0}


async def test_a_pool_commits_what_was_completed_before_a_failure(place: Place) -> None:
    async with Producer(place.address) as producer:
        for number in range(10):
            await producer.send(place.topic, b"%d" % number, partition=0)
    others_done = threading.Semaphore(0)

    def handle(record: ConsumerRecord) -> None:
        """Plain, so in a thread."""
        if record.value == b"4":
            for _ in range(9):
                others_done.acquire(timeout=10)
            raise ZeroDivisionError("a bug")
        others_done.release()

    consumer, pool = pool_of(place, handle, workers=3)
    async with consumer:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(pool.run(), 30)
        found = await consumer.committed([TopicPartition(place.topic, 0)])
    assert [each and each.offset for each in found.values()] == [4]


async def test_a_pool_has_a_thread_per_worker(place: Place) -> None:
    await keyed(place, 40)
    together = threading.Barrier(10)  # Of ten keys; breaks if fewer run at the same time.

    def handle(record: ConsumerRecord) -> None:
        together.wait(10)

    consumer, pool = pool_of(place, handle, workers=10)
    async with consumer, running(pool):
        async with asyncio.timeout(30):
            while sum((await pool_offsets(place)).values()) < 40:
                await asyncio.sleep(0.05)


async def pool_offsets(place: Place) -> dict[TopicPartition, int]:
    async with Admin(place.address) as admin:
        return {tp: each.offset for tp, each in (await admin.group_offsets(place.group)).items()}


async def test_a_pool_refuses_a_consumer_that_commits_itself(place: Place) -> None:
    consumer = Consumer(place.address, group_id=place.group)
    with pytest.raises(ValueError, match="enable_auto_commit=False"):
        WorkerPool(consumer, [place.topic], print)
    with pytest.raises(ValueError, match="must be positive"):
        WorkerPool(consumer, [place.topic], print, workers=0)
