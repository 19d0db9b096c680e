"""What an assignor gets and what it returns. [P]

An assignor is a pure function with a name: the same input gives the same assignment on every broker. The order of
`members` breaks ties; `ranked` gives the order that callers use. Custom assignors (`plugins`) implement `Assignor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from ottla_core.ids import TopicPartition

Assignment: TypeAlias = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    topics: frozenset[str]
    #: Partitions of its last target assignment; stale ones (of a deleted topic) are ignored.
    owned: tuple[TopicPartition, ...] = ()
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    #: Number of partitions by topic, without topics that do not exist.
    counts: Mapping[str, int]
    #: Racks that hold a replica, by partition; empty if brokers have no racks.
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))


Members: TypeAlias = Mapping[str, MemberSubscription]
Parameters: TypeAlias = Mapping[str, str]


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """The name by which groups and members select it."""

    @property
    def shares_partitions(self) -> bool:
        """Whether several members may own one partition at the same time."""

    def assign(self, topology: Topology, members: Members, parameters: Parameters) -> Assignment:
        """Partitions by member id, for every member. ValueError if a parameter is invalid."""


def ranked(members: Members) -> dict[str, MemberSubscription]:
    """Static members first, by instance id, so that a restart moves no partition; then the others by member id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, instance_id or member_id)

    return {member_id: members[member_id] for member_id in sorted(members, key=rank)}


def readers_by_topic(topology: Topology, members: Members) -> dict[str, list[str]]:
    """Subscribed members of each existing topic, topics sorted, members in their order."""
    found: dict[str, list[str]] = {}
    for member_id, member in members.items():
        for topic in member.topics:
            if topology.counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member_id)
    return dict(sorted(found.items()))
