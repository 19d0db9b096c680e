"""Runs one work function soon after a change, and when a timer fires. [S]

Sender and fetcher each have one. However often it is scheduled, it runs once per iteration of the loop, and never
inside the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ottla_core.ports.clock import Clock

#: Timer resolution.
_GRAIN_S = 0.001


class Pump:
    def __init__(self, clock: Clock, work: Callable[[float], Iterable[float | None]]) -> None:
        """`work(now)` returns the times of the next timers."""
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
