"""Throttles moves of partitions with Kafka's settings, as `kafka-reassign-partitions --throttle` does. [S]

The topic names the replicas, the brokers have the rate. Only replicas that are not in sync are throttled, so settings
that are left behind delay nothing but the next catching up. They are cleared all the same: `clear`, or
`clear_all` after an interrupted command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from ottla_client.admin import Admin
from ottla_client.errors import UnknownTopicOrPartition
from ottla_client.rebalance import Move

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
_LISTS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_RATES = (LEADER_RATE, FOLLOWER_RATE)
#: A broker takes 64 KiB. A longer list is written as "*", all replicas of the topic that are not in sync.
_LIST_CHARACTERS_MAX = 60_000


def throttled_replicas(moves: Iterable[Move]) -> dict[str, dict[str, str]]:
    """Per topic the lists of throttled replicas: those that may lead, and those that copy."""
    leading: dict[str, list[str]] = {}
    copying: dict[str, list[str]] = {}
    for move in moves:
        if move.added:
            leading.setdefault(move.topic, []).extend(f"{move.partition}:{b}" for b in move.before)
            copying.setdefault(move.topic, []).extend(f"{move.partition}:{b}" for b in move.added)
    return {
        topic: {LEADER_REPLICAS: _joined(leading[topic]), FOLLOWER_REPLICAS: _joined(copying[topic])}
        for topic in leading
    }


def _joined(parts: list[str]) -> str:
    text = ",".join(parts)
    return text if len(text) <= _LIST_CHARACTERS_MAX else "*"


def concerned_brokers(moves: Iterable[Move]) -> list[int]:
    """Brokers that send or receive copies."""
    return sorted({b for move in moves if move.added for b in (*move.before, *move.added)})


async def set_rate(admin: Admin, brokers: Iterable[int], rate: int) -> None:
    for broker in brokers:
        await admin.alter_configs(dict.fromkeys(_RATES, str(rate)), broker=broker)


async def throttle(admin: Admin, moves: Sequence[Move], rate: int) -> None:
    """Before the moves begin: at most `rate` bytes per second from and to each broker."""
    await set_rate(admin, concerned_brokers(moves), rate)
    for topic, lists in throttled_replicas(moves).items():
        with suppress(UnknownTopicOrPartition):  # Deleted since the moves were planned.
            await admin.alter_configs(lists, topic=topic, kind="append")


async def clear(admin: Admin, moves: Sequence[Move]) -> None:
    """When the moves are complete. Rates are cleared, also for moves that others throttle on the same brokers."""
    for topic, lists in throttled_replicas(moves).items():
        with suppress(UnknownTopicOrPartition):  # Deleted meanwhile.
            await admin.alter_configs(lists, topic=topic, kind="subtract")
    for broker in concerned_brokers(moves):
        await admin.alter_configs(dict.fromkeys(_RATES), broker=broker)


async def clear_all(admin: Admin) -> int:
    """Remove all throttles of the cluster; return the number of topics that had any."""
    found = 0
    for topic in await admin.list_topics(include_internal=True):
        settings = await admin.describe_configs(topic=topic)
        names = [each.name for each in settings if each.name in _LISTS and not each.is_default]
        if names:
            found += 1
            await admin.alter_configs(dict.fromkeys(names), topic=topic)
    for broker in (await admin.describe_brokers(sizes=False)).brokers:
        await admin.alter_configs(dict.fromkeys(_RATES), broker=broker.id)
    return found
