"""Record batches for tests, made by aiokafka's codec and not by ours: a second opinion on the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    complete_batches,
    header_at,
    reseal,
    restamp,
)

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ATTRIBUTES_AT = 21


class Rec(NamedTuple):
    """A record as a reader sees it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def make_batch(
    records: Sequence[Rec],
    *,
    codec: str = "none",
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """One batch. `offsets` are deltas from the base offset, for batches with gaps."""
    builder = DefaultRecordBatchBuilder(
        2, CODECS[codec], transactional, producer_id, epoch, sequence, 1 << 30
    )
    for number, record in enumerate(records):
        delta = number if offsets is None else offsets[number]
        added = builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
        assert added is not None
    made = bytearray(builder.build())
    if control:
        (attributes,) = struct.unpack_from(">h", made, _ATTRIBUTES_AT)
        struct.pack_into(">h", made, _ATTRIBUTES_AT, attributes | CONTROL_FLAG)
        reseal(made, 0, len(made))
    restamp(made, 0, base_offset, leader_epoch)
    # aiokafka falls back to none when compressing does not help to test anything.
    assert header_at(made).attributes & COMPRESSION_MASK == CODECS[codec]
    return bytes(made)


def make_marker(
    *, commit: bool, producer_id: int, epoch: int = 0, coordinator_epoch: int = 0, timestamp: int = 0
) -> bytes:
    """A control batch that ends a transaction."""
    record = Rec(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch), timestamp)
    return make_batch(
        [record], producer_id=producer_id, epoch=epoch, sequence=-1, transactional=True, control=True
    )


def is_abort(batch: Buffer) -> bool:
    """Whether a control batch ends its transaction as aborted."""
    (_, record), *_ = read_batches(batch)
    return is_abort_key(record.key)


def is_abort_key(key: bytes | None) -> bool:
    """Whether the key of a control record is that of an abort marker."""
    return key is not None and struct.unpack_from(">h", key, 2) == (0,)


def read_batches(data: Buffer) -> list[tuple[int, Rec]]:
    """Every record of the complete batches in what a fetch brought, with its offset; CRCs are checked."""
    found: list[tuple[int, Rec]] = []
    for position, header in complete_batches(data):
        if header.count == 0:
            continue
        batch = DefaultRecordBatch(bytes(memoryview(data)[position : position + header.size]))
        assert batch.validate_crc()
        for record in batch:
            value = Rec(record.key, record.value, record.timestamp, tuple(record.headers))
            found.append((record.offset, value))
    return found
