"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

#: Turns of the loop that a chain of awaits may need before everybody waits again: most need few.
_TURNS = 60


class ManualClock:
    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._now = 0.0
        self._wall_ms = wall_ms
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def wall_ms(self) -> int:
        return self._wall_ms + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(0.0, seconds), next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its own moment."""
        target = self._now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            when, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self._now = max(self._now, when)
                future.set_result(None)
                await self.settle()
        self._now = target
        await self.settle()

    async def settle(self) -> None:
        """Let everybody run until only time or the outside can wake them."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
