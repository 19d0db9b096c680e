"""Groups against a real broker: members come, go, fall silent and restart; beside stock clients, too."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import (
    Admin,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from ottla_client.errors import CommitFailed, GroupTrouble, NoOffset
from ottla_client.sync import Consumer as BlockingConsumer
from ottla_core.errors import NonEmptyGroup

pytestmark = pytest.mark.integration

PARTITIONS = 6
#: Rebalances in tests should not wait for heartbeats.
QUICK: dict[str, Any] = {
    "group_protocol": "classic",
    "heartbeat_interval_ms": 100,
    "session_timeout_ms": 6000,
}


class Place:
    """A topic of six partitions with records in it, and a group."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.address = cluster.grpc_bootstrap
        self.topic = f"t-{uuid4().hex[:8]}"
        self.group = f"g-{uuid4().hex[:8]}"
        self.partitions = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]

    async def fill(self, first: int, count: int) -> None:
        async with Producer(self.address) as producer:
            for number in range(first, first + count):
                await producer.send(self.topic, b"%d" % number, partition=number % PARTITIONS)

    def member(self, **settings: Any) -> Member:
        """Of a classic group, unless `group_protocol` is given."""
        return Member(self, settings if "group_protocol" in settings else {**QUICK, **settings})


class Member:
    """A consumer with a task that polls it, and what it was told and given."""

    def __init__(self, place: Place, settings: dict[str, Any]) -> None:
        self._place = place
        self.settings = settings
        self.values: list[int] = []
        self.told: list[tuple[str, list[int]]] = []
        self.consumer = Consumer(
            place.address, **{"group_id": place.group, "auto_offset_reset": "earliest", **settings}
        )
        self.failed: Exception | None = None
        self._stopping = False

    async def __aenter__(self) -> Member:
        await self.consumer.start()
        self.consumer.subscribe(
            [self._place.topic],
            RebalanceListener(
                lambda tps: self._tell("assigned", tps),
                lambda tps: self._tell("revoked", tps),
                lambda tps: self._tell("lost", tps),
            ),
        )
        self.task = asyncio.create_task(self._run())
        return self

    def _tell(self, what: str, partitions: Any) -> None:
        self.told.append((what, sorted(tp.partition for tp in partitions)))

    async def _run(self) -> None:
        while not self._stopping:
            try:
                self.values.extend(int(record.value) for record in await self.consumer.poll(100))
            except Exception as error:
                self.failed = error
                return

    async def halt(self) -> None:
        """No more polls; nobody is told."""
        self._stopping = True
        await self.task

    async def __aexit__(self, *_: object) -> None:
        await self.halt()
        await self.consumer.stop()

    async def crash(self) -> None:
        """As if the process were gone: no goodbye, no commit, no heartbeat."""
        await self.halt()
        self.consumer._fetcher.stop()
        await self.consumer._cluster.close()
        if (group := self.consumer._group) is not None and group.session._timer is not None:
            group.session._closed = True
            group.session._timer.cancel()

    @property
    def has(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment())


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.fixture
async def place(local_cluster: LocalCluster) -> Place:
    made = Place(local_cluster)
    async with Admin(made.address) as admin:
        await admin.create_topics([NewTopic(made.topic, PARTITIONS)])
    return made


@asynccontextmanager
async def both(one: Member, other: Member) -> AsyncIterator[None]:
    """One is in and has everything, then the other comes; until each has three."""
    async with one:
        await eventually(lambda: len(one.has) == PARTITIONS)
        async with other:
            await eventually(lambda: len(one.has) == 3 and len(other.has) == 3)
            yield


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range", "roundrobin", "sticky"])
async def test_two_members_share_and_each_record_comes_once(place: Place, strategy: str) -> None:
    await place.fill(0, 120)
    one = place.member(partition_assignment_strategy=strategy)
    other = place.member(partition_assignment_strategy=strategy)
    async with both(one, other):
        assert sorted(one.has + other.has) == list(range(PARTITIONS))
        await place.fill(120, 120)
        await eventually(lambda: len(one.values) + len(other.values) >= 240)
        async with Admin(place.address) as admin:
            (described,) = await admin.describe_groups([place.group])
            assert (described.state, described.protocol) == ("Stable", strategy)
            shares = {m.member_id: [tp.partition for tp in m.partitions] for m in described.members}
            assert sorted(shares.values()) == sorted([one.has, other.has])
            assert {m.topics for m in described.members} == {(place.topic,)}
            assert place.group in [g.group for g in await admin.list_groups(states=["Stable"])]
            with pytest.raises(NonEmptyGroup):
                await admin.alter_group_offsets(place.group, {place.partitions[0]: 0})
        assert sorted(one.values + other.values) == list(range(240))
        gave_up = next(partitions for what, partitions in one.told if what == "revoked")
        if strategy == "cooperative-sticky":
            assert gave_up == other.has
        else:
            assert gave_up == list(range(PARTITIONS))


