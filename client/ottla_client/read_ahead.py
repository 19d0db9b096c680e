"""Records that a poll took and an iteration has not yielded yet. [P]

`async for` takes many records at once and yields them one by one. The remaining ones are not consumed: their
offsets are not committed, and the next poll returns them first. After a seek or a revocation they are dropped,
because the generation of their partition has changed. Records of a paused partition stay until it is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ottla_client.record import ConsumerRecord
from ottla_core.ids import TopicPartition


class ReadAhead:
    def __init__(
        self, generation_of: Callable[[TopicPartition], int], is_paused: Callable[[TopicPartition], bool]
    ) -> None:
        self._generation_of = generation_of
        self._is_paused = is_paused
        self._records: deque[ConsumerRecord] = deque()
        self._generations: dict[tuple[str, int], int] = {}

    def put(self, records: Iterable[ConsumerRecord]) -> None:
        """Add records that were just taken."""
        self._records = deque((*filter(self._is_current, self._records), *records))
        partitions = {TopicPartition(record.topic, record.partition) for record in self._records}
        self._generations = {tp: self._generation_of(tp) for tp in partitions}

    def pop(self) -> ConsumerRecord | None:
        found: ConsumerRecord | None = None
        waiting: list[ConsumerRecord] = []
        while self._records and found is None:
            record = self._records.popleft()
            if not self._is_current(record):
                continue
            if self._is_paused(TopicPartition(record.topic, record.partition)):
                waiting.append(record)
            else:
                found = record
        self._records.extendleft(reversed(waiting))
        return found

    def take(self, limit: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        while len(taken) < limit and (record := self.pop()) is not None:
            taken.append(record)
        return taken

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first record of each partition that has not been yielded."""
        return {
            TopicPartition(record.topic, record.partition): record.offset
            for record in reversed(self._records)
            if self._is_current(record)
        }

    def _is_current(self, record: ConsumerRecord) -> bool:
        tp = TopicPartition(record.topic, record.partition)
        return self._generations.get(tp) == self._generation_of(tp)
