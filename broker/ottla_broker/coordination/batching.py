"""Entries of a decision to record batches, and batches of the log back to entries. [P]

Plain records of several requests share a batch. Records of a transaction share one with their producer's only, because
producer id and epoch are fields of the batch; a marker is a control batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ottla_broker.coordination.shard import Entry, StateRecord, TransactionMarker
from ottla_broker.requests import ProducerIdentity
from ottla_core.records.batch import BatchHeader
from ottla_core.records.codec import BatchBuilder, records_of
from ottla_core.records.control import Marker, MarkerType, build_marker, marker_in

#: Records share a batch up to this size.
_BATCH_BYTES = 256 * 1024
#: Uncompressed records of one batch. Ours are smaller; a client's compressed one is refused at the edge.
_BATCH_BYTES_MAX = 16 * 1024 * 1024


def batches_of(entries: Sequence[Entry], now_ms: int) -> Iterator[bytearray]:
    """The batches to append, in the order of the entries."""
    for producer, run in groupby(entries, _batch_key):
        if isinstance(producer, TransactionMarker):
            yield _marker_batch(producer, now_ms)
        else:
            yield from _record_batches((e for e in run if isinstance(e, StateRecord)), producer, now_ms)


def _batch_key(entry: Entry) -> ProducerIdentity | TransactionMarker | None:
    return entry if isinstance(entry, TransactionMarker) else entry.producer


def _record_batches(
    records: Iterator[StateRecord], producer: ProducerIdentity | None, now_ms: int
) -> Iterator[bytearray]:
    builder = BatchBuilder(_BATCH_BYTES)
    for record in records:
        if not builder.append(now_ms, record.key, record.value):
            yield _built(builder, producer)
            builder = BatchBuilder(_BATCH_BYTES)
            builder.append(now_ms, record.key, record.value)
    yield _built(builder, producer)


def _built(builder: BatchBuilder, producer: ProducerIdentity | None) -> bytearray:
    if producer is None:
        return builder.build()
    return builder.build(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
    )


def _marker_batch(marker: TransactionMarker, now_ms: int) -> bytearray:
    kind = MarkerType.COMMIT if marker.commits else MarkerType.ABORT
    return build_marker(
        Marker(kind, marker.coordinator_epoch),
        producer_id=marker.producer.producer_id,
        producer_epoch=marker.producer.producer_epoch,
        timestamp_ms=now_ms,
    )


def entries_in(data: bytes, position: int, header: BatchHeader, from_offset: int) -> Iterator[Entry]:
    """The entries of a batch from an offset on. Records without a key are skipped."""
    producer = ProducerIdentity(header.producer_id, header.producer_epoch)
    if header.is_control:
        marker = marker_in(data, position, header)
        if marker is not None:
            commits = marker.type is MarkerType.COMMIT
            yield TransactionMarker(producer, marker.coordinator_epoch, commits)
        return
    owner = producer if header.is_transactional else None
    for record in records_of(data, position, header, limit_bytes=_BATCH_BYTES_MAX):
        if record.offset >= from_offset and record.key is not None:
            yield StateRecord(record.key, record.value, owner)
