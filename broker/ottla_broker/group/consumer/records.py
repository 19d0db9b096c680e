"""Records of broker-side groups in `__consumer_offsets`, byte for byte as Apache Kafka 4.3 writes and reads them. [P]

Kinds: 3 the group's epoch, 5 a member's metadata, 6 the epoch of the target assignment, 7 the target of a member, 8 its
current assignment, 16 the topics of a regular expression. Kind 4 (partition metadata) is obsolete since Kafka 4.1: the
hash in kind 3 replaces it. Each class is one record; `value` None is its tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeAlias
from uuid import UUID

from ottla_broker.coordination.fields import FieldReader, FieldWriter, Undecodable
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.consumer.partitions import Partitions, Since
from ottla_broker.group.member_memory import MEMBER_BYTES, protocol_bytes
from ottla_broker.group.messages import Protocol

_VERSION = 0
_CLASSIC_TAG = 0
#: Of a topic in kind 8: since which epoch the member has each of its partitions (KIP-1251).
_SINCE_TAG = 0
#: Of a structure in a tagged field.
_NULL = b"\0"
_NOTHING: Mapping[int, int] = {}


class MemberState(IntEnum):
    """With Kafka's numbers."""

    STABLE = 0
    #: It has to revoke partitions before it gets its next assignment.
    UNREVOKED = 1
    #: Some of its target partitions are still owned by other members.
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    kind: ClassVar[int] = 3
    epoch: int
    #: Of everything outside the group that an assignment depends on.
    metadata_hash: int = 0

    def write(self, writer: FieldWriter) -> None:
        writer.int32(self.epoch)
        if self.metadata_hash:
            writer.tagged({0: self.metadata_hash.to_bytes(8, signed=True)})
        else:
            writer.tagged({})

    @classmethod
    def read(cls, reader: FieldReader) -> GroupEpoch:
        epoch = reader.int32()
        raw = reader.tagged().get(0, b"")
        return cls(epoch, int.from_bytes(raw, signed=True))


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """What the coordinator has to know of a member that still speaks the classic protocol."""

    session_timeout_ms: int
    #: Preferred first, with its subscription in each.
    protocols: tuple[Protocol, ...]

    def encoded(self) -> bytes:
        writer = FieldWriter(flexible=True)
        writer.int8(1)  # Present: the field may be null.
        writer.int32(self.session_timeout_ms)
        writer.count(len(self.protocols))
        for protocol in self.protocols:
            writer.text(protocol.name)
            writer.blob(protocol.metadata)
            writer.tagged({})
        writer.tagged({})
        return writer.made()

    @classmethod
    def decoded(cls, data: bytes | None) -> ClassicMetadata | None:
        if data is None:
            return None
        reader = FieldReader(data, flexible=True)
        if reader.int8() <= 0:
            return None
        session_ms, protocols = reader.int32(), []
        for _ in range(reader.count()):
            protocols.append(Protocol(reader.text(), reader.blob()))
            reader.tagged()
        reader.tagged()
        return cls(session_ms, tuple(protocols))


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    kind: ClassVar[int] = 5
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    #: Set for a member of the classic protocol (`classic_members`).
    classic: ClassicMetadata | None = None

    @property
    def held_bytes(self) -> int:
        """What a member holds in memory for it, about."""
        texts = (self.instance_id, self.rack_id, self.client_id, self.client_host, self.regex, *self.topics)
        protocols = () if self.classic is None else self.classic.protocols
        return MEMBER_BYTES + sum(len(text) for text in texts if text) + protocol_bytes(protocols)

    def write(self, writer: FieldWriter) -> None:
        writer.text(self.instance_id)
        writer.text(self.rack_id)
        writer.text(self.client_id)
        writer.text(self.client_host)
        writer.count(len(self.topics))
        for topic in self.topics:
            writer.text(topic)
        writer.text(self.regex or "")
        writer.int32(self.rebalance_timeout_ms)
        writer.text(self.assignor)
        writer.tagged({_CLASSIC_TAG: _NULL if self.classic is None else self.classic.encoded()})

    @classmethod
    def read(cls, reader: FieldReader) -> MemberMetadata:
        instance_id, rack_id = reader.text_or_none(), reader.text_or_none()
        client_id, client_host = reader.text(), reader.text()
        topics = tuple(reader.text() for _ in range(reader.count()))
        regex, timeout_ms, assignor = reader.text_or_none() or None, reader.int32(), reader.text_or_none()
        classic = ClassicMetadata.decoded(reader.tagged().get(_CLASSIC_TAG))
        return cls(instance_id, rack_id, client_id, client_host, topics, regex, timeout_ms, assignor, classic)


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    kind: ClassVar[int] = 6
    epoch: int
    #: When the target was computed.
    timestamp_ms: int = 0

    def write(self, writer: FieldWriter) -> None:
        writer.int32(self.epoch)
        writer.tagged({0: self.timestamp_ms.to_bytes(8, signed=True)} if self.timestamp_ms else {})

    @classmethod
    def read(cls, reader: FieldReader) -> TargetEpoch:
        epoch = reader.int32()
        raw = reader.tagged().get(0, b"")
        return cls(epoch, int.from_bytes(raw, signed=True))


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    kind: ClassVar[int] = 7
    partitions: Partitions

    def write(self, writer: FieldWriter) -> None:
        _write_partitions(writer, self.partitions)
        writer.tagged({})

    @classmethod
    def read(cls, reader: FieldReader) -> TargetAssignment:
        partitions = _read_partitions(reader)
        reader.tagged()
        return cls(partitions)


