"""Kafka's encoding of the subscriptions and assignments of consumer group members. [P]

ConsumerProtocolSubscription and ConsumerProtocolAssignment. We write version 3 of the first and version 1 of
the second, as Kafka's own clients do, and read any version: fields were only ever added at the end. The bytes come
from other members and are not trusted: invalid ones raise `Undecodable`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ottla_core.ids import TopicPartition

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 1
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")

NO_GENERATION = -1


class Undecodable(ValueError):
    """The bytes are not a valid subscription or assignment."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscribed topics and owned partitions of a member."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    #: Partitions that the member reads while it joins (cooperative rebalancing, KIP-429).
    owned: tuple[TopicPartition, ...] = ()
    #: The generation that assigned them: an older claim loses.
    generation: int = NO_GENERATION
    rack: str | None = None


# ---------------------------------------------------------------------- writing


def encode_subscription(subscription: Subscription) -> bytes:
    topics = b"".join(_text(topic) for topic in sorted(subscription.topics))
    return b"".join(
        (
            _SHORT.pack(_SUBSCRIPTION_VERSION),
            _INT.pack(len(subscription.topics)),
            topics,
            _blob(subscription.user_data),
            _partitions(subscription.owned),
            _INT.pack(subscription.generation),
            _SHORT.pack(-1) if subscription.rack is None else _text(subscription.rack),
        )
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    return _SHORT.pack(_ASSIGNMENT_VERSION) + _partitions(partitions) + _blob(user_data)


def encode_sticky_data(previous: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of the eager sticky assignor: the partitions that the member revoked before the join."""
    return _partitions(previous) + _INT.pack(generation)


def encode_generation(generation: int) -> bytes:
    """User data of the cooperative-sticky assignor, for leaders that do not read version 2."""
    return _INT.pack(generation)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _blob(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


# ---------------------------------------------------------------------- reading


def decode_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.blob()
    owned = tuple(reader.partitions()) if version >= 1 else ()
    generation = reader.int32() if version >= 2 else NO_GENERATION
    rack = reader.text_or_none() if version >= 3 else None
    return Subscription(topics, user_data, owned, generation, rack)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Empty bytes mean an empty assignment."""
    if not data:
        return []
    reader = _Reader(data)
    reader.version()
    partitions = reader.partitions()
    reader.blob()  # user data; our assignors send none
    return partitions


def decode_sticky_data(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """Previous partitions and generation of an eager sticky member. Empty if it cannot be decoded."""
    if not data:
        return [], NO_GENERATION
    try:
        reader = _Reader(data)
        previous = reader.partitions()
        return previous, reader.int32() if reader.left >= 4 else NO_GENERATION
    except Undecodable:
        return [], NO_GENERATION


def decode_generation(data: bytes | None) -> int:
    return NO_GENERATION if data is None or len(data) < 4 else int(_INT.unpack_from(data)[0])


class _Reader:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def version(self) -> int:
        version = self._fixed(_SHORT)
        if version < 0:
            raise Undecodable(f"{version} is not a version")
        return version

    def int32(self) -> int:
        return self._fixed(_INT)

    def count(self) -> int:
        number = self._fixed(_INT)
        if not 0 <= number <= self.left:
            raise Undecodable(f"{number} elements in {self.left} bytes")
        return number

    def text(self) -> str:
        text = self.text_or_none()
        if text is None:
            raise Undecodable("a text is missing")
        return text

    def text_or_none(self) -> str | None:
        size = self._fixed(_SHORT)
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise Undecodable(str(error)) from None

    def blob(self) -> bytes | None:
        size = self._fixed(_INT)
        return None if size == -1 else self._take(size)

    def partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.text()
            found.extend(TopicPartition(topic, self.int32()) for _ in range(self.count()))
        return found

    def _fixed(self, form: struct.Struct) -> int:
        try:
            value: int = form.unpack_from(self._data, self._at)[0]
        except struct.error as error:
            raise Undecodable(str(error)) from None
        self._at += form.size
        return value

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise Undecodable(f"{size} bytes are needed, {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]
