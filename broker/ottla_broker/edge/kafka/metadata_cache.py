"""Metadata responses, encoded once per change instead of once per request. [P]

A topic is encoded once per version it was asked in, and again only when its own image or the set of live
brokers changes; the answer with all topics once per image. With ten thousand partitions that is the
difference between microseconds and a tenth of a second per request.

A broker that is gone is still named for some seconds. Told in one answer of a partition's new leader and that the old
one is no more, librdkafka (seen with 2.16) moves the partition and then tears down the old broker and the move with
it; it asks again at its next full second only, which makes a second of a gap out of a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from ottla_broker.edge.kafka.encode import uvarint
from ottla_broker.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla_core.errors import LeaderNotAvailable
from ottla_core.ids import NO_BROKER

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 10
#: "Allowed operations were not requested": there are no ACLs.
NO_OPERATIONS = -2147483648

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_PARTITION = Struct(">hii")
#: Beyond this many entries per topic of the image, some belong to deleted topics.
_STALE_FACTOR = 4
#: Clients ask several times in the first second after a loss; after that no client depends on the lost broker.
GONE_NAMED_S = 5.0


class MetadataCache:
    """The cache of one listener: brokers have their addresses on it."""

    def __init__(self, listener: str, now: Callable[[], float]) -> None:
        self._listener = listener
        self._now = now
        self._image: ClusterImage | None = None
        #: Offline brokers that are still listed, and until when.
        self._gone: dict[int, BrokerImage] = {}
        self._gone_until = 0.0
        self._live: frozenset[int] = frozenset()
        #: Valid for `_image` only, by version.
        self._heads: dict[int, bytes] = {}
        self._all: dict[int, bytes] = {}
        #: By (name, version); valid if the topic is still the same object.
        self._topics: dict[tuple[str, int], tuple[TopicImage, bytes]] = {}

    def head(self, image: ClusterImage, version: int) -> bytes:
        """All that precedes the topics: throttle time, brokers, cluster id, controller."""
        self._turn_to(image)
        if self._gone and self._now() >= self._gone_until:
            self._gone = {}
            self._heads.clear()
        head = self._heads.get(version)
        if head is None:
            head = self._heads[version] = self._encode_head(image, version)
        return head

    def all_topics(self, image: ClusterImage, version: int) -> bytes:
        """The array of all topics."""
        self._turn_to(image)
        made = self._all.get(version)
        if made is None:
            topics = [self.topic(image, topic, version) for topic in image.topics.values()]
            made = self._all[version] = count(version, len(topics)) + b"".join(topics)
        return made

    def topic(self, image: ClusterImage, topic: TopicImage, version: int) -> bytes:
        self._turn_to(image)
        known = self._topics.get((topic.name, version))
        if known is not None and known[0] is topic:
            return known[1]
        made = encode_topic(topic, version, self._live)
        self._topics[topic.name, version] = (topic, made)
        return made

    def _turn_to(self, image: ClusterImage) -> None:
        if image is self._image:
            return
        self._image = image
        self._heads.clear()
        self._all.clear()
        live = frozenset(image.brokers)
        if live != self._live or len(self._topics) > _STALE_FACTOR * (len(image.topics) + 16):
            self._live = live
            self._topics.clear()

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Record brokers that went offline, whether or not the cache was used before."""
        if old.brokers is new.brokers:
            return
        left = {broker.id: broker for broker in old.brokers.values() if broker.id not in new.brokers}
        if left:
            self._gone_until = self._now() + GONE_NAMED_S
        self._gone = {i: broker for i, broker in {**self._gone, **left}.items() if i not in new.brokers}

    def _encode_head(self, image: ClusterImage, version: int) -> bytes:
        flexible = version >= FLEXIBLE_FROM
        out = bytearray()
        if version >= 3:
            out += bytes(4)  # throttle time
        # The image may be older than the last change, while a long response is made.
        gone = (broker for number, broker in self._gone.items() if number not in image.brokers)
        named = (*image.brokers.values(), *gone)
        reachable = [(b, e) for b in named if (e := b.endpoint("kafka", self._listener))]
        out += count(version, len(reachable))
        for broker, endpoint in reachable:
            out += _INT32.pack(broker.id) + text(version, endpoint.host) + _INT32.pack(endpoint.port)
            if version >= 1:
                out += text(version, broker.rack)
            if flexible:
                out.append(0)
        if version >= 2:
            out += text(version, image.cluster_id)
        if version >= 1:
            out += _INT32.pack(image.controller if image.controller in image.brokers else NO_BROKER)
        return bytes(out)


def tail(version: int, operations: int = NO_OPERATIONS) -> bytes:
    """All that follows the topics."""
    out = b""
    if 8 <= version <= 10:
        out += _INT32.pack(operations)
    if version >= 13:
        out += bytes(2)  # no error
    return out + b"\x00" if version >= FLEXIBLE_FROM else out


def count(version: int, number: int) -> bytes:
    return uvarint(number + 1) if version >= FLEXIBLE_FROM else _INT32.pack(number)


def text(version: int, value: str | None) -> bytes:
    if value is None:
        return b"\x00" if version >= FLEXIBLE_FROM else b"\xff\xff"
    data = value.encode()
    return (uvarint(len(data) + 1) if version >= FLEXIBLE_FROM else _INT16.pack(len(data))) + data


def encode_topic(topic: TopicImage, version: int, live: frozenset[int]) -> bytes:
    out = bytearray(topic_start(version, 0, topic.name, topic.id.bytes, topic.is_internal))
    out += count(version, len(topic.partitions))
    for index, partition in enumerate(topic.partitions):
        _encode_partition(out, version, index, partition, live)
    out += topic_end(version)
    return bytes(out)


def encode_missing(version: int, code: int, name: str | None, topic_id: bytes = bytes(16)) -> bytes:
    """The entry of a topic with an error."""
    return topic_start(version, code, name, topic_id, False) + count(version, 0) + topic_end(version)


def topic_start(version: int, code: int, name: str | None, topic_id: bytes, is_internal: bool) -> bytes:
    out = _INT16.pack(code) + text(version, name if version >= 12 else name or "")
    if version >= TOPIC_IDS_FROM:
        out += topic_id
    if version >= 1:
        out += b"\x01" if is_internal else b"\x00"
    return out


def topic_end(version: int, operations: int = NO_OPERATIONS) -> bytes:
    out = _INT32.pack(operations) if version >= 8 else b""
    return out + b"\x00" if version >= FLEXIBLE_FROM else out


def with_operations(version: int, topic: bytes, operations: int) -> bytes:
    """A topic that is encoded already, but for what one may do with it: that is its end."""
    end = topic_end(version, operations)
    return topic[: len(topic) - len(end)] + end


def _encode_partition(
    out: bytearray, version: int, index: int, partition: PartitionImage, live: frozenset[int]
) -> None:
    leader = partition.leader if partition.leader in live else NO_BROKER
    code = 0 if leader != NO_BROKER else LeaderNotAvailable.code
    out += _PARTITION.pack(code, index, leader)
    if version >= 7:
        out += _INT32.pack(partition.leader_epoch)
    _encode_ids(out, version, partition.replicas)
    _encode_ids(out, version, partition.isr)
    if version >= 5:
        _encode_ids(out, version, [replica for replica in partition.replicas if replica not in live])
    if version >= FLEXIBLE_FROM:
        out.append(0)


def _encode_ids(out: bytearray, version: int, ids: Sequence[int]) -> None:
    out += count(version, len(ids))
    for broker in ids:
        out += _INT32.pack(broker)
