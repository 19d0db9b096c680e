"""The archive job, for ever and in small micro-batches, restarting its query when it fails. Tests kill it."""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs import archive


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--topic", "--parquet", "--checkpoint", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2,4]")  # four attempts of each task
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", given.folder)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")  # a task that was hit is a warning
    job = archive.Job(
        given.bootstrap, given.topic, given.parquet, given.checkpoint, max_offsets=3000, trigger="0 seconds"
    )
    while True:
        try:
            archive.start(spark, job).awaitTermination()
        except PySparkException as error:  # also of a planning process that was killed
            print(str(error)[:2000], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
