"""Assignors of classic groups: range, round-robin, sticky and cooperative-sticky. [P]

The algorithms are in `ottla_core.assignors`, which brokers use, too; here is what the classic protocol adds.

The leader of a group calls `assign` with the subscriptions of all members; every member gets the user data of its
subscription from its assignors. The names are Kafka's, so that members with different clients vote for the same ones.
`partition_assignment_strategy` also takes a user's class with these members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol, TypeAlias

from ottla_client.group_protocol import (
    NO_GENERATION,
    Subscription,
    decode_generation,
    decode_sticky_data,
    encode_generation,
    encode_sticky_data,
)
from ottla_core.assignors import ranges
from ottla_core.assignors.model import MemberSubscription, Topology
from ottla_core.assignors.sticky import Claim, balance
from ottla_core.ids import TopicPartition

#: Number of partitions by topic, without topics that do not exist.
Counts: TypeAlias = Mapping[str, int]
Assignments: TypeAlias = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Sort key: static members first, by instance id, so that a restart moves no partition."""
        return (self.instance_id is None, self.instance_id or self.member_id)


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """The protocol name that the group votes for."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep reading while they join, and revoke only what moves (KIP-429)."""

    def user_data(self, previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """User data of this member for the leader, beside its subscription."""

    def assign(self, counts: Counts, members: Sequence[GroupMember]) -> Assignments:
        """Partitions by member id, for every member; each subscribed partition exactly once."""


class RangeAssignor:
    """The assignor that brokers have, for a classic group."""

    name = "range"
    cooperative = False

    def user_data(self, previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, counts: Counts, members: Sequence[GroupMember]) -> Assignments:
        subscriptions = {
            member.member_id: MemberSubscription(
                frozenset(member.subscription.topics), instance_id=member.instance_id
            )
            for member in members
        }
        return ranges.RangeAssignor().assign(Topology(counts), subscriptions, {})


class RoundRobinAssignor:
    """All partitions of all topics, one by one to the members in turn."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, counts: Counts, members: Sequence[GroupMember]) -> Assignments:
        made: Assignments = {member.member_id: [] for member in members}
        turns = cycle(sorted(members, key=lambda member: member.rank))
        for tp in wanted_partitions(counts, members):
            # Terminates: each of these topics has a subscribed member.
            taker = next(member for member in turns if tp.topic in member.subscription.topics)
            made[taker.member_id].append(tp)
        return made


class StickyAssignor:
    """Balanced, with as few moves as possible. Eager: members revoke all partitions before a rebalance."""

    name = "sticky"
    cooperative = False

    def user_data(self, previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        return encode_sticky_data(previous, generation)

    def assign(self, counts: Counts, members: Sequence[GroupMember]) -> Assignments:
        claims: dict[str, Claim] = {}
        for member in sorted(members, key=lambda member: member.rank):
            previous, generation = decode_sticky_data(member.subscription.user_data)
            claims[member.member_id] = Claim(
                frozenset(member.subscription.topics), tuple(previous), generation
            )
        return balance(counts, claims)


class CooperativeStickyAssignor:
    """Sticky in two steps: a member first revokes the partitions it loses; a second rebalance reassigns them.

    So the first assignment lacks the partitions that move; members keep reading the others.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        return encode_generation(generation)

    def assign(self, counts: Counts, members: Sequence[GroupMember]) -> Assignments:
        claims: dict[str, Claim] = {}
        for member in sorted(members, key=lambda member: member.rank):
            said = member.subscription
            generation = said.generation
            if generation == NO_GENERATION:
                generation = decode_generation(said.user_data)
            claims[member.member_id] = Claim(frozenset(said.topics), said.owned, generation)
        return withhold_moving(claims, balance(counts, claims))


def withhold_moving(claims: Mapping[str, Claim], made: Assignments) -> Assignments:
    """The assignment without partitions that another member still owns, in any generation."""
    holders: dict[TopicPartition, set[str]] = {}
    for member_id, claim in claims.items():
        for tp in claim.owned:
            holders.setdefault(tp, set()).add(member_id)
    return {
        member_id: [tp for tp in partitions if tp not in holders or member_id in holders[tp]]
        for member_id, partitions in made.items()
    }


def wanted_topics(counts: Counts, members: Iterable[GroupMember]) -> list[str]:
    """Existing topics with at least one subscribed member, sorted."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    return sorted(topic for topic in wanted if counts.get(topic, 0) > 0)


def wanted_partitions(counts: Counts, members: Iterable[GroupMember]) -> Iterator[TopicPartition]:
    for topic in wanted_topics(counts, members):
        for partition in range(counts[topic]):
            yield TopicPartition(topic, partition)


_BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def assignors_for(strategy: str | Assignor | Sequence[str | Assignor]) -> tuple[Assignor, ...]:
    """`partition_assignment_strategy` as objects, in order of preference; ValueError with a sentence."""
    chosen = [strategy] if isinstance(strategy, str) or not isinstance(strategy, Sequence) else strategy
    made: dict[str, Assignor] = {}
    for each in chosen:
        if isinstance(each, str):
            if each not in _BY_NAME:
                raise ValueError(
                    f"partition_assignment_strategy: there is no {each!r}; choose from {', '.join(_BY_NAME)}."
                )
            each = _BY_NAME[each]()
        made[each.name] = each
    if not made:
        raise ValueError("partition_assignment_strategy: name at least one, for example 'range'.")
    return tuple(made.values())
