"""Stock clients in consumer groups: members come and go, offsets are committed and found again.

The first rebalance of a group waits three seconds for more members, as Kafka's does: that is most of the time here.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupListing

from interop.clients import kafka
from interop.target import Target

pytestmark = pytest.mark.integration

PARTITIONS = 4
PER_PARTITION = 25
TIMEOUT_S = 40.0


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def filled(target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]) -> str:
    """A topic of four partitions with a hundred records."""
    topic = make_topic(new_name(), PARTITIONS)
    fill(target, topic)
    return topic


def fill(target: Target, topic: str) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(PARTITIONS * PER_PARTITION):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@contextmanager
def member(target: Target, group: str, topic: str, **more: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            **more,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(holds: Callable[[], bool], *consumers: Consumer) -> list[Any]:
    """Let members live until something is true; gives what they read."""
    read: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, [c.assignment() for c in consumers]
        for consumer in consumers:
            for message in consumer.consume(100, timeout=0.1):
                assert message.error() is None, message.error()
                read.append(message)
    return read


def owned(consumer: Consumer) -> set[int]:
    return {each.partition for each in consumer.assignment()}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions(target: Target, filled: str, group: str, strategy: str) -> None:
    how = {"partition.assignment.strategy": strategy}
    everything = set(range(PARTITIONS))
    with member(target, group, filled, **how) as first:
        poll_until(lambda: owned(first) == everything, first)
        with member(target, group, filled, **how) as second:
            poll_until(
                lambda: (
                    len(owned(first)) == len(owned(second)) == 2
                    and owned(first) | owned(second) == everything
                ),
                first,
                second,
            )
        poll_until(lambda: owned(first) == everything, first)


def test_reading_goes_on_where_it_was_committed(target: Target, filled: str, group: str) -> None:
    with member(target, group, filled) as first:
        read: list[Any] = []
        while len(read) < 40:
            read += poll_until(lambda: True, first) or first.consume(40 - len(read), timeout=0.2)
        first.commit(offsets=_positions(filled, read), asynchronous=False)
    with member(target, group, filled) as second:
        rest: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(rest) < PARTITIONS * PER_PARTITION - len(read) and time.monotonic() < deadline:
            rest += second.consume(100, timeout=0.2)
    seen = [(m.partition(), m.offset()) for m in read + rest]
    assert len(seen) == len(set(seen)) == PARTITIONS * PER_PARTITION


def _positions(topic: str, messages: list[Any]) -> list[TopicPartition]:
    last: dict[int, int] = {}
    for message in messages:
        last[message.partition()] = message.offset()
    return [TopicPartition(topic, partition, offset + 1) for partition, offset in last.items()]


def test_a_static_member_comes_back_to_its_partitions(target: Target, filled: str, group: str) -> None:
    """Closing one leaves the group as it is; the next process with the instance id takes its place at once."""
    with member(target, group, filled, **{"group.instance.id": "one"}) as first:
        poll_until(lambda: len(owned(first)) == PARTITIONS, first)
        with member(target, group, filled, **{"group.instance.id": "two"}) as second:
            poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
            before = owned(second)
        began = time.monotonic()
        with member(target, group, filled, **{"group.instance.id": "two"}) as again:
            poll_until(lambda: owned(again) == before, first, again)
        assert time.monotonic() - began < 5, "it did not wait for its own session to end"
        assert len(owned(first)) == 2


def test_offsets_without_a_group(target: Target, filled: str, group: str) -> None:
    """Commits of a consumer that assigns partitions to itself, and metadata with them."""
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(filled, 1, 3)])
        consumer.commit(offsets=[TopicPartition(filled, 1, 7, "so far")], asynchronous=False)
        one, none = consumer.committed([TopicPartition(filled, 1), TopicPartition(filled, 0)], timeout=10)
        assert (one.offset, one.metadata) == (7, "so far")
        assert none.offset < 0
    finally:
        consumer.close()


def test_administration(target: Target, admin: AdminClient, filled: str, group: str) -> None:
    with member(target, group, filled, **{"client.id": "describe-me"}) as first:
        poll_until(lambda: len(owned(first)) == PARTITIONS, first)
        first.commit(offsets=[TopicPartition(filled, 0, 5)], asynchronous=False)
        (described,) = [f.result(10) for f in admin.describe_consumer_groups([group]).values()]
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        (shown,) = described.members
        assert shown.client_id == "describe-me"
        assert shown.host.endswith("127.0.0.1")
        assert {tp.partition for tp in shown.assignment.topic_partitions} == set(range(PARTITIONS))
        with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            [f.result(10) for f in admin.delete_consumer_groups([group]).values()]
    assert listed(admin, group).state == ConsumerGroupState.EMPTY
    [f.result(10) for f in admin.delete_consumer_groups([group]).values()]
    assert group not in {each.group_id for each in admin.list_consumer_groups().result(10).valid}


def listed(admin: AdminClient, group: str) -> ConsumerGroupListing:
    (found,) = [each for each in admin.list_consumer_groups().result(10).valid if each.group_id == group]
    return found


def test_aiokafka(target: Target, filled: str, group: str) -> None:
    def make() -> Any:
        return aiokafka.AIOKafkaConsumer(
            filled,
            bootstrap_servers=target.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
        )

    async def run() -> None:
        async with make() as first:
            await until(lambda: len(first.assignment()) == PARTITIONS, first)
            async with make() as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
            await until(lambda: len(first.assignment()) == PARTITIONS, first)
            await first.commit({aiokafka.TopicPartition(filled, 2): 9})
        async with make() as again:
            await until(lambda: len(again.assignment()) == PARTITIONS, again)
            assert await again.committed(aiokafka.TopicPartition(filled, 2)) == 9

    async def until(holds: Callable[[], bool], *consumers: Any) -> None:
        while not holds():
            await asyncio.gather(*(c.getmany(timeout_ms=100) for c in consumers))

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_kafka_python(target: Target, filled: str, group: str) -> None:
    def make() -> Any:
        consumer = kafka.KafkaConsumer(
            filled,
            bootstrap_servers=target.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
        )
        # A leader that learns the topic's partitions while it assigns keeps an empty assignment (kafka-python's race).
        consumer.partitions_for_topic(filled)
        return consumer

    def until(holds: Callable[[], bool], *consumers: Any) -> int:
        read, deadline = 0, time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, [c.assignment() for c in consumers]
            read += sum(len(part) for c in consumers for part in c.poll(timeout_ms=100).values())
        return read

    first = make()
    try:
        until(lambda: len(first.assignment()) == PARTITIONS, first)
        second = make()
        try:
            until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
        finally:
            second.close()
        until(lambda: len(first.assignment()) == PARTITIONS, first)
        first.commit({kafka.TopicPartition(filled, 3): kafka.OffsetAndMetadata(11, "here", -1)})
        assert first.committed(kafka.TopicPartition(filled, 3)) == 11
    finally:
        first.close()


def test_members_of_different_clients_share_a_group(target: Target, filled: str, group: str) -> None:
    """librdkafka and aiokafka vote for what both know, and one assigns for the other."""

    async def run(mine: Consumer) -> None:
        theirs = aiokafka.AIOKafkaConsumer(
            filled,
            bootstrap_servers=target.bootstrap,
            group_id=group,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        # Starting means joining, and that waits for the other member, who has to live meanwhile.
        starting = asyncio.create_task(theirs.start())
        try:
            while not (starting.done() and len(mine.assignment()) == len(theirs.assignment()) == 2):
                await asyncio.to_thread(mine.poll, 0.05)
            await starting
            both = owned(mine) | {tp.partition for tp in theirs.assignment()}
            assert both == set(range(PARTITIONS))
        finally:
            await theirs.stop()

    with member(target, group, filled, **{"partition.assignment.strategy": "range"}) as mine:
        poll_until(lambda: len(owned(mine)) == PARTITIONS, mine)
        asyncio.run(asyncio.wait_for(run(mine), TIMEOUT_S))


def test_offsets_of_a_deleted_topic_are_forgotten(
    target: Target, admin: AdminClient, filled: str, group: str
) -> None:
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        consumer.commit(offsets=[TopicPartition(filled, 0, 7)], asynchronous=False)
        [f.result(10) for f in admin.delete_topics([filled]).values()]
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.committed([TopicPartition(filled, 0)], timeout=10)[0].offset >= 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        consumer.close()
