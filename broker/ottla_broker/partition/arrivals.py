"""Bounds how many replicas a broker copies at once because they are moved to it. [P]

All of a broker's copies share the bytes in flight of one stream per leader, so a hundred at once finish no sooner than
ten after ten; but the last of ten is in sync, and its former replica removed, long before the last of a hundred.
A replica that waits is open and empty, and does not follow its leader yet.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._copying: dict[T, None] = {}
        self._waiting: dict[T, None] = {}

    def begin(self, replica: T) -> bool:
        """Whether the replica may be copied now; else it waits for its turn."""
        if replica in self._copying:
            return True
        if len(self._copying) < self._at_once:
            self._waiting.pop(replica, None)
            self._copying[replica] = None
            return True
        self._waiting[replica] = None
        return False

    def end(self, replica: T) -> list[T]:
        """The replica is in sync, or no longer wanted. Returns those whose turn it is now."""
        self._waiting.pop(replica, None)
        self._copying.pop(replica, None)
        ready = list(self._waiting)[: max(0, self._at_once - len(self._copying))]
        for other in ready:
            self.begin(other)
        return ready
