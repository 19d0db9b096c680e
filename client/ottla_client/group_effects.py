"""What a group membership may ask of its shell, in the order in which it is to be done. [P]

Calls carry the number of the attempt that they belong to; their answers bring it back, and one that is not the
current one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ottla_client.group_protocol import NO_GENERATION
from ottla_core.ids import TopicPartition

Partitions: TypeAlias = tuple[TopicPartition, ...]


class Identity(NamedTuple):
    """Who a member is in which generation: what its commits and heartbeats are signed with."""

    member_id: str = ""
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class SendJoin:
    attempt: int
    member_id: str
    #: Name of the assignor and our subscription for it, best first.
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LearnTopics:
    """We lead: how many partitions do these topics have?"""

    attempt: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSync:
    attempt: int
    identity: Identity
    protocol: str
    #: By member id; empty unless we lead.
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    identity: Identity


@dataclass(frozen=True, slots=True)
class SendLeave:
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """The user is due: `begin_turn` says for what, as soon as somebody polls."""


@dataclass(frozen=True, slots=True)
class Warn:
    sentence: str


Effect: TypeAlias = SendJoin | LearnTopics | SendSync | SendHeartbeat | SendLeave | TakeTurn | Warn


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user has to be told, in this order: lost, revoked, assigned; then the assignment is another."""

    assignment: Partitions
    #: They are somebody else's already.
    lost: Partitions = ()
    revoked: Partitions = ()
    #: None: not the end of a rebalance, so nothing is said of assigned ones.
    added: Partitions | None = None


class JoinAnswer(NamedTuple):
    member_id: str
    generation: int
    leader_id: str
    protocol: str
    #: (member id, instance id or None, metadata); only for the leader.
    members: tuple[tuple[str, str | None, bytes], ...]
    skip_assignment: bool = False
