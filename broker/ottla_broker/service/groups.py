"""Consumer groups: what both edges call. Finds the coordinator, checks what is said, hands it to the group's shard. [S]

A group belongs to one partition of `__consumer_offsets`, by a hash of its name; the broker that leads the partition
coordinates the group. The topic is created when the first group asks for its coordinator.

What can be answered at once is answered without a task or an await: see `Maybe` in requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import structlog

from ottla_broker.config import GroupsConfig
from ottla_broker.controller.image import BrokerImage, ClusterImage
from ottla_broker.controller.metadata import Metadata
from ottla_broker.coordination.runtime import Runtime
from ottla_broker.group.coordinator import OFFSETS_TOPIC, coordinator_partition
from ottla_broker.group.messages import (
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteReply,
    DescribedGroup,
    DescribeGroup,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    ForgetTopics,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    ListedGroup,
    ListGroups,
    OffsetToCommit,
    Protocol,
    ReviewSettings,
    State,
    SyncGroup,
    SyncReply,
)
from ottla_broker.group.shard import GroupShard
from ottla_broker.group_config import NO_SETTINGS, GroupSettings
from ottla_broker.metrics import GroupsProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.requests import Maybe, NewTopic
from ottla_broker.service.topics import TopicService
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    NotCoordinator,
    RequestError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ids import NO_TOPIC_ID, TopicPartition
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.groups")

T = TypeVar("T")

#: Records hold texts of up to 32,767 bytes, and a character has up to four.
_TEXT_MAX = 8_000
#: A group's record: as much as a topic takes by default, less what the batch around it needs.
_RECORD_BYTES_MAX = 1_000_000
_REPLICAS_WANTED = 3
_CREATE_TIMEOUT_S = 10.0


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
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._topics = topics
        self._chance = chance
        self._probe = probe
        #: What is set for groups, by their ids.
        self._settings: dict[str, GroupSettings] = {}
        self._group_configs: Mapping[str, Mapping[str, str]] = {}
        #: One creation of the topic at a time.
        self._creating = asyncio.Lock()
        self._runtime = Runtime(
            OFFSETS_TOPIC,
            host,
            clock,
            offload,
            probe,
            lambda: GroupShard(
                config, probe, record_bytes_max=_RECORD_BYTES_MAX, settings_of=self._settings_of
            ),
            commit_timeout_s=config.commit_timeout_ms / 1000,
            on_ready=self._forget_topics,
        )

    # ------------------------------------------------------------------ life

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after the partitions have followed the image."""
        changed = self._take_over_settings(new)
        self._runtime.on_image(old, new)
        topic = new.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            for group in changed:
                self._review(coordinator_partition(group, len(topic.partitions)), group)
        if old.topics is not new.topics and _lost_topics(old, new):
            existing = _topic_ids(new)
            for index, _ in self._runtime.ready():
                self._forget_topics(index, existing)

    def _settings_of(self, group: str) -> GroupSettings:
        return self._settings.get(group, NO_SETTINGS)

    def _take_over_settings(self, image: ClusterImage) -> list[str]:
        """Groups whose settings are others now."""
        if image.group_configs is self._group_configs:
            return []
        before, self._group_configs = self._group_configs, image.group_configs
        changed = [
            group
            for group in {**before, **image.group_configs}
            if before.get(group) != image.group_configs.get(group)
        ]
        for group in changed:
            values = image.group_configs.get(group)
            if values is None:
                self._settings.pop(group, None)
            else:
                self._settings[group] = GroupSettings.understood(values)
        return changed

    def _review(self, index: int, group: str) -> None:
        try:
            self._runtime.ask(index, ReviewSettings(group))
        except RequestError as error:
            # Not ours, or not now: the next rebalance goes by what is set, whoever coordinates it.
            _log.debug("settings of a group are not looked at here", group=group, reason=str(error))

    def close(self) -> None:
        self._runtime.close()

    def _forget_topics(self, index: int, existing: Mapping[str, UUID] | None = None) -> None:
        """Offsets go with their topics; also with those that were deleted while nobody led this partition."""
        try:
            self._runtime.ask(index, ForgetTopics(existing or _topic_ids(self._metadata.image)))
        except RequestError as error:
            # Whoever leads the partition next looks for such offsets when it has loaded.
            _log.info("offsets of deleted topics stay for now", partition=index, reason=str(error))

    def refresh_metrics(self) -> None:
        probe, states = self._probe, dict.fromkeys(State, 0)
        probe.shards, probe.offsets, ready = len(self._runtime), 0, 0
        for _, shard in self._runtime.ready():
            ready += 1
            if isinstance(shard, GroupShard):
                probe.offsets += len(shard.offsets)
                for state, count in shard.states().items():
                    states[state] += count
        probe.shards_loading = probe.shards - ready
        for state, count in states.items():
            probe.groups.of(state.value).n = count

    # ------------------------------------------------------------------ finding

    def find_coordinator(self, group: str) -> Maybe[BrokerImage]:
        """The broker that coordinates the group, whether it exists or not."""
        self._check_group(group)
        if OFFSETS_TOPIC in self._metadata.image.topics:
            return self._coordinator(group)
        return self._create_and_find(group)

    def _coordinator(self, group: str) -> BrokerImage:
        image = self._metadata.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable()
        leader = topic.partitions[coordinator_partition(group, len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        if broker is None:
            raise CoordinatorNotAvailable("The coordinator's partition has no leader right now.")
        return broker

    async def _create_and_find(self, group: str) -> BrokerImage:
        async with self._creating:
            image = self._metadata.image
            if OFFSETS_TOPIC not in image.topics:
                try:
                    async with asyncio.timeout(_CREATE_TIMEOUT_S):
                        await self._create(image)
                except (RequestError, TimeoutError) as error:
                    _log.warning(
                        "cannot create the topic of the groups", topic=OFFSETS_TOPIC, reason=str(error)
                    )
                    raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} cannot be created now: {error}") from None
        return self._coordinator(group)

    async def _create(self, image: ClusterImage) -> None:
        config = self._config
        factor = config.replication_factor
        if factor < 1:
            # All brokers that the cluster knows count, also one that is away for a moment.
            factor = min(_REPLICAS_WANTED, max(1, len(image.members)))
        wanted = NewTopic(
            OFFSETS_TOPIC,
            config.partitions,
            factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.segment_bytes),
            },
        )
        (result,) = await self._topics.create([wanted], validate_only=False, timeout_s=_CREATE_TIMEOUT_S)
        if result.error is not None and not isinstance(result.error, TopicAlreadyExists):
            raise result.error

    def _ask(self, group: str, request: Any) -> Maybe[Any]:
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise NotCoordinator()
        return _refusals_raised(
            self._runtime.ask(coordinator_partition(group, len(topic.partitions)), request)
        )

    def _check_group(self, group: str) -> None:
        if not group:
            raise InvalidGroupId("A group needs a name.")
        self._check_name(group)

    def _check_name(self, group: str) -> None:
        if len(group) > _TEXT_MAX:
            raise InvalidGroupId(f"The name of a group has at most {_TEXT_MAX} characters.")

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
        """Each offset on its own: those of topics that do not exist are refused, the others committed."""
        self._check_name(group)
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
        request = CommitOffsets(group, generation, member_id, instance_id, tuple(known), retention_ms)
        reply = self._ask(group, request)
        if len(known) == len(errors):
            return reply
        if isinstance(reply, Awaitable):
            return _merged_later(errors, reply)
        return _merged(errors, reply)

    def fetch(self, group: str, partitions: Sequence[TopicPartition] | None) -> Maybe[FetchReply]:
        """What is committed for these partitions, or for all; NO_OFFSET where there is nothing."""
        self._check_name(group)
        wanted = None if partitions is None else tuple(partitions)
        reply = self._ask(group, FetchOffsets(group, wanted))
        if isinstance(reply, Awaitable):
            return self._shown_later(reply)
        return self._shown(reply)

    async def _shown_later(self, reply: Awaitable[FetchReply]) -> FetchReply:
        return self._shown(await reply)

    def _shown(self, reply: FetchReply) -> FetchReply:
        """Without offsets of a former topic of the same name; they are about to be removed."""
        topics = self._metadata.image.topics

        def is_current(name: str, topic_id: UUID) -> bool:
            topic = topics.get(name)
            return topic_id == NO_TOPIC_ID or (topic is not None and topic.id == topic_id)

        if all(is_current(each.tp.topic, each.topic_id) for each in reply.offsets):
            return reply
        shown = (
            each if is_current(each.tp.topic, each.topic_id) else FetchedOffset(each.tp)
            for each in reply.offsets
        )
        return replace(reply, offsets=tuple(shown))

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Maybe[DeleteOffsetsReply]:
        self._check_group(group)
        return self._ask(group, DeleteOffsets(group, tuple(partitions)))

    # ------------------------------------------------------------------ administration

    async def list_groups(self, states: Sequence[str] = ()) -> list[ListedGroup]:
        """The groups that this broker coordinates, by name."""
        if self._runtime.is_loading:
            raise CoordinatorLoadInProgress()
        wanted = {state.casefold() for state in states}
        found: list[ListedGroup] = []
        for index, _ in list(self._runtime.ready()):
            try:
                reply = _refusals_raised(self._runtime.ask(index, ListGroups()))
                found += (await reply if isinstance(reply, Awaitable) else reply).groups
            except NotCoordinator:
                continue  # It has moved: the new coordinator lists them.
        return sorted(each for each in found if not wanted or each.state.casefold() in wanted)

    def describe(self, group: str) -> Maybe[DescribedGroup]:
        """A group that does not exist is DEAD."""
        self._check_name(group)
        return self._ask(group, DescribeGroup(group))

    def delete(self, group: str) -> Maybe[DeleteReply]:
        self._check_name(group)
        return self._ask(group, DeleteGroup(group))


def _topic_ids(image: ClusterImage) -> dict[str, UUID]:
    return {name: topic.id for name, topic in image.topics.items()}


def _lost_topics(old: ClusterImage, new: ClusterImage) -> bool:
    for name, topic in old.topics.items():
        now = new.topics.get(name)
        if now is None or now.id != topic.id:
            return True
    return False


def _refusals_raised(reply: Maybe[Any]) -> Maybe[Any]:
    return _raise_later(reply) if isinstance(reply, asyncio.Future) else reply


async def _raise_later(reply: asyncio.Future[Any]) -> Any:
    found = await reply
    if isinstance(found, RequestError):
        raise found
    return found


async def _merged_later(errors: list[RequestError | None], reply: Awaitable[CommitReply]) -> CommitReply:
    return _merged(errors, await reply)


def _merged(errors: list[RequestError | None], reply: CommitReply) -> CommitReply:
    """Errors in the order of the request, of which the coordinator saw only some."""
    told = iter(reply.errors)
    return CommitReply(tuple(next(told) if error is None else error for error in errors))
