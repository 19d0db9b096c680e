"""Batch and streaming writers: rows of a DataFrame become records. [A]

At-least-once: each task writes with acks=all and an idempotent producer, and reports success when every row is
acknowledged; but a task or micro-batch that Spark runs again writes its rows again. Records of a failed attempt
stay. (Exactly-once writes, with one transaction per micro-batch, will use `commit` and `abort`.)

Columns as in Spark's Kafka connector: `value`, and optionally `key`, `topic`, `partition`, `headers`; `timestamp` with
writeTimestamps. Others are ignored, so rows that were read can be written unchanged.

Rows are encoded a window at a time (`encode`), and the producer sends the batches: no object per row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla_client import Producer
from ottla_client.delivery import Delivery
from ottla_client.errors import ClientError, RequestError, UnknownTopicOrPartition
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock
from pyspark_ottla.encode import EncodingProblem
from pyspark_ottla.options import OptionProblem, WriteOptions
from pyspark_ottla.rows import RowEncoder, windows
from pyspark_ottla.shipping import Shipped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Without kafka.max.request.size the topic's max.message.bytes and the broker's grpc.message.max.bytes are the limits.
#: This bounds a task's memory; the client does not receive longer messages either.
_REQUEST_BYTES_MAX = 128 * 1024 * 1024

#: Rows that are encoded together. With what the producer holds (buffer_memory), it bounds the memory of a task.
_WINDOW_BYTES = 8 * 1024 * 1024

_BYTES = ("binary", "string")
#: Accepted types of each column, by Spark's names.
_TYPES = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
#: With writeTimestamps only: the connector ignores the column, and so do we without the option.
_TIMESTAMP_TYPES = ("timestamp", "timestamp_ntz")


class WriteProblem(Exception):
    """Why rows could not be written, in one sentence."""


def columns_of(schema: StructType, options: WriteOptions, *, overwrite: bool) -> dict[str, int]:
    """Column name -> position in the DataFrame; raises OptionProblem if it cannot be written."""
    if overwrite:
        raise OptionProblem('Records of a topic cannot be overwritten; write with mode("append").')
    found: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        allowed = _TYPES.get(field.name)
        if field.name == "timestamp" and options.write_timestamps:
            allowed = _TIMESTAMP_TYPES
        if allowed is None:
            continue
        kind = field.dataType.simpleString()
        if kind not in allowed:
            raise OptionProblem(f"Column {field.name} must be {' or '.join(allowed)}; it is {kind}.")
        found[field.name] = position
    if "value" not in found:
        raise OptionProblem(
            f"The column value is missing; the columns are {', '.join(schema.fieldNames()) or 'none'}."
        )
    if options.write_timestamps and "timestamp" not in found:
        raise OptionProblem("writeTimestamps needs a column timestamp.")
    if "topic" not in found and options.topic is None:
        raise OptionProblem('Name a topic: .option("topic", ...), or a column topic.')
    return found


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    rows: int


class BatchWriter(Shipped, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, columns: dict[str, int]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> Written:
        return asyncio.run(_write(self._options, self._columns, iterator))


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, columns: dict[str, int]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> Written:
        return asyncio.run(_write(self._options, self._columns, iterator))


async def _write(options: WriteOptions, columns: dict[str, int], batches: Iterator[Any]) -> Written:
    failures: list[Exception] = []

    def settled(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None and not failures:
            failures.append(error)

    rows = 0
    try:
        async with Producer(
            options.bootstrap,
            security=options.security,
            acks="all",
            compression=options.compression,
            batch_size=options.batch_bytes,
            buffer_memory=options.buffer_bytes,
            max_block_ms=options.max_block_ms,
            request_timeout_ms=options.request_timeout_ms,
            delivery_timeout_ms=options.delivery_timeout_ms,
            max_request_size=options.max_request_bytes or _REQUEST_BYTES_MAX,
        ) as producer:
            encoder = RowEncoder(options, columns, producer, RealClock(), RealChance())
            async for window in _without_blocking(windows(batches, _WINDOW_BYTES)):
                async for topic, made in encoder.batches(window):
                    delivery = await producer.send_encoded(topic, made.partition, made.records)
                    delivery.add_done_callback(settled)
                rows += window.num_rows
                if failures:
                    break
    except (ValueError, EncodingProblem) as error:
        raise WriteProblem(f"Rows could not be written: {error}") from None
    except UnknownTopicOrPartition as error:
        raise WriteProblem(f"{error} Create the topic first, or check the name.") from None
    except (ClientError, RequestError) as error:
        raise WriteProblem(f"Rows could not be written: {error}") from None
    if failures:
        raise WriteProblem(f"Rows could not be written: {failures[0]}") from failures[0]
    return Written(rows)


async def _without_blocking(batches: Iterator[Any]) -> AsyncIterator[Any]:
    """Spark's iterator blocks while it computes rows; the producer must continue to send meanwhile."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch
