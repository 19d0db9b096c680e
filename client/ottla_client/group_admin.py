"""Administration of consumer groups: list, describe, lag, reset and delete offsets, delete groups. [S]

Used by `Admin`, which has the same methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla_client.cluster import Cluster
from ottla_client.committer import fetch_committed
from ottla_client.connection import exception_of
from ottla_client.coordinator import Coordinator, first_refusal, passes, refusal
from ottla_client.errors import CannotConnect, NotServed
from ottla_client.group_protocol import Undecodable, decode_assignment, decode_subscription
from ottla_client.leaders import list_offsets
from ottla_client.record import CommittedOffset, OffsetAndMetadata
from ottla_core.errors import NonEmptyGroup, RequestError, UnknownMemberId, UnknownTopicOrPartition
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

_PAUSE_S = 0.1
_LATEST = -1
#: Kafka's name of the group type.
BROKER_SIDE = "consumer"
#: The time of an election, with some margin.
_ELECTION_S = 1.0


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    #: Empty, PreparingRebalance, CompletingRebalance, Stable or Dead; broker-side ones also Assigning, Reconciling.
    state: str
    protocol_type: str
    #: "classic" or "consumer" (broker-side).
    group_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    #: Assigned partitions and subscribed topics; of classic groups only if stable, with consumers as members.
    partitions: tuple[TopicPartition, ...]
    topics: tuple[str, ...]
    #: Effective value: the group's setting, else what the member asked for (broker-side: the default).
    session_timeout_ms: int
    rebalance_timeout_ms: int
    #: Supported assignors in order of preference; empty while the coordinator does not know them.
    protocols: tuple[str, ...] = ()
    #: Broker-side groups: the epoch that the member has reached, and the partitions that it is going to have.
    member_epoch: int = 0
    target: tuple[TopicPartition, ...] = ()
    topic_regex: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    #: As in a listing; "Dead" if the group does not exist.
    state: str
    protocol_type: str
    #: The assignor in use.
    protocol: str
    #: Of broker-side groups: the group epoch.
    generation: int
    leader_id: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]
    #: "classic" or "consumer" (broker-side); empty if the group does not exist.
    group_type: str = "classic"
    #: Broker-side groups: the group epoch that the target assignment was computed for.
    assignment_epoch: int = 0
    #: Broker-side groups: why the configured assignor is not the one in use, if it failed.
    assignor_failure: str = ""

    @property
    def is_broker_side(self) -> bool:
        return self.group_type == BROKER_SIDE


@dataclass(frozen=True, slots=True)
class PartitionLag:
    #: None if nothing is committed.
    committed: int | None
    #: None if the partition does not exist or has no leader.
    end: int | None
    #: The member that reads it now.
    member_id: str | None
    #: Age of the oldest record that is not committed yet; 0 if all is committed, None if it is not known.
    seconds: float | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


class GroupAdmin:
    def __init__(self, cluster: Cluster, clock: Clock, timeout_s: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._timeout_s = timeout_s

    def _coordinator(self, group: str) -> Coordinator:
        return Coordinator(self._cluster, self._clock, group)

    async def list_groups(self, states: Sequence[str], types: Sequence[str] = ()) -> list[GroupListing]:
        """Groups of all brokers: each broker lists those that it coordinates."""
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                await self._cluster.refresh([], timeout_s=self._timeout_s)
                return await self._list_once(pb.ListGroupsRequest(states=states, types=types), deadline)
            except (RequestError, CannotConnect) as error:
                if not passes(error) or self._clock.monotonic() + _PAUSE_S >= deadline:
                    raise
            await self._clock.sleep(_PAUSE_S)

    async def _list_once(self, request: pb.ListGroupsRequest, deadline: float) -> list[GroupListing]:
        found: dict[str, GroupListing] = {}
        for broker in self._cluster.brokers():
            left_s = max(0.001, deadline - self._clock.monotonic())
            answer = await self._cluster.call_at(broker, "ListGroups", request, left_s)
            error = refusal(answer)
            if error is not None:
                raise error
            for each in answer.groups:
                found[each.group] = GroupListing(each.group, each.state, each.protocol_type, each.group_type)
        return [found[name] for name in sorted(found)]

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        made = []
        for group in groups:
            answer = await self._coordinator(group).ask(
                "DescribeGroups",
                pb.DescribeGroupsRequest(groups=[group]),
                self._timeout_s,
                first_refusal,
            )
            made.append(_description(answer.groups[0]))
        return made

    async def offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = None if partitions is None else [TopicPartition(*tp) for tp in partitions]
        if wanted is not None and not wanted:
            return {}
        return await fetch_committed(self._coordinator(group), wanted, self._timeout_s)

    async def lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """Lag in all partitions with a committed offset of the group or an assigned member."""
        (described,) = await self.describe_groups([group])
        readers = {tp: member.member_id for member in described.members for tp in member.partitions}
        committed = await self.offsets(group, None)
        wanted = sorted({*readers, *committed})
        ends, seconds = await self._ends(wanted), await self.lag_seconds(group)
        return {
            tp: PartitionLag(
                committed[tp].offset if tp in committed else None,
                ends.get(tp),
                readers.get(tp),
                seconds.get(tp),
            )
            for tp in wanted
        }

    async def lag_seconds(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, float]:
        """Age of the oldest record that is not committed, where it is known: in partitions with committed offsets,
        and of the first record in partitions of `topics` without one. Empty if brokers of an older version answer."""
        request = pb.DescribeLagRequest(group=group, topics=topics)
        try:
            answer = await self._coordinator(group).ask("DescribeLag", request, self._timeout_s)
        except NotServed:
            return {}
        return {
            TopicPartition(each.topic, each.partition): each.lag_ms / 1000
            for each in answer.partitions
            if each.lag_ms >= 0
        }

    async def _ends(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets of partitions that exist and have a leader. The others (deleted topics, offline partitions)
        are omitted, so that they do not hide the lag of the rest."""
        topics = sorted({tp.topic for tp in wanted})
        if not topics:
            return {}
        there = await self._there(topics, wanted)
        if not all(self._is_led(tp) for tp in there):
            await self._clock.sleep(_ELECTION_S)
            there = await self._there(topics, wanted)
        found = await list_offsets(
            self._cluster,
            self._clock,
            dict.fromkeys(filter(self._is_led, there), _LATEST),
            timeout_s=self._timeout_s,
        )
        return {tp: each.offset for tp, each in found.items()}

    async def _there(self, topics: Sequence[str], wanted: Sequence[TopicPartition]) -> list[TopicPartition]:
        refused = await self._cluster.refresh(topics, timeout_s=self._timeout_s)
        for error in refused.values():
            if not isinstance(error, UnknownTopicOrPartition):
                raise error
        layouts = self._cluster.topics
        return [tp for tp in wanted if tp.topic in layouts and tp.partition in layouts[tp.topic].partitions]

    def _is_led(self, tp: TopicPartition) -> bool:
        return self._cluster.leader(tp) != NO_BROKER

    async def alter_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        if not offsets:
            return
        request = pb.CommitOffsetsRequest(group=group, generation=-1)
        for tp, each in offsets.items():
            made = OffsetAndMetadata(each) if isinstance(each, int) else each
            topic, partition = tp
            request.offsets.add(
                topic=topic,
                partition=partition,
                offset=made.offset,
                leader_epoch=made.leader_epoch,
                metadata=made.metadata,
            )
        try:
            answer = await self._coordinator(group).ask("CommitOffsets", request, self._timeout_s)
        except UnknownMemberId:
            raise NonEmptyGroup(
                f"Group {group!r} has members; only they may commit its offsets. Stop them first."
            ) from None
        _raise_first(answer.partitions)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        request = pb.DeleteOffsetsRequest(group=group)
        for topic, partition in partitions:
            request.partitions.add(topic=topic, partition=partition)
        answer = await self._coordinator(group).ask("DeleteOffsets", request, self._timeout_s)
        _raise_first(answer.partitions)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        first: RequestError | None = None
        for group in groups:
            try:
                await self._coordinator(group).ask(
                    "DeleteGroups", pb.DeleteGroupsRequest(groups=[group]), self._timeout_s, first_refusal
                )
            except RequestError as error:
                first = first or type(error)(f"Group {group!r}: {error.message}")
        if first is not None:
            raise first


