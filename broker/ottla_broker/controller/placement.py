"""Placement of replicas on brokers: random start, shifted followers, rack-aware. [P]

As in Kafka, the first replica goes round all brokers, so leaders are spread evenly; the others follow at a
distance that grows by one with each round, so that the partitions of a dead broker fall to all the others,
not to one neighbour. With racks known for all brokers, neighbours in the order are of different racks, and
a rack gets a second replica of a partition only when each has one; if some racks are unknown, racks are
ignored.

The caller draws the two random numbers, so the same input gives the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla_core.errors import InvalidPartitions, InvalidReplicationFactor


class Site(NamedTuple):
    """A broker that may hold replicas."""

    id: int
    rack: str | None = None


def place(
    sites: Sequence[Site], partitions: int, replication_factor: int, *, start: int, shift: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Replicas of each new partition, the preferred leader first.

    `first` is the number of the first new partition: growing a topic continues where its creation stopped.
    """
    if partitions < 1:
        raise InvalidPartitions(f"A topic needs at least 1 partition; {partitions} were asked for.")
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"The replication factor must be at least 1; {replication_factor} was asked for."
        )
    if replication_factor > len(sites):
        here = "1 broker is" if len(sites) == 1 else f"{len(sites)} brokers are"
        raise InvalidReplicationFactor(
            f"The replication factor {replication_factor} asks for more brokers than there are: "
            f"{here} available."
        )
    racks = {site.rack for site in sites}
    aware = None not in racks and len(racks) > 1
    order = _alternating(sites) if aware else sorted(sites)
    placed = []
    for index in range(first, first + partitions):
        # Each full round moves the followers one further from their leader.
        rounds = shift + index // len(order)
        placed.append(_replicas(order, start + index, rounds, replication_factor, len(racks) if aware else 0))
    return placed


def _replicas(order: Sequence[Site], leader: int, shift: int, count: int, racks: int) -> tuple[int, ...]:
    size = len(order)
    chosen = [order[leader % size]]
    # All others once, beginning `shift` places behind the leader.
    others = [order[(leader + 1 + (shift + k) % (size - 1)) % size] for k in range(size - 1)]
    used = {chosen[0].rack}
    while len(chosen) < count:
        if racks and len(used) == racks:
            # Every rack has a replica: from now on only brokers must differ.
            racks = 0
        site = next(s for s in others if s not in chosen and not (racks and s.rack in used))
        chosen.append(site)
        used.add(site.rack)
    return tuple(site.id for site in chosen)


def _alternating(sites: Sequence[Site]) -> list[Site]:
    """One broker of each rack in turn, so that consecutive partitions are led from different racks."""
    by_rack: dict[str | None, list[Site]] = {}
    for site in sorted(sites):
        by_rack.setdefault(site.rack, []).append(site)
    queues = [by_rack[rack] for rack in sorted(by_rack, key=str)]
    longest = max(len(queue) for queue in queues)
    return [queue[depth] for depth in range(longest) for queue in queues if depth < len(queue)]
