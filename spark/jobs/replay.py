"""Writes archived records (archive.py) into a topic again, with their keys, headers, timestamps and order. [A]

    spark-submit spark/jobs/replay.py --bootstrap-servers 127.0.0.1:9192 --parquet /data/archive \
        --from-topic events --topic events-again

One task writes all records of one archived partition, by offset. With `--keep-partitions` they go to the partition of
the same number; otherwise the key decides, and records of one key stay in order, because they were in one partition.
At least once: a task that Spark repeats writes its records again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


def records(spark: SparkSession, job: Job) -> DataFrame:
    """The records to write: those of an archived partition are together, by offset."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(job.parquet).where(f.col("topic") == job.from_topic)
    if job.first_date is not None:
        rows = rows.where(f.col("date") >= f.lit(job.first_date).cast("date"))
    if job.last_date is not None:
        rows = rows.where(f.col("date") <= f.lit(job.last_date).cast("date"))
    ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    kept = ["key", "value", "headers", "timestamp", *(["partition"] if job.keep_partitions else [])]
    return ordered.select(*kept)


def run(spark: SparkSession, job: Job) -> int:
    """Write them, and return how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    written = Observation("replay")
    counted = records(spark, job).observe(written, f.count(f.lit(1)).alias("rows"))
    counted.write.format("ottla").options(
        **{"bootstrap.servers": job.bootstrap, "topic": job.topic, "writeTimestamps": "true"}
    ).mode("append").save()
    return int(written.get["rows"])


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
    return Job(**vars(parser.parse_args()))


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"replay {job.from_topic}").getOrCreate()
    try:
        print(json.dumps({"rows": run(spark, job)}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
