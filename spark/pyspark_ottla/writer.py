"""Batch and streaming writers: rows of a DataFrame become records. [A]

By default exactly once: a task writes in a transaction of its own and prepares it (`task_write`), and the driver
commits those of a batch together (`settle`). With at-least-once, records are visible at once, and those of a failed
attempt stay. Spark does not repeat a batch write; a program that does, such as a function of foreachBatch, names the
sink and the batch (`sinkId`, `batchId`), so that the repeated write adds nothing.

Columns as in Spark's Kafka connector: `value`, and optionally `key`, `topic`, `partition`, `headers`; `timestamp` with
writeTimestamps. Others are ignored, so rows that were read can be written unchanged.

Rows are encoded a window at a time (`encode`), and the producer sends the batches: no object per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_ottla.decisions import batch_sink, named_sink, stream_sink
from pyspark_ottla.exactly_once import settle
from pyspark_ottla.given import OptionProblem
from pyspark_ottla.options import WriteOptions
from pyspark_ottla.settle import Step
from pyspark_ottla.shipping import Shipped
from pyspark_ottla.task_write import WriteProblem, Written, write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Local properties that Spark sets for the tasks of a micro-batch. The query id is that of the checkpoint.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

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


class BatchWriter(Shipped, DataSourceArrowWriter):
    """One object per job: created by the planner, and shipped to tasks and to the commit."""

    def __init__(self, options: WriteOptions, columns: dict[str, int]) -> None:
        self._options = options
        self._columns = columns
        if options.place is None:
            self._sink, self._batch = batch_sink(uuid4().hex), 0
        else:
            sink_id, self._batch = options.place
            self._sink = named_sink(sink_id)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_rows(self._options, self._columns, iterator, (self._sink, self._batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            settle(self._options, self._sink, self._batch, messages, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            settle(self._options, self._sink, self._batch, messages, commit=False)


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Created for each call: tasks learn the query and the batch from Spark, and the driver the query from tasks."""

    def __init__(self, options: WriteOptions, columns: dict[str, int]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> Written:
        place = _query_and_batch() if self._options.exactly_once else ("", 0)
        return write_rows(self._options, self._columns, iterator, place)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._settle(messages, batchId, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._settle(messages, batchId, commit=False)

    def _settle(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, commit: bool) -> None:
        sinks = {each.sink for each in messages if isinstance(each, Written)}
        if not self._options.exactly_once or not sinks:
            return
        (sink,) = sinks
        settle(self._options, sink, batch, messages, commit=commit, at=self.reached)

    def reached(self, step: Step) -> None:
        """The driver has made a step of the commit; for subclasses."""


def _query_and_batch() -> tuple[str, int]:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    batch = None if context is None else context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise WriteProblem(
            "Spark does not tell the id of the query, which exactly-once writes need; set deliveryGuarantee to "
            "at-least-once."
        )
    return stream_sink(query), int(batch)
