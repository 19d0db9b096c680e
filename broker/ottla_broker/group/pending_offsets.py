"""Offsets that were committed inside a transaction, until its marker decides about them. [P]"""

from __future__ import annotations

from ottla_broker.group.records import OffsetKey, OffsetValue


class PendingOffsets:
    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        #: By producer id; the newest value of each key counts. None: the offset is to be deleted.
        self._by_producer: dict[int, dict[OffsetKey, OffsetValue | None]] = {}

    def __len__(self) -> int:
        return sum(len(pending) for pending in self._by_producer.values())

    def put(self, producer_id: int, key: OffsetKey, value: OffsetValue | None) -> None:
        self._by_producer.setdefault(producer_id, {})[key] = value

    def has(self, key: OffsetKey) -> bool:
        """Whether an open transaction is about to change the offset."""
        return any(key in pending for pending in self._by_producer.values())

    def take(self, producer_id: int) -> dict[OffsetKey, OffsetValue | None]:
        """Remove and return everything pending of a producer, in the order of the first commit."""
        return self._by_producer.pop(producer_id, {})

    def remove_group(self, group: str) -> None:
        for producer_id, pending in list(self._by_producer.items()):
            kept = {key: value for key, value in pending.items() if key.group != group}
            if kept:
                self._by_producer[producer_id] = kept
            else:
                del self._by_producer[producer_id]
