"""Rewrites finished days of an archive (archive.py) into few large files, in order, each record once. [A]

    spark-submit spark/jobs/compact.py --parquet /data/archive --into /data/days --last-date 2026-01-31

The archive has a file per task and micro-batch, and only readers of its _spark_metadata see each record once. Here, a
day of a topic is `--files` files below topic=.../date=..., sorted by partition and offset, for readers of any kind. A
day that is written again replaces itself, so after a kill, or for records that came late, run it again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Job:
    parquet: str
    into: str
    #: All topics if None.
    topic: str | None = None
    first_date: str | None = None
    #: Included; by default yesterday, because today is not finished.
    last_date: str | None = None
    files: int = 1


def yesterday(now: datetime) -> str:
    return (now.astimezone(UTC) - timedelta(days=1)).date().isoformat()


def rows(spark: SparkSession, job: Job) -> DataFrame:
    from pyspark_ottla.archived import archived

    return archived(
        spark,
        job.parquet,
        topic=job.topic,
        first_date=job.first_date,
        last_date=job.last_date or yesterday(datetime.now(UTC)),
    )


def run(spark: SparkSession, job: Job) -> dict[str, int]:
    """Write them; returns how many rows and days there were."""
    from pyspark.sql import functions as f

    found = rows(spark, job)
    days = found.groupBy("topic", "date").count().collect()
    if not days:
        return {"days": 0, "rows": 0}
    # All rows of a partition of a topic are in one file, so that they stay in order.
    spread = f.pmod(f.col("partition"), f.lit(job.files))
    (
        found.repartition(len(days) * job.files, "topic", "date", spread)
        .sortWithinPartitions("topic", "date", "partition", "offset")
        .write.partitionBy("topic", "date")
        .mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .parquet(job.into)
    )
    return {"days": len(days), "rows": sum(day["count"] for day in days)}


def parsed() -> Job:
    parser = argparse.ArgumentParser(description="Rewrite finished days of an archive into few files.")
    parser.add_argument("--parquet", required=True, help="directory of the archive")
    parser.add_argument("--into", required=True, help="directory for the days; not that of the archive")
    parser.add_argument("--topic", help="archived topic (default: all)")
    parser.add_argument("--first-date", help="first date, such as 2026-01-31 (default: the first there is)")
    parser.add_argument("--last-date", help="last date (default: yesterday, in UTC)")
    parser.add_argument(
        "--files",
        type=int,
        default=1,
        help="at most so many files for a day of a topic (default: %(default)s)",
    )
    job = Job(**vars(parser.parse_args()))
    if job.into.rstrip("/") == job.parquet.rstrip("/"):
        parser.error("--into must not be the archive itself, whose list of files would be wrong afterwards")
    if job.files < 1:
        parser.error("--files must be at least 1")
    return job


def main() -> None:
    job = parsed()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("compact an archive").getOrCreate()
    try:
        print(json.dumps(run(spark, job)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
