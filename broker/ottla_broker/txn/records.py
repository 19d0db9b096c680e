"""Records of `__transaction_state`, byte for byte as Apache Kafka writes and reads them. [P]

The key is a version (0) and the transactional id. The value has version 1 (flexible); version 0, of brokers before
Kafka 3.8, is read. Numbers are big-endian; `coordination/fields.py` has the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby

from ottla_broker.coordination.fields import FieldReader, FieldWriter, Undecodable
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.txn.transaction import NO_PRODUCER_ID, State, Transaction
from ottla_core.ids import TopicPartition

_KEY_VERSION = 0
_VALUE_VERSION = 1
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")


def transaction_record(transactional_id: str, value: Transaction) -> StateRecord:
    return StateRecord(_key(transactional_id), _value(value))


def transaction_tombstone(transactional_id: str) -> StateRecord:
    return StateRecord(_key(transactional_id), None)


def _key(transactional_id: str) -> bytes:
    out = FieldWriter(flexible=False)
    out.int16(_KEY_VERSION)
    out.text(transactional_id)
    return out.made()


def _value(value: Transaction) -> bytes:
    out = FieldWriter(flexible=True)
    out.int16(_VALUE_VERSION)
    out.int64(value.producer_id)
    out.int16(value.producer_epoch)
    out.int32(value.timeout_ms)
    out.int8(value.state)
    _write_partitions(out, None if value.state is State.EMPTY else value.partitions)
    out.int64(value.updated_ms)
    out.int64(value.started_ms)
    # Without an earlier producer id, Kafka names the present one.
    previous_id = value.previous_producer_id
    tags = {_PREVIOUS_ID_TAG: _LONG.pack(value.producer_id if previous_id == NO_PRODUCER_ID else previous_id)}
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID_TAG] = _LONG.pack(value.next_producer_id)
    if value.client_version:
        tags[_CLIENT_VERSION_TAG] = _SHORT.pack(value.client_version)
    out.tagged(tags)
    return out.made()


def _write_partitions(out: FieldWriter, partitions: Iterable[TopicPartition] | None) -> None:
    if partitions is None:
        out.count(-1)
        return
    topics = [
        (topic, [tp.partition for tp in run])
        for topic, run in groupby(sorted(partitions), lambda tp: tp.topic)
    ]
    out.count(len(topics))
    for topic, indexes in topics:
        out.text(topic)
        out.count(len(indexes))
        for index in indexes:
            out.int32(index)
        out.tagged({})


# ---------------------------------------------------------------------- reading


def read_key(key: bytes) -> str | None:
    """The transactional id; None for a key of another kind."""
    reader = FieldReader(key)
    return reader.text() if reader.int16() == _KEY_VERSION else None


def read_value(value: bytes) -> Transaction:
    reader = FieldReader(value)
    version = reader.int16()
    if not 0 <= version <= _VALUE_VERSION:
        raise Undecodable(f"transactions have versions 0 to {_VALUE_VERSION}, this one has {version}")
    reader.flexible = version >= 1
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    try:
        state = State(reader.int8())
    except ValueError as error:
        raise Undecodable(str(error)) from None
    partitions = frozenset(_read_partitions(reader))
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tagged() if reader.flexible else {}
    try:
        previous_id = _LONG.unpack(tags[_PREVIOUS_ID_TAG])[0] if _PREVIOUS_ID_TAG in tags else producer_id
        return Transaction(
            producer_id,
            epoch,
            timeout_ms,
            state,
            partitions,
            updated_ms,
            started_ms,
            NO_PRODUCER_ID if previous_id == producer_id else previous_id,
            _LONG.unpack(tags[_NEXT_ID_TAG])[0] if _NEXT_ID_TAG in tags else NO_PRODUCER_ID,
            _SHORT.unpack(tags[_CLIENT_VERSION_TAG])[0] if _CLIENT_VERSION_TAG in tags else 0,
        )
    except struct.error as error:
        raise Undecodable(str(error)) from None


def _read_partitions(reader: FieldReader) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(reader.count_or_none() or 0):
        topic = reader.text()
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
        if reader.flexible:
            reader.tagged()
    return found
