"""Deadlines in a heap with lazy moves: a rival of `coordination.timers` in `make bench-timers`. [P]

Made for sessions, whose deadline moves at every heartbeat and is almost never reached: moving one later costs a
dict update. The heap still holds the old time; when that comes up, the key is queued again at its new one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TypeAlias

Key: TypeAlias = Hashable

#: The heap is rebuilt when it has more than twice as many entries as there are deadlines, and this many more.
_SLACK = 64


class Timers:
    __slots__ = ("_deadlines", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        #: Where the one entry of each key that counts lies in the heap: never later than its deadline.
        self._queued: dict[Key, tuple[int, int]] = {}
        #: (time, serial number, key); the serial number keeps keys from being compared.
        self._heap: list[tuple[int, int, Key]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def deadline_ms(self, key: Key) -> int | None:
        return self._deadlines.get(key)

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set or move the deadline of a key."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or queued[0] > deadline_ms:
            self._queue(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Forget a deadline; an unknown key is ignored."""
        if self._deadlines.pop(key, None) is not None:
            del self._queued[key]

    def due(self, now_ms: int) -> list[Key]:
        """Keys whose deadline has come, in the order of their deadlines; they are forgotten."""
        found: list[tuple[int, int, Key]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, serial, key = heapq.heappop(self._heap)
            if self._queued.get(key) != (at_ms, serial):
                continue  # Cancelled, or queued again earlier.
            deadline_ms = self._deadlines[key]
            if deadline_ms > now_ms:
                self._queue(key, deadline_ms)
                continue
            found.append((deadline_ms, serial, key))
            del self._deadlines[key], self._queued[key]
        found.sort(key=lambda entry: entry[:2])
        return [key for _, _, key in found]

    def next_ms(self) -> int | None:
        """When to look next. Nothing is due before; something may be due only later."""
        heap = self._heap
        while heap and self._queued.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _queue(self, key: Key, at_ms: int) -> None:
        self._serial += 1
        self._queued[key] = (at_ms, self._serial)
        heapq.heappush(self._heap, (at_ms, self._serial, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._heap = [(at, serial, queued) for queued, (at, serial) in self._queued.items()]
            heapq.heapify(self._heap)
