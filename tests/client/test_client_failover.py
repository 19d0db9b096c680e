"""Our own client while leaders, coordinator and controller are killed: nothing raised, nothing lost, order kept."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, Delivery, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TOPIC, GROUP, PARTITIONS = "t", "g", 6


class Traffic:
    """A producer, the members of a group, and an admin that asks and asks."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.running = True
        self.deliveries: dict[int, list[Delivery]] = defaultdict(list)
        #: (offset, value) in the order of reading, by partition.
        self.read: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.answers = 0

    async def write(self) -> None:
        async with Producer(self._bootstrap, acks="all") as producer:
            number = 0
            while self.running:
                for _ in range(10):
                    delivery = await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                    self.deliveries[number % PARTITIONS].append(delivery)
                    number += 1
                await asyncio.sleep(0.01)
            await producer.flush()

    async def consume(self) -> None:
        consumer = Consumer(
            self._bootstrap, group_id=GROUP, auto_offset_reset="earliest", auto_commit_interval_ms=200
        )
        async with consumer:
            consumer.subscribe([TOPIC])
            while self.running or not self.all_read:
                for record in await consumer.poll(timeout_ms=200):
                    self.read[record.partition].append((record.offset, int(record.value)))

    async def ask(self) -> None:
        tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        async with Admin(self._bootstrap) as admin:
            while self.running:
                await admin.describe_topics([TOPIC])
                await admin.list_offsets(dict.fromkeys(tps, "latest"))
                await admin.delete_records(dict.fromkeys(tps, 0))
                await admin.group_lag(GROUP)
                await admin.list_groups()
                await admin.describe_configs(topic=TOPIC)
                self.answers += 1

    @property
    def all_read(self) -> bool:
        return all(
            len({offset for offset, _ in self.read[number]}) >= len(sent)
            for number, sent in self.deliveries.items()
        )


async def test_nothing_is_raised_and_nothing_lost(
    make_cluster: Callable[..., LocalCluster], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await asyncio.to_thread(make_cluster, brokers=3)
    async with Admin(cluster.grpc_bootstrap) as admin:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": "2"})])
        traffic = Traffic(cluster.grpc_bootstrap)
        async with asyncio.TaskGroup() as tasks:
            for part in (traffic.write(), traffic.consume(), traffic.consume(), traffic.ask()):
                tasks.create_task(part)
            while not all(traffic.read[number] for number in range(PARTITIONS)):
                await asyncio.sleep(0.05)
            for victim in (await _coordinator(admin), await _controller(admin)):
                await asyncio.to_thread(cluster.kill, victim)
                await asyncio.sleep(3)
                await asyncio.to_thread(cluster.restart, victim)
                await _until_whole(admin)
                await asyncio.sleep(6.5)  # at most half of the brokers are declared dead within a lease
            traffic.running = False
    for number, deliveries in traffic.deliveries.items():
        offsets = [delivery.result().offset for delivery in deliveries]
        assert offsets == list(range(len(deliveries))), "each once, in order"
        values = dict(traffic.read[number])
        assert values == {offset: offset * PARTITIONS + number for offset in offsets}
    assert sum(map(len, traffic.deliveries.values())) > 1000 and traffic.answers > 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def _coordinator(admin: Admin) -> int:
    return (await admin.describe_groups([GROUP]))[0].coordinator_id


async def _controller(admin: Admin) -> int:
    return (await admin.describe_cluster()).controller_id


async def _until_whole(admin: Admin) -> None:
    async with asyncio.timeout(60):
        while True:
            (topic,) = await admin.describe_topics([TOPIC])
            if all(len(each.isr) == 3 for each in topic.partitions):
                return
            await asyncio.sleep(0.1)
