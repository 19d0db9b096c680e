"""Consumer groups, for both edges: finds the coordinator, validates requests, passes them to the group's shard. [S]

A group belongs to one partition of `__consumer_offsets`; the broker that leads the partition coordinates the group
(`internal_topic`).

Requests that can be answered at once need no task or await: see `Maybe` in requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ottla_broker.coordination.runtime import Runtime
from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.event_loop import settled
from ottla_broker.group.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
    DescribedConsumerGroup,
)
from ottla_broker.group.messages import (
    NO_GENERATION,
    BeginVerification,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteReply,
    DescribedGroup,
    DescribeGroup,
    EndTransaction,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    ListedGroup,
    ListGroupIds,
    ListGroups,
    OffsetToCommit,
    Protocol,
    State,
    SyncGroup,
    SyncReply,
)
from ottla_broker.group.shard import GroupShard
from ottla_broker.group.verifications import Verification
from ottla_broker.group_config import NO_SETTINGS, GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import GroupsProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_broker.service.internal_topic import InternalTopic
from ottla_broker.service.topics import TopicService
from ottla_broker.steps import PARTITIONS_PER_STEP, Steps
from ottla_core.assignors.model import Assignor
from ottla_core.assignors.registry import BUILT_IN
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    NotCoordinator,
    RequestError,
    UnknownTopicOrPartition,
)
from ottla_core.ids import NO_TOPIC_ID, TopicPartition
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

OFFSETS_TOPIC = "__consumer_offsets"

T = TypeVar("T")

#: Records hold texts of up to 32,767 bytes, and a character has up to four.
_TEXT_MAX = 8_000
#: Groups that are listed in one slice; one costs a microsecond or two.
_GROUPS_PER_STEP = 8 * PARTITIONS_PER_STEP
#: A group's record: as much as a topic takes by default, less what the batch around it needs.
_RECORD_BYTES_MAX = 1_000_000


class CommittedGroup(NamedTuple):
    """Offsets of one group, for metrics."""

    group: str
    members: int
    offsets: Mapping[TopicPartition, int]


class GroupService:
    def __init__(
        self,
        config: GroupsConfig,
        metadata: Metadata,
        topics: TopicService,
        host: PartitionHost,
        clock: Clock,
        offload: Offload,
        chance: Chance,
        probe: GroupsProbe,
        assignors: Mapping[str, Assignor] = BUILT_IN,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._chance = chance
        self._host = host
        self._probe = probe
        #: Settings of groups, by group id.
        self._settings: dict[str, GroupSettings] = {}
        self._group_configs: Mapping[str, Mapping[str, str]] = {}
        self._topic = InternalTopic(
            OFFSETS_TOPIC,
            metadata,
            topics,
            partitions=config.partitions,
            replication_factor=config.replication_factor,
            config={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.segment_bytes),
            },
        )
        self._runtime = Runtime(
            OFFSETS_TOPIC,
            host,
            clock,
            offload,
            probe,
            lambda: GroupShard(
                config,
                probe,
                record_bytes_max=_RECORD_BYTES_MAX,
                settings_of=self._settings_of,
                assignors=assignors,
                held_everywhere=self._member_bytes,
            ),
            commit_timeout_s=config.commit_timeout_ms / 1000,
        )

    # ------------------------------------------------------------------ life

    def _member_bytes(self) -> int:
        return sum(shard.memory.bytes for _, shard in self._runtime.ready() if isinstance(shard, GroupShard))

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after the partitions were reconciled with the image."""
        self._take_over_settings(new)  # First: shards look them up when they see the image.
        self._runtime.on_image(old, new)

    def _settings_of(self, group: str) -> GroupSettings:
        return self._settings.get(group, NO_SETTINGS)

    def _take_over_settings(self, image: ClusterImage) -> None:
        before, self._group_configs = self._group_configs, image.group_configs
        if image.group_configs is before:
            return
        for group in {**before, **image.group_configs}:
            values = image.group_configs.get(group)
            if values is None:
                self._settings.pop(group, None)
            elif before.get(group) != values:
                self._settings[group] = GroupSettings.understood(values)

    def close(self) -> None:
        self._runtime.close()

    def refresh_metrics(self) -> None:
        probe, states = self._probe, dict.fromkeys(State, 0)
        probe.shards, probe.offsets, ready = len(self._runtime), 0, 0
        for _, shard in self._runtime.ready():
            ready += 1
            if isinstance(shard, GroupShard):
                probe.offsets += len(shard.offsets)
                for state, count in shard.states().items():
                    states[state] += count
        probe.member_bytes = self._member_bytes()
        probe.shards_loading = probe.shards - ready
        for state, count in states.items():
            probe.groups.of(state.value).n = count

    def committed(self) -> Iterator[CommittedGroup]:
        """The groups that this broker coordinates, with their committed offsets."""
        for _, shard in self._runtime.ready():
            if isinstance(shard, GroupShard):
                for name, group in shard.groups.items():
                    offsets = {tp: value.offset for tp, value in shard.offsets.of(name).items()}
                    yield CommittedGroup(name, len(group.members), offsets)
                for consumers in shard.consumers:
                    offsets = {tp: value.offset for tp, value in shard.offsets.of(consumers.id).items()}
                    yield CommittedGroup(consumers.id, len(consumers.members), offsets)

    # ------------------------------------------------------------------ finding

    def find_coordinator(self, group: str) -> Maybe[BrokerImage]:
        """The broker that coordinates the group, whether it exists or not."""
        self._check_group(group)
        return self._topic.locate(group)

    def partition_of(self, group: str) -> int:
        """The partition of `__consumer_offsets` that holds the group."""
        return self._topic.partition_of(group)

    def _ask(self, group: str, request: Any) -> Maybe[Any]:
        return self._ask_shard(self._topic.partition_of(group), request)

    def _ask_shard(self, index: int, request: Any) -> Maybe[Any]:
        return _refusals_raised(self._runtime.ask(index, request))

    def _check_group(self, group: str) -> None:
        if not group:
            raise InvalidGroupId("The group id must not be empty.")
        self._check_name(group)

    def _check_name(self, group: str) -> None:
        if len(group) > _TEXT_MAX:
            raise InvalidGroupId(f"A group id has at most {_TEXT_MAX} characters.")

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
        """Waits until the generation begins. With `error` MEMBER_ID_REQUIRED: join again with that id."""
        self._check_group(group)
        config = self._config
        if not config.session_timeout_min_ms <= session_timeout_ms <= config.session_timeout_max_ms:
            raise InvalidSessionTimeout(
                f"A session timeout of {session_timeout_ms} ms is not within {config.session_timeout_min_ms} "
                f"and {config.session_timeout_max_ms} ms."
            )
        texts = (
            member_id,
            instance_id or "",
            client_id,
            client_host,
            protocol_type,
            *(p.name for p in protocols),
        )
        if any(len(text) > _TEXT_MAX for text in texts):
            raise InvalidRequest(f"Names have at most {_TEXT_MAX} characters.")
        request = JoinGroup(
            group,
            member_id,
            f"{instance_id or client_id}-{self._chance.uuid()}",
            instance_id or None,
            client_id,
            client_host,
            protocol_type,
            tuple(protocols),
            session_timeout_ms,
            max(rebalance_timeout_ms, 0),
            requires_known_id,
            can_skip_assignment,
        )
        return self._ask(group, request)

    def sync(self, request: SyncGroup) -> Maybe[SyncReply]:
        """Waits until the leader of the generation has assigned."""
        self._check_group(request.group)
        return self._ask(request.group, request)

    def heartbeat(self, request: Heartbeat) -> Maybe[HeartbeatReply]:
        self._check_group(request.group)
        return self._ask(request.group, request)

    def leave(self, request: LeaveGroup) -> Maybe[LeaveReply]:
        self._check_group(request.group)
        return self._ask(request.group, request)

    def consumer_heartbeat(self, request: ConsumerHeartbeat) -> Maybe[ConsumerHeartbeatReply]:
        """The one request of members of broker-side groups: join, stay, leave."""
        self._check_group(request.group)
        texts = (
            request.member_id,
            request.instance_id or "",
            request.rack_id or "",
            request.client_id,
            request.client_host,
            request.assignor or "",
            *(request.topics or ()),
        )
        if any(len(text) > _TEXT_MAX for text in texts):
            raise InvalidRequest(f"Names have at most {_TEXT_MAX} characters.")
        if sum(map(len, texts)) > _RECORD_BYTES_MAX // 4:
            raise InvalidRequest("The subscription is too large; use a regular expression.")
        if not request.member_id:
            if request.member_epoch != JOIN_EPOCH:
                raise InvalidRequest("The member id must not be empty.")
            request = replace(request, member_id=str(self._chance.uuid()))
        return self._ask(request.group, request)

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
        producer: ProducerIdentity | None = None,
        verification: Verification | None = None,
    ) -> Maybe[CommitReply]:
        """Commit each offset independently: offsets of unknown topics are refused, the others committed.

        With a `producer` they are part of its transaction, and visible once that is committed.
        """
        self._check_name(group)
        if producer is not None:
            # The log would refuse a fenced producer, too, but only after the shard has decided.
            offsets_tp = TopicPartition(OFFSETS_TOPIC, self.partition_of(group))
            self._host.find(offsets_tp).log.producers.check_producer(producer)
        image = self._metadata.image
        errors: list[RequestError | None] = []
        known: list[OffsetToCommit] = []
        for each in offsets:
            if image.partition(each.tp) is None:
                errors.append(UnknownTopicOrPartition(f"There is no partition {each.tp}."))
            else:
                errors.append(None)
                known.append(each._replace(topic_id=image.topics[each.tp.topic].id))
        if not known and offsets:
            return CommitReply(tuple(errors))
        request = CommitOffsets(
            group, generation, member_id, instance_id, tuple(known), retention_ms, producer, verification
        )
        reply = self._ask(group, request)
        if len(known) == len(errors):
            return reply
        if isinstance(reply, Awaitable):
            return _merged_later(errors, reply)
        return _merged(errors, reply)

    def commit_in_steps(
        self,
        group: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Sequence[OffsetToCommit],
        *,
        retention_ms: int | None = None,
        producer: ProducerIdentity | None = None,
        verification: Verification | None = None,
    ) -> Steps[Maybe[CommitReply]]:
        """The same in slices. If the group changes in between, the rest is refused."""

        def commit(part: Sequence[OffsetToCommit]) -> Maybe[CommitReply]:
            return self.commit(
                group,
                generation,
                member_id,
                instance_id,
                part,
                retention_ms=retention_ms,
                producer=producer,
                verification=verification,
            )

        return (yield from committed_in_parts(commit, offsets))

    def begin_verification(self, group: str, producer: ProducerIdentity) -> Verification:
        """For `commit`: called before the transaction is verified with its coordinator. The caller ends it."""
        self._check_name(group)
        verification = Verification(producer.producer_id)
        # Registered at once; the reply says nothing more.
        self._runtime.ask(self._topic.partition_of(group), BeginVerification(verification))
        return verification

    def end_transaction(self, partition: int, marker: TransactionMarker) -> Maybe[TransactionMarker]:
        """Commit or drop the offsets of a producer's transaction in one partition of `__consumer_offsets`."""
        return _refusals_raised(self._runtime.ask(partition, EndTransaction(marker)))

    def fetch(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        member_id: str = "",
        member_epoch: int = NO_GENERATION,
        require_stable: bool = False,
    ) -> Maybe[FetchReply]:
        """Committed offsets of these partitions, or of all; NO_OFFSET where there is none."""
        self._check_name(group)
        wanted = None if partitions is None else tuple(partitions)
        reply = self._ask(group, FetchOffsets(group, wanted, member_id, member_epoch, require_stable))
        if isinstance(reply, Awaitable):
            return self._shown_later(reply)
        return self._shown(reply)

    async def _shown_later(self, reply: Awaitable[FetchReply]) -> FetchReply:
        return self._shown(await reply)

    def _shown(self, reply: FetchReply) -> FetchReply:
        """Leave out offsets of a deleted topic of the same name; they are about to be removed."""
        topics = self._metadata.image.topics

        def is_current(name: str, topic_id: UUID) -> bool:
            topic = topics.get(name)
            return topic_id == NO_TOPIC_ID or (topic is not None and topic.id == topic_id)

        return replace(reply, is_current=is_current)

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Maybe[DeleteOffsetsReply]:
        self._check_group(group)
        return self._ask(group, DeleteOffsets(group, tuple(partitions)))

    # ------------------------------------------------------------------ administration

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> Steps[list[ListedGroup]]:
        """The groups that this broker coordinates."""
        if self._runtime.is_loading:
            raise CoordinatorLoadInProgress()
        wanted, kinds = {state.casefold() for state in states}, {kind.casefold() for kind in types}
        found: list[ListedGroup] = []
        for index, _ in list(self._runtime.ready()):
            try:
                reply = yield from settled(self._ask_shard(index, ListGroupIds()))
                for at in range(0, len(reply.groups), _GROUPS_PER_STEP):
                    yield None
                    some = ListGroups(reply.groups[at : at + _GROUPS_PER_STEP])
                    listed = yield from settled(self._ask_shard(index, some))
                    found += [
                        each
                        for each in listed.groups
                        if (not wanted or each.state.casefold() in wanted)
                        and (not kinds or each.type in kinds)
                    ]
            except NotCoordinator:
                continue  # The partition has moved: the new coordinator lists its groups.
        return found

    def describe(self, group: str) -> Maybe[DescribedGroup]:
        """A group that does not exist is DEAD."""
        self._check_name(group)
        return self._ask(group, DescribeGroup(group))

    def describe_consumers(self, group: str) -> Maybe[DescribedConsumerGroup]:
        """A broker-side group; GROUP_ID_NOT_FOUND if it is none."""
        self._check_name(group)
        return self._ask(group, DescribeConsumerGroup(group))

    def delete(self, group: str) -> Maybe[DeleteReply]:
        self._check_name(group)
        return self._ask(group, DeleteGroup(group))


