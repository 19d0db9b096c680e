"""Deadlines as data: set, moved and cancelled by key; the owner of the clock asks which are due. [P]

Deadlines lie in slots of `_SLOT_MS`, and a heap orders the slots, not the deadlines: setting, moving and cancelling one
costs two dict operations, however many there are. That is a timing wheel whose slots are made when they are needed, so
it has no levels, and a long quiet time costs nothing. `docs/decisions/0014` has the figures.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TypeAlias

Key: TypeAlias = Hashable

#: Deadlines this close together share a slot; within a slot they are sorted when they are due.
_SLOT_MS = 16
#: The heap is rebuilt when it has more than twice as many entries as there are slots, and this many more.
_SLACK = 64


class Timers:
    __slots__ = ("_deadlines", "_heap", "_seen_ms", "_slots")

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        #: Keys by slot number, in the order in which they came; no slot is empty.
        self._slots: dict[int, dict[Key, None]] = {}
        #: Numbers of all slots, and of some that have been emptied since.
        self._heap: list[int] = []
        #: The latest time that `due` was asked for.
        self._seen_ms = -1

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def deadline_ms(self, key: Key) -> int | None:
        return self._deadlines.get(key)

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set or move the deadline of a key."""
        number = deadline_ms // _SLOT_MS
        before_ms = self._deadlines.get(key)
        self._deadlines[key] = deadline_ms
        if before_ms is not None:
            if before_ms // _SLOT_MS == number:
                return
            self._take_out(key, before_ms)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            self._push(number)
        slot[key] = None

    def cancel(self, key: Key) -> None:
        """Forget a deadline; an unknown key is ignored."""
        deadline_ms = self._deadlines.pop(key, None)
        if deadline_ms is not None:
            self._take_out(key, deadline_ms)

    def due(self, now_ms: int) -> list[Key]:
        """Keys whose deadline has come, in the order of their deadlines; they are forgotten."""
        found: list[Key] = []
        self._seen_ms = max(self._seen_ms, now_ms)
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            number = self._heap[0]
            slot = self._slots[number]
            late = sorted(
                (key for key in slot if self._deadlines[key] <= now_ms), key=self._deadlines.__getitem__
            )
            for key in late:
                del self._deadlines[key], slot[key]
            found += late
            if slot:
                break  # The rest of the slot, and every later one, is not due yet.
            del self._slots[number]
        return found

    def next_ms(self) -> int | None:
        """When to call `due` next. Nothing is due before; something may be due only a little later."""
        heap = self._heap
        while heap and heap[0] not in self._slots:
            heapq.heappop(heap)
        if not heap:
            return None
        begins_ms = heap[0] * _SLOT_MS
        if begins_ms > self._seen_ms:
            return begins_ms
        # The slot has begun: the beginning again would wake its owner over and over.
        return min(map(self._deadlines.__getitem__, self._slots[heap[0]]))

    def _take_out(self, key: Key, deadline_ms: int) -> None:
        number = deadline_ms // _SLOT_MS
        slot = self._slots[number]
        del slot[key]
        if not slot:
            del self._slots[number]

    def _push(self, number: int) -> None:
        heapq.heappush(self._heap, number)
        if len(self._heap) > 2 * len(self._slots) + _SLACK:
            self._heap = sorted(self._slots)