def _raise_first(parts: Iterable[pb.CommittedOffset | pb.DeletedOffset]) -> None:
    for part in parts:
        if part.HasField("error"):
            error = exception_of(part.error)
            raise type(error)(f"{TopicPartition(part.topic, part.partition)}: {error.message}")


def _description(each: pb.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        each.group,
        each.state,
        each.protocol_type,
        each.protocol,
        each.generation,
        each.leader_id,
        each.coordinator_id,
        tuple(
            _broker_side_member(member)
            if each.group_type == BROKER_SIDE
            else _member(member, each.protocol_type)
            for member in each.members
        ),
        each.group_type,
        each.assignment_epoch,
        each.assignor_failure,
    )


def _broker_side_member(member: pb.DescribedMember) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id or None,
        member.client_id,
        member.client_host,
        _partitions(member.current),
        tuple(member.topics),
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member_epoch=member.member_epoch,
        target=_partitions(member.target),
        topic_regex=member.topic_regex or None,
        rack_id=member.rack_id or None,
    )


def _partitions(topics: Iterable[pb.AssignedTopic]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(each.topic, index) for each in topics for index in each.partitions))


def _member(member: pb.DescribedMember, protocol_type: str) -> MemberDescription:
    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == "consumer":
        try:
            partitions = tuple(sorted(decode_assignment(member.assignment)))
            topics = decode_subscription(member.metadata).topics if member.metadata else ()
        except Undecodable:
            partitions = ()  # unknown format of the client; still show the other fields
    return MemberDescription(
        member.member_id,
        member.group_instance_id or None,
        member.client_id,
        member.client_host,
        partitions,
        topics,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        tuple(member.protocols),
    )
