"""Hooks around records and commits, for example for tracing or auditing. [P]

Subclass and override what you need. Interceptors run in the given order, inside the client's event loop,
for every record: they must be fast and must not block. An exception is logged and the interceptor is
skipped; no record is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla_client.record import (
    ConsumerRecord,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)


class ProducerInterceptor:
    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """Before serialization and partitioning. Return the record to send, the same or another, or None to drop it:
        then its delivery has partition and offset -1, and neither later interceptors nor `on_acknowledgement` get it.
        """
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """When the broker has acknowledged the record, or it has failed for good: exactly one of the two is set."""


class ConsumerInterceptor:
    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Before `poll` returns. Return the records for the user, the same or others."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """When the coordinator has committed these offsets of this consumer; not those that a transaction commits."""
