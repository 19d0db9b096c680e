"""Writes the rows of one task: window by window, with an idempotent producer, perhaps in a transaction. [S]

A transactional task announces its id to the coordinator first and then reads whether the batch is decided: if not,
the driver that decides it finds the id, and aborts what it does not need (docs/decisions/0017). So a task that nobody
waits for any more never leaves an open transaction behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from ottla_client import Producer
from ottla_client.delivery import Delivery
from ottla_client.errors import ClientError, NotServed, RequestError, UnknownTopicOrPartition
from ottla_client.prepared import PreparedTransaction
from ottla_core.errors import InvalidTransactionTimeout
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock
from pyspark_ottla.decision_log import read_decision
from pyspark_ottla.decisions import attempt_id, is_decided
from pyspark_ottla.encode import EncodingProblem
from pyspark_ottla.options import WriteOptions
from pyspark_ottla.rows import RowEncoder, windows

#: Without kafka.max.request.size the topic's max.message.bytes and the broker's grpc.message.max.bytes are the limits.
#: This bounds a task's memory; the client does not receive longer messages either.
_REQUEST_BYTES_MAX = 128 * 1024 * 1024

#: Rows that are encoded together. With what the producer holds (buffer_memory), it bounds the memory of a task.
_WINDOW_BYTES = 8 * 1024 * 1024


class WriteProblem(Exception):
    """Why rows could not be written, in one sentence."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    rows: int
    #: Of the streaming query or the job.
    sink: str = ""
    #: To be committed by the driver; None without rows, and for at-least-once.
    transaction: PreparedTransaction | None = None


def too_old(error: NotServed) -> WriteProblem:
    return WriteProblem(
        f"The brokers are too old for exactly-once writes; upgrade them, or set deliveryGuarantee to "
        f"at-least-once. ({error})"
    )


def write_rows(
    options: WriteOptions, columns: dict[str, int], batches: Iterator[Any], place: tuple[str, int]
) -> Written:
    """On an executor. `place`: the sink and the batch."""
    sink, batch = place
    found = windows(batches, _WINDOW_BYTES)
    first = next(found, None)
    if first is None:
        return Written(0, sink)  # Many tasks of a shuffle have no rows.
    writing = _write(options, columns, itertools.chain((first,), found), sink, batch)
    return asyncio.run(_explained(writing))


async def _explained(writing: Any) -> Written:
    try:
        return await writing  # type: ignore[no-any-return]
    except (ValueError, EncodingProblem) as error:
        raise WriteProblem(f"Rows could not be written: {error}") from None
    except UnknownTopicOrPartition as error:
        raise WriteProblem(f"{error} Create the topic first, or check the name.") from None
    except NotServed as error:
        raise too_old(error) from None
    except InvalidTransactionTimeout as error:
        raise WriteProblem(
            f"kafka.transaction.timeout.ms is above the brokers' transaction.max.timeout.ms; lower it. ({error})"
        ) from None
    except (ClientError, RequestError) as error:
        raise WriteProblem(f"Rows could not be written: {error}") from None


async def _write(
    options: WriteOptions, columns: dict[str, int], found: Iterator[Any], sink: str, batch: int
) -> Written:
    failures: list[Exception] = []

    def settled(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None and not failures:
            failures.append(error)

    rows = 0
    prepared = None
    async with _producer(options, sink, batch) as producer:
        if options.exactly_once:
            last = await read_decision(producer.cluster, sink, options.request_timeout_ms / 1000)
            if is_decided(last, batch):
                return Written(0, sink)
            await producer.begin()
        encoder = RowEncoder(options, columns, producer, RealClock(), RealChance())
        async for window in _without_blocking(found):
            async for topic, made in encoder.batches(window):
                delivery = await producer.send_encoded(topic, made.partition, made.records)
                delivery.add_done_callback(settled)
            rows += window.num_rows
            if failures:
                break
        if options.exactly_once and not failures:
            prepared = await producer.prepare()
    if failures:
        raise WriteProblem(f"Rows could not be written: {failures[0]}") from failures[0]
    return Written(rows, sink, prepared)


def _producer(options: WriteOptions, sink: str, batch: int) -> Producer:
    transactional_id = None
    if options.exactly_once:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        transactional_id = attempt_id(sink, batch, partition, uuid4().hex[:12])
    return Producer(
        options.bootstrap,
        security=options.security,
        acks="all",
        compression=options.compression,
        batch_size=options.batch_bytes,
        buffer_memory=options.buffer_bytes,
        max_block_ms=options.max_block_ms,
        request_timeout_ms=options.request_timeout_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        max_in_flight=options.max_in_flight,
        max_request_size=options.max_request_bytes or _REQUEST_BYTES_MAX,
        transactional_id=transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        client_id="ottla-spark",
    )


async def _without_blocking(found: Iterator[Any]) -> AsyncIterator[Any]:
    """Spark's iterator blocks while it computes rows; the producer must continue to send meanwhile."""
    while (window := await asyncio.to_thread(next, found, None)) is not None:
        yield window
