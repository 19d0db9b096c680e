"""The archive job, for ever and in small micro-batches, restarting its query when it fails. Tests kill it."""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import PySparkException

from jobs import archive
from spark.killable_session import killable_session


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--topic", "--parquet", "--checkpoint", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    spark = killable_session(given.folder)
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
