"""The operator's calls, against a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import confluent_kafka
import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import Producer
from ottla_core.errors import InvalidConfig, RequestError
from ottla_operator.brokers import Brokers, BrokersAway, Links, Way
from ottla_operator.plan import AlterTopic, CreateTopic, DeleteTopic, GrowTopic

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


@pytest.fixture
def address(cluster: LocalCluster) -> str:
    return cluster.grpc_bootstrap


@pytest.fixture
async def brokers(address: str) -> AsyncIterator[Brokers]:
    made = await Brokers.connect(address)
    yield made
    await made.close()


async def test_the_life_of_a_topic(brokers: Brokers) -> None:
    assert await brokers.topic("life") is None
    await brokers.do(CreateTopic("life", 2, None, {"retention.ms": "60000"}))
    await brokers.do(CreateTopic("life", 2, None, {}))  # already there: no error, the next look compares
    seen = await brokers.topic("life")
    assert seen is not None
    assert (len(seen.partitions), seen.replicas, dict(seen.overrides)) == (2, 1, {"retention.ms": "60000"})
    await brokers.do(GrowTopic("life", 3))
    await brokers.do(AlterTopic("life", {"retention.ms": None, "segment.bytes": "1048576"}))
    seen = await brokers.topic("life")
    assert seen is not None
    assert (len(seen.partitions), dict(seen.overrides)) == (3, {"segment.bytes": "1048576"})
    assert [each.isr for each in seen.partitions] == [(0,)] * 3
    await brokers.do(DeleteTopic("life"))
    await brokers.do(DeleteTopic("life"))
    assert await brokers.topic("life") is None


async def test_a_topic_is_created_and_grown_where_the_action_says(brokers: Brokers) -> None:
    """One broker: it refuses a placement on another, so the placement has reached it."""
    await brokers.do(CreateTopic("placed", 2, None, {}, {0: (0,), 1: (0,)}))
    await brokers.do(GrowTopic("placed", 3, {2: (0,)}))
    seen = await brokers.topic("placed")
    assert seen is not None and [each.replicas for each in seen.partitions] == [(0,)] * 3
    for action in (CreateTopic("away", 1, None, {}, {0: (1,)}), GrowTopic("placed", 4, {3: (1,)})):
        with pytest.raises(RequestError, match="no broker 1"):
            await brokers.do(action)


async def test_refusals_keep_their_name(brokers: Brokers) -> None:
    with pytest.raises(RequestError, match="9") as refused:
        await brokers.do(CreateTopic("wide", 1, 9, {}))
    assert refused.value.name == "INVALID_REPLICATION_FACTOR"
    with pytest.raises(InvalidConfig):
        await brokers.do(CreateTopic("odd", 1, 1, {"retention.ms": "soon"}))


async def test_the_cluster_and_what_it_hosts(brokers: Brokers) -> None:
    await brokers.do(CreateTopic("hosted", 2, 1, {"min.insync.replicas": "1"}))
    seen = await brokers.cluster()
    assert (seen.brokers, seen.controller) == ((0,), 0)
    found = {each.name: each for each in await brokers.hosted()}
    assert (found["hosted-1"].isr, found["hosted-1"].min_isr) == ((0,), 1)


async def test_a_group_is_read_and_moved(brokers: Brokers, address: str) -> None:
    await brokers.do(CreateTopic("grouped", 2, 1, {}))
    async with Producer(address) as producer:
        for number in range(10):
            await producer.send("grouped", value=b"x", partition=number % 2)
    assert (await brokers.group("nobody", [])).state == "Dead"
    await brokers.commit("readers", {("grouped", 0): 2, ("grouped", 1): 5})
    seen = await brokers.group("readers", [])
    assert dict(seen.committed) == {("grouped", 0): 2, ("grouped", 1): 5}
    assert seen.committed_ms[("grouped", 0)] > 1_600_000_000_000
    assert (dict(seen.ends), dict(seen.starts)) == (
        {("grouped", 0): 5, ("grouped", 1): 5},
        {("grouped", 0): 0, ("grouped", 1): 0},
    )
    assert (seen.state, seen.members, seen.coordinator) == ("Empty", (), 0)
    assert await brokers.offsets_at([("grouped", 0)], 0) == {("grouped", 0): 0}


async def test_members_and_their_partitions(brokers: Brokers, cluster: LocalCluster) -> None:
    """A stock client's member, so that its bytes are read and not only ours."""
    await brokers.do(CreateTopic("joined", 2, 1, {}))
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": "joiners",
            "client.id": "reader",
            "session.timeout.ms": 10_000,
        }
    )
    try:
        consumer.subscribe(["joined"])
        deadline = time.monotonic() + 40
        while not consumer.assignment() and time.monotonic() < deadline:
            await asyncio.to_thread(consumer.poll, 0.2)
        seen = await brokers.group("joiners", [])
        assert (seen.state, seen.protocol, len(seen.members)) == ("Stable", "range", 1)
        member = seen.members[0]
        assert (member.client_id, member.session_timeout_ms) == ("reader", 10_000)
        assert set(member.partitions) == {("joined", 0), ("joined", 1)}
        with pytest.raises(RequestError):
            await brokers.commit("joiners", {("joined", 0): 0})
        assert (member.protocols, seen.settings) == (("range", "roundrobin"), {})
        await brokers.set_group(
            "joiners", {"consumer.assignor": "roundrobin", "consumer.session.timeout.ms": "20000"}
        )
        while (seen := await brokers.group("joiners", [])).protocol != "roundrobin":
            assert time.monotonic() < deadline, seen
            await asyncio.to_thread(consumer.poll, 0.2)
        assert seen.members[0].session_timeout_ms == 20_000
        assert seen.settings == {"consumer.assignor": "roundrobin", "consumer.session.timeout.ms": "20000"}
        with pytest.raises(InvalidConfig, match="6000"):
            await brokers.set_group("joiners", {"consumer.session.timeout.ms": "100"})
        await brokers.set_group("joiners", dict.fromkeys(seen.settings))
        assert await brokers.group_settings("joiners") == {}
    finally:
        await asyncio.to_thread(consumer.close)


async def test_an_unreachable_broker_is_one_sentence() -> None:
    async def ways(namespace: str, cluster: str) -> list[Way]:
        return [("127.0.0.1:1", None)]

    links = Links(ways)
    with pytest.raises(BrokersAway, match="brokers of main do not answer"):
        await links.ask("shop", "main", lambda brokers: brokers.cluster())
    await links.close()
