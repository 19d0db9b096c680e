"""A streaming query that collects what it reads, shared by the tests of streams."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 60


class Collected:
    """The numbers that each micro-batch brought."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path) -> None:
        self._spark = spark
        self._options = {"bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        self._checkpoint = checkpoint
        #: Raised by the next micro-batch, after it was read: Spark does not mark it as done.
        self.failure: Exception | None = None
        #: By number: a batch that Spark had not marked as done before a stop comes once more, and is the same.
        self.batches: dict[int, list[int]] = {}
        self.places: dict[int, list[tuple[int, int]]] = {}

    @property
    def numbers(self) -> list[int]:
        return sorted(n for batch in list(self.batches.values()) for n in batch)

    @property
    def offsets(self) -> dict[int, list[int]]:
        """The offsets that were read of each partition, in order."""
        found: dict[int, list[int]] = {}
        for places in list(self.places.values()):
            for partition, offset in places:
                found.setdefault(partition, []).append(offset)
        return {partition: sorted(offsets) for partition, offsets in found.items()}

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("value", "partition", "offset").collect()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.places[batch_id] = [(row.partition, row.offset) for row in rows]
        self.batches[batch_id] = [int(row.value) for row in rows]

    def logged(self) -> list[dict[str, Any]]:
        """The end of each micro-batch in the checkpoint."""
        files = sorted((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[-1]) for path in files]

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        loaded = self._spark.readStream.format("ottla").options(**{**self._options, **options}).load()
        writing = loaded.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self._checkpoint)
        )
        return writing.trigger(**trigger).start()

    @contextlib.contextmanager
    def running(self, **options: str) -> Iterator[StreamingQuery]:
        query = self.start({"processingTime": "100 milliseconds"}, **options)
        try:
            yield query
        finally:
            query.stop()

    def all_there_is(self, **options: str) -> None:
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(PATIENCE_S)

    def wait_for(self, query: StreamingQuery, count: int) -> None:
        self.wait_until(query, lambda: len(self.numbers) >= count)

    def wait_until(self, query: StreamingQuery, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done() and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        error = query.exception()
        if error is not None:
            raise error
