"""What of a consumer's metadata the broker looks at: the topics it has subscribed to. [P]

The bytes are the clients' own (Kafka's ConsumerProtocolSubscription); the broker never decides about membership by
them. They only keep offsets of topics that are being read from being deleted or from expiring.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla_broker.group.fields import FieldReader, Undecodable

CONSUMER = "consumer"


def subscribed_topics(metadatas: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that these consumers read; None if one of them cannot be understood."""
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
