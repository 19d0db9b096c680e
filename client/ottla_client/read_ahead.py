"""Records that a poll took and an iteration has not yielded yet. [P]

`async for` takes many records at once and yields them one by one. The remaining ones are not consumed: their
offsets are not committed, and the next poll returns them first. After a seek or a revocation they are dropped.
Records of a paused partition are held back until it is resumed. The consumer machine calls `drop`, `pause` and
`resume` at once, so that yielding a record costs no check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ottla_client.record import ConsumerRecord
from ottla_core.ids import TopicPartition


class ReadAhead:
    def __init__(self) -> None:
        #: To yield next; always the same object, so that an iteration can keep it.
        self.ready: deque[ConsumerRecord] = deque()
        #: Records of paused partitions, in order.
        self._held: list[ConsumerRecord] = []

    def put(self, records: Iterable[ConsumerRecord]) -> None:
        """Add records that were just taken."""
        self.ready.extend(records)

    def pop(self) -> ConsumerRecord | None:
        try:
            return self.ready.popleft()
        except IndexError:
            return None

    def take(self, limit: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        while len(taken) < limit and (record := self.pop()) is not None:
            taken.append(record)
        return taken

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first record of each partition that has not been yielded."""
        return {
            TopicPartition(record.topic, record.partition): record.offset
            for record in reversed([*self._held, *self.ready])
        }

    # ------------------------------------------------------------------ calls of the consumer machine

    def drop(self, tp: TopicPartition) -> None:
        """The position was moved, or the partition was given up."""
        self._held = [record for record in self._held if not _is_of(record, tp)]
        self._keep(lambda record: not _is_of(record, tp))

    def pause(self, tp: TopicPartition) -> None:
        self._held.extend(record for record in self.ready if _is_of(record, tp))
        self._keep(lambda record: not _is_of(record, tp))

    def resume(self, tp: TopicPartition) -> None:
        back = [record for record in self._held if _is_of(record, tp)]
        self._held = [record for record in self._held if not _is_of(record, tp)]
        self.ready.extendleft(reversed(back))

    def _keep(self, wanted: Callable[[ConsumerRecord], bool]) -> None:
        if self.ready:
            kept = list(filter(wanted, self.ready))
            self.ready.clear()
            self.ready.extend(kept)


def _is_of(record: ConsumerRecord, tp: TopicPartition) -> bool:
    return record.partition == tp.partition and record.topic == tp.topic
