"""Activity tracking: counts visitors' events per page and window, into a topic and into Parquet. [A]

    spark-submit spark/jobs/activity.py --bootstrap-servers 127.0.0.1:9192 --events events --results page-counts \
        --parquet /data/page-counts --checkpoint /data/checkpoints/page-counts --available-now

Events have event_id, user, page, action and time (see generate.py), in JSON or what `--decode` names. Duplicates are
dropped, windows are counted by event time, and a window is written once, when the watermark has passed its end. So its
row is final.

Both results are exactly once. In Parquet each micro-batch has its own directory, and a batch that is repeated after a
crash overwrites it with the same rows. The topic gets one transaction per micro-batch, by the id of the query and the
number of the batch, so a repeated batch adds nothing; its readers need `read_committed`. Events of aborted transactions
are not counted.

With `--dead-letters TOPIC`, a second query copies events that cannot be parsed into that topic, with headers that name
where each was read; also exactly once. Without it they are ignored.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_ottla.job_options import JobOptions, add_arguments, take

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

_EVENT = "event_id string, user string, page string, action string, time timestamp"
#: Set by Spark while it runs a micro-batch. The id is that of the checkpoint.
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class Job:
    bootstrap: str
    events: str
    results: str
    parquet: str
    checkpoint: str
    window: str = "1 minute"
    watermark: str = "2 minutes"
    starting_offsets: str = "earliest"
    max_offsets: int | None = None
    #: Time between micro-batches; None reads the available records and exits.
    trigger: str | None = None
    #: None: the number of executor cores.
    shuffle_partitions: int | None = None
    #: Topic for events that cannot be parsed; None ignores them.
    dead_letters: str | None = None
    #: Format and schema file of the values, as in `ottla consume --decode`; None: JSON.
    decode: str | None = None
    chart: bool = False
    options: JobOptions = field(default_factory=JobOptions)


def events(spark: SparkSession, job: Job) -> DataFrame:
    """Records with the column `event`, whose time is null if it could not be parsed."""
    from pyspark.sql import functions as f

    from pyspark_ottla.decode import value_text

    own = {
        "bootstrap.servers": job.bootstrap,
        "subscribe": job.events,
        "startingOffsets": job.starting_offsets,
        "kafka.isolation.level": "read_committed",
    }
    if job.max_offsets is not None:
        own["maxOffsetsPerTrigger"] = str(job.max_offsets)
    reading = spark.readStream.format("ottla").options(**job.options.reading(own))
    event = f.from_json(value_text(job.decode), _EVENT).alias("event")
    return reading.load().select("*", event)


def counts(spark: SparkSession, job: Job) -> DataFrame:
    """Final counts per window and page, as a stream."""
    from pyspark.sql import functions as f

    return (
        events(spark, job)
        .select("event.*")
        .where("time is not null")
        .withWatermark("time", job.watermark)
        .dropDuplicatesWithinWatermark(["event_id"])
        .groupBy(f.window("time", job.window), "page")
        .agg(f.count("*").alias("events"), f.approx_count_distinct("user").alias("users"))
        .selectExpr("window.start as window_start", "window.end as window_end", "page", "events", "users")
    )


def start_dead_letters(spark: SparkSession, job: Job) -> StreamingQuery:
    """Copies events that cannot be parsed. A query of its own, because `counts` keeps no records."""
    from pyspark.sql import functions as f

    def header(name: str, column: str) -> Column:
        value = f.col(column).cast("string").cast("binary")
        return f.struct(f.lit(name).alias("key"), value.alias("value"))

    places = [header(f"source.{name}", name) for name in ("topic", "partition", "offset")]
    letters = (
        events(spark, job)
        .where("event is null or event.time is null")
        .select("key", "value", f.array(*places).alias("headers"))
    )
    writing = (
        letters.writeStream.format("ottla")
        .queryName("activity dead letters")
        .options(**job.options.writing({"bootstrap.servers": job.bootstrap, "topic": str(job.dead_letters)}))
        .option("checkpointLocation", f"{job.checkpoint.rstrip('/')}-dead-letters")
    )
    return _triggered(writing, job)


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    def write(batch: DataFrame, batch_id: int) -> None:
        # Events without a page only advance the watermark. They are filtered here and not in the stream, where Spark
        # would move the filter before the watermark, which would then not see them.
        rows = batch.where("page is not null").persist()
        try:
            if not rows.isEmpty():
                rows.write.mode("overwrite").parquet(f"{job.parquet}/batch={batch_id}")
                records = rows.selectExpr("page as key", "to_json(struct(*)) as value")
                records.write.format("ottla").options(**_results(job, batch, batch_id)).mode("append").save()
        finally:
            rows.unpersist()

    writing = counts(spark, job).writeStream.outputMode("append").foreachBatch(write)
    writing = writing.queryName("activity").option("checkpointLocation", job.checkpoint)
    return _triggered(writing, job)


def _results(job: Job, batch: DataFrame, batch_id: int) -> dict[str, str]:
    query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    assert query_id is not None, "Spark sets it for the thread of a query"
    own = {"bootstrap.servers": job.bootstrap, "topic": job.results}
    return job.options.writing_batch(own, f"activity-{query_id}", batch_id)


def by_page(spark: SparkSession, job: Job) -> dict[str, float]:
    """How many events each page has, of all windows that are final."""
    rows = spark.read.parquet(job.parquet).groupBy("page").sum("events").collect()
    return {row["page"]: row["sum(events)"] for row in sorted(rows, key=lambda row: -row["sum(events)"])}


def metrics(query: StreamingQuery) -> dict[str, Any]:
    """Of the last 100 micro-batches: what was read, and how many rows of state there are."""
    progress = list(query.recentProgress)
    state = progress[-1].stateOperators if progress else []
    return {
        "batches": len(progress),
        "rows": sum(each.numInputRows for each in progress),
        "stateRows": sum(each.numRowsTotal for each in state),
    }


def _triggered(writing: DataStreamWriter, job: Job) -> StreamingQuery:
    if job.trigger is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=job.trigger).start()


def await_all(streams: StreamingQueryManager, queries: list[StreamingQuery]) -> None:
    """Return when all queries have ended. If one fails, raise its error without waiting for the others."""
    while any(query.isActive for query in queries):
        streams.awaitAnyTermination()
        streams.resetTerminated()
    for query in queries:
        query.awaitTermination()  # raises the error of a query that failed outside of the call above


def parsed() -> Job:
    parser = argparse.ArgumentParser(
        description="Count events per page and window, into a topic and into Parquet.",
        epilog="A run with the same --checkpoint continues where the last one stopped.",
    )
    parser.add_argument(
        "--bootstrap-servers", dest="bootstrap", required=True, help="gRPC addresses of brokers"
    )
    parser.add_argument("--events", default="events", help="topic to read (default: %(default)s)")
    parser.add_argument("--results", default="page-counts", help="topic to write (default: %(default)s)")
    parser.add_argument(
        "--dead-letters", help="topic for events that cannot be parsed (default: ignore them)"
    )
    parser.add_argument("--parquet", required=True, help="directory for the results as Parquet")
    parser.add_argument("--checkpoint", required=True, help="directory for Spark's checkpoint")
    parser.add_argument("--window", default=Job.window, help="length of a window (default: %(default)s)")
    parser.add_argument(
        "--watermark", default=Job.watermark, help="how late an event may arrive (default: %(default)s)"
    )
    parser.add_argument("--starting-offsets", default="earliest", help="earliest, latest, or JSON")
    parser.add_argument("--max-offsets", type=int, help="offsets per micro-batch (default: no limit)")
    parser.add_argument(
        "--shuffle-partitions",
        type=int,
        help="number of stateful tasks, fixed by the first run of a checkpoint (default: one per executor core; "
        "Spark's default of 200 is for larger clusters)",
    )
    parser.add_argument(
        "--decode",
        metavar="FORMAT:FILE",
        help="format of the values, such as avro:event.avsc or protobuf:event.proto#Event (default: JSON)",
    )
    parser.add_argument(
        "--chart", action="store_true", help="at the end, draw how many events the pages have"
    )
    add_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--trigger", default="10 seconds", help="time between micro-batches (default: %(default)s)"
    )
    how.add_argument("--available-now", action="store_true", help="read the available records, then exit")
    given = vars(parser.parse_args())
    if given.pop("available_now"):
        given["trigger"] = None
    return Job(options=take(parser, given, reads=True, writes=True), **given)


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"activity {job.events}").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    tasks = job.shuffle_partitions or spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    queries = [start(spark, job)]
    if job.dead_letters is not None:
        queries.append(start_dead_letters(spark, job))
    try:
        await_all(spark.streams, queries)
        print(json.dumps({query.name: metrics(query) for query in queries}))
        if job.chart:
            from pyspark_ottla.chart import bars

            print(bars("Events by page", by_page(spark, job)))
    finally:
        for query in queries:
            query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
