"""Joins a topic's events with a table, or with another topic within a span of time, into a topic. [A]

    spark-submit spark/jobs/enrich.py --bootstrap-servers 127.0.0.1:9192 --events events --results enriched \
        --on user --table /data/users --checkpoint /data/checkpoints/enrich --available-now --chart country

    spark-submit spark/jobs/enrich.py --bootstrap-servers 127.0.0.1:9192 --events events --results enriched \
        --on user --other orders --other-schema "user string, order string, time timestamp" --within "5 minutes" \
        --checkpoint /data/checkpoints/enrich

With `--table` each event gets the columns of the row with its key; an event without such a row is kept, with nulls. The
table is as it was when the job started. With `--other` each pair of records with the same key and times at most
`--within` apart is written once; the other topic's time is the column other_time. Values are JSON, or what `--decode`
and `--other-decode` name; those that cannot be parsed, or have no time, are left out. Exactly once for readers with
`read_committed`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_ottla.job_options import JobOptions, add_arguments, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Job:
    bootstrap: str
    events: str
    results: str
    checkpoint: str
    #: The column that both sides have.
    on: str
    #: DDL of the values of `events`; the column `time` is needed for a join with another topic.
    schema: str = "event_id string, user string, page string, action string, time timestamp"
    #: One of them: a directory with a table, or another topic.
    table: str | None = None
    table_format: str = "parquet"
    other: str | None = None
    other_schema: str | None = None
    within: str = "5 minutes"
    watermark: str = "2 minutes"
    max_offsets: int | None = None
    #: Time between micro-batches; None reads the available records and exits.
    trigger: str | None = None
    shuffle_partitions: int | None = None
    #: Column to draw a chart of.
    chart: str | None = None
    #: Format and schema file of the values, as in `ottla consume --decode`; None: JSON.
    decode: str | None = None
    other_decode: str | None = None
    options: JobOptions = field(default_factory=JobOptions)


def values(spark: SparkSession, job: Job, topic: str, schema: str, decode: str | None) -> DataFrame:
    """The parsed values of a topic, as a stream."""
    from pyspark.sql import functions as f

    from pyspark_ottla.decode import value_text

    own = {
        "bootstrap.servers": job.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    if job.max_offsets is not None:
        own["maxOffsetsPerTrigger"] = str(job.max_offsets)
    reading = spark.readStream.format("ottla").options(**job.options.reading(own))
    parsed_ = f.from_json(value_text(decode), schema).alias("row")
    return reading.load().select(parsed_).where("row is not null").select("row.*")


def enriched(spark: SparkSession, job: Job) -> DataFrame:
    from pyspark.sql import functions as f

    events = values(spark, job, job.events, job.schema, job.decode)
    if job.table is not None:
        table = spark.read.format(job.table_format)
        if job.table_format == "csv":
            table = table.option("header", "true")
        return events.join(table.load(job.table), on=job.on, how="left")
    assert job.other is not None and job.other_schema is not None
    renamed = {"time": "other_time", job.on: "other_key"}
    other = values(spark, job, job.other, job.other_schema, job.other_decode).withColumnsRenamed(renamed)
    left = events.where("time is not null").withWatermark("time", job.watermark)
    right = other.where("other_time is not null").withWatermark("other_time", job.watermark)
    near = f"other_time between time - interval {job.within} and time + interval {job.within}"
    return left.join(right, f.expr(f"{job.on} = other_key and {near}")).drop("other_key")


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    writing = (
        enriched(spark, job)
        .selectExpr(f"string({job.on}) as key", "to_json(struct(*)) as value")
        .writeStream.format("ottla")
        .queryName("enrich")
        .options(**job.options.writing({"bootstrap.servers": job.bootstrap, "topic": job.results}))
        .option("checkpointLocation", job.checkpoint)
    )
    if job.trigger is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=job.trigger).start()


def by_value(spark: SparkSession, job: Job, column: str) -> dict[str, float]:
    """How many rows of the results have each value of a column."""
    rows = (
        spark.read.format("ottla").options(**job.options.reading_results(job.bootstrap, job.results)).load()
    )
    counted = rows.selectExpr(f"get_json_object(string(value), '$.{column}') as name").groupBy("name").count()
    found = counted.orderBy("count", ascending=False).collect()
    return {row.name if row.name is not None else "(none)": row["count"] for row in found}


def metrics(query: StreamingQuery) -> dict[str, Any]:
    """Of the last 100 micro-batches."""
    progress = [each for each in query.recentProgress if each.numInputRows]
    return {"batches": len(progress), "rows": sum(each.numInputRows for each in progress)}


def parsed() -> Job:
    parser = argparse.ArgumentParser(
        description="Join a topic's events with a table or with another topic.",
        epilog="A run with the same --checkpoint continues where the last one stopped.",
    )
    parser.add_argument(
        "--bootstrap-servers", dest="bootstrap", required=True, help="gRPC addresses of brokers"
    )
    parser.add_argument("--events", default="events", help="topic to read (default: %(default)s)")
    parser.add_argument("--schema", default=Job.schema, help="columns of its values (default: %(default)s)")
    parser.add_argument("--results", default="enriched", help="topic to write (default: %(default)s)")
    parser.add_argument("--on", required=True, help="column that both sides have")
    parser.add_argument("--checkpoint", required=True, help="directory for Spark's checkpoint")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", help="directory with a table to join with")
    which.add_argument("--other", help="topic to join with; needs --other-schema")
    parser.add_argument(
        "--table-format", default="parquet", choices=["parquet", "csv", "json", "orc"],
        help="default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--other-schema", help="columns of the other topic's values, with time")
    parser.add_argument(
        "--within", default=Job.within, help="how far apart times may be (default: %(default)s)"
    )
    parser.add_argument(
        "--watermark", default=Job.watermark, help="how late a record may arrive (default: %(default)s)"
    )
    parser.add_argument(
        "--max-offsets", type=int, help="offsets per micro-batch and topic (default: no limit)"
    )
    parser.add_argument(
        "--shuffle-partitions",
        type=int,
        help="number of stateful tasks, fixed by the first run of a checkpoint (default: one per executor core)",
    )
    parser.add_argument("--chart", metavar="COLUMN", help="at the end, draw how many rows have each value")
    parser.add_argument(
        "--decode",
        metavar="FORMAT:FILE",
        help="format of the values, such as avro:event.avsc or protobuf:event.proto#Event (default: JSON)",
    )
    parser.add_argument("--other-decode", metavar="FORMAT:FILE", help="the same for the other topic")
    add_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--trigger", default="10 seconds", help="time between micro-batches (default: %(default)s)"
    )
    how.add_argument("--available-now", action="store_true", help="read the available records, then exit")
    given = vars(parser.parse_args())
    if given["other"] is not None and given["other_schema"] is None:
        parser.error('--other needs --other-schema, such as "user string, order string, time timestamp"')
    if given.pop("available_now"):
        given["trigger"] = None
    return Job(options=take(parser, given, reads=True, writes=True), **given)


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"enrich {job.events}").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    tasks = job.shuffle_partitions or spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    query = start(spark, job)
    try:
        query.awaitTermination()
        print(json.dumps(metrics(query)))
        if job.chart is not None:
            from pyspark_ottla.chart import bars

            print(bars(f"Rows by {job.chart}", by_value(spark, job, job.chart)))
    finally:
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
