"""One function that does all there is to do now, run soon after anything has changed, and when time is up. [S]

Sender and fetcher each have one. However often it is asked for, it runs once per turn of the loop, and never inside
the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ottla_core.ports.clock import Clock

#: The finest grain worth waking for.
_GRAIN_S = 0.001


class Pump:
    def __init__(self, clock: Clock, work: Callable[[float], Iterable[float | None]]) -> None:
        """`work(now)` returns the times at which there is something to do, if nothing happens before."""
        self._clock = clock
        self._work = work
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self.running = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.running = True
        self.schedule()

    def stop(self) -> None:
        self.running = False
        self._cancel_timer()

    def schedule(self) -> None:
        if not self._scheduled and self.running:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if not self.running:
            return
        now = self._clock.monotonic()
        when = min((time for time in self._work(now) if time is not None), default=None)
        self._cancel_timer()
        if when is not None:
            self._timer = self._loop.call_later(max(_GRAIN_S, when - now), self.schedule)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
