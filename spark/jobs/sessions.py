"""Sessions: a visitor's events with no longer pause than `--gap` between them, as one row each, into a topic. [A]

    spark-submit spark/jobs/sessions.py --bootstrap-servers 127.0.0.1:9192 --events events --results sessions \
        --checkpoint /data/checkpoints/sessions --available-now --chart

Events have event_id, user, page, action and time (see generate.py), in JSON or what `--decode` names. Duplicates are
dropped. A session is written once, when the watermark has passed its end by the gap, so its row is final; exactly once
for readers with `read_committed`. Key: the user. Value: JSON with user, session_start, session_end, events, pages and
bought.
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

_EVENT = "event_id string, user string, page string, action string, time timestamp"
_SESSION = "user string, session_start timestamp, session_end timestamp, events long, pages long, bought long"
#: Upper bounds of the chart's bars, in events per session.
_SIZES = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Job:
    bootstrap: str
    events: str
    results: str
    checkpoint: str
    gap: str = "5 minutes"
    watermark: str = "2 minutes"
    starting_offsets: str = "earliest"
    max_offsets: int | None = None
    #: Time between micro-batches; None reads the available records and exits.
    trigger: str | None = None
    shuffle_partitions: int | None = None
    chart: bool = False
    #: Format and schema file of the values, as in `ottla consume --decode`; None: JSON.
    decode: str | None = None
    options: JobOptions = field(default_factory=JobOptions)


def sessions(spark: SparkSession, job: Job) -> DataFrame:
    """Final sessions, as a stream."""
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
    return (
        spark.readStream.format("ottla")
        .options(**job.options.reading(own))
        .load()
        .select(f.from_json(value_text(job.decode), _EVENT).alias("event"))
        .select("event.*")
        .where("time is not null")
        .withWatermark("time", job.watermark)
        .dropDuplicatesWithinWatermark(["event_id"])
        .groupBy(f.session_window("time", job.gap), "user")
        .agg(
            f.count("*").alias("events"),
            f.approx_count_distinct("page").alias("pages"),
            f.count_if(f.col("action") == "buy").alias("bought"),
            f.count("user").alias("of_a_user"),
        )
        # Events without a user only advance the watermark. A filter of the column `user` would be moved before the
        # watermark, which would then not see them; this one is not.
        .where("of_a_user > 0")
        .selectExpr(
            "user",
            "session_window.start as session_start",
            "session_window.end as session_end",
            "events",
            "pages",
            "bought",
        )
    )


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    writing = (
        sessions(spark, job)
        .selectExpr("user as key", "to_json(struct(*)) as value")
        .writeStream.format("ottla")
        .queryName("sessions")
        .options(**job.options.writing({"bootstrap.servers": job.bootstrap, "topic": job.results}))
        .option("checkpointLocation", job.checkpoint)
    )
    if job.trigger is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=job.trigger).start()


def results(spark: SparkSession, job: Job) -> DataFrame:
    """The sessions in the topic."""
    rows = (
        spark.read.format("ottla").options(**job.options.reading_results(job.bootstrap, job.results)).load()
    )
    return rows.selectExpr(f"from_json(string(value), '{_SESSION}') as row").select("row.*")


def by_size(rows: DataFrame) -> dict[str, float]:
    """How many sessions have so many events."""
    found = {row.events: row["count"] for row in rows.groupBy("events").count().collect()}
    names: dict[str, float] = {}
    least = 1
    for most in (*_SIZES, None):
        name = f"over {least - 1}" if most is None else str(most) if most == least else f"{least} to {most}"
        names[name] = sum(
            count for events, count in found.items() if events >= least and (most is None or events <= most)
        )
        least = (most or 0) + 1
    return names


def metrics(query: StreamingQuery) -> dict[str, Any]:
    """Of the last 100 micro-batches: what was read, and how many rows of state there are."""
    progress = list(query.recentProgress)
    state = progress[-1].stateOperators if progress else []
    return {
        "batches": len(progress),
        "rows": sum(each.numInputRows for each in progress),
        "stateRows": sum(each.numRowsTotal for each in state),
    }


def parsed() -> Job:
    parser = argparse.ArgumentParser(
        description="Group visitors' events into sessions.",
        epilog="A run with the same --checkpoint continues where the last one stopped.",
    )
    parser.add_argument(
        "--bootstrap-servers", dest="bootstrap", required=True, help="gRPC addresses of brokers"
    )
    parser.add_argument("--events", default="events", help="topic to read (default: %(default)s)")
    parser.add_argument("--results", default="sessions", help="topic to write (default: %(default)s)")
    parser.add_argument("--checkpoint", required=True, help="directory for Spark's checkpoint")
    parser.add_argument("--gap", default=Job.gap, help="pause that ends a session (default: %(default)s)")
    parser.add_argument(
        "--watermark", default=Job.watermark, help="how late an event may arrive (default: %(default)s)"
    )
    parser.add_argument("--starting-offsets", default="earliest", help="earliest, latest, or JSON")
    parser.add_argument("--max-offsets", type=int, help="offsets per micro-batch (default: no limit)")
    parser.add_argument(
        "--shuffle-partitions",
        type=int,
        help="number of stateful tasks, fixed by the first run of a checkpoint (default: one per executor core)",
    )
    parser.add_argument("--chart", action="store_true", help="at the end, draw how long sessions are")
    parser.add_argument(
        "--decode",
        metavar="FORMAT:FILE",
        help="format of the values, such as avro:event.avsc or protobuf:event.proto#Event (default: JSON)",
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

    spark = SparkSession.builder.appName(f"sessions {job.events}").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    tasks = job.shuffle_partitions or spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    query = start(spark, job)
    try:
        query.awaitTermination()
        print(json.dumps(metrics(query)))
        if job.chart:
            from pyspark_ottla.chart import bars

            print(bars("Sessions by number of events", by_size(results(spark, job))))
    finally:
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
