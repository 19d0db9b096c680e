"""Requests to the coordinator of broker-side groups, and their replies. [P]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.group.messages import State

#: Member epochs with a meaning in requests (and the last in records, too).
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """Joins, stays, reports owned partitions, and leaves. None and -1: unchanged since the last one."""

    writes: ClassVar[bool] = True

    group: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    #: Empty: no longer by regular expression.
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    #: Whether the member may describe a topic, by the ACLs that are now in force; None if it may describe all.
    may_describe: Callable[[str], bool] | None = None
    #: Another object whenever ACLs have changed.
    rights: object = None

    @property
    def is_full(self) -> bool:
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms >= 0 and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatReply:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    #: None: unchanged.
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    writes: ClassVar[bool] = False

    group: str


class DescribedConsumerMember(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    epoch: int
    topics: tuple[str, ...]
    regex: str | None
    assignment: Partitions
    target: Partitions
    session_timeout_ms: int
    rebalance_timeout_ms: int
    #: It speaks the classic protocol.
    is_classic: bool = False


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    group: str
    state: State
    epoch: int
    assignment_epoch: int
    #: The one in force.
    assignor: str
    members: tuple[DescribedConsumerMember, ...]
    #: Why the selected assignor is not in force.
    assignor_failure: str = ""
