"""Replication throttles: how fast this leader sends to replicas that catch up. [P]

As in Kafka, a topic lists the throttled replicas (`leader.replication.throttled.replicas` names leaders,
`follower.replication.throttled.replicas` followers, as partition:broker or `*`), and a broker has a rate for each
role. Replicas in sync are never throttled: the stream asks only for those that catch up.

Leaders send, and followers do not ask, so the leader keeps both rates: its own over all its followers, and an equal
share of each follower's, which has other leaders too. The sum over all leaders is then at most the follower's rate.

A bucket may be overdrawn by one section: batches are not divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla_broker.metadata.image import ClusterImage
from ottla_broker.replication.follow_wire import partition_of

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

#: What an unused bucket collects: a second's worth, so that a rate holds over any two seconds.
_BURST_S = 1.0


class Bucket:
    """Bytes that may be sent now; refilled at a rate."""

    def __init__(self, now: float) -> None:
        self._bytes = 0.0
        self._at = now

    def is_open(self, rate: float, now: float) -> bool:
        self._bytes = min(rate * _BURST_S, self._bytes + rate * (now - self._at))
        self._at = now
        return self._bytes > 0

    def take(self, size: int) -> None:
        self._bytes -= size


class Listed(NamedTuple):
    """The throttled replicas of a topic; None stands for all (`*`)."""

    leaders: frozenset[tuple[int, int]] | None
    followers: frozenset[tuple[int, int]] | None


class Throttle:
    """One per broker, shared by its streams. Without throttled topics it costs nothing."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._topics: Mapping[bytes, Listed] = {}
        self._leader_rate: float | None = None
        self._follower_rates: dict[int, float] = {}
        self._own: Bucket | None = None
        self._of_follower: dict[int, Bucket] = {}

    @property
    def is_used(self) -> bool:
        return bool(self._topics)

    def on_image(self, old: ClusterImage | None, new: ClusterImage) -> None:
        if (
            old is not None
            and old.topics is new.topics
            and old.broker_configs is new.broker_configs
            and old.brokers is new.brokers
        ):
            return
        self._topics = {
            topic.id.bytes: Listed(
                _listed(topic.config.get(LEADER_REPLICAS, "")),
                _listed(topic.config.get(FOLLOWER_REPLICAS, "")),
            )
            for topic in new.topics.values()
            if topic.config and (LEADER_REPLICAS in topic.config or FOLLOWER_REPLICAS in topic.config)
        }
        self._leader_rate = _rate(new, self._broker_id, LEADER_RATE)
        share = max(1, len(new.brokers) - 1)
        rates = {broker: _rate(new, broker, FOLLOWER_RATE) for broker in new.brokers}
        self._follower_rates = {broker: rate / share for broker, rate in rates.items() if rate is not None}
        if not self._topics:
            self._own = None
            self._of_follower = {}

    def may_send(self, key: bytes, follower: int, now: float) -> bool:
        """Whether a replica that catches up may get a section now."""
        return all(bucket.is_open(rate, now) for bucket, rate in self._buckets(key, follower, now))

    def sent(self, key: bytes, follower: int, size: int, now: float) -> None:
        for bucket, _ in self._buckets(key, follower, now):
            bucket.take(size)

    def _buckets(self, key: bytes, follower: int, now: float) -> list[tuple[Bucket, float]]:
        listed = self._topics.get(key[:16])
        if listed is None:
            return []
        partition = partition_of(key)[1]
        found = []
        if self._leader_rate is not None and _names(listed.leaders, partition, self._broker_id):
            if self._own is None:
                self._own = Bucket(now)
            found.append((self._own, self._leader_rate))
        rate = self._follower_rates.get(follower)
        if rate is not None and _names(listed.followers, partition, follower):
            found.append((self._of_follower.setdefault(follower, Bucket(now)), rate))
        return found


def _names(listed: frozenset[tuple[int, int]] | None, partition: int, broker: int) -> bool:
    return listed is None or (partition, broker) in listed


def _listed(text: str) -> frozenset[tuple[int, int]] | None:
    """`*`, `none` or `0:101,1:102`; the setting was checked when it was set (`inert_config.py`)."""
    parts = [part.strip() for part in text.split(",")]
    if "*" in parts:
        return None
    return frozenset(_pairs(part for part in parts if ":" in part))


def _pairs(parts: Iterable[str]) -> Iterable[tuple[int, int]]:
    for part in parts:
        partition, _, broker = part.partition(":")
        if partition.isdigit() and broker.isdigit():
            yield int(partition), int(broker)


def _rate(image: ClusterImage, broker: int, name: str) -> float | None:
    """The broker's own rate, else the default of all brokers; None without a bound."""
    for config in (image.broker_configs.get(str(broker), {}), image.broker_configs.get("", {})):
        text = config.get(name, "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
    return None