async def test_who_leaves_hands_over_and_commits(place: Place) -> None:
    await place.fill(0, 60)
    one, other = place.member(), place.member()
    async with one:
        await eventually(lambda: len(one.has) == PARTITIONS)
        async with other:
            await eventually(lambda: len(other.has) == 3)
            await eventually(lambda: len(one.values) + len(other.values) >= 60)
        await eventually(lambda: len(one.has) == PARTITIONS)
        await place.fill(60, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 120)
        assert sorted(one.values + other.values) == list(range(120))
    async with Admin(place.address) as admin:
        lags = await admin.group_lag(place.group)
    assert {tp: (lag.committed, lag.lag) for tp, lag in lags.items()} == dict.fromkeys(
        place.partitions, (20, 0)
    )


async def test_a_member_that_falls_silent_is_replaced(place: Place) -> None:
    await place.fill(0, 60)
    one = place.member(enable_auto_commit=False)
    other = place.member(session_timeout_ms=6000, enable_auto_commit=False)
    async with one:
        await eventually(lambda: len(one.has) == PARTITIONS)
        await other.__aenter__()
        await eventually(lambda: len(one.has) == len(other.has) == 3)
        await one.consumer.commit()
        await other.crash()
        # What the crashed one had is read by the other, from what was committed on.
        await eventually(lambda: len(one.has) == PARTITIONS)
        await eventually(lambda: set(one.values) == set(range(60)))


async def test_a_member_that_does_not_poll_is_out_and_may_return(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    slow = place.member(max_poll_interval_ms=1000)
    async with slow:
        await eventually(lambda: len(slow.has) == PARTITIONS)
        await slow.halt()
        async with place.member() as other:
            await eventually(lambda: len(other.has) == PARTITIONS)
            assert "The consumer did not poll for 1 s" in caplog.text
            await slow.consumer.poll(0)
            assert slow.told[-1] == ("lost", list(range(PARTITIONS)))
            with pytest.raises(ValueError, match="Offsets start at 0"):
                await slow.consumer.commit({place.partitions[0]: -1})
            slow._stopping = False
            slow.task = asyncio.create_task(slow._run())
            await eventually(lambda: len(slow.has) == len(other.has) == 3)


async def test_commits_are_kept_and_a_restart_goes_on(place: Place) -> None:
    await place.fill(0, 60)
    first = place.partitions[0]
    async with Consumer(place.address, group_id=place.group, enable_auto_commit=False, **QUICK) as consumer:
        consumer.assign(place.partitions)
        consumer.seek(first, 3)
        assert await consumer.committed(place.partitions) == dict.fromkeys(place.partitions)
        await consumer.commit({first: OffsetAndMetadata(4, "so far")})
        heard: list[Any] = []
        consumer.commit_nowait(lambda *what: heard.append(what), {place.partitions[1]: 7})
        await eventually(lambda: bool(heard))
        assert heard == [({place.partitions[1]: OffsetAndMetadata(7)}, None)]
    async with Consumer(place.address, group_id=place.group, auto_offset_reset="none", **QUICK) as consumer:
        assert (await consumer.committed([first]))[first] == OffsetAndMetadata(4, "so far")
        consumer.assign([first, place.partitions[2]])
        assert await consumer.position(first) == 4
        with pytest.raises(NoOffset, match="no committed offset"):
            await consumer.position(place.partitions[2])


async def test_an_iteration_commits_only_what_it_gave_out(place: Place) -> None:
    await place.fill(0, 60)
    seen = []
    async with (
        Consumer(place.address, group_id=place.group, auto_offset_reset="earliest", **QUICK) as consumer,
        asyncio.timeout(30),
    ):
        consumer.subscribe([place.topic])
        async for record in consumer:
            seen.append(int(record.value))
            if len(seen) == 7:
                break
        seen += [int(record.value) for record in await consumer.poll(0, max_records=5)]
        assert len(seen) == len(set(seen)) == 12
    async with Admin(place.address) as admin:
        assert sum(lag.committed or 0 for lag in (await admin.group_lag(place.group)).values()) == 12
        committed = (await admin.group_offsets(place.group)).values()
        assert all(each.leader_epoch >= 0 for each in committed if each.offset > 0), committed


async def test_static_members_restart_without_a_rebalance(place: Place) -> None:
    one = place.member(group_instance_id="one", session_timeout_ms=30_000)
    other = place.member(group_instance_id="other", session_timeout_ms=30_000)
    async with both(one, other):
        await place.fill(0, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 60)
        had, told = other.has, list(one.told)
        await other.__aexit__()
        again = place.member(group_instance_id="other", session_timeout_ms=30_000)
        async with again:
            await eventually(lambda: again.has == had)
            await place.fill(60, 60)
            await eventually(lambda: len(one.values) + len(other.values) + len(again.values) >= 120)
            assert one.told == told
            # A second process with the same name takes its place, and the first is told.
            thief = place.member(group_instance_id="other", session_timeout_ms=30_000)
            async with thief:
                await eventually(lambda: thief.has == had)
                await eventually(lambda: again.failed is not None)
                assert isinstance(again.failed, GroupTrouble) and "group_instance_id" in str(again.failed)
                assert again.told[-1] == ("lost", had)
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values()} == {0}