def _state(number: int, revoking: Partitions) -> MemberState:
    """Earlier brokers counted from 1. Members revoke partitions in one state only, which tells the rest apart."""
    if not 0 <= number <= 3:
        raise Undecodable(f"there is no member state {number}")
    if revoking:
        return MemberState.UNREVOKED
    return MemberState.STABLE if number <= 1 else MemberState.UNRELEASED


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    kind: ClassVar[int] = 8
    epoch: int
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    #: By topic and partition, of both: the epoch at which the member got it (KIP-1251), where that is not the member's
    #: epoch. A partition that a static member has left for its next process counts as one from epoch 0.
    since: Since = field(default_factory=dict)

    def has_since(self, topic: UUID, index: int) -> int | None:
        """The epoch at which the member got a partition that it has, or has still to revoke."""
        if index not in self.assigned.get(topic, ()) and index not in self.revoking.get(topic, ()):
            return None
        return self.since.get(topic, _NOTHING).get(index, max(self.epoch, 0))

    def since_of(self, kept: Partitions, epoch: int) -> Since:
        """What `since` is of partitions that the member keeps when its epoch becomes this one."""
        made: dict[UUID, Mapping[int, int]] = {}
        own, later = max(self.epoch, 0), max(epoch, 0)
        for topic, indexes in kept.items():
            known = self.since.get(topic, _NOTHING)
            if not known.keys() <= indexes:
                known = {index: got for index, got in known.items() if index in indexes}
            # Members may have thousands of partitions: nothing is made for those of a topic that all stay.
            found = (
                known
                if own == later or len(known) == len(indexes)
                else {**dict.fromkeys(indexes, own), **known}
            )
            if later in found.values():
                found = {index: got for index, got in found.items() if got != later}
            if found:
                made[topic] = found
        return made

    def write(self, writer: FieldWriter) -> None:
        writer.int32(self.epoch)
        writer.int32(self.previous_epoch)
        writer.int8(self.state)
        for partitions in (self.assigned, self.revoking):
            _write_partitions(writer, partitions, (self.since, max(self.epoch, 0)))
        writer.tagged({})

    @classmethod
    def read(cls, reader: FieldReader) -> CurrentAssignment:
        epoch, previous_epoch, number = reader.int32(), reader.int32(), reader.int8()
        since: dict[UUID, dict[int, int]] = {}
        assigned, revoking = (_read_partitions(reader, (since, max(epoch, 0))) for _ in range(2))
        reader.tagged()
        return cls(epoch, previous_epoch, _state(number, revoking), assigned, revoking, since)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    kind: ClassVar[int] = 16
    topics: tuple[str, ...]
    #: Revision of the image that it was resolved against.
    revision: int
    timestamp_ms: int

    def write(self, writer: FieldWriter) -> None:
        writer.count(len(self.topics))
        for topic in self.topics:
            writer.text(topic)
        writer.int64(self.revision)
        writer.int64(self.timestamp_ms)
        writer.tagged({})

    @classmethod
    def read(cls, reader: FieldReader) -> ResolvedRegex:
        topics = tuple(reader.text() for _ in range(reader.count()))
        revision, timestamp_ms = reader.int64(), reader.int64()
        reader.tagged()
        return cls(topics, revision, timestamp_ms)


