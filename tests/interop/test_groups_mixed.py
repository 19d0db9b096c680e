"""One group with members of three makes: Kafka's Java consumer, librdkafka and Ottla's own, whoever leads."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from interop.target import Target
from ottla_bench.kafka_jars import KAFKA_CONSOLE_CONSUMER, java_command
from ottla_client import RebalanceListener
from ottla_client.sync import Consumer as OttlaConsumer

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(240)]

PARTITIONS = 6
RECORDS = 300
TIMEOUT_S = 90.0
JAVA = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Threaded:
    """A member that lives in a thread of its own; what it holds, what it was told, and what it has read."""

    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self.revoked: list[frozenset[int]] = []
        self.values: list[int] = []
        self.failed: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failed = error

    def run(self) -> None:
        raise NotImplementedError


class Librdkafka(Threaded):
    def __init__(self, target: Target, group: str, topic: str, strategy: str) -> None:
        super().__init__()
        self._topic = topic
        self._settings = {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "client.id": "librdkafka",
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
        }

    def run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic], on_revoke=self._on_revoke)
        while not self._stop.is_set():
            for message in consumer.consume(100, timeout=0.1):
                assert message.error() is None, message.error()
                self.values.append(int(message.value()))
            self.held = frozenset(tp.partition for tp in consumer.assignment())
        consumer.close()

    def _on_revoke(self, consumer: Consumer, partitions: list[Any]) -> None:
        if not self._stop.is_set():
            self.revoked.append(frozenset(tp.partition for tp in partitions))


class Ottla(Threaded):
    def __init__(self, target: Target, group: str, topic: str, strategy: str) -> None:
        super().__init__()
        assert target.grpc is not None
        self._topic = topic
        self._consumer = OttlaConsumer(
            target.grpc,
            group_id=group,
            client_id="ottla",
            partition_assignment_strategy=strategy,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        )

    def run(self) -> None:
        with self._consumer as consumer:
            consumer.subscribe([self._topic], RebalanceListener(on_revoked=self._on_revoked))
            while not self._stop.is_set():
                self.values += [int(record.value or b"") for record in consumer.poll(100)]
                self.held = frozenset(tp.partition for tp in consumer.assignment())

    def _on_revoked(self, partitions: Any) -> None:
        if not self._stop.is_set():
            self.revoked.append(frozenset(tp.partition for tp in partitions))


@contextmanager
def java_member(target: Target, group: str, topic: str, strategy: str) -> Iterator[list[int]]:
    """Kafka's console consumer; gives the values that it has printed."""
    options = ["--bootstrap-server", target.bootstrap, "--topic", topic, "--group", group, "--from-beginning"]
    for setting in (
        f"partition.assignment.strategy={JAVA[strategy]}",
        "client.id=java",
        "heartbeat.interval.ms=200",
    ):
        options += ["--command-property", setting]
    command = java_command(KAFKA_CONSOLE_CONSUMER, *options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    values: list[int] = []
    reader = threading.Thread(target=_each_line, args=(process, values))
    reader.start()
    try:
        yield values
    finally:
        process.terminate()
        process.wait(30)
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()


def _each_line(process: subprocess.Popen[str], values: list[int]) -> None:
    assert process.stdout is not None
    while line := process.stdout.readline():
        values.append(int(line))


def until(holds: Callable[[], bool], *members: Threaded) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        for each in members:
            assert each.failed is None, each.failed
        assert time.monotonic() < deadline, [sorted(each.held) for each in members]
        time.sleep(0.1)


def shares(admin: AdminClient, group: str) -> dict[str, frozenset[int]]:
    """Client id -> partitions, as the coordinator describes it."""
    (outcome,) = admin.describe_consumer_groups([group]).values()
    found = outcome.result(20)
    return {
        member.client_id: frozenset(tp.partition for tp in member.assignment.topic_partitions)
        for member in found.members
    }


def fill(target: Target, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(first, first + RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("strategy", sorted(JAVA))
@pytest.mark.parametrize("first", ["ottla", "librdkafka", "java"])
def test_three_makes_share_a_group(
    target: Target,
    admin: AdminClient,
    new_name: Callable[[], str],
    make_topic: Callable[..., str],
    strategy: str,
    first: str,
) -> None:
    """The one that comes first leads and assigns for the others, from metadata that they wrote."""
    if not target.is_ottla:
        pytest.skip("Apache Kafka has no native protocol.")
    topic, group = make_topic(new_name(), PARTITIONS), f"mixed-{uuid.uuid4().hex[:8]}"
    fill(target, topic, 0)
    ours, theirs = (make(target, group, topic, strategy) for make in (Ottla, Librdkafka))
    parts = {"ottla": ours, "librdkafka": theirs, "java": java_member(target, group, topic, strategy)}
    order = sorted(parts, key=lambda name: name != first)
    with parts[order[0]] as one:
        until(lambda: len(shares(admin, group).get(first, ())) == PARTITIONS)
        with parts[order[1]] as two, parts[order[2]] as three:
            until(
                lambda: sorted(map(len, shares(admin, group).values())) == [2, 2, 2],
                ours,
                theirs,
            )
            until(lambda: shares(admin, group).get("ottla") == ours.held, ours)
            until(lambda: shares(admin, group).get("librdkafka") == theirs.held, theirs)
            assert frozenset().union(*shares(admin, group).values()) == frozenset(range(PARTITIONS))
            revoked = {"ottla": list(ours.revoked), "librdkafka": list(theirs.revoked)}
            fill(target, topic, RECORDS)
            values = dict(zip(order, (one, two, three), strict=True))["java"]
            until(lambda: len(set(ours.values + theirs.values + values)) == 2 * RECORDS, ours, theirs)
            if strategy == "cooperative-sticky" and first != "java":
                # What stays is never taken away: only four of the first member's six had to move.
                gone = frozenset().union(*revoked[first])
                assert gone == frozenset(range(PARTITIONS)) - shares(admin, group)[first]
