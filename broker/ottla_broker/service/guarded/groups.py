"""Consumer groups: Read, Describe or Delete on the group, and rights on the topics whose offsets are concerned. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ottla_broker.acl import CLUSTER_NAME, Operation
from ottla_broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribedConsumerGroup,
)
from ottla_broker.group.messages import (
    NO_GENERATION,
    CommitReply,
    DeleteOffsetsReply,
    DeleteReply,
    DescribedGroup,
    FetchReply,
    Heartbeat,
    HeartbeatReply,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    ListedGroup,
    OffsetToCommit,
    Protocol,
    SyncGroup,
    SyncReply,
)
from ottla_broker.metadata.image import BrokerImage
from ottla_broker.requests import Maybe
from ottla_broker.service.access import CLUSTER, GROUP, TOPIC, Access
from ottla_broker.service.groups import GroupService, committed_in_parts
from ottla_broker.service.guarded.partly import topics_checked
from ottla_broker.steps import Steps, kept
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

T = TypeVar("T")
R = TypeVar("R")


class GuardedGroups:
    __slots__ = ("_access", "_service")

    def __init__(self, service: GroupService, access: Access) -> None:
        self._service = service
        self._access = access

    def find_coordinator(self, group: str) -> Maybe[BrokerImage]:
        self._access.check(Operation.DESCRIBE, GROUP, group)
        return self._service.find_coordinator(group)

    # ------------------------------------------------------------------ membership

    def join(
        self,
        group: str,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        protocol_type: str,
        protocols: Sequence[Protocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        requires_known_id: bool = True,
        can_skip_assignment: bool = True,
    ) -> Maybe[JoinReply]:
        self._access.check(Operation.READ, GROUP, group)
        return self._service.join(
            group,
            member_id,
            instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            protocol_type=protocol_type,
            protocols=protocols,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            requires_known_id=requires_known_id,
            can_skip_assignment=can_skip_assignment,
        )

    def sync(self, request: SyncGroup) -> Maybe[SyncReply]:
        self._access.check(Operation.READ, GROUP, request.group)
        return self._service.sync(request)

    def heartbeat(self, request: Heartbeat) -> Maybe[HeartbeatReply]:
        self._access.check(Operation.READ, GROUP, request.group)
        return self._service.heartbeat(request)

    def leave(self, request: LeaveGroup) -> Maybe[LeaveReply]:
        self._access.check(Operation.READ, GROUP, request.group)
        return self._service.leave(request)

    def consumer_heartbeat(self, request: ConsumerHeartbeat) -> Maybe[ConsumerHeartbeatReply]:
        self._access.check(Operation.READ, GROUP, request.group)
        for topic in request.topics or ():
            self._access.check(Operation.DESCRIBE, TOPIC, topic)
        if not self._access.is_full:
            # For topics of a regular expression, whichever they are then.
            request = replace(request, may_describe=self._may_describe, rights=self._access.rights)
        return self._service.consumer_heartbeat(request)

    def _may_describe(self, topic: str) -> bool:
        return self._access.allows(Operation.DESCRIBE, TOPIC, topic)

    # ------------------------------------------------------------------ offsets

    def commit(
        self,
        group: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int | None = None,
    ) -> Maybe[CommitReply]:
        self._access.check(Operation.READ, GROUP, group)
        checked = topics_checked(self._access, Operation.READ, (each.tp for each in offsets))
        if checked.is_refused:
            return CommitReply(checked.errors)
        reply = self._service.commit(
            group, generation, member_id, instance_id, checked.allowed(offsets), retention_ms=retention_ms
        )
        if checked.is_whole:
            return reply
        return _then(
            reply, lambda made: CommitReply(tuple(checked.merged(made.errors, lambda _, error: error)))
        )

    def commit_in_steps(
        self,
        group: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int | None = None,
    ) -> Steps[Maybe[CommitReply]]:
        def commit(part: Sequence[OffsetToCommit]) -> Maybe[CommitReply]:
            return self.commit(group, generation, member_id, instance_id, part, retention_ms=retention_ms)

        return (yield from committed_in_parts(commit, offsets))

    def fetch(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        member_id: str = "",
        member_epoch: int = NO_GENERATION,
        require_stable: bool = False,
    ) -> Maybe[FetchReply]:
        self._access.check(Operation.DESCRIBE, GROUP, group)
        if partitions is None:
            reply = self._service.fetch(
                group,
                None,
                member_id=member_id,
                member_epoch=member_epoch,
                require_stable=require_stable,
            )
            return _then(reply, self._visible)
        may, refused = self._access.may, dict[str, RequestError]()
        for topic in {tp.topic for tp in partitions}:
            if not may(Operation.DESCRIBE, TOPIC, topic):
                refused[topic] = self._access.refusal(Operation.DESCRIBE, TOPIC, topic)
        if not refused:
            allowed = partitions
        else:
            allowed = [tp for tp in partitions if tp.topic not in refused]
            if not allowed and partitions:
                return FetchReply(partitions, {}, refused=refused)
        reply = self._service.fetch(
            group, allowed, member_id=member_id, member_epoch=member_epoch, require_stable=require_stable
        )
        if not refused:
            return reply
        return _then(reply, lambda made: replace(made, partitions=partitions, refused=refused))

    def _visible(self, reply: FetchReply) -> FetchReply:
        if self._access.is_full:
            return reply
        allows = self._access.allows
        topics = {tp.topic for tp in reply.partitions}
        shown = {topic for topic in topics if allows(Operation.DESCRIBE, TOPIC, topic)}
        return replace(reply, partitions=[tp for tp in reply.partitions if tp.topic in shown])

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Maybe[DeleteOffsetsReply]:
        self._access.check(Operation.DELETE, GROUP, group)
        checked = topics_checked(self._access, Operation.READ, partitions)
        if checked.is_refused:
            return DeleteOffsetsReply(checked.errors)
        reply = self._service.delete_offsets(group, checked.allowed(partitions))
        if checked.is_whole:
            return reply
        return _then(
            reply,
            lambda made: DeleteOffsetsReply(tuple(checked.merged(made.errors, lambda _, error: error))),
        )

    # ------------------------------------------------------------------ administration

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> Steps[list[ListedGroup]]:
        """All groups with Describe on the cluster, else those that the caller may describe."""
        found = yield from self._service.list_groups(states, types)
        allows = self._access.allows
        if allows(Operation.DESCRIBE, CLUSTER, CLUSTER_NAME):
            return found
        return (yield from kept(found, lambda each: allows(Operation.DESCRIBE, GROUP, each.group)))

    def describe(self, group: str) -> Maybe[DescribedGroup]:
        self._access.check(Operation.DESCRIBE, GROUP, group)
        return self._service.describe(group)

    def describe_consumers(self, group: str) -> Maybe[DescribedConsumerGroup]:
        self._access.check(Operation.DESCRIBE, GROUP, group)
        return _then(self._service.describe_consumers(group), self._checked_topics)

    def _checked_topics(self, found: DescribedConsumerGroup) -> DescribedConsumerGroup:
        """The description names topics, so it needs Describe on all of them, as in Kafka."""
        for topic in sorted({topic for member in found.members for topic in member.topics}):
            self._access.check(Operation.DESCRIBE, TOPIC, topic)
        return found

    def delete(self, group: str) -> Maybe[DeleteReply]:
        self._access.check(Operation.DELETE, GROUP, group)
        return self._service.delete(group)


def _then(reply: Maybe[T], make: Callable[[T], R]) -> Maybe[R]:
    if isinstance(reply, Awaitable):
        return _later(reply, make)
    return make(reply)


async def _later(reply: Awaitable[T], make: Callable[[T], R]) -> R:
    return make(await reply)
