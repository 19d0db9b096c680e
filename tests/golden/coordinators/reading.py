"""The records in segments of internal topics, by the request that caused them."""

from __future__ import annotations

from pathlib import Path

from ottla_broker.coordination.shard import StateRecord
from ottla_core.records.batch import whole_batches
from ottla_core.records.codec import records_of

HERE = Path(__file__).parent
GROUPS, TRANSACTIONS = HERE / "kafka-4.3__consumer_offsets.log", HERE / "kafka-4.3__transaction_state.log"


def batches(*segments: Path) -> list[list[StateRecord]]:
    """In a scenario with one request after the other, a batch is what one request caused."""
    return [
        [
            StateRecord(record.key or b"", record.value)
            for record in records_of(data, position, header, limit_bytes=1 << 20)
        ]
        for data in (segment.read_bytes() for segment in sorted(segments))
        for position, header in whole_batches(data)
        if not header.is_control
    ]
