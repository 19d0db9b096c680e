"""Consume, transform, produce: each record that is read has its effect exactly once. [S]

Around a consumer and a transactional producer: what the transformation makes of a batch of records, and the offsets of
that batch, are one transaction. After any failure the next attempt begins at the committed offsets.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ottla_client.consumer import Consumer
from ottla_client.errors import (
    BufferExhausted,
    CannotConnect,
    ClientError,
    CommitFailed,
    DeliveryTimedOut,
    NotServed,
    ProducerFenced,
    TransactionFailed,
)
from ottla_client.producer import Producer
from ottla_client.record import ConsumerRecord, ProducerRecord
from ottla_core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.real.clock import RealClock

log = logging.getLogger(__name__)

Made: TypeAlias = ProducerRecord | Iterable[ProducerRecord] | None
#: What one record becomes: no record, one, or many; plain (fast, in the event loop) or async.
Transformation: TypeAlias = Callable[[ConsumerRecord], Made | Awaitable[Made]]

#: Refusals of one transaction; the next one has another producer epoch.
_OF_THE_TRANSACTION = (InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber)
_POLL_MS = 500
_PAUSE_S = 0.2
_PAUSE_MAX_S = 5.0


class ExactlyOnce:
    """Reads topics as a member of a group, and writes what `transform` makes of each record, exactly once.

    >>> def invoice(order):                                       # plain or async
    ...     return ProducerRecord("invoices", order.value, order.key)
    >>> worker = ExactlyOnce("127.0.0.1:9192", ["orders"], invoice, group_id="billing", transactional_id="billing-0")
    >>> await worker.run(stop)                                     # until the event is set

    `transform` returns a `ProducerRecord`, an iterable of them, or None. Those of up to `max_poll_records` records and
    the offsets of these are one transaction: readers with `isolation_level="read_committed"` see all of it or nothing.
    It may be called again for a record whose transaction was aborted, so it should have no other effects.

    Run as many workers of a group as there are partitions, each with a `transactional_id` of its own that it has again
    after a restart (for example the name of its pod): a new worker aborts what its predecessor left open. Otherwise the
    partitions of a crashed worker wait for `transaction_timeout_ms`.

    Failures of brokers and rebalances are retried for as long as it takes. `run` raises exceptions of `transform`,
    ProducerFenced if another process has the same `transactional_id`, and errors that no retry fixes.

    * `consumer`, `producer`: further settings of the two, as mappings.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: Sequence[str],
        transform: Transformation,
        *,
        group_id: str,
        transactional_id: str,
        transaction_timeout_ms: int = 15_000,
        max_poll_records: int = 500,
        auto_offset_reset: str = "earliest",
        security: Any = None,
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        self._clock = RealClock()
        self._topics = list(topics)
        self._transform = transform
        self._consumer = Consumer(
            bootstrap_servers,
            **{
                "group_id": group_id,
                "auto_offset_reset": auto_offset_reset,
                "max_poll_records": max_poll_records,
                "security": security,
                **(consumer or {}),
                "isolation_level": "read_committed",
                "enable_auto_commit": False,
            },
        )
        self._producer_settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "transaction_timeout_ms": transaction_timeout_ms,
            "security": security,
            **(producer or {}),
            "transactional_id": transactional_id,
        }
        Producer(**self._producer_settings)  # Wrong settings are refused here.
        self._producer: Producer | None = None
        #: Of an attempt that failed: the first offset of each partition in it.
        self._unsure: dict[TopicPartition, int] = {}
        self._pause_s = _PAUSE_S
        self._timeout_s = transaction_timeout_ms / 1000
        #: When the last transaction was begun.
        self._began = 0.0
        #: Committed transactions.
        self.commits = 0

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Until `stop` is set, or an error that no retry fixes."""
        await self._started(stop)
        try:
            self._consumer.subscribe(self._topics)
            while not (stop is not None and stop.is_set()):
                await self._turn()
        finally:
            try:
                await self._drop_producer()
            finally:
                await self._consumer.stop()

    async def _started(self, stop: asyncio.Event | None) -> None:
        while True:
            try:
                await self._consumer.start()
                return
            except (ClientError, RequestError) as error:
                if stop is not None and stop.is_set():
                    raise
                await self._after(error)

    async def _turn(self) -> None:
        """One batch, or one step back to a state in which a batch can be tried."""
        try:
            producer = await self._ready()
            records = await self._consumer.poll(_POLL_MS)
            if records:
                await self._batch(producer, records)
                self.commits += 1
            self._pause_s = _PAUSE_S
        except CommitFailed as error:
            # The transaction is aborted: other members have the partitions, or will return them to us.
            log.info("The transaction was aborted, and its records are read again: %s", error)
            await self._drop_producer()
        except ProducerFenced as error:
            if self._clock.monotonic() - self._began < self._timeout_s:
                raise  # Not because its transaction took too long, so there is another producer.
            await self._drop_producer()
            log.warning("The transaction took longer than transaction_timeout_ms: %s", error)
        except (ClientError, RequestError) as error:
            await self._drop_producer()
            await self._after(error)

    async def _after(self, error: ClientError | RequestError) -> None:
        """Pause before the next attempt, or raise what no attempt fixes."""
        if not may_pass(error):
            raise error
        log.warning("Consume-transform-produce goes on from the committed offsets: %s", error)
        await self._clock.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)

    async def _ready(self) -> Producer:
        """A producer, and positions behind what is committed.

        A new producer of the transactional id ends what the last one left open, so the outcome of the last attempt is
        decided when the committed offsets are read.
        """
        if self._producer is None:
            made = Producer(**self._producer_settings)
            try:
                await made.start()
            except BaseException:
                await made.stop()
                raise
            self._producer = made
        if self._unsure:
            ours = [tp for tp in self._unsure if tp in self._consumer.assignment()]
            committed = await self._consumer.committed(ours)
            for tp in ours:
                found = committed[tp]
                self._consumer.seek(tp, self._unsure[tp] if found is None else found.offset)
            self._unsure = {}
        return self._producer

    async def _batch(self, producer: Producer, records: Sequence[ConsumerRecord]) -> None:
        offsets: dict[TopicPartition, int] = {}
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            self._unsure.setdefault(tp, record.offset)
            offsets[tp] = record.offset + 1
        # Of the member that polled the records: if it is removed from the group later, the coordinator refuses them.
        member = self._consumer.group_metadata()
        self._began = self._clock.monotonic()
        async with producer.transaction():
            await self._write(producer, records)
            await producer.send_offsets(offsets, member)
        self._unsure = {}

    async def _write(self, producer: Producer, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            made = self._transform(record)
            if inspect.isawaitable(made):
                made = await made
            if made is None:
                continue
            for each in (made,) if isinstance(made, ProducerRecord) else made:
                await producer.send(
                    each.topic,
                    each.value,
                    each.key,
                    headers=each.headers,
                    partition=each.partition,
                    timestamp_ms=each.timestamp_ms,
                )

    async def _drop_producer(self) -> None:
        """Its open transaction is aborted, here or by the next producer of the transactional id."""
        dropped, self._producer = self._producer, None
        if dropped is not None:
            try:
                await dropped.stop()
            except (ClientError, RequestError) as error:
                log.info("The producer was not closed properly: %s", error)


def may_pass(error: BaseException) -> bool:
    """Whether another transaction may succeed, with a new producer and from the committed offsets."""
    if isinstance(error, TransactionFailed):
        return error.__cause__ is None or may_pass(error.__cause__)
    if isinstance(error, RequestError):
        return error.retriable or isinstance(error, _OF_THE_TRANSACTION)
    if isinstance(error, NotServed):
        return False
    return isinstance(error, CannotConnect | BufferExhausted | CommitFailed | DeliveryTimedOut)
