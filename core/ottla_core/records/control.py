"""Transaction markers: the control batches that end a transaction in each of its partitions. [P]

Written by the broker for the transaction coordinator, read by the log (producer state, aborted ranges), by compaction
and by `read_committed` readers. Clients never see them as records.

A marker is a control batch of one record. Key: version 2 bytes, type 2 bytes (0 abort, 1 commit). Value: version 2
bytes, coordinator epoch 4 bytes. Versions above ours only add at the end, so they are read as ours.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ottla_core.errors import CorruptMessage
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import BatchHeader
from ottla_core.records.codec import BatchBuilder, Record, records_of

_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
#: Markers of newer versions are small, too; a larger record is not a marker.
_MARKER_BYTES_MAX = 4096


class MarkerType(IntEnum):
    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    type: MarkerType
    coordinator_epoch: int


def build_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
) -> bytearray:
    """The marker batch to append; the log sets offset and leader epoch as for any batch."""
    builder = BatchBuilder(_MARKER_BYTES_MAX)
    builder.append(
        timestamp_ms,
        _KEY.pack(_VERSION, marker.type),
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    return builder.build(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        base_offset=base_offset,
    )


def marker_of(record: Record) -> Marker | None:
    """The marker in a record of a control batch; None for unknown types (KRaft has some)."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptMessage("A control record's key is too short.")
    version, kind = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptMessage(f"A control record has version {version}.")
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptMessage("An end-of-transaction marker's value is too short.")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptMessage(f"An end-of-transaction marker has version {version}.")
    return Marker(MarkerType(kind), coordinator_epoch)


def marker_in(buffer: Buffer, position: int, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None if unknown, or if compaction has emptied the batch."""
    records = records_of(buffer, position, header, limit_bytes=_MARKER_BYTES_MAX)
    return marker_of(records[0]) if records else None