async def test_topics_that_come_later_and_grow(place: Place) -> None:
    prefix = place.topic
    seen: list[TopicPartition] = []
    async with (
        Admin(place.address) as admin,
        Consumer(place.address, group_id=place.group, metadata_max_age_ms=300, **QUICK) as consumer,
        asyncio.timeout(40),
    ):
        consumer.subscribe(re.compile(f"{prefix}-.*"), RebalanceListener(seen.extend))

        async def until(*expected: tuple[str, int]) -> None:
            while sorted(consumer.assignment()) != sorted(expected):
                await consumer.poll(50)

        await consumer.poll(100)
        assert consumer.assignment() == []
        await admin.create_topics([NewTopic(f"{prefix}-a", 1)])
        await until((f"{prefix}-a", 0))
        await admin.create_topics([NewTopic(f"{prefix}-b", 1)])
        await until((f"{prefix}-a", 0), (f"{prefix}-b", 0))
        await admin.create_partitions(f"{prefix}-a", 2)
        await until((f"{prefix}-a", 0), (f"{prefix}-a", 1), (f"{prefix}-b", 0))
        await admin.delete_topics([f"{prefix}-b"])
        await until((f"{prefix}-a", 0), (f"{prefix}-a", 1))
        await consumer.unsubscribe()
        assert consumer.assignment() == [] == consumer.subscription()


async def test_a_refused_commit_says_why(place: Place) -> None:
    async with place.member() as one:
        await eventually(lambda: len(one.has) == PARTITIONS)
        async with Consumer(place.address, group_id=place.group, **QUICK) as outsider:
            outsider.assign(place.partitions[:1])
            with pytest.raises(CommitFailed, match="no longer a member of the group"):
                await outsider.commit({place.partitions[0]: 0})


async def test_members_with_no_assignor_in_common(place: Place) -> None:
    async with place.member() as one:
        await eventually(lambda: len(one.has) == PARTITIONS)
        async with place.member(partition_assignment_strategy="range") as other:
            await eventually(lambda: other.failed is not None)
            assert "support none of our assignors (range)" in str(other.failed)


