"""Record batches for the edge's tests, built by the compiled codec that clients use."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatchBuilder


def batch(*values: bytes, timestamp_ms: int = 1_000) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 26)
    for offset, value in enumerate(values):
        builder.append(offset, timestamp_ms, None, value, [])
    return bytes(builder.build())
