"""Broker-side groups of our client against a real broker; beside librdkafka, too."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pytest

from client.test_group_with_broker import PARTITIONS, Member, Place, eventually
from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, NewTopic, TopicPartition
from ottla_client.coordinator import Coordinator
from ottla_client.errors import CommitFailed, GroupTrouble, NotServed
from ottla_client.group_session import GroupSession
from ottla_client.group_shell import GroupShell
from ottla_client.sync import Consumer as BlockingConsumer
from ottla_core.errors import InvalidRegularExpression

pytestmark = pytest.mark.integration

#: Rebalances in tests should not wait for heartbeats.
SETTINGS = {"consumer.heartbeat.interval.ms": "100", "consumer.session.timeout.ms": "6000"}
EVERYTHING = list(range(PARTITIONS))


@pytest.fixture
async def place(local_cluster: LocalCluster) -> Place:
    made = Place(local_cluster)
    async with Admin(made.address) as admin:
        await admin.create_topics([NewTopic(made.topic, PARTITIONS)])
        await admin.alter_configs(SETTINGS, group=made.group)
    return made


def member(place: Place, **settings: Any) -> Member:
    return place.member(**{"group_protocol": "consumer", **settings})


@asynccontextmanager
async def both(one: Member, other: Member) -> AsyncIterator[None]:
    async with one:
        await eventually(lambda: one.has == EVERYTHING)
        async with other:
            await eventually(lambda: len(one.has) == len(other.has) == 3)
            yield


async def test_two_members_share_and_each_record_comes_once(place: Place) -> None:
    await place.fill(0, 120)
    one, other = member(place), member(place, group_remote_assignor="uniform")
    async with both(one, other):
        assert sorted(one.has + other.has) == EVERYTHING
        await place.fill(120, 120)
        await eventually(lambda: len(one.values) + len(other.values) >= 240)
        async with Admin(place.address) as admin:
            (described,) = await admin.describe_groups([place.group])
            assert (described.state, described.group_type, described.protocol) == (
                "Stable",
                "consumer",
                "uniform",
            )
            shares = [[tp.partition for tp in m.partitions] for m in described.members]
            assert sorted(shares) == sorted([one.has, other.has])
            assert {m.target == m.partitions for m in described.members} == {True}
            assert {m.topics for m in described.members} == {(place.topic,)}
            assert place.group in [g.group for g in await admin.list_groups(types=["consumer"])]
        assert sorted(one.values + other.values) == list(range(240))
        # Only what moved was revoked, and its offsets were committed before.
        assert one.told == [("assigned", EVERYTHING), ("revoked", other.has)]
    async with Admin(place.address) as admin:
        lags = await admin.group_lag(place.group)
    assert {(lag.committed, lag.lag) for lag in lags.values()} == {(40, 0)}


async def test_a_crashed_member_is_replaced_and_a_silent_one_returns(place: Place) -> None:
    await place.fill(0, 60)
    one, other = member(place), member(place, max_poll_interval_ms=1000)
    async with one:
        await eventually(lambda: one.has == EVERYTHING)
        async with other:
            await eventually(lambda: len(other.has) == 3)
            had = other.has
            await other.halt()
            await eventually(lambda: one.has == EVERYTHING)
            with pytest.raises(CommitFailed):
                await other.consumer.commit({TopicPartition(place.topic, had[0]): 1})
            other._stopping = False
            other.task = asyncio.create_task(other._run())
            await eventually(lambda: len(one.has) == len(other.has) == 3)
            assert ("lost", had) in other.told
        third = await member(place).__aenter__()
        await eventually(lambda: len(one.has) == len(third.has) == 3)
        await third.crash()
        await eventually(lambda: one.has == EVERYTHING)
        await eventually(lambda: set(one.values + other.values + third.values) == set(range(60)))


async def test_a_member_that_is_refused_for_good_frees_its_partitions_at_once(place: Place) -> None:
    async with Admin(place.address) as admin:
        await admin.alter_configs({**SETTINGS, "consumer.session.timeout.ms": "45000"}, group=place.group)
    one, other = member(place), member(place)
    async with both(one, other):
        other.consumer.subscribe(re.compile("(?!what brokers do not know)"))
        await eventually(lambda: one.has == EVERYTHING)
        assert isinstance(other.failed, InvalidRegularExpression)


async def test_static_members_restart_without_a_rebalance(place: Place) -> None:
    one = member(place, group_instance_id="one")
    other = member(place, group_instance_id="other")
    async with both(one, other):
        had, told = other.has, list(one.told)
        await other.__aexit__()
        async with member(place, group_instance_id="other") as again:
            await eventually(lambda: again.has == had)
            assert one.told == told
            # A second process with the same instance id gets nothing while the first one lives.
            async with member(place, group_instance_id="other") as second:
                await asyncio.sleep(0.5)
                assert second.has == [] and again.has == had and again.failed is None


async def test_a_pattern_is_matched_by_the_broker(place: Place) -> None:
    prefix = place.topic
    async with (
        Admin(place.address) as admin,
        Consumer(place.address, group_id=place.group, group_protocol="consumer") as consumer,
        asyncio.timeout(30),
    ):
        with pytest.raises(ValueError, match="only IGNORECASE"):
            consumer.subscribe(re.compile(prefix, re.VERBOSE))
        consumer.subscribe(re.compile(f"{prefix.upper()}-.*", re.IGNORECASE))

        async def until(*expected: tuple[str, int]) -> None:
            while sorted(consumer.assignment()) != sorted(expected):
                await consumer.poll(50)

        await consumer.poll(100)
        await admin.create_topics([NewTopic(f"{prefix}-a", 1)])
        await until((f"{prefix}-a", 0))
        assert consumer.subscription() == [f"{prefix}-a"]
        await admin.create_partitions(f"{prefix}-a", 2)
        await until((f"{prefix}-a", 0), (f"{prefix}-a", 1))
        await admin.delete_topics([f"{prefix}-a"])
        await until()
        consumer.subscribe([prefix])
        await until(*place.partitions)
        consumer.subscribe(re.compile(r"(?=x)"))
        with pytest.raises(Exception, match="regular expression"):
            await until((prefix, -1))
        await consumer.unsubscribe()
        assert consumer.assignment() == [] == consumer.subscription()


async def test_members_of_both_protocols_share_a_group(place: Place) -> None:
    """It is upgraded by the first that speaks the broker-side one, and downgraded when that has gone."""
    await place.fill(0, 60)
    async with place.member(heartbeat_interval_ms=100) as classic, Admin(place.address) as admin:
        await eventually(lambda: classic.has == EVERYTHING)
        await eventually(lambda: len(classic.values) == 60)
        async with member(place) as ours:
            await eventually(lambda: len(classic.has) == len(ours.has) == 3)
            assert sorted(classic.has + ours.has) == EVERYTHING
            (described,) = await admin.describe_groups([place.group])
            assert described.is_broker_side and len(described.members) == 2
            await place.fill(60, 60)
            await eventually(lambda: len(classic.values) + len(ours.values) >= 120)
            # Only what moved was revoked, and its offsets were committed before.
            assert sorted(classic.values + ours.values) == list(range(120))
        await eventually(lambda: classic.has == EVERYTHING)
        (described,) = await admin.describe_groups([place.group])
        assert not described.is_broker_side and described.state == "Stable"
        assert classic.failed is None and ours.failed is None


async def test_auto_is_broker_side_or_classic_where_that_is_not_offered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four share one group, whose protocol changes with its members."""

    async def kind() -> str:
        async with Admin(place.address) as admin:
            return str((await admin.describe_groups([place.group]))[0].group_type)

    await place.fill(0, 60)
    async with member(place, group_protocol="auto") as modern:
        await eventually(lambda: modern.has == EVERYTHING)
        assert await kind() == "consumer"
        async with member(place, group_protocol="auto") as fussy:
            # Only Python understands this expression, so the broker refuses it, also from a member.
            await eventually(lambda: len(fussy.has) == 3)
            fussy.consumer.subscribe(re.compile(f"{place.topic}(?=$)"))
            await eventually(lambda: isinstance(session_of(fussy), GroupSession) and len(fussy.has) == 3)
            assert len(modern.has) == 3 and fussy.failed is None
            await eventually(lambda: len(modern.values) + len(fussy.values) == 60)
    await eventually(lambda: not modern.has or modern.task.done())
    older = Coordinator.call

    async def call(self: Coordinator, method: str, *rest: Any) -> Any:
        if method == "ConsumerHeartbeat":
            raise NotServed("An older broker.")
        return await older(self, method, *rest)

    monkeypatch.setattr(Coordinator, "call", call)
    async with member(place, group_protocol="auto") as carried:
        await eventually(lambda: carried.has == EVERYTHING)
        assert await kind() == "classic"
        async with member(place, group_protocol="consumer") as stubborn:
            await eventually(lambda: isinstance(stubborn.failed, GroupTrouble))
            assert "An older broker. Use group_protocol='classic'" in str(stubborn.failed)
    assert not modern.failed and not fussy.failed and not carried.failed
    async with Consumer(place.address, group_id=place.group) as plain:
        plain.subscribe(re.compile(f"{place.topic} # with a comment", re.VERBOSE))
        assert plain._group is not None and isinstance(plain._group.session, GroupSession)


