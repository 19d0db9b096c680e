"""Offsets that were committed inside a transaction, until its marker decides about them. [P]"""

from __future__ import annotations

from collections import Counter

from ottla_broker.group.records import OffsetKey, OffsetValue
from ottla_core.ids import TopicPartition


class PendingOffsets:
    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        #: By producer id; the newest value of each key counts. None: the offset is to be deleted.
        self._by_producer: dict[int, dict[OffsetKey, OffsetValue | None]] = {}
        #: By group: the same partitions, and in how many transactions each is.
        self._by_group: dict[str, Counter[TopicPartition]] = {}

    def __len__(self) -> int:
        return sum(len(pending) for pending in self._by_producer.values())

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        pending = self._by_producer.setdefault(producer_id, {})
        if key not in pending:
            self._by_group.setdefault(key.group, Counter())[key.tp] += 1
        pending[key] = value

    def of(self, group: str) -> frozenset[TopicPartition]:
        """The partitions whose offsets an open transaction is about to change."""
        return frozenset(self._by_group.get(group, ()))

    def take(self, producer_id: int) -> dict[OffsetKey, OffsetValue | None]:
        """Remove and return everything pending of a producer, in the order of the first commit."""
        taken = self._by_producer.pop(producer_id, {})
        for key in taken:
            self._uncount(key)
        return taken

    def remove(self, key: OffsetKey) -> None:
        """The offset was deleted, whatever the transaction decides."""
        if key.tp not in self._by_group.get(key.group, ()):
            return
        for producer_id, pending in list(self._by_producer.items()):
            if key in pending:
                del pending[key]
                self._uncount(key)
                if not pending:
                    del self._by_producer[producer_id]

    def _uncount(self, key: OffsetKey) -> None:
        counts = self._by_group[key.group]
        counts[key.tp] -= 1
        if not counts[key.tp]:
            del counts[key.tp]
            if not counts:
                del self._by_group[key.group]
