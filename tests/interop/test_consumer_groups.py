"""Stock clients in broker-side groups (group.protocol=consumer): confluent-kafka and Kafka's own tools."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from interop.target import Target
from ottla_bench.kafka_jars import (
    KAFKA_CONSOLE_CONSUMER,
    KAFKA_VERIFIABLE_CONSUMER,
    KAFKA_VERIFIABLE_PRODUCER,
    run_tool,
)

pytestmark = pytest.mark.integration

KAFKA_CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PARTITIONS = 4
RECORDS = 40
TIMEOUT_S = 60.0


@pytest.fixture
def filled(target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]) -> str:
    topic = make_topic(new_name(), PARTITIONS)
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0
    return topic


@contextmanager
def member(target: Target, group: str, subscription: str, **more: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )
    consumer.subscribe([subscription])
    try:
        yield consumer
    finally:
        consumer.close()


def poll_until(holds: Callable[[], bool], *consumers: Consumer) -> list[int]:
    """Let members live until something is true; return what they read."""
    read: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, [each.assignment() for each in consumers]
        for each in consumers:
            message = each.poll(0.1)
            if message is not None and message.error() is None:
                read.append(int(message.value() or b"-1"))
    return read


def test_members_share_partitions_and_continue_from_committed_offsets(target: Target, filled: str) -> None:
    group = f"consumer-{uuid.uuid4().hex[:8]}"
    with member(target, group, filled) as one:
        read: list[int] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(read) < RECORDS:
            assert time.monotonic() < deadline
            read += [int(m.value() or b"-1") for m in one.consume(10, 0.5) if m.error() is None]
        assert sorted(read) == list(range(RECORDS))
        one.commit(asynchronous=False)
        with member(target, group, f"^{filled[:-1]}.", **{"group.instance.id": "second"}) as two:
            poll_until(lambda: len(one.assignment()) == len(two.assignment()) == PARTITIONS // 2, one, two)
            shared = {tp.partition for each in (one, two) for tp in each.assignment()}
            assert shared == set(range(PARTITIONS))
        # A static member keeps its partitions for a session after it has gone.
    with member(target, group, filled, **{"group.instance.id": "second"}) as three:
        wanted = [TopicPartition(filled, index) for index in range(PARTITIONS)]
        offsets = [each.offset for each in three.committed(wanted, timeout=TIMEOUT_S)]
        assert offsets == [RECORDS // PARTITIONS] * PARTITIONS


@pytest.mark.java
def test_kafka_tools_read_and_describe_such_a_group(target: Target, filled: str) -> None:
    group = f"console-{uuid.uuid4().hex[:8]}"

    def tool(main_class: str, *arguments: str) -> str:
        done = run_tool(main_class, "--bootstrap-server", target.bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    limits = ("--max-messages", str(RECORDS), "--timeout-ms", "40000", "--from-beginning")
    protocol = ("--consumer-property", "group.protocol=consumer")
    lines = tool(KAFKA_CONSOLE_CONSUMER, "--topic", filled, "--group", group, *limits, *protocol).splitlines()
    assert sorted(int(line) for line in lines if line.isdecimal()) == list(range(RECORDS))
    with member(target, group, filled) as one:
        poll_until(lambda: len(one.assignment()) == PARTITIONS, one)
        state = tool(KAFKA_CONSUMER_GROUPS, "--describe", "--group", group, "--state", "--verbose")
        assert all(word in state for word in ("Stable", "uniform"))
        members = tool(KAFKA_CONSUMER_GROUPS, "--describe", "--group", group, "--members", "--verbose")
        assert f"{filled}:0,1,2,3" in members
        listed = tool(KAFKA_CONSUMER_GROUPS, "--list", "--type", "consumer", "--state", "Stable")
        assert group in listed
    tool(KAFKA_CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in tool(KAFKA_CONSUMER_GROUPS, "--list")


@pytest.mark.java
def test_kafkas_verifiable_producer_and_consumer(target: Target, topic: str) -> None:
    """The clients of Kafka's system tests: one event per line, of which the last ones say what was written and read."""
    server, group = (
        ("--bootstrap-server", target.bootstrap, "--topic", topic),
        f"verifiable-{uuid.uuid4().hex[:8]}",
    )
    count = ("--max-messages", str(RECORDS))
    wrote = events(run_tool(KAFKA_VERIFIABLE_PRODUCER, *server, *count))
    assert sum(each["name"] == "producer_send_success" for each in wrote) == RECORDS
    protocol = ("--group-id", group, "--group-protocol", "consumer")
    read = events(
        run_tool(KAFKA_VERIFIABLE_CONSUMER, *server, *count, *protocol, "--reset-policy", "earliest")
    )
    assert sum(each["count"] for each in read if each["name"] == "records_consumed") == RECORDS
    committed = [each for each in read if each["name"] == "offsets_committed"]
    assert all(each["success"] for each in committed)
    assert max(part["offset"] for each in committed for part in each["offsets"]) == RECORDS


def events(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
