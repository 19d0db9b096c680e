"""A Spark job that copies one topic to another for ever, restarting its query when it fails. Tests kill it."""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from spark.killable_session import killable_session


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--source", "--target", "--checkpoint", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument(
        "--foreach-batch", action="store_true", help="write with a batch write per micro-batch"
    )
    parser.add_argument("--executors", type=int, default=2)
    given = parser.parse_args()
    spark = killable_session(given.folder, given.executors)
    brokers = {"bootstrap.servers": given.bootstrap}

    def write(batch: DataFrame, batch_id: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        place = {"sinkId": f"copy-{query}", "batchId": str(batch_id)}
        writing = batch.selectExpr("key", "value").write.format("ottla")
        writing.options(**brokers, **place, topic=given.target).mode("append").save()

    while True:
        rows = (
            spark.readStream.format("ottla")
            .options(**brokers, subscribe=given.source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        if given.foreach_batch:
            writing = rows.writeStream.foreachBatch(write)
        else:
            copied = rows.selectExpr("key", "value").writeStream.format("ottla")
            writing = copied.options(**brokers, topic=given.target)
        try:
            writing.option("checkpointLocation", given.checkpoint).start().awaitTermination()
        except StreamingQueryException as error:
            print(str(error)[:2000], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
