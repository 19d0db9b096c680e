"""Offsets that were committed inside a transaction, until its marker decides about them. [P]

Of two commits of one key the later one in the log counts, whenever the marker comes: a commit outside of transactions,
or one whose transaction was committed meanwhile, overtakes the pending ones before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ottla_broker.group.records import OffsetKey, OffsetValue
from ottla_core.ids import TopicPartition


@dataclass(slots=True)
class _Pending:
    #: None: the offset is to be deleted.
    value: OffsetValue | None
    #: Its place among the pending commits of this partition.
    serial: int
    #: A later commit of the key counts. The offset stays unstable until the marker all the same, as in Kafka.
    is_overtaken: bool = False


class PendingOffsets:
    __slots__ = ("_by_group", "_by_producer", "_serial")

    def __init__(self) -> None:
        self._serial = 0
        #: By producer id; the newest value of each key counts.
        self._by_producer: dict[int, dict[OffsetKey, _Pending]] = {}
        #: By group: the same partitions, and in how many transactions each is.
        self._by_group: dict[str, Counter[TopicPartition]] = {}

    def __len__(self) -> int:
        return sum(len(pending) for pending in self._by_producer.values())

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        pending = self._by_producer.setdefault(producer_id, {})
        if key not in pending:
            self._by_group.setdefault(key.group, Counter())[key.tp] += 1
        self._serial += 1
        pending[key] = _Pending(value, self._serial)

    def of(self, group: str) -> frozenset[TopicPartition]:
        """The partitions whose offsets an open transaction is about to change."""
        return frozenset(self._by_group.get(group, ()))

    def take(self, producer_id: int, *, commits: bool) -> dict[OffsetKey, OffsetValue | None]:
        """End a producer's transaction; return what counts from now on, in the order of the first commit."""
        taken = self._by_producer.pop(producer_id, {})
        for key in taken:
            self._uncount(key)
        if not commits:
            return {}
        counting = {key: each for key, each in taken.items() if not each.is_overtaken}
        for key, each in counting.items():
            self._overtake(key, each.serial)
        return {key: each.value for key, each in counting.items()}

    def overtake(self, key: OffsetKey) -> None:
        """The key was committed outside of transactions."""
        self._overtake(key, self._serial + 1)

    def _overtake(self, key: OffsetKey, serial: int) -> None:
        if key.tp not in self._by_group.get(key.group, ()):
            return
        for pending in self._by_producer.values():
            if (found := pending.get(key)) is not None and found.serial < serial:
                found.is_overtaken = True

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
