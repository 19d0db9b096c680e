"""A broker's metadata life on a real etcd: start, create, restart, take over, survive etcd's own restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest

from broker.controller.world import Node, make_node
from conformance.etcd_process import EtcdProcess, running_etcd
from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.controller.commands.grow_topic import GrowTopic
from ottla_broker.metadata.etcd import EtcdStore
from ottla_broker.requests import NewTopic
from ottla_core.real.clock import RealClock

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


class Cluster:
    def __init__(self, etcd: EtcdProcess) -> None:
        self._endpoint = etcd.endpoint
        self._prefix = f"/ottla/{uuid4()}"
        self._nodes: list[Node] = []

    async def started(self, broker_id: int = 1) -> Node:
        store = EtcdStore([self._endpoint], self._prefix, timeout_s=3)
        node = make_node(store, RealClock(), broker_id)
        self._nodes.append(node)
        await node.start()
        await until(lambda: node.image.is_admitted(broker_id, node.registration.broker.incarnation))
        return node

    async def close(self) -> None:
        for node in self._nodes:
            await node.kill()
            await node.store.close()


@pytest.fixture
async def cluster(etcd: EtcdProcess) -> AsyncIterator[Cluster]:
    made = Cluster(etcd)
    yield made
    await made.close()


async def until(holds: Callable[[], bool], limit_s: float = 15) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.002)


async def test_start_create_restart_crash(cluster: Cluster) -> None:
    began = time.monotonic()
    node = await cluster.started()
    await until(lambda: node.controller.is_active)
    assert time.monotonic() - began < 2  # 30 ms on an idle machine
    results = await node.controller.execute(CreateTopics(tuple(NewTopic(f"t{i}", 40, 1) for i in range(20))))
    assert [r.error for r in results] == [None] * 20
    assert sum(len(t.partitions) for t in node.image.topics.values()) == 800
    (big,) = await node.controller.execute(CreateTopics((NewTopic("big", 500, 1),)))
    assert big.error is None
    await node.stop()
    for epoch, end in [(1, Node.stop), (2, Node.kill), (3, Node.kill)]:
        node = await cluster.started()
        states = [p for t in node.image.topics.values() for p in t.partitions]
        assert len(states) == 1300 and {(p.leader, p.leader_epoch) for p in states} == {(1, epoch)}
        await end(node)


async def test_another_broker_takes_over_and_the_first_is_fenced(cluster: Cluster) -> None:
    one = await cluster.started(1)
    two = await cluster.started(2)
    await until(lambda: one.controller.is_active)
    results = await one.controller.execute(CreateTopics((NewTopic("a", 6, 2),)))
    assert results[0].error is None
    assert {p.replicas for p in one.image.topics["a"].partitions} == {(1, 2), (2, 1)}
    await one.stop()
    await until(lambda: two.controller.is_active)
    assert (await two.controller.execute(GrowTopic("a", 8, ((2, 1), (1, 2))))).error is None
    states = two.image.topics["a"].partitions
    # Broker 1 is known but away: it is in no new ISR and leads nothing new.
    assert [(p.leader, p.isr) for p in states[6:]] == [(2, (2,)), (2, (2,))]


async def test_etcd_restarts_under_us(cluster: Cluster, etcd: EtcdProcess) -> None:
    node = await cluster.started()
    await until(lambda: node.controller.is_active)
    await node.controller.execute(CreateTopics((NewTopic("before", 1, 1),)))
    etcd.kill()
    creating = asyncio.ensure_future(node.controller.execute(CreateTopics((NewTopic("during", 1, 1),))))
    await asyncio.sleep(0.3)
    etcd.start()
    (result,) = await creating
    assert result.error is None or result.error.retriable
    await until(lambda: node.registration.confirmed and node.controller.is_active)
    results = await node.controller.execute(CreateTopics((NewTopic("after", 1, 1),)))
    assert results[0].error is None
    assert {"before", "after"} <= set(node.image.topics)
