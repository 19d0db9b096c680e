"""Reads what the job `archive` has written: Parquet files below topic=.../date=.... [A]"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archived(
    spark: SparkSession,
    path: str,
    *,
    topic: str | None = None,
    first_date: str | None = None,
    last_date: str | None = None,
) -> DataFrame:
    """The archived records: of one topic if it is given, and between the dates, both included."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    # Spark infers the types of folder names: it would take a topic named 007 for the number 7.
    found = spark.read.parquet(path).schema
    fields = [
        t.StructField(each.name, t.StringType() if each.name == "topic" else each.dataType) for each in found
    ]
    rows = spark.read.schema(t.StructType(fields)).parquet(path)
    if topic is not None:
        rows = rows.where(f.col("topic") == topic)
    if first_date is not None:
        rows = rows.where(f.col("date") >= f.lit(first_date).cast("date"))
    if last_date is not None:
        rows = rows.where(f.col("date") <= f.lit(last_date).cast("date"))
    return rows
