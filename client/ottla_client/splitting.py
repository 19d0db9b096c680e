"""Splits a batch that a broker refused as too large: same records, same order, same sequence numbers. [P]

The records are decoded from the bytes that were sent, because a batch keeps no other copy. Called by the
accumulator, which puts the halves in the place of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla_core.errors import invariant
from ottla_core.records.batch import HEADER_BYTES, header_at
from ottla_core.records.codec import BatchBuilder, Record, records_of

if TYPE_CHECKING:
    from ottla_client.accumulator import Batch


def builders_of_halves(batch: Batch, compression: int) -> tuple[BatchBuilder, BatchBuilder]:
    """About half of the bytes each, and at least one record."""
    header = header_at(batch.payload)
    records = records_of(batch.payload, 0, header, limit_bytes=max(len(batch.payload), batch.size_bytes))
    invariant(1 < len(records) == batch.count, "only batches of several records are split")
    middle = _middle([len(record.key or b"") + len(record.value or b"") for record in records])
    return _builder(records[:middle], batch, compression), _builder(records[middle:], batch, compression)


def _middle(sizes: Sequence[int]) -> int:
    """The cut that makes the larger half about as small as possible."""
    total, before = sum(sizes), 0
    for index, size in enumerate(sizes):
        if before + size / 2 >= total / 2:
            return min(max(index, 1), len(sizes) - 1)
        before += size
    return len(sizes) // 2


def _builder(records: Sequence[Record], batch: Batch, compression: int) -> BatchBuilder:
    builder = BatchBuilder(HEADER_BYTES + batch.size_bytes, compression=compression)
    for record in records:
        took = builder.append(record.timestamp_ms, record.key, record.value, record.headers)
        invariant(took, "half of a batch fits where the whole did")
    return builder
