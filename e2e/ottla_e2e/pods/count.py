"""Counts the records of a topic with Spark: the smallest job whose executors need our package. [A]"""

from __future__ import annotations

import sys


def main() -> None:
    from pyspark.sql import SparkSession

    bootstrap, topic = sys.argv[1:]
    spark = SparkSession.builder.appName("count").getOrCreate()
    reading = spark.read.format("ottla").options(**{"bootstrap.servers": bootstrap, "subscribe": topic})
    print(reading.load().count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
