"""kill -9 under a group that reads: members find their way back, and no committed offset is lost or goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TOPIC = "read-by-a-group"
PARTITIONS = 3
RECORDS = 600
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def member(cluster: LocalCluster, **more: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **more,
        }
    )
    consumer.subscribe([TOPIC])
    return consumer


def prepare(cluster: LocalCluster, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def read_and_commit(
    consumer: Consumer, read: set[tuple[int, int]], count: int, limit_s: float = 60.0
) -> None:
    """Read some more, and commit after each record what the broker has to remember from then on."""
    deadline = time.monotonic() + limit_s
    while count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            error = None if message is None else message.error()
            assert error is None or error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN, error
            continue
        at = (message.partition(), message.offset())
        assert at not in read, f"{at} was read and committed before"
        commit(consumer, TopicPartition(TOPIC, at[0], at[1] + 1), deadline)
        read.add(at)
        count -= 1
    assert count == 0, f"{count} records were not read in {limit_s:g} s"


def commit(consumer: Consumer, position: TopicPartition, deadline: float) -> None:
    while True:
        try:
            consumer.commit(offsets=[position], asynchronous=False)
            return
        except Exception as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.1)


def test_a_killed_broker_remembers_groups_and_offsets(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(settings=SETTINGS)
    prepare(cluster, replicas=1)
    read: set[tuple[int, int]] = set()
    consumer = member(cluster, **{"group.instance.id": "one"})
    try:
        for _ in range(4):
            read_and_commit(consumer, read, 40)
            cluster.kill(0)
            cluster.restart(0)
        read_and_commit(consumer, read, RECORDS - len(read))
    finally:
        consumer.close()
    described = _described(cluster)
    assert described.state == ConsumerGroupState.STABLE, "a static member stays when it is closed"
    cluster.kill(0)
    cluster.restart(0)
    (shown,) = _described(cluster).members
    assert shown.group_instance_id == "one"
    assert len(shown.assignment.topic_partitions) == PARTITIONS
    after = member(cluster)
    try:
        found = after.committed([TopicPartition(TOPIC, n) for n in range(PARTITIONS)], timeout=20)
        assert [each.offset for each in found] == [RECORDS // PARTITIONS] * PARTITIONS
    finally:
        after.close()


def test_another_broker_takes_over_a_killed_coordinator(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(brokers=3, settings=SETTINGS)
    prepare(cluster, replicas=3)
    read: set[tuple[int, int]] = set()
    consumer = member(cluster)
    try:
        for _ in range(2):
            read_and_commit(consumer, read, 60)
            coordinator = _coordinator(cluster)
            cluster.kill(coordinator)
            read_and_commit(consumer, read, 60)
            assert _coordinator(cluster) != coordinator
            cluster.restart(coordinator)
        read_and_commit(consumer, read, RECORDS - len(read))
        found = consumer.committed([TopicPartition(TOPIC, n) for n in range(PARTITIONS)], timeout=20)
        assert [each.offset for each in found] == [RECORDS // PARTITIONS] * PARTITIONS
    finally:
        consumer.close()


def _described(cluster: LocalCluster) -> Any:
    """What the coordinator says of the group, once there is one to ask again."""
    deadline = time.monotonic() + 30
    while True:
        # A new one each time: librdkafka 2.x remembers a coordinator that has left the metadata, and waits for it.
        admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
        try:
            (described,) = [f.result(5) for f in admin.describe_consumer_groups(["g"]).values()]
            return described
        except Exception as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.2)


def _coordinator(cluster: LocalCluster) -> int:
    return int(_described(cluster).coordinator.id)
