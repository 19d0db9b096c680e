"""Storms of connections, joins and heartbeats against a real broker; every answer is decoded and checked."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from attack import effort
from attack.kafka_wire import CONSUMER_GROUP_HEARTBEAT, JOIN_GROUP, METADATA, HostileClient, code
from attack.victim import PATIENCE_S, MemoryWatch, Victim
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

SECONDS = effort.seconds(3, 0.04)
CONNECTIONS = 200
GROWTH_MAX = 150 << 20
#: NONE, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID,
#: REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED, GROUP_MAX_SIZE_REACHED.
SANE_JOIN_CODES = {0, 14, 15, 16, 25, 27, 79, 81}
_FENCED_MEMBER_EPOCH = 110
#: NONE, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID,
#: GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH.
SANE_HEARTBEAT_CODES = {0, 14, 15, 16, 25, 81, _FENCED_MEMBER_EPOCH}


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.max.size": "500"}
    with LocalCluster(settings=settings) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1)
        # The coordinators' topic is made when somebody first asks for one.
        consumer = Consumer(
            {"bootstrap.servers": cluster.kafka_bootstrap, "group.id": "first", "log_level": 0}
        )
        consumer.committed([TopicPartition("ordinary", 0)], timeout=PATIENCE_S)
        consumer.close()
        yield made


async def _join_forever(victim: Victim, group: str, until: float, codes: Counter[int]) -> None:
    """Members that join and never come back for their assignment, each under a name of the broker's."""
    subscription = struct.pack(">hih", 0, 1, len(b"ordinary")) + b"ordinary" + struct.pack(">i", -1)
    client = await HostileClient.connect(victim.port())
    member = ""
    try:
        while time.monotonic() < until:
            answer = await client.ask(
                JOIN_GROUP,
                5,
                timeout_s=30,
                group_id=group,
                session_timeout=6000,
                rebalance_timeout=300,
                member_id=member,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": subscription}],
            )
            codes[code(answer)] += 1
            if code(answer) == 79:
                assert answer.member_id, "MEMBER_ID_REQUIRED names the member"
            if code(answer) == 0:
                assert answer.generation_id > 0 and answer.protocol_name == "range"
            # Every second time as somebody new, so that the group grows and rebalances without end.
            member = answer.member_id if code(answer) == 79 else ""
    finally:
        client.close()


async def test_a_storm_of_joins_is_answered_with_sane_codes(victim: Victim) -> None:
    codes: Counter[int] = Counter()
    until = time.monotonic() + SECONDS
    with MemoryWatch(victim.pids[0]) as memory:
        async with asyncio.TaskGroup() as storm:
            for number in range(CONNECTIONS):
                storm.create_task(_join_forever(victim, f"storm-{number % 5}", until, codes))
    print(f"joins: {dict(codes)}, memory +{memory.grown >> 20} MB")
    assert set(codes) <= SANE_JOIN_CODES, dict(codes)
    assert codes[0] > 0 and sum(codes.values()) > CONNECTIONS
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
    victim.close_look()


async def _heartbeat_forever(victim: Victim, group: str, until: float, codes: Counter[int]) -> None:
    """Members of broker-side groups that join under ever new ids, with and without an epoch that is theirs."""
    client = await HostileClient.connect(victim.port())
    member, epoch = str(uuid4()), 0
    try:
        while time.monotonic() < until:
            answer = await client.ask(
                CONSUMER_GROUP_HEARTBEAT,
                0,
                timeout_s=30,
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                instance_id=None,
                rack_id=None,
                rebalance_timeout=6000,
                subscribed_topic_names=["ordinary"],
                server_assignor=None,
                topic_partitions=[],
            )
            codes[code(answer)] += 1
            if code(answer) == 0 and epoch == 0:
                assert answer.member_epoch > 0 and answer.heartbeat_interval
                epoch = answer.member_epoch + codes[0] % 2  # Half of them claim one that does not exist.
            else:
                member, epoch = str(uuid4()), 0
    finally:
        client.close()


async def test_a_storm_of_heartbeats_is_answered_with_sane_codes(victim: Victim) -> None:
    codes: Counter[int] = Counter()
    until = time.monotonic() + SECONDS
    with MemoryWatch(victim.pids[0]) as memory:
        async with asyncio.TaskGroup() as storm:
            for number in range(CONNECTIONS):
                storm.create_task(_heartbeat_forever(victim, f"beats-{number % 5}", until, codes))
    print(f"heartbeats: {dict(codes)}, memory +{memory.grown >> 20} MB")
    assert set(codes) <= SANE_HEARTBEAT_CODES, dict(codes)
    assert codes[0] > 0 and codes[_FENCED_MEMBER_EPOCH] > 0 and sum(codes.values()) > CONNECTIONS
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
    victim.close_look()


async def _connect_and_ask(victim: Victim, until: float, outcomes: Counter[str]) -> None:
    while time.monotonic() < until:
        client = None
        try:
            client = await HostileClient.connect(victim.port())
            answer = await client.ask(METADATA, 9, timeout_s=30, topics=None, allow_auto_topic_creation=False)
            assert [broker.node_id for broker in answer.brokers] == [0]
            assert all(code(topic) == 0 for topic in answer.topics)
            outcomes["answered"] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            outcomes["refused"] += 1
        finally:
            if client is not None:
                client.close()


async def test_a_storm_of_connections_is_answered(victim: Victim) -> None:
    outcomes: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    with MemoryWatch(victim.pids[0]) as memory:
        async with asyncio.TaskGroup() as storm:
            for _ in range(CONNECTIONS):
                storm.create_task(_connect_and_ask(victim, until, outcomes))
    print(f"connections: {dict(outcomes)}, memory +{memory.grown >> 20} MB")
    assert outcomes["answered"] > CONNECTIONS and not outcomes["refused"]
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
    opened, closed = (victim.metric(f"ottla_kafka_connections_{what}_total") for what in ("opened", "closed"))
    assert opened > outcomes["answered"]
    victim.until(
        lambda: (
            victim.metric("ottla_kafka_connections_opened_total")
            - victim.metric("ottla_kafka_connections_closed_total")
            < 10
        ),
        f"connections are let go ({opened:.0f} opened, {closed:.0f} closed)",
    )
    victim.close_look()
