"""The data source `ottla` as Spark sees it: name, columns, readers and writers. [A]

    spark.read.format("ottla").option("bootstrap.servers", "127.0.0.1:9192").option("subscribe", "events").load()
    events.writeStream.format("ottla").option("bootstrap.servers", ...).option("topic", "results").start()

Every Python worker that looks for data sources imports this module, so readers and writers, and with them gRPC,
pyarrow and numpy, are imported only when they are used.

Writing is exactly-once by default, for readers with read_committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_ottla.given import OptionProblem
from pyspark_ottla.options import include_headers, read_options, write_options
from pyspark_ottla.shipping import Shipped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ottla.reader import BatchReader, StreamReader
    from pyspark_ottla.writer import BatchWriter, StreamWriter


def schema_of(*, with_headers: bool) -> StructType:
    """The columns, as in Spark's Kafka connector."""
    from pyspark.sql import types as t

    columns: list[tuple[str, t.DataType]] = [
        ("key", t.BinaryType()),
        ("value", t.BinaryType()),
        ("topic", t.StringType()),
        ("partition", t.IntegerType()),
        ("offset", t.LongType()),
        ("timestamp", t.TimestampType()),
        ("timestampType", t.IntegerType()),
    ]
    if with_headers:
        header = [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
        columns.append(("headers", t.ArrayType(t.StructType(header))))
    return t.StructType([t.StructField(name, kind) for name, kind in columns])


class OttlaDataSource(Shipped, DataSource):
    """`spark.read.format("ottla")`; docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        return schema_of(with_headers=include_headers(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        options = read_options(self.options, streaming=False)
        self._check_schema(schema)
        from pyspark_ottla.reader import BatchReader, FilteringReader

        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        options = read_options(self.options, streaming=True)
        self._check_schema(schema)
        from pyspark_ottla.reader import StreamReader

        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = write_options(self.options)
        from pyspark_ottla.writer import BatchWriter, columns_of

        return BatchWriter(options, columns_of(schema, options, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        options = write_options(self.options, streaming=True)
        from pyspark_ottla.writer import StreamWriter, columns_of

        # Spark sets `overwrite` for the output modes update and complete; written records stay in any case.
        return StreamWriter(options, columns_of(schema, options, overwrite=False))

    def _check_schema(self, schema: StructType) -> None:
        if schema.simpleString() != self.schema().simpleString():
            raise OptionProblem(
                f"The columns of the format ottla are fixed ({', '.join(self.schema().fieldNames())}); remove "
                ".schema(...), and parse values with from_json or similar functions."
            )