async def test_a_coordinator_that_restarts_keeps_members_and_commits(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = await asyncio.to_thread(make_cluster)
    place = Place(cluster)
    async with Admin(place.address) as admin:
        await admin.create_topics([NewTopic(place.topic, PARTITIONS)])
    one, other = place.member(auto_commit_interval_ms=100), place.member(auto_commit_interval_ms=100)
    async with both(one, other):
        await place.fill(0, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 60)
        await asyncio.sleep(0.5)  # for the auto commit
        await asyncio.to_thread(cluster.kill, 0)
        await asyncio.to_thread(cluster.restart, 0)
        async with Admin(place.address) as admin:
            committed = await admin.group_offsets(place.group)
        assert {tp: each.offset for tp, each in committed.items()} == dict.fromkeys(place.partitions, 10)
        await place.fill(60, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 120)
        assert sorted(one.values + other.values) == list(range(120))
        assert len(one.has) == len(other.has) == 3


# ---------------------------------------------------------------------- beside stock clients


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours leads", "librdkafka leads"])
async def test_one_group_with_librdkafka(place: Place, strategy: str, ours_first: bool) -> None:
    """Whoever leads assigns to both, by metadata that the other wrote."""
    theirs: list[int] = []
    held: list[TopicPartition] = []
    stop = threading.Event()

    def librdkafka() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": place.cluster.kafka_bootstrap,
                "group.id": place.group,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6000,
            }
        )
        consumer.subscribe([place.topic])
        while not stop.is_set():
            message = consumer.poll(0.1)
            held[:] = [TopicPartition(tp.topic, tp.partition) for tp in consumer.assignment()]
            if message is not None:
                assert message.error() is None
                theirs.append(int(message.value()))
        consumer.close()

    thread = threading.Thread(target=librdkafka)
    ours = place.member(partition_assignment_strategy=strategy)
    await place.fill(0, 60)
    try:
        if ours_first:
            await ours.__aenter__()
            await eventually(lambda: len(ours.has) == PARTITIONS)
            thread.start()
        else:
            thread.start()
            await eventually(lambda: len(held) == PARTITIONS)
            await ours.__aenter__()
        await eventually(lambda: len(ours.has) == len(held) == 3)
        assert sorted(ours.has + [tp.partition for tp in held]) == list(range(PARTITIONS))
        await place.fill(60, 60)
        await eventually(lambda: len(theirs) + len(ours.values) >= 120)
        assert sorted(theirs + ours.values) == list(range(120))
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    # And what it leaves comes to us.
    await eventually(lambda: len(ours.has) == PARTITIONS)
    await ours.__aexit__()


async def test_the_blocking_consumer_in_a_group(place: Place) -> None:
    await place.fill(0, 60)
    told: list[tuple[str, int]] = []

    def read() -> list[int]:
        values: list[int] = []
        with BlockingConsumer(
            place.address,
            group_id=place.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **QUICK,
        ) as consumer:

            def revoked(partitions: Any) -> None:
                consumer.commit()  # from the listener, while the close waits for it
                told.append(("revoked", len(partitions)))

            consumer.subscribe(
                place.topic, RebalanceListener(lambda tps: told.append(("assigned", len(tps))), revoked)
            )
            for record in consumer:
                values.append(int(record.value))
                if len(values) == 60:
                    break
            assert consumer.subscription() == [place.topic]
        return values

    assert sorted(await asyncio.to_thread(read)) == list(range(60))
    assert told == [("assigned", PARTITIONS), ("revoked", PARTITIONS)]
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values()} == {0}
        await admin.delete_groups([place.group])
        (described,) = await admin.describe_groups([place.group])
        assert described.state == "Dead"


async def test_a_group_lives_through_the_death_of_its_coordinator(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    """Another broker takes over: no member is lost, nothing is read twice, and what was committed is there."""
    cluster = await asyncio.to_thread(make_cluster, brokers=3)
    place = Place(cluster)
    async with Admin(place.address) as admin:
        await admin.create_topics([NewTopic(place.topic, PARTITIONS, 3)])
    one, other = place.member(auto_commit_interval_ms=100), place.member(auto_commit_interval_ms=100)
    async with both(one, other), Admin(place.address) as admin:
        await place.fill(0, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 60)
        await asyncio.sleep(0.5)  # for the auto commit
        (before,) = await admin.describe_groups([place.group])
        await asyncio.to_thread(cluster.kill, before.coordinator_id)
        await place.fill(60, 60)
        await eventually(lambda: len(one.values) + len(other.values) >= 120)
        assert sorted(one.values + other.values) == list(range(120))
        await one.consumer.commit()
        (after,) = await admin.describe_groups([place.group])
        assert after.coordinator_id != before.coordinator_id
        assert (after.state, after.generation) == ("Stable", before.generation)
        assert len(one.has) == len(other.has) == 3
    assert not any(what == "lost" for what, _ in one.told + other.told)
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values()} == {0}
