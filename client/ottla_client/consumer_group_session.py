"""A consumer's membership of a broker-side group: the shell around `consumer_group_machine`. [S]

Sends heartbeats in the background; `group_shell` has the user's turns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from ottla_client.cluster import Cluster
from ottla_client.consumer_group_machine import (
    Assigned,
    ConsumerGroupMachine,
    ConsumerGroupPolicy,
    HeartbeatAnswer,
    SendConsumerHeartbeat,
    SendConsumerLeave,
)
from ottla_client.coordinator import Coordinator, refusal
from ottla_client.errors import ClientError
from ottla_client.group_shell import GroupSettings, GroupShell, Holder
from ottla_client.listener import RebalanceListener
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S = 5.0
#: After the session of a crashed process with the same instance id.
_RELEASE_SLACK_S = 15.0


class ConsumerGroupSession(GroupShell):
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        coordinator: Coordinator,
        settings: GroupSettings,
        holder: Holder,
    ) -> None:
        self._member = ConsumerGroupMachine(
            ConsumerGroupPolicy(
                settings.member_id,
                bool(settings.group_instance_id),
                settings.max_poll_interval_ms / 1000,
                settings.backoff_s,
                settings.backoff_max_s,
                settings.session_timeout_ms / 1000 + _RELEASE_SLACK_S,
                settings.may_fall_back,
            )
        )
        super().__init__(cluster, clock, coordinator, settings, holder, self._member)

    @property
    def is_subscribed(self) -> bool:
        return self._member.is_subscribed

    @property
    def subscription(self) -> tuple[str, ...]:
        """With a pattern, the topics that this member has partitions of: only the broker knows the others."""
        if self._member.regex:
            return tuple(dict.fromkeys(tp.topic for tp in self._member.held))
        return self._member.topics

    def subscribe(self, topics: Sequence[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        names: tuple[str, ...] = ()
        regex = ""
        if isinstance(topics, re.Pattern):
            regex = broker_regex(topics)
        else:
            names = tuple(topics)
        self._listener = listener or RebalanceListener()
        self._member.failure = None
        self._do(self._member.subscribe(names, self._now(), regex))

    # ------------------------------------------------------------------ effects

    def _start(self, effect: Any) -> None:
        match effect:
            case SendConsumerHeartbeat():
                self._cluster.background.spawn(self._beat(effect), "heartbeat")
            case SendConsumerLeave():
                self._cluster.background.spawn(self._leave(effect), "leave")

    async def _say_goodbye(self, effect: Any) -> None:
        if isinstance(effect, SendConsumerLeave):
            await self._leave(effect)

    async def _beat(self, effect: SendConsumerHeartbeat) -> None:
        settings = self._settings
        request = pb.ConsumerHeartbeatRequest(
            group=settings.group_id,
            member_id=effect.identity.member_id,
            member_epoch=effect.identity.generation,
            client_id=settings.client_id,
            group_instance_id=settings.group_instance_id,
        )
        if effect.is_full:
            request.rebalance_timeout_ms = settings.max_poll_interval_ms
            request.topics.names.extend(effect.topics)
            request.topics.SetInParent()
            request.topic_regex = effect.regex
            request.assignor = settings.remote_assignor
            request.rack_id = settings.rack
        if effect.owned is not None:
            request.owned.SetInParent()  # Nothing is owned, which is not the same as unchanged.
            request.owned.topics.extend(_topics(effect.owned))
        # Short enough to find another coordinator before the session expires.
        timeout_s = min(settings.request_timeout_s, settings.session_timeout_ms / 3000)
        try:
            answer = await self._coordinator.call("ConsumerHeartbeat", request, timeout_s)
            refused = refusal(answer)
            if refused is not None:
                raise refused
        except (ClientError, RequestError) as error:
            self._do(self._member.heartbeat_refused(effect.attempt, error, self._now()))
            return
        told = HeartbeatAnswer(
            answer.member_id,
            answer.member_epoch,
            answer.heartbeat_interval_ms / 1000,
            _assigned(answer.assignment) if answer.HasField("assignment") else None,
        )
        self._do(self._member.heartbeat_answered(effect.attempt, told, self._now()))

    async def _leave(self, effect: SendConsumerLeave) -> None:
        request = pb.ConsumerHeartbeatRequest(
            group=self._settings.group_id,
            member_id=effect.identity.member_id,
            member_epoch=effect.identity.generation,
            group_instance_id=self._settings.group_instance_id,
        )
        try:
            await self._coordinator.call("ConsumerHeartbeat", request, _LEAVE_TIMEOUT_S)
        except (ClientError, RequestError) as error:
            # The session will expire.
            log.info("Group %s was not left: %s", self._settings.group_id, error)


def broker_regex(pattern: re.Pattern[str]) -> str:
    """The expression as brokers take it. ValueError if it has flags that they do not know."""
    if pattern.flags & ~(re.UNICODE | re.IGNORECASE):
        raise ValueError(
            "The broker matches the pattern, and of Python's flags it knows only IGNORECASE; with "
            "group_protocol='classic' the pattern is matched here."
        )
    ignores_case = pattern.flags & re.IGNORECASE and not pattern.pattern.startswith("(?i)")
    return f"(?i){pattern.pattern}" if ignores_case else pattern.pattern


def _topics(owned: Assigned) -> list[pb.AssignedTopic]:
    by_id: dict[str, list[int]] = {}
    for tp, topic_id in owned.items():
        by_id.setdefault(topic_id, []).append(tp.partition)
    return [
        pb.AssignedTopic(topic_id=topic_id, partitions=sorted(found)) for topic_id, found in by_id.items()
    ]


def _assigned(assignment: pb.AssignedTopics) -> dict[TopicPartition, str]:
    return {
        TopicPartition(each.topic, index): each.topic_id
        for each in assignment.topics
        for index in each.partitions
    }
