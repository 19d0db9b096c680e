"""Committed offsets of all groups of a shard, and their expiry. [P]

When offsets expire (`offsets.retention.minutes`), as in Kafka since KIP-211:

* of a group that only stores offsets: that time after each commit;
* of a group without members: that time after the last member left;
* of a group with members: that time after the commit, and only for topics that they no longer subscribe to.

An old client may have sent a retention time; then that counts while the group has no members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.group import Group
from ottla_broker.group.messages import FetchReply, State
from ottla_broker.group.records import OffsetValue
from ottla_core.ids import NO_TOPIC_ID, TopicPartition

#: To copy a whole dict costs less than to pick this share of it.
_COPY_FACTOR = 8


class Offsets:
    __slots__ = ("_by_group", "_by_topic")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, OffsetValue]] = {}
        #: How many offsets each topic has, by name and id: looking for missing topics must not walk over all offsets.
        self._by_topic: Counter[tuple[str, UUID]] = Counter()

    def __len__(self) -> int:
        return sum(len(found) for found in self._by_group.values())

    def of(self, group: str) -> Mapping[TopicPartition, OffsetValue]:
        return self._by_group.get(group, {})

    def put(self, group: str, tp: TopicPartition, value: OffsetValue) -> None:
        found = self._by_group.get(group)
        if found is None:
            found = self._by_group[group] = {}
        before = found.get(tp)
        found[tp] = value
        if before is None or before.topic_id != value.topic_id:
            self._by_topic[tp.topic, value.topic_id] += 1
            if before is not None:
                self._uncount([(tp, before)])

    def remove(self, group: str, tp: TopicPartition) -> None:
        found = self._by_group.get(group)
        if found is not None and (value := found.pop(tp, None)) is not None:
            self._uncount([(tp, value)])
            if not found:
                del self._by_group[group]

    def _uncount(self, removed: Iterable[tuple[TopicPartition, OffsetValue]]) -> None:
        for tp, value in removed:
            key = (tp.topic, value.topic_id)
            self._by_topic[key] -= 1
            if not self._by_topic[key]:
                del self._by_topic[key]

    # ------------------------------------------------------------------ looking

    def fetch(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        unstable: frozenset[TopicPartition] = frozenset(),
    ) -> FetchReply:
        found = self.of(group)
        if partitions is None:
            return FetchReply(sorted(found), dict(found), unstable)
        if len(partitions) * _COPY_FACTOR < len(found):
            return FetchReply(partitions, {tp: found[tp] for tp in partitions if tp in found}, unstable)
        return FetchReply(partitions, dict(found), unstable)

    def of_missing_topics(self, existing: Mapping[str, UUID]) -> list[tuple[str, TopicPartition]]:
        """Offsets whose topic does not exist, or was recreated with the same name."""
        missing = {
            (name, topic_id)
            for name, topic_id in self._by_topic
            if name not in existing or topic_id not in (NO_TOPIC_ID, existing[name])
        }
        if not missing:
            return []
        return [
            (group, tp)
            for group, found in self._by_group.items()
            for tp, value in found.items()
            if (tp.topic, value.topic_id) in missing
        ]

    def expired(self, group: Group | ConsumerGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        is_managed = bool(group.protocol_type)
        reading: frozenset[str] = frozenset()
        if group.state is State.STABLE:
            subscribed = group.subscribed_topics()
            if subscribed is None:
                return []
            reading = subscribed
        elif group.state is not State.EMPTY:
            return []
        idle_since_ms = group.state_since_ms if is_managed and group.state is State.EMPTY else None
        return [
            tp
            for tp, value in self.of(group.id).items()
            if tp.topic not in reading and _is_expired(value, idle_since_ms, now_ms, retention_ms)
        ]


def _is_expired(value: OffsetValue, idle_since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp_ms is not None:
        return now_ms >= value.expire_timestamp_ms
    known = idle_since_ms is not None and idle_since_ms >= 0
    # An offset that was set while the group was empty (a manual reset) counts from then.
    since_ms = max(idle_since_ms or 0, value.commit_timestamp_ms) if known else value.commit_timestamp_ms
    return now_ms - since_ms >= retention_ms
