"""The future of one sent record. [S]

Deliveries share the outcome of their batch, so a record costs one small object, and an asyncio future only
if it is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from ottla_client.accumulator import Batch, Lane, Outcome
from ottla_client.record import RecordMetadata

log = logging.getLogger(__name__)

_TOO_EARLY = "The record is not acknowledged yet; await it, or flush the producer."


class Delivery:
    """What `send` returns. Awaiting it returns `RecordMetadata` or raises the error.

    Like an `asyncio.Future` (`done`, `result`, `exception`, `add_done_callback`,
    `await`, `asyncio.gather`), except that it cannot be cancelled: the record may be in flight.
    """

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        return self._batch.outcome is not None

    def exception(self) -> Exception | None:
        """The error, or None if the record was acknowledged. InvalidStateError before the outcome."""
        return self._fate()[0].error

    def result(self) -> RecordMetadata:
        """Partition and offset of the record. Raises its error, or InvalidStateError before the outcome."""
        outcome, index = self._fate()
        if outcome.error is not None:
            raise outcome.error
        tp = self._batch.lane.tp
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        stamped = outcome.log_append_time_ms if outcome.log_append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(tp.topic, tp.partition, offset, stamped)

    def _fate(self) -> tuple[Outcome, int]:
        """The outcome of the batch that finally carried the record, and the record's index in it."""
        outcome, index = self._batch.outcome, self._index
        if outcome is None:
            raise asyncio.InvalidStateError(_TOO_EARLY)
        if self._batch.parts:
            for leaf in self._batch.leaves():
                if index < leaf.count:
                    return leaf.outcome or outcome, index
                index -= leaf.count
        return outcome, index

    def add_done_callback(self, callback: Callable[[Delivery], Any]) -> None:
        """Call `callback(self)` from the event loop when the record is acknowledged or has failed.

        Exceptions of the callback are logged: other records wait for the same batch.
        """

        def call(_batch: Batch) -> None:
            try:
                callback(self)
            except Exception:
                log.exception("A delivery callback failed")

        self._batch.watch(call)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if self._batch.outcome is None:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_batch: Batch) -> None:
                if not settled.done():
                    settled.set_result(None)

            self._batch.watch(wake)
            yield from settled
        return self.result()

    def hasten(self, sender_hasten: Callable[[Lane], None]) -> None:
        """Do not let its batch linger."""
        sender_hasten(self._batch.lane)

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self.exception() else "acknowledged"
        return f"<Delivery to {self._batch.lane.tp} {state}>"


class Dropped(Delivery):
    """The delivery of a record that an interceptor dropped: done from the start, partition and offset -1."""

    __slots__ = ("_metadata",)

    def __init__(self, topic: str, timestamp_ms: int) -> None:
        self._metadata = RecordMetadata(topic, -1, -1, timestamp_ms)

    def done(self) -> bool:
        return True

    def exception(self) -> Exception | None:
        return None

    def result(self) -> RecordMetadata:
        return self._metadata

    def add_done_callback(self, callback: Callable[[Delivery], Any]) -> None:
        def call() -> None:
            try:
                callback(self)
            except Exception:
                log.exception("A delivery callback failed")

        asyncio.get_running_loop().call_soon(call)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._metadata
        yield  # which makes it a generator

    def hasten(self, sender_hasten: Callable[[Lane], None]) -> None:
        """Nothing is sent."""

    def __repr__(self) -> str:
        return f"<Delivery to {self._metadata.topic} dropped>"
