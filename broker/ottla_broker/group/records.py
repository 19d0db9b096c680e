"""Records of `__consumer_offsets`, byte for byte as Apache Kafka writes and reads them. [P]

A key begins with a version that is really its kind: 0 and 1 an offset (group, topic, partition), 2 a group. Kafka's
later kinds (3 and up: its broker-side groups) are recognised, so that they can be skipped. A value has
its own version. Ottla writes what Kafka 4.3 writes: offsets as version 4 (with the topic id; 1 if the client gave a
retention time), groups as version 3; it reads all versions.

Big-endian; strings and bytes with a length of 2 and 4 bytes, in flexible versions (4) as unsigned varints plus one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from ottla_broker.coordination.fields import FieldReader, FieldWriter, Undecodable
from ottla_broker.coordination.shard import StateRecord
from ottla_core.ids import NO_EPOCH, NO_TOPIC_ID, TopicPartition

_OFFSET_KINDS = (0, 1)
_OFFSET_KIND = 1
_GROUP_KIND = 2
_GROUP_VERSION = 3
_FLEXIBLE_VERSION = 4
_EXPIRING_VERSION = 1
_TOPIC_ID_TAG = 0

_SHORT = struct.Struct(">h")
_OFFSET_HEAD = struct.Struct(">hqi")
_LENGTH = struct.Struct(">H")
_OFFSET_AND_EPOCH = struct.Struct(">qi")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
#: One tagged field: number 0, 16 bytes.
_TOPIC_ID_PREFIX = b"\x01\x00\x10"
_NO_TAGS = b"\x00"
_OFFSET_KIND_BYTES = _SHORT.pack(_OFFSET_KIND)
_FLEXIBLE_BYTES = _SHORT.pack(_FLEXIBLE_VERSION)
#: Version, offset, epoch, the length of the metadata, time, and the tagged topic id.
_PLAIN_OFFSET = struct.Struct(">hqiBq3s16s")
_OFFSET_BYTES_MIN = 2 + 8 + 4 + 1 + 8 + 19


class OffsetKey(NamedTuple):
    group: str
    tp: TopicPartition


class GroupKey(NamedTuple):
    group: str


class OffsetValue(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    #: Only if the client sent a retention time.
    expire_timestamp_ms: int | None = None
    topic_id: UUID = NO_TOPIC_ID


class MemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    #: Its metadata for the protocol in use.
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: str | None
    #: When the group entered its state; offsets of an empty group expire relative to it.
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


# ---------------------------------------------------------------------- writing


def offset_record(group: str, tp: TopicPartition, value: OffsetValue) -> StateRecord:
    return StateRecord(_offset_key(group, tp), _offset_value(value))


def offset_tombstone(group: str, tp: TopicPartition) -> StateRecord:
    return StateRecord(_offset_key(group, tp), None)


def group_record(group: str, value: GroupValue) -> StateRecord:
    return StateRecord(_group_key(group), _group_value(value))


def group_tombstone(group: str) -> StateRecord:
    return StateRecord(_group_key(group), None)


def _offset_key(group: str, tp: TopicPartition) -> bytes:
    name, topic = group.encode(), tp.topic.encode()
    return b"".join(
        (
            _SHORT.pack(_OFFSET_KIND),
            _SHORT.pack(len(name)),
            name,
            _SHORT.pack(len(topic)),
            topic,
            _INT.pack(tp.partition),
        )
    )


def _offset_value(value: OffsetValue) -> bytes:
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms is not None:
        return b"".join(
            (
                _SHORT.pack(_EXPIRING_VERSION),
                _LONG.pack(value.offset),
                _SHORT.pack(len(metadata)),
                metadata,
                _LONG.pack(value.commit_timestamp_ms),
                _LONG.pack(value.expire_timestamp_ms),
            )
        )
    writer = FieldWriter(flexible=True)
    writer.raw(_OFFSET_HEAD.pack(_FLEXIBLE_VERSION, value.offset, value.leader_epoch))
    writer.text(value.metadata)
    writer.int64(value.commit_timestamp_ms)
    if value.topic_id == NO_TOPIC_ID:
        writer.raw(_NO_TAGS)
    else:
        writer.raw(_TOPIC_ID_PREFIX + value.topic_id.bytes)
    return writer.made()


def _group_key(group: str) -> bytes:
    name = group.encode()
    return _SHORT.pack(_GROUP_KIND) + _SHORT.pack(len(name)) + name


def _group_value(value: GroupValue) -> bytes:
    writer = FieldWriter(flexible=False)
    writer.int16(_GROUP_VERSION)
    writer.text(value.protocol_type)
    writer.int32(value.generation)
    writer.text(value.protocol)
    writer.text(value.leader_id)
    writer.int64(value.state_timestamp_ms)
    writer.int32(len(value.members))
    for member in value.members:
        writer.text(member.member_id)
        writer.text(member.instance_id)
        writer.text(member.client_id)
        writer.text(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.blob(member.subscription)
        writer.blob(member.assignment)
    return writer.made()


# ---------------------------------------------------------------------- reading


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    """None for an unknown kind. Undecodable if the bytes are invalid."""
    if key[:2] == _OFFSET_KIND_BYTES:
        # By far the most common. A new coordinator reads a hundred thousand of them before it answers.
        names = _names(key[2:-4])
        if names is not None:
            return OffsetKey(names[0], TopicPartition(names[1], _INT.unpack_from(key, len(key) - 4)[0]))
        # The full decoder below reports the error.
    reader = FieldReader(key)
    kind = reader.int16()
    if kind in _OFFSET_KINDS:
        return OffsetKey(reader.text(), TopicPartition(reader.text(), reader.int32()))
    return GroupKey(reader.text()) if kind == _GROUP_KIND else None


@lru_cache(maxsize=4096)
def _names(data: bytes) -> tuple[str, str] | None:
    """Group and topic of an offset's key. They have many partitions, which then share the strings, too."""
    try:
        group_end = 2 + _LENGTH.unpack_from(data)[0]
        if group_end + 2 + _LENGTH.unpack_from(data, group_end)[0] == len(data):
            return data[2:group_end].decode(), data[group_end + 2 :].decode()
    except (struct.error, UnicodeDecodeError):
        pass
    return None