def _refusals_raised(reply: Maybe[Any]) -> Maybe[Any]:
    return _raise_later(reply) if isinstance(reply, asyncio.Future) else reply


async def _raise_later(reply: asyncio.Future[Any]) -> Any:
    found = await reply
    if isinstance(found, RequestError):
        raise found
    return found


def committed_in_parts(
    commit: Callable[[Sequence[OffsetToCommit]], Maybe[CommitReply]], offsets: Sequence[OffsetToCommit]
) -> Steps[Maybe[CommitReply]]:
    """Commit the offsets in slices. If the first is refused as a whole, so are the others."""
    parts: list[Maybe[CommitReply]] = []
    try:
        for at in range(0, max(len(offsets), 1), PARTITIONS_PER_STEP):
            if at:
                yield None
            part = offsets[at : at + PARTITIONS_PER_STEP]
            try:
                parts.append(commit(part))
            except RequestError as error:
                if not at:
                    raise
                parts.append(CommitReply((error,) * len(part)))
    except GeneratorExit:  # The client has disconnected.
        for each in parts:
            if isinstance(each, Coroutine):
                each.close()
        raise
    return parts[0] if len(parts) == 1 else _joined_later(parts, len(offsets))


async def _joined_later(parts: list[Maybe[CommitReply]], count: int) -> CommitReply:
    """The errors of all parts, in order. `count` is the number of offsets."""
    errors: list[RequestError | None] = []
    for at, part in enumerate(parts):
        try:
            errors += (await part if isinstance(part, Awaitable) else part).errors
        except RequestError as error:
            errors += (error,) * min(PARTITIONS_PER_STEP, count - at * PARTITIONS_PER_STEP)
    return CommitReply(tuple(errors))


async def _merged_later(errors: list[RequestError | None], reply: Awaitable[CommitReply]) -> CommitReply:
    return _merged(errors, await reply)


def _merged(errors: list[RequestError | None], reply: CommitReply) -> CommitReply:
    """Errors in the order of the request, of which the coordinator saw only some."""
    rest = iter(reply.errors)
    return CommitReply(tuple(next(rest) if error is None else error for error in errors))
