"""Carries out the effects that one shard has decided on, a bounded number at a time. [S]

An effect ends in a request that tells the shard its outcome (`shard`, C5). The queue ends with the leadership that
decided on its effects: the next one decides again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ottla_broker.coordination.tasks import surface

#: Effects of one shard that run at the same time: enough to keep every other broker busy with markers.
_RUNNING_MAX = 64


class EffectQueue:
    def __init__(self, run: Callable[[Any], Awaitable[None]], running_max: int = _RUNNING_MAX) -> None:
        """`run` carries out one effect and reports its outcome; what it raises is surfaced to the loop."""
        self._run = run
        self._running_max = running_max
        self._waiting: deque[Any] = deque()
        self._running: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, effect: Any) -> None:
        if self._closed:
            return
        self._waiting.append(effect)
        self._start()

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        for task in self._running:
            if task is not asyncio.current_task():
                task.cancel()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._running_max:
            task = asyncio.ensure_future(self._run(self._waiting.popleft()))
            self._running[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start()
        surface(task)