def session_of(member: Member) -> GroupShell:
    assert member.consumer._group is not None
    return member.consumer._group.session


async def test_one_group_with_librdkafka(place: Place) -> None:
    theirs: list[int] = []
    held: list[int] = []
    stop = threading.Event()

    def librdkafka() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": place.cluster.kafka_bootstrap,
                "group.id": place.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([place.topic])
        while not stop.is_set():
            message = consumer.poll(0.1)
            held[:] = sorted(tp.partition for tp in consumer.assignment())
            if message is not None:
                assert message.error() is None
                theirs.append(int(message.value()))
        consumer.close()

    thread = threading.Thread(target=librdkafka)
    await place.fill(0, 60)
    async with member(place) as ours:
        await eventually(lambda: ours.has == EVERYTHING)
        thread.start()
        try:
            await eventually(lambda: len(ours.has) == len(held) == 3)
            assert sorted(ours.has + held) == EVERYTHING
            await place.fill(60, 60)
            await eventually(lambda: len(theirs) + len(ours.values) >= 120)
            assert sorted(theirs + ours.values) == list(range(120))
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
        await eventually(lambda: ours.has == EVERYTHING)


async def test_the_blocking_consumer(place: Place) -> None:
    await place.fill(0, 60)

    def read() -> list[int]:
        values: list[int] = []
        with BlockingConsumer(
            place.address, group_id=place.group, group_protocol="consumer", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([place.topic])
            while len(values) < 60:
                values += [int(record.value) for record in consumer.poll(200)]
            consumer.commit()
        return values

    assert sorted(await asyncio.wait_for(asyncio.to_thread(read), 30)) == list(range(60))
    async with Admin(place.address) as admin:
        assert {lag.lag for lag in (await admin.group_lag(place.group)).values()} == {0}
