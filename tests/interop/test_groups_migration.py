"""A group of stock clients is upgraded to the broker-side protocol and back, member by member, under load."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from interop.target import Target

pytestmark = pytest.mark.integration

PARTITIONS = 6
MEMBERS = 3
TIMEOUT_S = 60.0
#: Partition, first offset, and the offset after the last, as committed.
Range = tuple[int, int, int]


class Member(threading.Thread):
    """Reads and commits; notes what each successful commit added to the group's progress."""

    def __init__(self, target: Target, group: str, topic: str, protocol: str, ledger: list[Range]) -> None:
        super().__init__(daemon=True)
        more: dict[str, Any] = {"group.protocol": protocol}
        if protocol == "classic":
            more |= {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 500}
        self.consumer = Consumer(
            {
                "bootstrap.servers": target.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **more,
            }
        )
        self.topic = topic
        self.ledger = ledger
        self.stopped = threading.Event()
        self.owned: set[int] = set()
        #: By partition: the first offset that was read and not committed, and the next one.
        self.read: dict[int, tuple[int, int]] = {}
        self.consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._forget
        )
        self.start()

    def run(self) -> None:
        while not self.stopped.is_set():
            for message in self.consumer.consume(50, 0.1):
                if message.error() is None:
                    partition, offset = message.partition(), message.offset()
                    self.read[partition] = (self.read.get(partition, (offset, 0))[0], offset + 1)
            self._commit()
        self.consumer.close()

    def _commit(self) -> None:
        done = dict(self.read)
        if not done:
            return
        offsets = [TopicPartition(self.topic, partition, end) for partition, (_, end) in done.items()]
        try:
            committed = self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # A rebalance: they are committed with the next ones, or read by another member.
        for each in committed or ():
            if each.error is None:
                self.ledger.append((each.partition, *done[each.partition]))
                del self.read[each.partition]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {tp.partition for tp in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._forget(consumer, partitions)

    def _forget(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.owned.discard(tp.partition)
            self.read.pop(tp.partition, None)

    def stop(self) -> None:
        self.stopped.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()


class Load(threading.Thread):
    def __init__(self, target: Target, topic: str) -> None:
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 5})
        self.topic, self.stopped, self.sent = topic, threading.Event(), 0
        self.start()

    def run(self) -> None:
        while not self.stopped.wait(0.01):
            for _ in range(5):
                self.producer.produce(self.topic, b"x" * 100, partition=self.sent % PARTITIONS)
                self.sent += 1
        assert self.producer.flush(TIMEOUT_S) == 0

    def stop(self) -> int:
        self.stopped.set()
        self.join(TIMEOUT_S)
        return self.sent


def wait(holds: Callable[[], bool], what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def group_type(admin: AdminClient, group: str) -> str:
    listed = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    return next((each.type.name for each in listed.valid if each.group_id == group), "")


def test_a_rolling_upgrade_and_downgrade_under_load_loses_and_repeats_nothing(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> None:
    topic, group = make_topic(new_name(), PARTITIONS), f"rolling-{uuid.uuid4().hex[:8]}"
    load, ledger = Load(target, topic), list[Range]()
    admin = AdminClient({"bootstrap.servers": target.bootstrap})

    def has_type(name: str) -> None:
        wait(lambda: group_type(admin, group) == name, lambda: group_type(admin, group))

    def settled() -> bool:
        owned = [len(member.owned) for member in members]
        return sum(owned) == PARTITIONS and 0 not in owned

    def shares() -> list[set[int]]:
        return [member.owned for member in members]

    members = [Member(target, group, topic, "classic", ledger) for _ in range(MEMBERS)]
    wait(settled, shares)
    has_type("CLASSIC")
    for protocol, kind in (("consumer", "CONSUMER"), ("classic", "CLASSIC")):
        for _ in range(MEMBERS):
            members.pop(0).stop()
            members.append(Member(target, group, topic, protocol, ledger))
            wait(settled, shares)
        has_type(kind)
    sent = load.stop()
    wait(lambda: sum(end - start for _, start, end in ledger) >= sent, lambda: (sent, ledger[-20:]))
    for member in members:
        member.stop()
    for partition in range(PARTITIONS):
        position = 0
        for _, start, end in sorted(each for each in ledger if each[0] == partition):
            assert start == position, f"partition {partition}: {start} after {position}"
            position = end
    assert sum(end - start for _, start, end in ledger) == sent
