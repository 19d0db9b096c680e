"""Kafka's own tools on consumer groups, and its own reader on what they leave on disk."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from interop.target import Target
from ottla_bench.kafka_jars import KAFKA_CONSOLE_CONSUMER, KAFKA_DUMP_LOG, run_tool

pytestmark = [pytest.mark.integration, pytest.mark.java]

KAFKA_CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 30


def tool(target: Target, main_class: str, *arguments: str) -> str:
    done = run_tool(main_class, "--bootstrap-server", target.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def read_by_console(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> tuple[str, str]:
    """A topic that a console consumer has read as a member of a group."""
    topic, group = make_topic(new_name(), 2), f"console-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    options = ("--topic", topic, "--group", group, "--from-beginning")
    limits = ("--max-messages", str(RECORDS), "--timeout-ms", "30000")
    lines = tool(target, KAFKA_CONSOLE_CONSUMER, *options, *limits).splitlines()
    assert sorted(map(int, lines)) == list(range(RECORDS))
    return topic, group


def test_console_consumer_and_consumer_groups(target: Target, read_by_console: tuple[str, str]) -> None:
    topic, group = read_by_console
    assert group in tool(target, KAFKA_CONSUMER_GROUPS, "--list").splitlines()
    assert rows(tool(target, KAFKA_CONSUMER_GROUPS, "--describe", "--group", group), topic) == {
        0: (15, 15, 0),
        1: (15, 15, 0),
    }
    state = tool(target, KAFKA_CONSUMER_GROUPS, "--describe", "--group", group, "--state")
    assert re.search(rf"{group}\s.*Empty\s", state), state
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "5", "--execute")
    tool(target, KAFKA_CONSUMER_GROUPS, *reset)
    assert rows(tool(target, KAFKA_CONSUMER_GROUPS, "--describe", "--group", group), topic) == {
        0: (5, 15, 10),
        1: (5, 15, 10),
    }
    forget = ("--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    tool(target, KAFKA_CONSUMER_GROUPS, *forget)
    assert set(rows(tool(target, KAFKA_CONSUMER_GROUPS, "--describe", "--group", group), topic)) == {0}
    tool(target, KAFKA_CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in tool(target, KAFKA_CONSUMER_GROUPS, "--list").splitlines()


def test_describe_shows_members(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> None:
    topic, group = make_topic(new_name(), 2), f"members-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group, "client.id": "seen"})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while len(consumer.assignment()) < 2 and time.monotonic() < deadline:
            consumer.poll(0.1)
        shown = tool(target, KAFKA_CONSUMER_GROUPS, "--describe", "--group", group, "--members", "--verbose")
    finally:
        consumer.close()
    (line,) = [line for line in shown.splitlines() if line.startswith(group)]
    assert re.search(rf"seen-\S+\s+/127.0.0.1\s+seen\s+2\s.*{topic}.*0,1", line), line


def rows(output: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Committed offset, end and lag by partition, as `--describe` prints them."""
    found = {}
    for line in output.splitlines():
        words = line.split()
        if topic in words:
            at = words.index(topic)
            partition, *numbers = (int(word) for word in words[at + 1 : at + 5])
            found[partition] = (numbers[0], numbers[1], numbers[2])
    return found


def test_dump_log_reads_what_groups_leave_on_disk(target: Target, read_by_console: tuple[str, str]) -> None:
    topic, group = read_by_console
    dumped = ""
    for segment in sorted(target.data.rglob("__consumer_offsets-*/*.log")):
        if segment.stat().st_size:
            done = run_tool(KAFKA_DUMP_LOG, "--offsets-decoder", "--print-data-log", "--files", str(segment))
            assert done.returncode == 0, done.stderr
            dumped += done.stdout
            if group in dumped:
                break
    lines = [line for line in dumped.splitlines() if f'"group":"{group}"' in line]
    offsets = [line for line in lines if f'"topic":"{topic}","partition":0' in line]
    assert '"offset":15' in offsets[-1]
    assert '"metadata":""' in offsets[-1]
    groups = [line for line in lines if '"type":"2"' in line]
    assert any(f'"assignedPartitions":[{{"topic":"{topic}"' in line for line in groups), groups
    assert '"members":[]' in groups[-1]


def test_a_group_of_kafkas_survives_in_its_offsets(target: Target, read_by_console: tuple[str, str]) -> None:
    """Another client finds what the console consumer has committed."""
    topic, group = read_by_console
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
        assert [each.offset for each in found] == [15, 15]
    finally:
        consumer.close()
