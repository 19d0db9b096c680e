"""When each resource is reconciled next. [S]

Every resource has one due time. `soon` sets it to now (the resource was created or changed); each reconciliation
returns the delay until the next (drift, retries). A resource is never reconciled twice at the same time, and at most
`workers` resources are reconciled concurrently.

kopf's timers are not used: they put a finalizer on every object that they watch, and such an object cannot be deleted
while no operator runs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable

import structlog

from ottla_core.ports.clock import Clock

Key = tuple[str, str, str]  # kind, namespace, name

_log = structlog.get_logger("ottla.schedule")

#: Delay after an unexpected failure; doubles from the first value to the last.
_BACKOFF_S = (1.0, 60.0)


class Schedule:
    def __init__(
        self,
        look: Callable[[Key], Awaitable[float | None]],
        clock: Clock,
        *,
        workers: int = 8,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """`expected` are failures that are logged without a traceback."""
        self._expected = expected
        self._look = look
        self._clock = clock
        self._workers = workers
        #: Next due time of each key; authoritative. The heap may hold stale entries, which are skipped.
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._busy: dict[Key, asyncio.Task[None]] = {}
        self._again: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def soon(self, key: Key) -> None:
        """Reconcile it as soon as possible; once more if that is in progress."""
        if key in self._busy:
            self._again[key] = None
        else:
            self._set(key, self._clock.monotonic())

    def is_busy(self, key: Key) -> bool:
        """Whether it is being reconciled now."""
        return key in self._busy

    def drop(self, key: Key) -> None:
        self._due.pop(key, None)
        self._again.pop(key, None)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Run until cancelled; reconciliations in progress are cancelled too."""
        try:
            while True:
                self._changed.clear()
                wait_s = self._start_due()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    def _start_due(self) -> float | None:
        """Start everything that is due. Returns the seconds until the next, None if nothing is scheduled."""
        now = self._clock.monotonic()
        while self._heap and len(self._busy) < self._workers:
            due, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return due - now
            heapq.heappop(self._heap)
            del self._due[key]
            self._busy[key] = asyncio.create_task(self._one(key))
        return None

    async def _one(self, key: Key) -> None:
        try:
            delay_s = await self._look(key)
            self._failures.pop(key, None)
        except Exception as failed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay_s = min(_BACKOFF_S[1], _BACKOFF_S[0] * 2.0 ** min(failures - 1, 10))
            # The message of a refused or unanswered request is enough; anything else is a bug and needs a traceback.
            trace = None if isinstance(failed, self._expected) else failed
            _log.error(
                "reconciliation failed",
                kind=key[0],
                resource=f"{key[1]}/{key[2]}",
                error=str(failed),
                retry_in_s=delay_s,
                exc_info=trace,
            )
        finally:
            del self._busy[key]
            self._changed.set()
        if key in self._again:
            del self._again[key]
            self._set(key, self._clock.monotonic())
        elif delay_s is not None and key not in self._due:
            self._set(key, self._clock.monotonic() + delay_s)

    def _set(self, key: Key, due: float) -> None:
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._changed.set()
