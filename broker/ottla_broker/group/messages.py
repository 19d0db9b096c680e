"""Requests to a group coordinator and their replies, independent of the edge. [P]

A refusal is a `RequestError` in place of the reply; where only part of a request is refused, the reply has an `error`
for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeAlias
from uuid import UUID

from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.group.records import OffsetValue
from ottla_broker.group.verifications import Verification
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import RequestError, UnstableOffsetCommit
from ottla_core.ids import NO_EPOCH, NO_TOPIC_ID, TopicPartition

NO_GENERATION = -1
NO_OFFSET = -1


class State(StrEnum):
    """States of a group, with the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    #: Broker-side groups: a target assignment is due; members move towards it.
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    DEAD = "Dead"


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class Protocol(NamedTuple):
    name: str
    metadata: bytes


# ---------------------------------------------------------------------- membership


@dataclass(frozen=True, slots=True)
class JoinGroup:
    #: Whether the request may need a record, and so the partition has to be writable.
    writes: ClassVar[bool] = True

    group: str
    member_id: str
    #: The member's new id if it has none yet.
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    #: Best first.
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    #: A member without an id gets one and joins again (KIP-394): the group then never waits for a lost reply.
    requires_known_id: bool = True
    #: The member understands `JoinReply.skip_assignment` (KIP-814).
    can_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    #: All members for the leader, empty for the others.
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    #: MEMBER_ID_REQUIRED, with the id in `member_id`.
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class SyncGroup:
    writes: ClassVar[bool] = True

    group: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    #: From the leader: assignments by member id.
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncReply:
    protocol_type: str | None
    protocol: str | None
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    writes: ClassVar[bool] = False

    group: str
    generation: int
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Success."""


class Leaving(NamedTuple):
    member_id: str
    instance_id: str | None


class Left(NamedTuple):
    member_id: str
    instance_id: str | None
    error: RequestError | None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    writes: ClassVar[bool] = True

    group: str
    members: tuple[Leaving, ...]


@dataclass(frozen=True, slots=True)
class LeaveReply:
    members: tuple[Left, ...]


# ---------------------------------------------------------------------- offsets


class OffsetToCommit(NamedTuple):
    tp: TopicPartition
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    #: Topic id: offsets are deleted with their topic.
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    writes: ClassVar[bool] = True

    group: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    #: Retention time of offsets, sent by old clients; None: the broker's setting.
    retention_ms: int | None = None
    #: Set for offsets of a transaction: they count when a marker of this producer commits them.
    producer: ProducerIdentity | None = None
    #: Set if the transaction was verified with its coordinator; the commit is refused if it has ended since.
    verification: Verification | None = None


@dataclass(frozen=True, slots=True)
class BeginVerification:
    """A commit of offsets is about to be verified with the coordinator of its transaction. Needs no reply."""

    writes: ClassVar[bool] = False

    verification: Verification


class VerificationBegun(NamedTuple):
    """Success."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A transaction coordinator has decided about a producer's offsets in this partition."""

    writes: ClassVar[bool] = True

    marker: TransactionMarker


@dataclass(frozen=True, slots=True)
class CommitReply:
    #: In the order of the request.
    errors: tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    writes: ClassVar[bool] = False

    group: str
    #: None: all.
    partitions: tuple[TopicPartition, ...] | None
    #: Set by members of broker-side groups.
    member_id: str = ""
    member_epoch: int = NO_GENERATION
    #: Refuse offsets that an open transaction is about to change (KIP-447).
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    tp: TopicPartition
    #: NO_OFFSET: nothing is committed.
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    error: RequestError | None = None


def _any(name: str, topic_id: UUID) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Offsets of a group at one moment. They are looked up one by one, because there may be many."""

    #: In the order of the request, or all that have one.
    partitions: Sequence[TopicPartition]
    committed: Mapping[TopicPartition, OffsetValue]
    #: An open transaction is about to change them, and the request does not accept that.
    unstable: frozenset[TopicPartition] = frozenset()
    #: False for a deleted topic of the same name: its offsets are about to be removed.
    is_current: Callable[[str, UUID], bool] = _any
    #: Of topics, by name.
    refused: Mapping[str, RequestError] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> FetchedOffset:
        if tp.topic in self.refused:
            return FetchedOffset(tp, error=self.refused[tp.topic])
        if tp in self.unstable:
            return FetchedOffset(tp, error=UnstableOffsetCommit())
        value = self.committed.get(tp)
        if value is None or not self.is_current(tp.topic, value.topic_id):
            return FetchedOffset(tp)
        return FetchedOffset(tp, value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms)

    @property
    def offsets(self) -> tuple[FetchedOffset, ...]:
        """All at once: for few."""
        return tuple(map(self.of, self.partitions))


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    writes: ClassVar[bool] = True

    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsetsReply:
    #: In the order of the request.
    errors: tuple[RequestError | None, ...]


# ---------------------------------------------------------------------- looking


@dataclass(frozen=True, slots=True)
class ListGroupIds:
    """All groups of one shard, by their ids alone: there may be many."""

    writes: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ListGroupIdsReply:
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListGroups:
    """Some groups of one shard. Those that do not exist any more are left out."""

    writes: ClassVar[bool] = False

    groups: tuple[str, ...]


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: State
    type: GroupType = GroupType.CLASSIC


@dataclass(frozen=True, slots=True)
class ListReply:
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    writes: ClassVar[bool] = False

    group: str


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    #: For the protocol in use; empty unless the group is stable.
    metadata: bytes
    assignment: bytes
    #: Effective value: the group's setting, else the member's.
    session_timeout_ms: int
    rebalance_timeout_ms: int
    #: All supported protocols, preferred first; empty while only the one in use is known.
    protocols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group that does not exist is DEAD."""

    group: str
    state: State = State.DEAD
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    generation: int = NO_GENERATION
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    writes: ClassVar[bool] = True

    group: str


@dataclass(frozen=True, slots=True)
class DeleteReply:
    """The group and its offsets were deleted."""


Request: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | ListGroupIds
    | ListGroups
    | DescribeGroup
    | DeleteGroup
)
