"""Rows of Arrow batches into record batches: topics, partitions, timestamps and columns of each row. [S]

`writer` calls it for every window of rows, and sends the result. The encoding itself is in `encode`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ottla_client import Producer
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.records.compression import Compression
from pyspark_ottla.encode import EncodingProblem, PartitionBatch, Rows, encode, encoded_headers, spread
from pyspark_ottla.hashing import partitions_of_keys
from pyspark_ottla.options import WriteOptions


def windows(batches: Iterator[Any], window_bytes: int) -> Iterator[Any]:
    """Arrow batches joined until they have so many bytes, so that a topic of many partitions gets full batches.

    Longer ones are cut: they would take as much memory again when they are encoded.
    """
    held: list[Any] = []
    size = 0
    for batch in batches:
        rows = max(1, batch.num_rows * window_bytes // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            held.append(part)
            size += part.nbytes
            if size >= window_bytes:
                yield pa.concat_batches(held)
                held, size = [], 0
    if held:
        yield pa.concat_batches(held)


class RowEncoder:
    """Turns windows of rows into record batches by topic and partition. One per task."""

    def __init__(
        self,
        options: WriteOptions,
        columns: dict[str, int],
        producer: Producer,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._options = options
        self._columns = columns
        self._producer = producer
        self._compression = Compression.named(options.compression)
        self._clock = clock
        #: For rows without a key: how many batches they have filled, from a random start.
        self._turn = chance.below(1 << 16)

    async def batches(self, window: Any) -> AsyncIterator[tuple[str, PartitionBatch]]:
        for topic, rows in self._by_topic(window):
            count = len(await self._producer.partitions_for(topic))
            # In a thread, because it takes tens of milliseconds, and acknowledgements arrive meanwhile.
            for made in await asyncio.to_thread(self._encoded, topic, rows, count):
                yield topic, made

    def _by_topic(self, window: Any) -> Iterator[tuple[str, Any]]:
        """The rows of each topic. The option overrides the column."""
        if not window.num_rows:
            return
        if self._options.topic is not None:
            yield self._options.topic, window
            return
        topics = window.column(self._columns["topic"])
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise EncodingProblem("A row has no topic: its column topic is null.")
            yield topic, window.filter(pc.equal(topics, topic))

    def _encoded(self, topic: str, window: Any, partition_count: int) -> list[PartitionBatch]:
        batch_bytes = self._producer.batch_bytes(topic)
        headers = self._column(window, "headers")
        rows = Rows(
            key=self._octets(window, "key"),
            value=self._octets(window, "value"),
            headers=None if headers is None else encoded_headers(headers),
            timestamps_ms=self._timestamps(window),
        )
        partitions = self._partitions(topic, window, rows, partition_count, batch_bytes)
        return list(encode(rows, partitions, batch_bytes=batch_bytes, compression=self._compression))

    def _partitions(
        self, topic: str, window: Any, rows: Rows, count: int, batch_bytes: int
    ) -> NDArray[np.int64]:
        """The column wins; then the hash of the key; rows without either fill one partition after the other."""
        found = partitions_of_keys(rows.key, count)
        keyless = ~rows.key.is_valid().to_numpy(zero_copy_only=False)
        if keyless.any():
            turns = spread(rows.sizes()[keyless], self._turn, batch_bytes)
            self._turn = int(turns[-1]) + 1
            found[keyless] = turns % count
        given = self._column(window, "partition")
        if given is not None:
            named = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
            there = given.is_valid().to_numpy(zero_copy_only=False)
            if (named[there] < 0).any():
                raise EncodingProblem(
                    f"Topic {topic!r} has no partition {named[there].min()}: partitions start at 0."
                )
            found = np.where(there, named, found)
        return found

    def _timestamps(self, window: Any) -> NDArray[np.int64]:
        now_ms = self._clock.wall_ms()
        given = self._column(window, "timestamp") if self._options.write_timestamps else None
        if given is None:
            return np.full(window.num_rows, now_ms, np.int64)
        micros = given.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        # Floor division: a time before 1970 is refused, and must not be rounded to 0.
        times: NDArray[np.int64] = pc.fill_null(micros, now_ms * 1000).to_numpy(zero_copy_only=False) // 1000
        if (times < 0).any():
            raise EncodingProblem("A row has a timestamp before 1970.")
        return times

    def _column(self, window: Any, name: str) -> Any:
        return window.column(self._columns[name]) if name in self._columns else None

    def _octets(self, window: Any, name: str) -> Any:
        """Text as its UTF-8 bytes."""
        column = self._column(window, name)
        return pa.nulls(window.num_rows, pa.binary()) if column is None else column.cast(pa.binary())