def read_offset(value: bytes) -> OffsetValue:
    if len(value) == _OFFSET_BYTES_MIN and value[:2] == _FLEXIBLE_BYTES:
        # The most common form, as Kafka and Ottla write it: no metadata, and a topic id.
        _, offset, epoch, size, commit_ms, prefix, raw = _PLAIN_OFFSET.unpack(value)
        if size == 1 and prefix == _TOPIC_ID_PREFIX:
            return OffsetValue(offset, epoch, "", commit_ms, None, _topic_id(raw))
    if value[:2] == _FLEXIBLE_BYTES and len(value) >= _OFFSET_BYTES_MIN and 0 < value[14] < 0x80:
        metadata_end = 14 + value[14]
        tags = value[metadata_end + 8 :]
        if len(tags) == 19 and tags[:3] == _TOPIC_ID_PREFIX:  # The common form, as Kafka and Ottla write it.
            try:
                offset, epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
                metadata = value[15:metadata_end].decode() if metadata_end > 15 else ""
                commit_ms = _LONG.unpack_from(value, metadata_end)[0]
                return OffsetValue(offset, epoch, metadata, commit_ms, None, _topic_id(tags[3:]))
            except UnicodeDecodeError:
                pass  # The full decoder below reports the error.
    reader = FieldReader(value)
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE_VERSION:
        raise Undecodable(f"offsets have versions 0 to {_FLEXIBLE_VERSION}, this one has {version}")
    reader.flexible = version >= _FLEXIBLE_VERSION
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata, commit_ms = reader.text(), reader.int64()
    expire_ms = reader.int64() if version == _EXPIRING_VERSION else -1
    raw_id = reader.tagged().get(_TOPIC_ID_TAG) if reader.flexible else None
    if raw_id is not None and len(raw_id) != 16:
        raise Undecodable(f"a topic id has 16 bytes, this one has {len(raw_id)}")
    topic_id = NO_TOPIC_ID if raw_id is None else _topic_id(raw_id)
    expiry = None if expire_ms == -1 else expire_ms
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expiry, topic_id)


@lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> UUID:
    """A few topics, many offsets of each: making a UUID takes longer than reading all the rest."""
    return UUID(bytes=raw)


def read_group(value: bytes) -> GroupValue:
    reader = FieldReader(value)
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE_VERSION:
        raise Undecodable(f"groups have versions 0 to {_FLEXIBLE_VERSION}, this one has {version}")
    reader.flexible = version >= _FLEXIBLE_VERSION
    protocol_type, generation = reader.text(), reader.int32()
    protocol, leader_id = reader.text_or_none(), reader.text_or_none()
    since_ms = reader.int64() if version >= 2 else -1
    members = tuple(_read_member(reader, version) for _ in range(reader.count()))
    if reader.flexible:
        reader.tagged()
    return GroupValue(protocol_type, generation, protocol, leader_id, since_ms, members)


def _read_member(reader: FieldReader, version: int) -> MemberValue:
    member_id = reader.text()
    instance_id = reader.text_or_none() if version >= 3 else None
    client_id, client_host = reader.text(), reader.text()
    rebalance_ms = reader.int32() if version >= 1 else -1
    session_ms = reader.int32()
    subscription, assignment = reader.blob(), reader.blob()
    if reader.flexible:
        reader.tagged()
    return MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        # Before version 1 the session timeout was both.
        session_ms if rebalance_ms == -1 else rebalance_ms,
        session_ms,
        subscription,
        assignment,
    )
