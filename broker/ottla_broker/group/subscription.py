"""Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment: what consumers of classic groups send. [P]

Members define these bytes, and the coordinator of a classic group assigns nothing by them: there they protect
offsets of subscribed topics from deletion and expiry, and say whether a static member may return without a
rebalance. A broker-side group with members of the classic protocol reads their subscriptions, and writes their
assignments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla_broker.coordination.fields import FieldReader, FieldWriter, Undecodable
from ottla_core.ids import TopicPartition

CONSUMER = "consumer"

#: The newest version of both; their assignments have the same fields in all of them.
_VERSION_MAX = 3


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    #: Since version 1.
    owned: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None


def subscribed_topics(metadatas: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that these consumers subscribe to; None if the metadata of one cannot be decoded."""
    topics: set[str] = set()
    for metadata in metadatas:
        reader = FieldReader(metadata)
        try:
            if reader.int16() < 0:
                return None
            topics.update(reader.text() for _ in range(reader.count()))
        except Undecodable:
            return None
    return frozenset(topics)


def read_subscription(metadata: bytes) -> Subscription:
    """Undecodable if the bytes are invalid."""
    reader = FieldReader(metadata)
    version = _version(reader)
    topics = tuple(reader.text() for _ in range(reader.count()))
    reader.blob()  # User data, of the assignor.
    owned = tuple(_partitions(reader)) if version >= 1 else ()
    if version >= 2:
        reader.int32()  # The generation of the owned partitions.
    rack_id = reader.text_or_none() if version >= 3 else None
    return Subscription(version, topics, owned, rack_id or None)


def read_assignment(data: bytes) -> tuple[list[TopicPartition], bytes]:
    """The partitions, and data of the assignor; no bytes are an empty assignment. Undecodable if they are invalid."""
    if not data:
        return [], b""
    reader = FieldReader(data)
    _version(reader)
    return _partitions(reader), reader.blob()


def has_to_revoke(metadata: bytes, assignment: bytes) -> bool:
    """Whether the assignment takes partitions from the member. It joins again when they are revoked, and only then
    others get them. False if the bytes cannot be decoded."""
    try:
        return not set(read_subscription(metadata).owned) <= set(read_assignment(assignment)[0])
    except Undecodable:
        return False


def write_assignment(version: int, partitions: Iterable[TopicPartition]) -> bytes:
    """For a member whose subscription has this version."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    writer = FieldWriter(flexible=False)
    writer.int16(min(version, _VERSION_MAX))
    writer.count(len(by_topic))
    for topic, indexes in by_topic.items():
        writer.text(topic)
        writer.count(len(indexes))
        writer.int32s(indexes)
    writer.int32(-1)  # No user data.
    return writer.made()


def _version(reader: FieldReader) -> int:
    version = reader.int16()
    if version < 0:
        raise Undecodable(f"{version} is not a version")
    return version


def _partitions(reader: FieldReader) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(reader.count()):
        topic = reader.text()
        found += [TopicPartition(topic, index) for index in reader.int32s(reader.count())]
    return found
