"""Produce on the wire: a bounded parse that leaves records where they lie, and an encoder for success. [P]

Failures are rare and go through the schema's encoder; see `handlers/k00_produce.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from ottla_broker.edge.kafka.decode import Cursor, Malformed
from ottla_broker.edge.kafka.encode import uvarint
from ottla_broker.requests import Appended

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ACKS_TIMEOUT = Struct(">hi")
_INDEX_SIZE = Struct(">ii")
_NO_THROTTLE = bytes(4)
#: Null transactional id, acks, timeout, count of topics, length of the name.
_ONE_START = Struct(">BhiBB")
#: Count of partitions, index, and the size of the records: a number of variable length.
_ONE_PARTITION = Struct(">BiBBBB")
#: So that neither of the two reaches beyond a frame, whatever the length of the name.
_ONE_LEAST_BYTES = 9 + 0x80 + _ONE_PARTITION.size


class ProduceTopic(NamedTuple):
    #: The topic's name, or its id from version 13 on, as it stood in the request.
    key: bytes
    #: Partition index and its records; None for null.
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    #: Partitions of all topics.
    partitions: int


def parse(body: memoryview, version: int) -> ProduceRequest:
    """Raises `Malformed`. The records are views into `body`."""
    try:
        if version >= FLEXIBLE_FROM:
            by_id = version >= TOPIC_IDS_FROM
            return _parse_one(body, by_id) or _parse_flexible(Cursor(body), by_id)
        return _parse_fixed(Cursor(body))
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"produce: {error}") from error


def _parse_one(view: memoryview, by_id: bool) -> ProduceRequest | None:
    """The shape that nearly every request has: no transaction, one topic, one partition, no tagged fields.

    Half the cost of the general parser. None, or `struct.error` for what is too short, sends others there.
    """
    if len(view) < _ONE_LEAST_BYTES:
        return None
    no_transaction, acks, timeout_ms, topics, length = _ONE_START.unpack_from(view)
    if no_transaction or topics != 2:
        return None
    if by_id:
        start, at = 8, 24
    else:
        if not 0 < length < 0x80:
            return None
        start, at = 9, 8 + length
    partitions, index, b0, b1, b2, b3 = _ONE_PARTITION.unpack_from(view, at)
    if partitions != 2 or b0 < 0x80:
        return None  # what has less than 128 bytes of records is left to the general parser
    if b1 < 0x80:
        size, first = (b0 & 0x7F) | b1 << 7, at + 7
    elif b2 < 0x80:
        size, first = (b0 & 0x7F) | (b1 & 0x7F) << 7 | b2 << 14, at + 8
    elif b3 < 0x80:
        size, first = (b0 & 0x7F) | (b1 & 0x7F) << 7 | (b2 & 0x7F) << 14 | b3 << 21, at + 9
    else:
        return None
    end = first + size - 1
    if end + 3 != len(view) or bytes(view[end:]) != b"\x00\x00\x00":
        return None
    topic = ProduceTopic(bytes(view[start:at]), [(index, view[first:end])])
    return ProduceRequest(None, acks, timeout_ms, [topic], 1)


def _parse_flexible(cursor: Cursor, by_id: bool) -> ProduceRequest:
    view = cursor.view
    length = cursor.uvarint()
    transactional_id = str(cursor.take(length - 1), "utf-8") if length else None
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, cursor.at)
    cursor.at += 6
    topics: list[ProduceTopic] = []
    for _ in range(cursor.count(cursor.uvarint() - 1)):
        key = bytes(cursor.take(16 if by_id else cursor.uvarint() - 1))
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(cursor.count(cursor.uvarint() - 1)):
            (index,) = _INT32.unpack_from(view, cursor.at)
            cursor.at += 4
            size = cursor.uvarint()
            partitions.append((index, cursor.take(size - 1) if size else None))
            cursor.skip_tagged()
        cursor.skip_tagged()
        topics.append(ProduceTopic(key, partitions))
    cursor.skip_tagged()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, _count(topics))


def _parse_fixed(cursor: Cursor) -> ProduceRequest:
    view = cursor.view

    def int32() -> int:
        (value,) = _INT32.unpack_from(view, cursor.at)
        cursor.at += 4
        return int(value)

    (length,) = _INT16.unpack_from(view, 0)
    cursor.at = 2
    transactional_id = None if length == -1 else str(cursor.take(length), "utf-8")
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, cursor.at)
    cursor.at += 6
    topics: list[ProduceTopic] = []
    for _ in range(cursor.count(int32())):
        (length,) = _INT16.unpack_from(view, cursor.at)
        cursor.at += 2
        key = bytes(cursor.take(length))
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(cursor.count(int32())):
            index, size = _INDEX_SIZE.unpack_from(view, cursor.at)
            cursor.at += 8
            partitions.append((index, None if size == -1 else cursor.take(size)))
        topics.append(ProduceTopic(key, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, _count(topics))


def _count(topics: list[ProduceTopic]) -> int:
    return sum(len(topic.partitions) for topic in topics)


#: index, error, base offset, log append time, log start offset; then no record errors, no message, no tags.
_DONE_FLEXIBLE = Struct(">ihqqqBBB")
_DONE_V8 = Struct(">ihqqqih")
_DONE_V5 = Struct(">ihqqq")
_DONE_V3 = Struct(">ihqq")
#: The same for the only partition of the only topic: its count, itself, the topic's tags, no throttling, no
#: tags.
_ONE_FLEXIBLE = Struct(">BihqqqBBBBiB")

Done = Sequence[tuple[ProduceTopic, list[Appended]]]


def encode_one(version: int, key: bytes, index: int, a: Appended) -> bytes:
    """`encode_done` for what nearly every request is: one partition. Flexible versions only."""
    made = _ONE_FLEXIBLE.pack(
        2, index, 0, a.base_offset, a.log_append_time_ms, a.log_start_offset, 1, 0, 0, 0, 0, 0
    )
    if version < TOPIC_IDS_FROM:
        return b"\x02" + uvarint(len(key) + 1) + key + made
    return b"\x02" + key + made


def encode_done(version: int, done: Done) -> bytes:
    """The answer when every partition was written."""
    if version >= FLEXIBLE_FROM:
        return _encode_flexible(version, done)
    parts: list[bytes] = [_INT32.pack(len(done))]
    for topic, appended in done:
        parts += (_INT16.pack(len(topic.key)), topic.key, _INT32.pack(len(appended)))
        for (index, _), a in zip(topic.partitions, appended, strict=True):
            if version >= 8:
                made = _DONE_V8.pack(index, 0, a.base_offset, a.log_append_time_ms, a.log_start_offset, 0, -1)
            elif version >= 5:
                made = _DONE_V5.pack(index, 0, a.base_offset, a.log_append_time_ms, a.log_start_offset)
            else:
                made = _DONE_V3.pack(index, 0, a.base_offset, a.log_append_time_ms)
            parts.append(made)
    parts.append(_NO_THROTTLE)
    return b"".join(parts)


def _encode_flexible(version: int, done: Done) -> bytes:
    parts: list[bytes] = [uvarint(len(done) + 1)]
    for topic, appended in done:
        if version < TOPIC_IDS_FROM:
            parts.append(uvarint(len(topic.key) + 1))
        parts += (topic.key, uvarint(len(appended) + 1))
        for (index, _), a in zip(topic.partitions, appended, strict=True):
            parts.append(
                _DONE_FLEXIBLE.pack(
                    index, 0, a.base_offset, a.log_append_time_ms, a.log_start_offset, 1, 0, 0
                )
            )
        parts.append(b"\x00")
    parts += (_NO_THROTTLE, b"\x00")
    return b"".join(parts)