Value: TypeAlias = (
    GroupEpoch | MemberMetadata | TargetEpoch | TargetAssignment | CurrentAssignment | ResolvedRegex
)

KINDS: dict[int, type[Value]] = {
    kind.kind: kind
    for kind in (GroupEpoch, MemberMetadata, TargetEpoch, TargetAssignment, CurrentAssignment, ResolvedRegex)
}
#: Their keys name a member, or a regular expression, after the group.
_NAMED = (MemberMetadata.kind, TargetAssignment.kind, CurrentAssignment.kind, ResolvedRegex.kind)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    group: str
    kind: int
    #: Member id or regular expression; empty for records of the group itself.
    name: str
    value: Value | None

    def encoded(self) -> StateRecord:
        key = FieldWriter(flexible=False)
        key.int16(self.kind)
        key.text(self.group)
        if self.kind in _NAMED:
            key.text(self.name)
        if self.value is None:
            return StateRecord(key.made(), None)
        writer = FieldWriter(flexible=True)
        writer.int16(_VERSION)
        self.value.write(writer)
        return StateRecord(key.made(), writer.made())


def read_record(record: StateRecord) -> ConsumerRecord | None:
    """None for an unknown kind. Undecodable if the bytes are invalid."""
    reader = FieldReader(record.key)
    kind = reader.int16()
    if kind not in KINDS:
        return None
    group = reader.text()
    name = reader.text() if kind in _NAMED else ""
    if record.value is None:
        return ConsumerRecord(group, kind, name, None)
    reader = FieldReader(record.value, flexible=True)
    version = reader.int16()
    if version != _VERSION:
        raise Undecodable(f"kind {kind} has version {_VERSION}, this one has {version}")
    return ConsumerRecord(group, kind, name, KINDS[kind].read(reader))


def _write_partitions(
    writer: FieldWriter, partitions: Partitions, epochs: tuple[Since, int] | None = None
) -> None:
    """`epochs`: since when the member has the partitions, and its own epoch, which stands for those not named."""
    writer.count(len(partitions))
    for topic, found in partitions.items():
        indexes = sorted(found)
        writer.raw(topic.bytes)
        writer.count(len(indexes))
        writer.int32s(indexes)
        if epochs is None:
            writer.tagged({})
            continue
        known, own = epochs[0].get(topic, _NOTHING), epochs[1]
        tag = FieldWriter(flexible=True)
        tag.count(len(indexes))
        tag.int32s([known.get(index, own) for index in indexes])
        writer.tagged({_SINCE_TAG: tag.made()})


def _read_partitions(
    reader: FieldReader, epochs: tuple[dict[UUID, dict[int, int]], int] | None = None
) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count()):
        topic = UUID(bytes=reader.raw(16))
        indexes = reader.int32s(reader.count())
        tag = reader.tagged().get(_SINCE_TAG)
        if indexes:
            found[topic] = frozenset(indexes)
        if epochs is not None and tag is not None:
            _read_since(topic, indexes, tag, *epochs)
    return found


def _read_since(
    topic: UUID, indexes: tuple[int, ...], tag: bytes, since: dict[UUID, dict[int, int]], own: int
) -> None:
    """Records of brokers before KIP-1251 have none: all counts as assigned at the member's epoch."""
    reader = FieldReader(tag, flexible=True)
    number = reader.count_or_none()
    if number is None:
        return
    if number != len(indexes):
        raise Undecodable(f"{len(indexes)} partitions have {number} epochs")
    found = dict(zip(indexes, reader.int32s(number), strict=True))
    if own in found.values():
        found = {index: epoch for index, epoch in found.items() if epoch != own}
    if found:
        since.setdefault(topic, {}).update(found)
