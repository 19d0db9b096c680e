"""Archives topics as Parquet, partitioned by topic and date, each record exactly once. [A]

    spark-submit spark/jobs/archive.py --bootstrap-servers 127.0.0.1:9192 --topics events,orders \
        --parquet /data/archive --checkpoint /data/checkpoints/archive --available-now

A row has the columns of the format ottla (key, value, partition, offset, timestamp, headers) and is stored below
topic=.../date=..., by the record's timestamp in UTC. Spark's file sink lists the files of every finished micro-batch in
_spark_metadata: readers that use it, as Spark does, see each record once, whatever was killed and repeated. A run with
the same checkpoint continues where the last one stopped. `--since` and `--until` archive a span of time. Records of
aborted transactions are left out, unless `--isolation-level read_uncommitted` asks for them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark_ottla.job_options import JobOptions, add_arguments, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Job:
    bootstrap: str
    topics: str
    parquet: str
    checkpoint: str
    #: ISO times; records before `since` or from `until` on are left out.
    since: str | None = None
    until: str | None = None
    max_offsets: int | None = None
    #: Time between micro-batches; None reads the available records and exits.
    trigger: str | None = None
    #: An archive is kept, and replayed: rows that were never committed do not belong in it.
    isolation_level: str = "read_committed"
    chart: bool = False
    options: JobOptions = field(default_factory=JobOptions)


def options_of(job: Job) -> dict[str, str]:
    options = {
        "bootstrap.servers": job.bootstrap,
        "subscribe": job.topics,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": job.isolation_level,
    }
    if job.since is not None:
        options["startingTimestamp"] = str(millis(job.since))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if job.max_offsets is not None:
        options["maxOffsetsPerTrigger"] = str(job.max_offsets)
    return job.options.reading(options)


def millis(time: str) -> int:
    """Milliseconds since 1970 of an ISO time, which needs a time zone: the machine's own would be a guess."""
    found = datetime.fromisoformat(time)
    if found.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; write for example 2026-01-31T00:00:00Z.")
    return int(found.timestamp() * 1000)


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    rows = spark.readStream.format("ottla").options(**options_of(job)).load()
    if job.since is not None:
        # The starting offset is that of the first record at that time; earlier ones may follow it.
        rows = rows.where(f"timestamp >= timestamp_millis({millis(job.since)})")
    if job.until is not None:
        rows = rows.where(f"timestamp < timestamp_millis({millis(job.until)})")
    dated = rows.selectExpr("*", "to_date(to_utc_timestamp(timestamp, current_timezone())) as date")
    writing = (
        dated.writeStream.format("parquet")
        .queryName("archive")
        .partitionBy("topic", "date")
        .option("path", job.parquet)
        .option("checkpointLocation", job.checkpoint)
    )
    if job.trigger is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=job.trigger).start()


def metrics(query: StreamingQuery) -> dict[str, Any]:
    """Rows that this run has read, for the log; Spark keeps the figures of the last 100 micro-batches."""
    progress = [each for each in query.recentProgress if each.numInputRows]
    return {"batches": len(progress), "rows": sum(each.numInputRows for each in progress)}


def by_day(spark: SparkSession, job: Job) -> dict[str, float]:
    """How many records the archive has of each day of a topic."""
    from pyspark_ottla.archived import archived

    rows = archived(spark, job.parquet).groupBy("topic", "date").count().orderBy("topic", "date").collect()
    return {f"{row['topic']} {row['date']}": row["count"] for row in rows}


def parsed() -> Job:
    parser = argparse.ArgumentParser(
        description="Archive topics as Parquet, partitioned by topic and date.",
        epilog="A run with the same --checkpoint continues where the last one stopped.",
    )
    parser.add_argument(
        "--bootstrap-servers", dest="bootstrap", required=True, help="gRPC addresses of brokers"
    )
    parser.add_argument("--topics", required=True, help="comma-separated topics to read")
    parser.add_argument("--parquet", required=True, help="directory of the archive")
    parser.add_argument("--checkpoint", required=True, help="directory for Spark's checkpoint")
    parser.add_argument("--since", help="first time, such as 2026-01-31T00:00:00Z (default: all records)")
    parser.add_argument("--until", help="leave out records from this time on (default: no end)")
    parser.add_argument("--max-offsets", type=int, help="offsets per micro-batch (default: no limit)")
    parser.add_argument(
        "--isolation-level",
        choices=["read_committed", "read_uncommitted"],
        default=Job.isolation_level,
        help="read_uncommitted also archives records of transactions that are aborted (default: %(default)s)",
    )
    parser.add_argument(
        "--chart", action="store_true", help="at the end, draw how many records each day of a topic has"
    )
    add_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--trigger", default="1 minute", help="time between micro-batches (default: %(default)s)"
    )
    how.add_argument("--available-now", action="store_true", help="read the available records, then exit")
    given = vars(parser.parse_args())
    if given.pop("available_now"):
        given["trigger"] = None
    return Job(options=take(parser, given, reads=True, writes=False), **given)


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"archive {job.topics}").getOrCreate()
    query = start(spark, job)
    try:
        query.awaitTermination()
        print(json.dumps(metrics(query)))
        if job.chart:
            from pyspark_ottla.chart import bars

            print(bars("Archived records by day", by_day(spark, job)))
    finally:
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
