"""Writes archived records (archive.py) into a topic again, with their keys, headers, timestamps and order. [A]

    spark-submit spark/jobs/replay.py --bootstrap-servers 127.0.0.1:9192 --parquet /data/archive \
        --from-topic events --topic events-again

One task writes the records of one archived partition, by offset. With `--keep-partitions` they go to the partition of
the same number; otherwise the key decides, and records of one key stay in order, because they were in one partition.

The records are written in parts of `--max-offsets` offsets, one after the other: a transaction has a time limit. Each
part is exactly once for readers with `read_committed`: all or nothing, whichever tasks Spark repeats. The job logs
its run and a line for each part. A run that failed or was killed continues with `--run` and, as `--first-offset`, the
last `writtenUntil`: a part that is written already adds nothing. The archive, its dates and `--max-offsets` must be the
same then, so that the parts are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark_ottla.job_options import JobOptions, add_arguments, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Job:
    bootstrap: str
    parquet: str
    from_topic: str
    topic: str
    #: Dates as in the archive, both included.
    first_date: str | None = None
    last_date: str | None = None
    keep_partitions: bool = False
    #: Offset to begin at, in every partition.
    first_offset: int = 0
    #: Offsets of each partition that are written in one transaction: minutes, where it may take 15.
    max_offsets: int = 1_000_000
    #: Names the parts, with their first offsets.
    run_id: str = field(default_factory=lambda: uuid4().hex)
    chart: bool = False
    options: JobOptions = field(default_factory=JobOptions)


def rows(spark: SparkSession, job: Job) -> DataFrame:
    from pyspark_ottla.archived import archived

    found = archived(
        spark, job.parquet, topic=job.from_topic, first_date=job.first_date, last_date=job.last_date
    )
    return found.where(f"offset >= {job.first_offset}")


def parts(spark: SparkSession, job: Job) -> Iterator[tuple[int, int]]:
    """Ranges of offsets, for all partitions: the first one, and the one after the last. They begin at multiples of
    `max_offsets`, so that a run that is continued has the same parts, also where an offset is missing."""
    found = rows(spark, job).selectExpr("min(offset) as first", "max(offset) as last").first()
    if found is None or found["first"] is None:
        return
    for at in range(found["first"] // job.max_offsets * job.max_offsets, found["last"] + 1, job.max_offsets):
        yield max(at, job.first_offset), min(at + job.max_offsets, found["last"] + 1)


def records(spark: SparkSession, job: Job, first: int, end: int) -> DataFrame:
    """The records to write: those of an archived partition are together, by offset."""
    part = rows(spark, job).where(f"offset >= {first} and offset < {end}")
    ordered = part.repartition("partition").sortWithinPartitions("partition", "offset")
    kept = ["key", "value", "headers", "timestamp", *(["partition"] if job.keep_partitions else [])]
    return ordered.select(*kept)


def run(spark: SparkSession, job: Job) -> dict[str, int]:
    """Write them; returns how many rows there were, and in how many parts."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    own = {"bootstrap.servers": job.bootstrap, "topic": job.topic, "writeTimestamps": "true"}
    same_run = f"--run {job.run_id} --max-offsets {job.max_offsets}"
    print(f"To continue this run: {same_run}", file=sys.stderr, flush=True)
    total = {"rows": 0, "parts": 0}
    for first, end in parts(spark, job):
        written = Observation("replay")
        counted = records(spark, job, first, end).observe(written, f.count(f.lit(1)).alias("rows"))
        options = job.options.writing_batch(own, f"replay-{job.run_id}", first)
        try:
            counted.write.format("ottla").options(**options).mode("append").save()
        except BaseException:
            print(
                f"Failed; offsets before {first} are written. To continue: {same_run} --first-offset {first}",
                file=sys.stderr,
            )
            raise
        total["rows"] += int(written.get["rows"])
        total["parts"] += 1
        print(json.dumps({"writtenUntil": end, "rows": total["rows"]}), file=sys.stderr, flush=True)
    return total


def by_day(spark: SparkSession, job: Job) -> dict[str, float]:
    """How many archived records of each day the job has to write."""
    found = rows(spark, job).groupBy("date").count().orderBy("date").collect()
    return {str(row["date"]): row["count"] for row in found}


def parsed() -> Job:
    parser = argparse.ArgumentParser(description="Write archived records into a topic again.")
    parser.add_argument(
        "--bootstrap-servers", dest="bootstrap", required=True, help="gRPC addresses of brokers"
    )
    parser.add_argument("--parquet", required=True, help="directory of the archive")
    parser.add_argument("--from-topic", required=True, help="archived topic to read")
    parser.add_argument("--topic", required=True, help="topic to write")
    parser.add_argument("--first-date", help="first date to replay, such as 2026-01-31 (default: all)")
    parser.add_argument("--last-date", help="last date to replay (default: all)")
    parser.add_argument(
        "--keep-partitions", action="store_true", help="write to the partitions of the same numbers"
    )
    parser.add_argument(
        "--first-offset",
        type=int,
        default=Job.first_offset,
        help="offset to begin at, in every partition (default: %(default)s)",
    )
    parser.add_argument(
        "--max-offsets",
        type=int,
        default=Job.max_offsets,
        help="offsets of each partition to write in one transaction (default: %(default)s)",
    )
    parser.add_argument(
        "--run",
        dest="run_id",
        default=uuid4().hex,
        metavar="ID",
        help="run to continue, with the same --max-offsets: its parts are not written twice (default: a new one)",
    )
    parser.add_argument(
        "--chart", action="store_true", help="at the end, draw how many records were replayed by day"
    )
    add_arguments(parser)
    given = vars(parser.parse_args())
    if given["max_offsets"] < 1:
        parser.error("--max-offsets must be at least 1")
    return Job(options=take(parser, given, reads=False, writes=True), **given)


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"replay {job.from_topic}").getOrCreate()
    try:
        print(json.dumps(run(spark, job)))
        if job.chart:
            from pyspark_ottla.chart import bars

            print(bars("Replayed records by day", by_day(spark, job)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
