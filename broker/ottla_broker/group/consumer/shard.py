"""The broker-side groups of one partition of `__consumer_offsets`: passes requests, records and timers to them. [P]

A part of `group.shard.GroupShard`, which also has the classic groups and the offsets of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ottla_broker.coordination.shard import Decision, Now, StateRecord, Ticket
from ottla_broker.coordination.timers import Timers
from ottla_broker.group.consumer.classic_members import ClassicMembers
from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.consumer.machine import REBALANCE, SESSION, ConsumerMachine
from ottla_broker.group.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    DescribedConsumerGroup,
)
from ottla_broker.group.consumer.records import ConsumerRecord, GroupEpoch
from ottla_broker.group.member_memory import MemberMemory
from ottla_broker.group.messages import (
    CommitOffsets,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from ottla_broker.group_config import GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_core.assignors.model import Assignor
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    UnknownMemberId,
)


class ConsumerGroups:
    def __init__(
        self,
        config: GroupsConfig,
        settings_of: Callable[[str], GroupSettings],
        timers: Timers,
        probe: GroupsProbe,
        assignors: Mapping[str, Assignor],
        memory: MemberMemory,
    ) -> None:
        self._memory = memory
        self._groups: dict[str, ConsumerGroup] = {}
        self._machine = ConsumerMachine(config, settings_of, timers, probe, assignors, memory)
        self._classic = ClassicMembers(self._machine, timers)
        #: The newest cluster image that the shard has seen.
        self.image: ClusterImage | None = None

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def ids(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    # ------------------------------------------------------------------ requests

    def has_members(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and bool(group.members)

    def heartbeat(
        self,
        request: ConsumerHeartbeat,
        ticket: Ticket,
        now: Now,
        out: Decision,
        upgraded: ConsumerGroup | None = None,
    ) -> None:
        """`upgraded` is the group if it was a classic one until now."""
        group = upgraded or self._groups.get(request.group)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise UnknownMemberId()
            group = ConsumerGroup(request.group, self._memory)
        self._machine.heartbeat(group, request, self.known_image, ticket, now, out)
        self._groups[request.group] = group  # Only now: a refused join leaves no group behind.
        group.count_in(self._memory)
        if upgraded is not None:
            self._machine.resume(group, now)

    @property
    def known_image(self) -> ClusterImage:
        if self.image is None:
            raise CoordinatorLoadInProgress()
        return self.image

    # ------------------------------------------------------------------ requests of the classic protocol

    def join(self, request: JoinGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        self._classic.join(self._groups[request.group], request, self.known_image, ticket, now, out)

    def sync(self, request: SyncGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        self._classic.sync(self._groups[request.group], request, self.known_image, ticket, now, out)

    def classic_heartbeat(self, request: Heartbeat, ticket: Ticket, now: Now, out: Decision) -> None:
        self._classic.heartbeat(self._groups[request.group], request, ticket, now, out)

    def leave(self, request: LeaveGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        self._classic.leave(self._groups[request.group], request, ticket, now, out)

    def check_offsets(self, request: CommitOffsets | FetchOffsets) -> None:
        self._machine.check_offsets(self._groups[request.group], request)

    def described(self, group_id: str) -> DescribedConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id!r} is not a consumer group.")
        return self._machine.described(group, self.image)

    # ------------------------------------------------------------------ the other kind

    def convert_to_classic(self, group_id: str, out: Decision) -> None:
        out.records += self.tombstones(group_id)
        group = self._groups.pop(
            group_id, None
        )  # At once: the classic group takes its place in this decision.
        if group is not None:
            group.dropped()
            self._machine.forget_timers(group)

    def tombstones(self, group_id: str) -> list[StateRecord]:
        group = self._groups.get(group_id)
        return [] if group is None else [record.encoded() for record in group.tombstones()]

    # ------------------------------------------------------------------ records and time

    def replay(self, record: ConsumerRecord) -> None:
        if record.kind == GroupEpoch.kind and record.value is None:
            group = self._groups.pop(record.group, None)
            if group is not None:
                group.dropped()
                self._machine.forget_timers(group)
            return
        group = self._groups.get(record.group)
        if group is None:
            if record.value is None:
                return
            group = self._groups[record.group] = ConsumerGroup(record.group, self._memory)
        group.apply(record)

    def resume(self, now: Now) -> None:
        for group in self._groups.values():
            self._machine.resume(group, now)

    def time_is_up(self, kind: str, group_id: str, member_id: str, out: Decision) -> None:
        group = self._groups.get(group_id)
        if group is None:
            return
        if kind == SESSION:
            self._machine.session_over(group, member_id, out)
        elif kind == REBALANCE:
            self._machine.rebalance_over(group, member_id, out)
        else:
            self._classic.time_is_up(group, member_id, out)
