"""The Spark session of jobs that tests kill: executors with JVMs of their own, and marked tasks."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark.stepping_source import SteppingSource

_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def killable_session(folder: str, executors: int = 2) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local-cluster[{executors},{2 // executors},1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", _LEAN)
        .config("spark.executor.extraJavaOptions", _LEAN)
        .config("spark.executor.memory", "512m")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", folder)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.speculation", "true")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(SteppingSource)
    return spark
