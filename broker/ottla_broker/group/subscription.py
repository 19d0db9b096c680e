"""Reads the subscribed topics from a consumer's metadata. [P]

The clients define the bytes (Kafka's ConsumerProtocolSubscription); the broker never decides about membership by
them. They only protect offsets of subscribed topics from deletion and expiry.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla_broker.coordination.fields import FieldReader, Undecodable

CONSUMER = "consumer"


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
