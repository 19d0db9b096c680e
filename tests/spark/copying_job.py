"""A Spark job that copies one topic to another for ever, restarting its query when it fails. Tests kill it."""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark.stepping_source import SteppingSource


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--source", "--target", "--checkpoint", "--folder"):
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
        .config("spark.speculation", "true")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(SteppingSource)
    brokers = {"bootstrap.servers": given.bootstrap}
    while True:
        rows = (
            spark.readStream.format("ottla")
            .options(**brokers, subscribe=given.source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        query = (
            rows.selectExpr("key", "value")
            .writeStream.format("ottla_stepping")
            .options(**brokers, topic=given.target, checkpointLocation=given.checkpoint)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(str(error)[:2000], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
