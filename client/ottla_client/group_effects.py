"""Effects of the group state machine, which the shell executes in order. [P]

Calls carry an attempt number, and their responses return it; responses of an older attempt are
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ottla_client.group_protocol import NO_GENERATION
from ottla_core.ids import TopicPartition

Partitions: TypeAlias = tuple[TopicPartition, ...]


class Identity(NamedTuple):
    """Member id and generation, sent with commits and heartbeats."""

    member_id: str = ""
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class SendJoin:
    attempt: int
    member_id: str
    #: Assignor name and our subscription for it, in order of preference.
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LearnTopics:
    """As group leader: look up the partition counts of these topics."""

    attempt: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendSync:
    attempt: int
    identity: Identity
    protocol: str
    #: By member id; empty unless we are the group leader.
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
    """A turn is due: the next poll calls `begin_turn`."""


@dataclass(frozen=True, slots=True)
class Warn:
    sentence: str


Effect: TypeAlias = SendJoin | LearnTopics | SendSync | SendHeartbeat | SendLeave | TakeTurn | Warn


@dataclass(frozen=True, slots=True)
class Turn:
    """Listener calls in this order: lost, revoked, assigned; then the new assignment takes effect."""

    assignment: Partitions
    #: Other members may own these already.
    lost: Partitions = ()
    revoked: Partitions = ()
    #: None: not the end of a rebalance, so on_assigned is not called.
    added: Partitions | None = None


class JoinAnswer(NamedTuple):
    member_id: str
    generation: int
    leader_id: str
    protocol: str
    #: (member id, instance id or None, metadata); only for the group leader.
    members: tuple[tuple[str, str | None, bytes], ...]
    skip_assignment: bool = False
