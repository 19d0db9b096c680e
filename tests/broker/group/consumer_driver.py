"""Members of a broker-side group as clients behave: they revoke and take over what replies say, and report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from broker.group.group_driver import GroupDriver
from ottla_broker.coordination.shard import Entry, replay_entry
from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatReply
from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.group.messages import CommitOffsets, OffsetToCommit
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.partitions import PartitionImage
from ottla_broker.metadata.sections.topics import TopicImage
from ottla_core.errors import IllegalGeneration, RequestError, StaleMemberEpoch, UnknownMemberId
from ottla_core.ids import TopicPartition

TIMEOUT_MS = 30_000


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def image_of(counts: Mapping[str, int]) -> ClusterImage:
    topics = {
        name: TopicImage(name, topic_id(name), {}, (PartitionImage((1,)),) * count)
        for name, count in counts.items()
    }
    names = {topic.id: name for name, topic in topics.items()}
    return ClusterImage(cluster_id="", topics=MappingProxyType(topics), names_by_id=names)


@dataclass
class ModelMember:
    id: str
    topics: tuple[str, ...] | None = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    epoch: int = 0
    owned: Partitions = field(default_factory=dict)
    #: Assignments that took a partition away, for tests of members that should not notice anything.
    revocations: int = 0


class ConsumerDriver(GroupDriver):
    def __init__(self, counts: Mapping[str, int], delay_ms: int = 0, **settings: str) -> None:
        super().__init__(delay_ms, **settings)
        self.show(counts)

    def show(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.see(image_of(counts))

    def group_of(self, name: str = "g") -> ConsumerGroup:
        found = self.shard.consumers.get(name)
        assert found is not None
        return found

    def beat(self, member: ModelMember, *, lose_reply: bool = False, **changes: Any) -> RequestError | None:
        """One heartbeat of a member, as a client sends it. The refusal, if it is refused."""
        joins = member.epoch == 0
        request = ConsumerHeartbeat(
            "g",
            member.id,
            member.epoch,
            "client",
            "/host",
            member.instance_id,
            None,
            TIMEOUT_MS,
            member.topics,
            member.regex,
            changes.pop("assignor", None),
            {} if joins else member.owned,
            **changes,
        )
        try:
            reply = self.ask(request)
        except RequestError as error:
            return error
        if not lose_reply:
            self._take_over(member, reply)
        return None

    def _take_over(self, member: ModelMember, reply: ConsumerHeartbeatReply) -> None:
        member.epoch = reply.member_epoch
        if reply.assignment is not None:
            lost = any(found - reply.assignment.get(t, frozenset()) for t, found in member.owned.items())
            member.revocations += lost
            member.owned = dict(reply.assignment)

    def leave(self, member: ModelMember, epoch: int = -1) -> None:  # type: ignore[override]
        self.ask(ConsumerHeartbeat("g", member.id, epoch, instance_id=member.instance_id))
        member.epoch, member.owned = 0, {}

    def commits(self, member_id: str, epoch: int, *partitions: int, topic: str = "t", **more: Any) -> bool:
        """Whether the member may commit offsets of these partitions with that epoch."""
        offsets = tuple(
            OffsetToCommit(TopicPartition(topic, each), 7, topic_id=topic_id(topic)) for each in partitions
        )
        try:
            self.ask(CommitOffsets("g", epoch, member_id, None, offsets, **more))
        except (StaleMemberEpoch, IllegalGeneration, UnknownMemberId):
            return False
        return True

    def settle(self, members: list[ModelMember], rounds: int = 12) -> None:
        for _ in range(rounds):
            for member in members:
                assert self.beat(member) is None

    def replayed(self, log: list[Entry]) -> ConsumerGroup:
        shard = self.new_shard()
        for entry in log:
            replay_entry(shard, entry)
        found = shard.consumers.get("g")
        assert found is not None
        return found

    def _carry_out(self, decision: Any) -> None:
        super()._carry_out(decision)
        for group in self.shard.consumers:
            group.validate()
