"""Batch and streaming writers: rows of a DataFrame become records. [A]

At-least-once: each task writes with acks=all and an idempotent producer, and reports success when every row is
acknowledged; but a task or micro-batch that Spark runs again writes its rows again. Records of a failed attempt
stay. (Exactly-once writes, with one transaction per micro-batch, will use `commit` and `abort`.)

Columns as in Spark's Kafka connector: `value`, and optionally `key`, `topic`, `partition`, `headers`. Others are
ignored, so rows that were read can be written unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla_client import Producer
from ottla_client.errors import ClientError, RequestError, UnknownTopicOrPartition
from pyspark_ottla.options import OptionProblem, WriteOptions
from pyspark_ottla.shipping import Shipped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: How long a row may wait for space in the producer's buffer, or for the metadata of its topic.
_MAX_BLOCK_MS = 30_000
#: Without kafka.max.request.size the topic's max.message.bytes and the broker's grpc.message.max.bytes are the limits.
#: This bounds a task's memory; the client does not receive longer messages either.
_REQUEST_BYTES_MAX = 128 * 1024 * 1024

_BYTES = ("binary", "string")
#: Accepted types of each column, by Spark's names.
_TYPES = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class WriteProblem(Exception):
    """Why rows could not be written, in one sentence."""


def columns_of(schema: StructType, options: WriteOptions, *, overwrite: bool) -> dict[str, int]:
    """Column name -> position in the DataFrame; raises OptionProblem if it cannot be written."""
    if overwrite:
        raise OptionProblem('Records of a topic cannot be overwritten; write with mode("append").')
    found: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        allowed = _TYPES.get(field.name)
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

    def on_delivery(_: object, error: Exception | None) -> None:
        if error is not None and not failures:
            failures.append(error)

    rows = 0
    try:
        async with Producer(
            options.bootstrap,
            acks="all",
            compression=options.compression,
            max_block_ms=_MAX_BLOCK_MS,
            max_request_size=options.max_request_bytes or _REQUEST_BYTES_MAX,
        ) as producer:
            async for batch in _without_blocking(batches):
                for topic, value, key, partition, headers in _rows(batch, columns, options.topic):
                    if topic is None:
                        raise WriteProblem("A row has no topic: its column topic is null.")
                    await producer.send(
                        topic,
                        value,
                        key,
                        partition=partition,
                        headers=headers,
                        on_delivery=on_delivery,
                    )
                rows += batch.num_rows
                if failures:
                    break
    except ValueError as error:
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


def _rows(batch: Any, columns: dict[str, int], topic: str | None) -> Iterator[tuple[Any, ...]]:
    """Topic, value, key, partition and headers of each row. The option overrides the column."""

    def column(name: str, absent: Any = None) -> Any:
        return batch.column(columns[name]).to_pylist() if name in columns else repeat(absent)

    def octets(name: str) -> Any:
        # Cast text to its UTF-8 bytes, without Python strings in between.
        return batch.column(columns[name]).cast(pa.binary()).to_pylist() if name in columns else repeat(None)

    headers: Any = repeat(())
    if "headers" in columns:
        headers = [[_header(each) for each in cell or ()] for cell in column("headers", None)]
    topics = repeat(topic) if topic is not None else column("topic")
    values = octets("value")
    return zip(topics, values, octets("key"), column("partition"), headers, strict=False)


def _header(cell: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if cell is None or cell["key"] is None:
        raise WriteProblem(
            "A row has a header without a key: an element of its column headers, or its key, is null."
        )
    return cell["key"], cell["value"]
