"""A consumer's membership of a classic group: the shell around `group_machine`. [S]

Executes the machine's effects: calls to the coordinator in the background; `group_shell` has the user's turns.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ottla_client.cluster import Cluster, TopicLayout
from ottla_client.coordinator import Coordinator, refusal
from ottla_client.errors import ClientError
from ottla_client.group_effects import JoinAnswer, LearnTopics, SendHeartbeat, SendJoin, SendLeave, SendSync
from ottla_client.group_machine import GroupMachine, GroupPolicy
from ottla_client.group_shell import GroupSettings, GroupShell, Holder
from ottla_client.listener import RebalanceListener
from ottla_core.errors import RequestError, UnknownTopicOrPartition
from ottla_core.pb import broker_pb2
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

#: A join is answered when all members have joined or timed out; this is the margin after that.
_JOIN_SLACK_S = 10.0
_LEAVE_TIMEOUT_S = 5.0
#: How often missing subscribed topics are looked up.
_MISSING_TOPICS_S = 1.0


class GroupSession(GroupShell):
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        coordinator: Coordinator,
        settings: GroupSettings,
        holder: Holder,
    ) -> None:
        self._classic = GroupMachine(_policy(settings))
        super().__init__(cluster, clock, coordinator, settings, holder, self._classic)
        self._pattern: re.Pattern[str] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        cluster.listen(self._learnt)

    @property
    def is_subscribed(self) -> bool:
        return self._pattern is not None or super().is_subscribed

    def subscribe(self, topics: Sequence[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        self._listener = listener or RebalanceListener()
        self._classic.failure = None
        if isinstance(topics, re.Pattern):
            self._pattern = topics
        else:
            self._pattern = None
            self._do(self._classic.subscribe(topics, self._now()))
        if self._watching is None:
            self._watching = self._cluster.background.spawn(self._watch_topics(), "topics of the group")
        self._look_now.set()

    async def leave(self, reason: str) -> None:
        try:
            await super().leave(reason)
        finally:
            self._pattern = None

    # ------------------------------------------------------------------ effects

    def _start(self, effect: Any) -> None:
        spawn = self._cluster.background.spawn
        match effect:
            case SendJoin():
                spawn(self._join(effect), "join")
            case LearnTopics():
                spawn(self._learn(effect), "topics of all members")
            case SendSync():
                spawn(self._sync(effect), "sync")
            case SendHeartbeat():
                spawn(self._beat(effect), "heartbeat")
            case SendLeave():
                spawn(self._leave(effect), "leave")

    async def _say_goodbye(self, effect: Any) -> None:
        if isinstance(effect, SendLeave):
            await self._leave(effect)

    async def _join(self, effect: SendJoin) -> None:
        settings = self._settings
        request = pb.JoinGroupRequest(
            group=settings.group_id,
            member_id=effect.member_id,
            group_instance_id=settings.group_instance_id,
            client_id=settings.client_id,
            protocol_type="consumer",
            protocols=[pb.GroupProtocol(name=name, metadata=data) for name, data in effect.protocols],
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            reason=effect.reason,
        )
        timeout_s = settings.max_poll_interval_ms / 1000 + _JOIN_SLACK_S
        try:
            answer = await self._coordinator.call("Join", request, timeout_s)
        except (ClientError, RequestError) as error:
            self._do(self._classic.join_refused(effect.attempt, error, self._now()))
            return
        refused = refusal(answer)
        if refused is not None:
            self._do(self._classic.join_refused(effect.attempt, refused, self._now(), answer.member_id))
            return
        told_us = JoinAnswer(
            answer.member_id,
            answer.generation,
            answer.leader_id,
            answer.protocol,
            tuple((each.member_id, each.group_instance_id or None, each.metadata) for each in answer.members),
            answer.skip_assignment,
        )
        self._do(self._classic.joined(effect.attempt, told_us, self._now()))

    async def _learn(self, effect: LearnTopics) -> None:
        try:
            if effect.topics:
                await self._cluster.refresh(effect.topics, timeout_s=self._settings.request_timeout_s)
        except (ClientError, RequestError) as error:
            self._do(self._classic.sync_refused(effect.attempt, error, self._now()))
            return
        self._do(self._classic.topics_learnt(effect.attempt, self._counts(effect.topics), self._now()))

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        layouts = {topic: self._cluster.topics.get(topic) for topic in topics}
        return {topic: 0 if layout is None else len(layout.partitions) for topic, layout in layouts.items()}

    async def _sync(self, effect: SendSync) -> None:
        request = pb.SyncGroupRequest(
            group=self._settings.group_id,
            generation=effect.identity.generation,
            member_id=effect.identity.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type="consumer",
            protocol=effect.protocol,
            assignments=[
                pb.MemberAssignment(member_id=member_id, assignment=data)
                for member_id, data in effect.assignments.items()
            ],
        )
        timeout_s = self._settings.max_poll_interval_ms / 1000 + _JOIN_SLACK_S
        try:
            answer = await self._coordinator.call("Sync", request, timeout_s)
            refused = refusal(answer)
            if refused is not None:
                raise refused
        except (ClientError, RequestError) as error:
            self._do(self._classic.sync_refused(effect.attempt, error, self._now()))
            return
        self._do(self._classic.synced(effect.attempt, answer.assignment, self._now()))

    async def _beat(self, effect: SendHeartbeat) -> None:
        request = pb.GroupHeartbeatRequest(
            group=self._settings.group_id,
            generation=effect.identity.generation,
            member_id=effect.identity.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        # Short enough to find another coordinator before the session expires.
        timeout_s = min(self._settings.request_timeout_s, self._settings.session_timeout_ms / 3000)
        failed: Exception | None
        try:
            failed = refusal(await self._coordinator.call("Heartbeat", request, timeout_s))
        except (ClientError, RequestError) as error:
            failed = error
        self._do(self._classic.heartbeat_answered(effect.identity, failed, self._now()))

    async def _leave(self, effect: SendLeave) -> None:
        request = pb.LeaveGroupRequest(group=self._settings.group_id)
        request.members.add(member_id=effect.member_id, reason=effect.reason)
        try:
            await self._coordinator.call("Leave", request, _LEAVE_TIMEOUT_S)
        except (ClientError, RequestError) as error:
            # The session will expire.
            log.info("Group %s was not left: %s", self._settings.group_id, error)

    # ------------------------------------------------------------------ new topics and partitions

    async def _watch_topics(self) -> None:
        """Watch for new topics that match a pattern, missing topics, and new partitions."""
        while True:
            self._look_now.clear()
            missing = True
            try:
                missing = await self._check_topics()
            except (ClientError, RequestError) as error:
                log.warning("Topics of group %s could not be looked up: %s", self._settings.group_id, error)
            try:
                async with asyncio.timeout(_MISSING_TOPICS_S if missing else self._settings.topics_max_age_s):
                    await self._look_now.wait()
            except TimeoutError:
                continue

    async def _check_topics(self) -> bool:
        """Refresh the topics; True if subscribed ones are missing."""
        timeout_s = self._settings.request_timeout_s
        if self._pattern is not None:
            answer = await self._cluster.call("Metadata", broker_pb2.MetadataRequest(), timeout_s=timeout_s)
            pattern = self._pattern
            if pattern is not None:
                names = [topic.name for topic in answer.topics if not topic.internal]
                found = sorted(name for name in names if pattern.fullmatch(name))
                self._do(self._classic.subscribe(found, self._now()))
                self._holder.wake()
        topics = self._classic.watched_topics
        if not topics:
            return self._pattern is not None
        refused = await self._cluster.refresh(topics, timeout_s=timeout_s)
        gone = [name for name, error in refused.items() if isinstance(error, UnknownTopicOrPartition)]
        self._do(self._classic.partitions_changed(dict.fromkeys(gone, 0), self._now()))
        return any(topic in refused for topic in self._classic.topics)

    def _learnt(self, layout: TopicLayout) -> None:
        """A layout arrived, for any reason."""
        if not self._closed and layout.name in self._classic.watched_topics:
            self._do(self._classic.partitions_changed({layout.name: len(layout.partitions)}, self._now()))


def _policy(settings: GroupSettings) -> GroupPolicy:
    return GroupPolicy(
        settings.assignors,
        bool(settings.group_instance_id),
        settings.heartbeat_interval_ms / 1000,
        settings.max_poll_interval_ms / 1000,
        settings.backoff_s,
        settings.backoff_max_s,
    )
