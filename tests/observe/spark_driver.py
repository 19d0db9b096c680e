"""A Spark driver with the settings of docs/monitoring.md and one streaming query; prints the address of its UI."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/monitoring.md"


def main() -> None:
    builder = SparkSession.builder.master("local[1]").appName("watched")
    settings = re.findall(r"^    (spark\.\S+?)=(\S+)$", PAGE.read_text(), re.MULTILINE)
    assert settings, "docs/monitoring.md has no settings of Spark"
    for name, value in settings:
        builder = builder.config(name, value)
    spark = builder.config("spark.ui.port", "0").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    query = rows.writeStream.format("noop").queryName("counted").start()
    print(re.sub(r"^http://[^:]*", "127.0.0.1", spark.sparkContext.uiWebUrl or ""), flush=True)
    sys.stdin.readline()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
