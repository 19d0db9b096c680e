"""Runs the slices of tasks' requests in the run queue that all connections share. [S]

The event loop runs every task that is ready in one turn: a hundred busy streams, or fetches that have waited, would
hold it for as long as all their requests take. So a request runs at once only if the turn has time left; otherwise it
is queued (`scheduler`), and a large one gives way after each slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from ottla_broker.scheduler import Scheduler
from ottla_broker.steps import Pause, Steps

R = TypeVar("R")


class _Visit(Generic[R]):
    """Slices of one request in the run queue, until it is done or has to wait for something else."""

    def __init__(self, scheduler: Scheduler, steps: Steps[R]) -> None:
        self._scheduler = scheduler
        self._steps = steps
        self._result: R
        #: What to wait for before the next visit; None at the end.
        self.left: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()

    async def ended(self) -> Pause:
        try:
            return await self.left
        finally:
            self._scheduler.forget(self)

    @property
    def result(self) -> R:
        return self._result

    def run(self, until: float) -> None:
        if self.left.cancelled():
            return  # its stream has ended, and is about to notice
        try:
            while (pause := next(self._steps)) is None:
                if self._scheduler.is_over(until):
                    self._scheduler.queue(self, urgent=False)
                    return
        except StopIteration as last:
            self._result = last.value
            pause = None
        except Exception as error:
            self.left.set_exception(error)
            return
        self.left.set_result(pause)


async def visited(scheduler: Scheduler, begin: Callable[[], R | Steps[R]]) -> R:
    """What `begin` returns; if that is a generator, what it returns at its end."""
    if scheduler.admit() is not None:
        try:
            begun = begin()
        finally:
            scheduler.done()
        if not isinstance(begun, Generator):
            return begun
        steps: Steps[R] = begun
    else:
        steps = _begin(begin)
    try:
        while True:
            visit = _Visit(scheduler, steps)
            scheduler.queue(visit, urgent=False)
            pause = await visit.ended()
            if pause is None:
                return visit.result
            await asyncio.wait((asyncio.ensure_future(pause),))
    finally:
        steps.close()


def _begin(begin: Callable[[], R | Steps[R]]) -> Steps[R]:
    begun = begin()
    if not isinstance(begun, Generator):
        return begun
    result: R = yield from begun
    return result


async def stepped(scheduler: Scheduler, steps: Steps[R]) -> R:
    """What the slices return at their end."""
    result: R = await visited(scheduler, lambda: steps)
    return result
