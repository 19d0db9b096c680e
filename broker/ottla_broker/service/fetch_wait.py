"""A fetch that waits for records: which of its partitions have changed, and whether there is enough now. [S]

A wake costs what has changed, however many partitions the fetch names: each partition wakes its own place, only that
place is looked at again, and the bytes of all places are a running sum. The looks are work for the run queue, because
one write can wake as many fetches as there are connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ottla_broker.event_loop import give_way
from ottla_broker.partition.partition import Partition
from ottla_broker.scheduler import Scheduler

#: Partitions that are watched in one turn of the loop, at half a microsecond each.
_WATCHED_PER_TURN = 1000


class Places(Protocol):
    """The partitions of a fetch, by their place in it."""

    def readable(self, place: int) -> int:
        """Bytes that could be read there when the place was looked at last."""

    def look(self, place: int, *, is_first: bool) -> bool:
        """Look again; whether waiting for more is in vain. `is_first`: nothing can be read at the other places."""

    def has_moved(self, place: int) -> bool:
        """Whether something has happened since the last look."""


class FetchWait:
    __slots__ = (
        "_changed",
        "_future",
        "_is_queued",
        "_least_bytes",
        "_partitions",
        "_places",
        "_readable",
        "_scheduler",
        "_total",
        "_watches",
    )

    def __init__(
        self, scheduler: Scheduler, places: Places, partitions: Sequence[Partition], least_bytes: int
    ) -> None:
        """Over when `least_bytes` can be read in these partitions."""
        self._scheduler = scheduler
        self._places = places
        self._partitions = partitions
        self._least_bytes = least_bytes
        self._readable = [places.readable(place) for place in range(len(partitions))]
        self._total = sum(self._readable)
        #: Places to look at, each once.
        self._changed: dict[int, None] = {}
        self._is_queued = False
        self._watches = [_Watch(self, place) for place in range(len(partitions))]
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def over(self, within_s: float) -> None:
        """Return when there is enough, when waiting for more is in vain, or when the time is up."""
        timer = asyncio.get_running_loop().call_later(within_s, self._end)
        try:
            await self._watch()
            await self._future
        finally:
            timer.cancel()
            self._scheduler.forget(self)
            self._changed.clear()
            for partition, watch in zip(self._partitions, self._watches, strict=True):
                partition.forget_reader(watch)
            self._watches = []  # Each of them refers to this object.

    async def _watch(self) -> None:
        for place, partition in enumerate(self._partitions):
            partition.when_readable(self._watches[place])
            # The looks were some turns of the loop ago: what has happened since has woken nothing.
            if self._places.has_moved(place):
                self.changed(place)
            if place % _WATCHED_PER_TURN == _WATCHED_PER_TURN - 1:
                await give_way()

    def changed(self, place: int) -> None:
        self._changed[place] = None
        if not self._is_queued:
            self._is_queued = True
            self._scheduler.queue(self, urgent=False)

    def run(self, until: float) -> None:
        """Called by the scheduler: look at what has changed."""
        self._is_queued = False
        while self._changed and not self._future.done():
            place, _ = self._changed.popitem()
            self._look(place)
            if self._changed and self._scheduler.is_over(until):
                self._is_queued = True
                self._scheduler.queue(self, urgent=False)
                return

    def _look(self, place: int) -> None:
        self._partitions[place].when_readable(self._watches[place])
        before = self._readable[place]
        in_vain = self._places.look(place, is_first=self._total == before)
        self._readable[place] = readable = self._places.readable(place)
        self._total += readable - before
        if in_vain or self._total >= self._least_bytes:
            self._end()

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class _Watch:
    """Called by a partition when something has happened to it."""

    __slots__ = ("_place", "_wait")

    def __init__(self, wait: FetchWait, place: int) -> None:
        self._wait = wait
        self._place = place

    def __call__(self) -> None:
        self._wait.changed(self._place)
