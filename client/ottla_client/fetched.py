"""The fetched data of one partition, decoded into records batch by batch. [P]

Data stays encoded until `take` needs records; then one batch at a time is decoded. So prefetched data
costs its size on the wire, not that of a hundred thousand Python objects.

Called by `consumer_machine`. Does no network I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ottla_client.errors import SerializationFailed
from ottla_client.record import ConsumerRecord
from ottla_client.serializers import Deserializer
from ottla_core.errors import CorruptMessage, RequestError
from ottla_core.ids import NO_EPOCH, TopicPartition
from ottla_core.records.batch import BatchHeader, complete_batches, verify
from ottla_core.records.codec import rows_of

#: Limit for the decompressed size of one batch. Brokers accept batches of a few MiB; this allows for exceptions.
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024

#: Like `ConsumerRecord._make`, without a Python frame per record.
_consumer_record: Callable[[tuple[object, ...]], ConsumerRecord] = partial(tuple.__new__, ConsumerRecord)


class Decoding:
    """Decoding settings, the same for all partitions of a consumer."""

    __slots__ = ("check_crcs", "key_deserializer", "read_committed", "value_deserializer")

    def __init__(
        self,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        check_crcs: bool = True,
        read_committed: bool = False,
    ) -> None:
        self.key_deserializer = key_deserializer
        self.value_deserializer = value_deserializer
        self.check_crcs = check_crcs
        self.read_committed = read_committed


class Chunk:
    """Batches of one partition, in order, starting at `position`."""

    def __init__(
        self,
        tp: TopicPartition,
        data: bytes,
        position: int,
        aborted: Sequence[tuple[int, int]],
        decoding: Decoding,
    ) -> None:
        self.tp = tp
        self.size_bytes = len(data)
        #: The offset after the last record that was taken or skipped.
        self.position = position
        #: The offset after the last complete batch, where the next fetch continues.
        self.next_offset = position
        self._data = data
        self._decoding = decoding
        self._batches = list(complete_batches(data))
        if self._batches:
            self.next_offset = max(position, self._batches[-1][1].next_offset)
        self._upcoming: Iterator[tuple[int, BatchHeader]] = iter(self._batches)
        self._ready: list[ConsumerRecord] = []
        self._ready_at = 0
        self._after_ready = position
        self.exhausted = False
        #: (first offset, producer id) of aborted transactions, smallest offset first.
        self._aborted = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._aborted)
        self._aborting: set[int] = set()

    @property
    def leader_epoch(self) -> int:
        """Of the last complete batch."""
        return self._batches[-1][1].leader_epoch if self._batches else NO_EPOCH

    def epoch_starts(self) -> list[tuple[int, int]]:
        """Offsets where the leader epoch changes, and the first one, with the epochs."""
        batches = self._batches
        if not batches:
            return []
        first = batches[0][1]
        starts = [(first.base_offset, first.leader_epoch)]
        if self.leader_epoch != first.leader_epoch:  # Epochs only grow along a log, so most chunks end here.
            for _, header in batches:
                if header.leader_epoch != starts[-1][1]:
                    starts.append((header.base_offset, header.leader_epoch))
        return starts

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` records; fewer only at the end. Moves `position`. Raises for a batch it cannot read."""
        taken: list[ConsumerRecord] = []
        while len(taken) < limit:
            if self._ready_at >= len(self._ready):
                self.position = max(self.position, self._after_ready)
                try:
                    more = self._decode_next()
                except Exception:
                    if taken:
                        break  # return what was taken; the next call raises the error
                    raise
                if not more:
                    self.exhausted = True
                    self.position = max(self.position, self.next_offset)
                    break
                continue
            end = min(len(self._ready), self._ready_at + limit - len(taken))
            taken.extend(self._ready[self._ready_at : end])
            self._ready_at = end
            self.position = taken[-1].offset + 1
        return taken

    def _decode_next(self) -> bool:
        """Decode the next batch with records to return; False if there is none."""
        for at, header in self._upcoming:
            # First: each marker counts, also one before the position.
            hidden = self._is_hidden(header)
            if hidden or header.next_offset <= self.position:
                self.position = max(self.position, header.next_offset)
                continue
            try:
                made = self._records(at, header)
                self._ready, self._ready_at = self._deserialized(made), 0
            except Exception:
                self._stay_at(header)
                self._ready, self._ready_at = [], 0
                raise
            self._after_ready = header.next_offset
            if len(self._ready) < len(made):
                self._after_ready = made[len(self._ready)].offset
                self._stay_at(header)
            return True
        return False

    def _stay_at(self, header: BatchHeader) -> None:
        """Keep the batch for the next call: the position has not moved past it."""
        self._upcoming = iter(
            [batch for batch in self._batches if batch[1].base_offset >= header.base_offset]
        )

    def _is_hidden(self, header: BatchHeader) -> bool:
        """True for control batches, and with read_committed for batches of aborted transactions."""
        if not self._decoding.read_committed or not header.is_transactional:
            return header.is_control
        while self._aborted and self._aborted[0][0] <= header.last_offset:
            self._aborting.add(heapq.heappop(self._aborted)[1])
        if header.is_control:
            # Commit and abort markers both end the transaction; only for an abort is the producer in the set.
            self._aborting.discard(header.producer_id)
            return True
        return header.producer_id in self._aborting

    def _records(self, at: int, header: BatchHeader) -> list[ConsumerRecord]:
        decoding, tp = self._decoding, self.tp
        if decoding.check_crcs and not verify(self._data, at, header):
            raise CorruptMessage(
                f"The batch at offset {header.base_offset} of {tp} fails its CRC. Read it again, or seek "
                f"past it to offset {header.next_offset}."
            )
        records = rows_of(
            self._data,
            at,
            header,
            _consumer_record,
            topic=tp.topic,
            partition=tp.partition,
            limit_bytes=DECOMPRESSED_BYTES_MAX,
        )
        if records and records[0].offset < self.position:
            return [record for record in records if record.offset >= self.position]
        return records

    def _deserialized(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Records up to the first that cannot be deserialized; the next call raises its error."""
        decoding = self._decoding
        if decoding.key_deserializer is None and decoding.value_deserializer is None:
            return records
        made: list[ConsumerRecord] = []
        for record in records:
            try:
                made.append(self._deserialized_one(record))
            except Exception:
                if not made:
                    raise
                break
        return made

    def _deserialized_one(self, record: ConsumerRecord) -> ConsumerRecord:
        decoding = self._decoding
        try:
            key, value = record.key, record.value
            if key is not None and decoding.key_deserializer is not None:
                key = decoding.key_deserializer(key)
            if value is not None and decoding.value_deserializer is not None:
                value = decoding.value_deserializer(value)
        except RequestError:
            raise
        except Exception as error:
            raise SerializationFailed(
                f"The record at offset {record.offset} of {self.tp} could not be deserialized: {error}. "
                f"Seek to {record.offset + 1} to continue after it."
            ) from error
        return record._replace(key=key, value=value)


def aborted_pairs(aborted: Sequence[Any]) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions in a response."""
    return [(each.producer_id, each.first_offset) for each in aborted]
