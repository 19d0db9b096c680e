"""Which records may be committed when they are completed in any order, and which may be started. [P]

Used by `worker_pool`. A record waits for the earlier ones with its key in its partition; records without a key wait for
nobody. A partition is committed up to its first record that is not completed.

Invariants:
W1. Of the records with one key in one partition at most one is running, in offset order, from when the partition is
    gained until it is lost.
W2. A partition's offset to commit is above no record that is not completed, and never decreases.
W3. What completes after its partition was dropped changes nothing, also if the partition has come back since and the
    same record runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ottla_client.record import ConsumerRecord
from ottla_core.ids import TopicPartition

_Lane: TypeAlias = tuple[TopicPartition, Hashable]


class Run(NamedTuple):
    """One run of a record, from `take` to `complete`."""

    number: int
    record: ConsumerRecord

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)


@dataclass(slots=True)
class _Partition:
    """Records from the first that is not completed on: the offset of each, and the completed ones."""

    offsets: deque[int] = field(default_factory=deque)
    completed: set[int] = field(default_factory=set)
    #: The offset after the last completed record of the prefix; None before the first.
    commit: int | None = None


class CompletedOffsets:
    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._ready: deque[ConsumerRecord] = deque()
        #: Records that wait for the running (or ready) one with the same key.
        self._lanes: dict[_Lane, deque[ConsumerRecord]] = {}
        #: By number.
        self._running: dict[int, Run] = {}
        self._runs = 0
        #: Records that were added and are neither completed nor dropped.
        self.pending = 0

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            self._partitions.setdefault(tp, _Partition()).offsets.append(record.offset)
            self.pending += 1
            if record.key is None:
                self._ready.append(record)
                continue
            lane = (tp, _hashable(record.key))
            if lane in self._lanes:
                self._lanes[lane].append(record)
            else:
                self._lanes[lane] = deque()
                self._ready.append(record)

    def take(self) -> Run | None:
        """A record to start now; None if all wait for others, or there are none."""
        if not self._ready:
            return None
        self._runs += 1
        run = self._running[self._runs] = Run(self._runs, self._ready.popleft())
        return run

    def complete(self, run: Run) -> None:
        if self._running.pop(run.number, None) is None:
            return  # W3
        record, tp = run.record, run.tp
        self.pending -= 1
        if record.key is not None:
            lane = (tp, _hashable(record.key))
            if self._lanes[lane]:
                self._ready.append(self._lanes[lane].popleft())
            else:
                del self._lanes[lane]
        partition = self._partitions[tp]
        partition.completed.add(record.offset)
        while partition.offsets and partition.offsets[0] in partition.completed:
            partition.commit = partition.offsets.popleft() + 1
            partition.completed.discard(partition.commit - 1)

    def commits(self, tps: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, int]:
        """Offsets to commit, of these partitions or of all."""
        chosen = self._partitions if tps is None else [tp for tp in tps if tp in self._partitions]
        found = {tp: self._partitions[tp].commit for tp in chosen}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def forget_waiting(self, tps: Iterable[TopicPartition]) -> None:
        """Start no further record of these partitions; those that run may still complete, and count."""
        gone = set(tps)
        left = [r for r in self._ready if TopicPartition(r.topic, r.partition) not in gone]
        dropped = len(self._ready) - len(left)
        self._ready = deque(left)
        for lane in [lane for lane in self._lanes if lane[0] in gone]:
            dropped += len(self._lanes[lane])
            self._lanes[lane].clear()
        self.pending -= dropped

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """The partitions belong to another member now (W3)."""
        gone = set(tps)
        self.forget_waiting(gone)
        left = {number: run for number, run in self._running.items() if run.tp not in gone}
        self.pending -= len(self._running) - len(left)
        self._running = left
        self._lanes = {lane: waiting for lane, waiting in self._lanes.items() if lane[0] not in gone}
        for tp in gone:
            self._partitions.pop(tp, None)


def _hashable(key: object) -> Hashable:
    """Deserialized keys may be dicts or lists."""
    return key if isinstance(key, Hashable) else repr(key)
