"""Groups and their offsets, administered by everything that stock clients and Kafka's tools offer for it."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from interop.clients import kafka
from interop.target import Target
from ottla_bench.kafka_jars import run_tool

pytestmark = pytest.mark.integration

KAFKA_CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
KAFKA_GROUPS = "org.apache.kafka.tools.GroupsCommand"
RECORDS = 20


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def filled(target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]) -> str:
    """A topic of two partitions with ten records each."""
    topic = make_topic(new_name(), 2)
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    return topic


@contextmanager
def member(target: Target, group: str, topic: str, **more: Any) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": target.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, **more})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def until_they_have(partitions: int, *consumers: Consumer) -> None:
    deadline = time.monotonic() + 40
    while {len(consumer.assignment()) for consumer in consumers} != {partitions}:
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            consumer.poll(0.1)


def commit(target: Target, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
        consumer.commit(offsets=wanted, asynchronous=False)
    finally:
        consumer.close()


def test_offsets_by_librdkafka(target: Target, admin: AdminClient, filled: str, group: str) -> None:
    def committed() -> list[int]:
        (outcome,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return [tp.offset for tp in sorted(outcome.result(20).topic_partitions)]

    def move(*offsets: int) -> list[Any]:
        wanted = [TopicPartition(filled, partition, offset) for partition, offset in enumerate(offsets)]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        (outcome,) = admin.alter_consumer_group_offsets(request).values()
        return [tp.error for tp in outcome.result(20).topic_partitions]

    assert move(3, 4) == [None, None]
    assert committed() == [3, 4]
    with member(target, group, filled) as consumer:
        until_they_have(2, consumer)
        refused = move(0, 0)
        assert {error.code() for error in refused} == {KafkaError.UNKNOWN_MEMBER_ID}
        found = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20).valid
        assert group in {each.group_id for each in found}
    found = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20).valid
    assert group not in {each.group_id for each in found}
    found = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(20).valid
    assert group in {each.group_id for each in found}
    assert committed() == [3, 4]


def test_administration_by_kafka_python(target: Target, filled: str, group: str) -> None:
    first, second = (kafka.TopicPartition(filled, partition) for partition in (0, 1))
    client = kafka.KafkaAdminClient(bootstrap_servers=target.bootstrap)

    def committed() -> dict[Any, int]:
        return {tp: found.offset for tp, found in client.list_group_offsets(group)[group].items()}

    def refusals(outcome: dict[Any, Any]) -> dict[Any, str]:
        return {tp: error.__name__ for tp, error in outcome.items() if error is not kafka.errors.NoError}

    try:
        commit(target, group, filled, 3, 4)
        assert committed() == {first: 3, second: 4}
        client.reset_group_offsets(group, {first: kafka.admin.OffsetSpec.EARLIEST, second: 99})
        assert committed() == {first: 0, second: RECORDS // 2}, "clamped to what is there"
        assert refusals(client.delete_group_offsets(group, [second])) == {}
        assert committed() == {first: 0}
        one = {"group.instance.id": "one", "session.timeout.ms": 60_000}
        with member(target, group, filled, **one) as leaving, member(target, group, filled) as staying:
            until_they_have(1, leaving, staying)
            refused = refusals(client.delete_group_offsets(group, [first]))
            assert refused == {first: "GroupSubscribedToTopicError"}
            client.remove_group_members(group, [kafka.admin.MemberToRemove(group_instance_id="one")])
            until_they_have(2, staying)
        ((deleted, error),) = client.delete_groups([group]).items()
        assert (deleted, error) == (group, "OK") or error is kafka.errors.NoError
        assert group not in str(client.list_groups())
    finally:
        client.close()


@pytest.mark.java
def test_kafka_consumer_groups(target: Target, filled: str, group: str) -> None:
    def run(*arguments: str, main_class: str = KAFKA_CONSUMER_GROUPS) -> str:
        done = run_tool(main_class, "--bootstrap-server", target.bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def offsets(*which: str) -> dict[int, int]:
        shown = run("--describe", *which, "--offsets")
        rows = re.findall(rf"^{group}\s+{filled}\s+(\d)\s+(\d+)\s", shown, re.MULTILINE)
        return {int(partition): int(offset) for partition, offset in rows}

    one, every = ("--group", group), ("--all-topics", "--execute")
    commit(target, group, filled, 3, 4)
    assert re.search(rf"^{group}\s+Empty", run("--list", "--state"), re.MULTILINE)
    assert re.search(rf"^{group}\s+Classic", run("--list", "--type"), re.MULTILINE)
    assert offsets("--all-groups") == {0: 3, 1: 4}
    plan = run("--reset-offsets", *one, "--topic", f"{filled}:1", "--shift-by", "2", "--dry-run", "--export")
    assert plan.strip() == f'"{filled}",1,6'
    run("--reset-offsets", *one, "--shift-by", "-2", *every)
    assert offsets(*one) == {0: 1, 1: 2}
    run("--reset-offsets", *one, "--by-duration", "PT1H", *every)
    assert offsets(*one) == {0: 0, 1: 0}
    run("--reset-offsets", *one, "--to-latest", *every)
    assert offsets(*one) == {0: RECORDS // 2, 1: RECORDS // 2}
    assert re.search(rf"^{group}\s+Classic\s+\S*", run("--list", main_class=KAFKA_GROUPS), re.MULTILINE)


@pytest.mark.java
def test_kafka_consumer_groups_with_members(target: Target, filled: str, group: str) -> None:
    def run(*arguments: str) -> str:
        done = run_tool(KAFKA_CONSUMER_GROUPS, "--bootstrap-server", target.bootstrap, *arguments)
        return done.stdout + done.stderr

    with member(target, group, filled, **{"group.instance.id": "the-one"}) as consumer:
        until_they_have(2, consumer)
        consumer.commit(offsets=[TopicPartition(filled, 0, 1)], asynchronous=False)
        shown = run("--describe", "--group", group, "--members", "--verbose")
        assert re.search(rf"^{group}\s.*the-one", shown, re.MULTILINE), shown
        refused = run("--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
        assert "current state is Stable" in refused
        assert "GroupNotEmptyException" in run("--delete", "--group", group)
        refused = run("--delete-offsets", "--group", group, "--topic", filled)
        assert "GroupSubscribedToTopicException" in refused or "subscribed to it" in refused, refused
    assert "GroupIdNotFoundException" in run("--describe", "--group", f"{group}-unheard-of")
