"""Replies that wait until an offset is reached. One per partition and kind of progress. [S]

Completing costs the waiters completed, never a scan of all: they sit in a heap by the offset they wait for. A wait is
a bare future, no task and no timer of its own; one timer per partition looks for those whose time is up, and while
replies come in time it fires once in a timeout.
"""

from __future__ import annotations

import asyncio
import heapq

from ottla_core.errors import RequestError, RequestTimedOut

#: offset, serial (equal offsets would make the heap compare futures), deadline, future.
_Waiter = tuple[int, int, float, "asyncio.Future[None]"]


class OffsetWaiters:
    __slots__ = ("_heap", "_serial", "_timed_out", "_timer")

    def __init__(self, timed_out: str) -> None:
        """`timed_out` is the error of a waiter whose time is up."""
        self._timed_out = timed_out
        self._heap: list[_Waiter] = []
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def reached(self, offset: int, timeout_s: float) -> asyncio.Future[None]:
        """Done once progress is at or past `offset`; RequestTimedOut after `timeout_s`."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._serial += 1
        deadline = loop.time() + timeout_s
        heapq.heappush(self._heap, (offset, self._serial, deadline, future))
        timer = self._timer
        if timer is None or deadline < timer.when():
            if timer is not None:
                timer.cancel()
            self._timer = loop.call_at(deadline, self._time_is_up)
        return future

    def advance(self, progress: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= progress:
            future = heapq.heappop(heap)[3]
            if not future.done():
                future.set_result(None)

    def fail(self, error: RequestError) -> None:
        """Fail all waiters, because this broker will not reach their offsets."""
        waiting, self._heap = self._heap, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in waiting:
            _refuse(waiter[3], error)

    def _time_is_up(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        late = [waiter for waiter in self._heap if waiter[2] <= now or waiter[3].done()]
        if late:
            self._heap = [waiter for waiter in self._heap if waiter[2] > now and not waiter[3].done()]
            heapq.heapify(self._heap)
        for waiter in late:
            _refuse(waiter[3], RequestTimedOut(self._timed_out))
        if self._heap:
            self._timer = loop.call_at(min(waiter[2] for waiter in self._heap), self._time_is_up)


def _refuse(future: asyncio.Future[None], error: RequestError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Mark the exception as retrieved; the waiter may have been cancelled.
