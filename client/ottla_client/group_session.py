"""A consumer's membership of its group: the shell around `group_machine`. [S]

Executes the machine's effects: calls to the coordinator in the background, and the user's turns inside `poll`.
Owned by one `Consumer`, which applies assignments (`Holder`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla_client.assignors import Assignor
from ottla_client.cluster import Cluster, TopicLayout
from ottla_client.coordinator import Coordinator, refusal
from ottla_client.errors import ClientError
from ottla_client.group_effects import (
    Effect,
    Identity,
    JoinAnswer,
    LearnTopics,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeTurn,
    Turn,
    Warn,
)
from ottla_client.group_machine import GroupMachine, GroupPolicy
from ottla_client.listener import OnPartitions, RebalanceListener
from ottla_core.errors import RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

#: A join is answered when all members have joined or timed out; this is the margin after that.
_JOIN_SLACK_S = 10.0
_LEAVE_TIMEOUT_S = 5.0
#: How often missing subscribed topics are looked up.
_MISSING_TOPICS_S = 1.0


@dataclass(frozen=True, slots=True)
class GroupSettings:
    group_id: str
    group_instance_id: str
    client_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    assignors: tuple[Assignor, ...]
    request_timeout_s: float
    backoff_s: float
    backoff_max_s: float
    topics_max_age_s: float

    def policy(self) -> GroupPolicy:
        return GroupPolicy(
            self.assignors,
            bool(self.group_instance_id),
            self.heartbeat_interval_ms / 1000,
            self.max_poll_interval_ms / 1000,
            self.backoff_s,
            self.backoff_max_s,
        )


class Holder(Protocol):
    """The reader of the assigned partitions."""

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        """Replace the assignment; new partitions start at the committed offsets."""

    async def before_revocation(self) -> None:
        """Commit offsets while the partitions are still assigned."""

    def wake(self) -> None:
        """Wake a waiting poll: something has changed."""


class GroupSession:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        coordinator: Coordinator,
        settings: GroupSettings,
        holder: Holder,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._coordinator = coordinator
        self._settings = settings
        self._holder = holder
        self._machine = GroupMachine(settings.policy())
        self._listener = RebalanceListener()
        self._pattern: re.Pattern[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._turns = asyncio.Lock()
        #: Steps of the current turn that are done, in case a poll is cancelled in the middle of it.
        self._turn_step = 0
        self._closed = False
        cluster.listen(self._learnt)

    # ------------------------------------------------------------------ for the consumer

    @property
    def identity(self) -> Identity:
        return self._machine.identity

    @property
    def is_subscribed(self) -> bool:
        return self._pattern is not None or bool(self._machine.topics)

    @property
    def subscription(self) -> tuple[str, ...]:
        return self._machine.topics

    def subscribe(self, topics: Sequence[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        self._listener = listener or RebalanceListener()
        self._machine.failure = None
        if isinstance(topics, re.Pattern):
            self._pattern = topics
        else:
            self._pattern = None
            self._do(self._machine.subscribe(topics, self._now()))
        if self._watching is None:
            self._watching = self._cluster.background.spawn(self._watch_topics(), "topics of the group")
        self._look_now.set()

    async def poll_began(self) -> None:
        """Run the user's turn, if one is due. Raises errors of listeners and the fatal error of the membership."""
        self._do(self._machine.poll_began(self._now()))
        async with self._turns:
            while (turn := self._machine.begin_turn()) is not None:
                try:
                    await self._take(turn)
                except asyncio.CancelledError:
                    raise  # the next poll continues here
                except BaseException:
                    self._turn_done(turn)
                    raise
                self._turn_done(turn)
        if self._machine.failure is not None:
            raise self._machine.failure

    def poll_ended(self) -> None:
        self._machine.poll_ended(self._now())
        self._set_timer()

    def commit_refused(self, identity: Identity, error: RequestError) -> None:
        self._do(self._machine.commit_refused(identity, error, self._now()))

    async def leave(self, reason: str) -> None:
        """Revoke all partitions and leave the group. Listeners are called as in a rebalance."""
        async with self._turns:
            held = self._machine.held
            try:
                if held and self._machine.identity.generation >= 0:
                    await self._holder.before_revocation()
                    await self._tell(self._listener.on_revoked, held)
                elif held:
                    await self._tell(self._listener.on_lost or self._listener.on_revoked, held)
            finally:
                self._pattern = None
                self._turn_step = 0
                effects = self._machine.leave(self._now(), reason)
                self._holder.adopt(())
                for effect in effects:
                    if isinstance(effect, SendLeave):
                        await self._leave(effect)

    async def close(self) -> None:
        try:
            if self.is_subscribed or self._machine.held:
                await self.leave("the consumer was closed")
        finally:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()

    # ------------------------------------------------------------------ the user's turn

    async def _take(self, turn: Turn) -> None:
        listener = self._listener
        if self._turn_step == 0 and turn.lost:
            self._turn_step = 1
            log.warning("Partitions were lost: %s", ", ".join(map(str, turn.lost)))
            await self._tell(listener.on_lost or listener.on_revoked, turn.lost)
        if self._turn_step <= 1 and turn.revoked:
            await self._holder.before_revocation()
            self._turn_step = 2
            await self._tell(listener.on_revoked, turn.revoked)
        if self._turn_step <= 2:
            self._turn_step = 3
            self._holder.adopt(turn.assignment)
            if turn.added is not None:
                await self._tell(listener.on_assigned, turn.added)

    def _turn_done(self, turn: Turn) -> None:
        if self._turn_step < 3:
            # Apply the assignment even if a listener failed.
            self._holder.adopt(turn.assignment)
        self._turn_step = 0
        self._do(self._machine.turn_done(self._now()))

    async def _tell(self, callback: OnPartitions | None, partitions: Sequence[TopicPartition]) -> None:
        if callback is not None:
            waiting = callback(list(partitions))
            if inspect.isawaitable(waiting):
                await waiting

    # ------------------------------------------------------------------ effects

    def _now(self) -> float:
        return self._clock.monotonic()

    def _do(self, effects: Iterable[Effect]) -> None:
        spawn = self._cluster.background.spawn
        for effect in effects:
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
                case TakeTurn():
                    self._holder.wake()
                case Warn():
                    log.warning("Group %s: %s", self._settings.group_id, effect.sentence)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._machine.wakes_at()
        if when is not None and not self._closed:
            delay_s = max(0.001, when - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._do(self._machine.tick(self._now()))

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
            self._do(self._machine.join_refused(effect.attempt, error, self._now()))
            return
        refused = refusal(answer)
        if refused is not None:
            self._do(self._machine.join_refused(effect.attempt, refused, self._now(), answer.member_id))
            return
        told_us = JoinAnswer(
            answer.member_id,
            answer.generation,
            answer.leader_id,
            answer.protocol,
            tuple((each.member_id, each.group_instance_id or None, each.metadata) for each in answer.members),
            answer.skip_assignment,
        )
        self._do(self._machine.joined(effect.attempt, told_us, self._now()))

    async def _learn(self, effect: LearnTopics) -> None:
        try:
            if effect.topics:
                await self._cluster.refresh(effect.topics, timeout_s=self._settings.request_timeout_s)
        except (ClientError, RequestError) as error:
            self._do(self._machine.sync_refused(effect.attempt, error, self._now()))
            return
        self._do(self._machine.topics_learnt(effect.attempt, self._counts(effect.topics), self._now()))

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
            self._do(self._machine.sync_refused(effect.attempt, error, self._now()))
            return
        self._do(self._machine.synced(effect.attempt, answer.assignment, self._now()))

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
        self._do(self._machine.heartbeat_answered(effect.identity, failed, self._now()))

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
                self._do(self._machine.subscribe(found, self._now()))
                self._holder.wake()
        topics = self._machine.watched_topics
        if not topics:
            return self._pattern is not None
        refused = await self._cluster.refresh(topics, timeout_s=timeout_s)
        gone = [name for name, error in refused.items() if isinstance(error, UnknownTopicOrPartition)]
        self._do(self._machine.partitions_changed(dict.fromkeys(gone, 0), self._now()))
        return any(topic in refused for topic in self._machine.topics)

    def _learnt(self, layout: TopicLayout) -> None:
        """A layout arrived, for any reason."""
        if not self._closed and layout.name in self._machine.watched_topics:
            self._do(self._machine.partitions_changed({layout.name: len(layout.partitions)}, self._now()))
