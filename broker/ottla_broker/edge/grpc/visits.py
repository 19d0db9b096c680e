"""Runs the requests of gRPC streams and unary calls in the run queue that all connections share. [S]

gRPC has a task per stream, and the event loop would run every task that is ready in one turn: a hundred busy streams
would hold it for as long as all their requests take. So a request runs at once only if the turn has time left;
otherwise it is queued (`edge.scheduler`), and a large one gives way after each slice.

A unary call is a coroutine, which runs only as its task. So it waits for its turn in the queue, and the turn is charged
with what a small call or a slice of a large one costs (`UNARY_S`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

from ottla_broker.edge.scheduler import Scheduler
from ottla_broker.steps import Pause, Steps

R = TypeVar("R")
T = TypeVar("T")

#: What a small unary call costs beside gRPC's own work, and at most a slice of a large one.
UNARY_S = 0.0005
#: Entries of a response that are made in one slice: some microseconds each.
ENTRIES_PER_SLICE = 64


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


class _Turn:
    """A task that waits for its turn in the run queue."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run(self, until: float) -> None:
        if not self.came.done():
            self._scheduler.spend(UNARY_S)
            self.came.set_result(None)


async def entered(scheduler: Scheduler, *, urgent: bool = False) -> None:
    """Before a unary call does anything: wait for its turn, if this one has no time left."""
    if scheduler.admit() is None:
        await next_slice(scheduler, urgent=urgent)
        return
    scheduler.spend(UNARY_S)
    scheduler.done()


async def next_slice(scheduler: Scheduler, *, urgent: bool = False) -> None:
    """Between two slices of a unary call: wait for its next turn."""
    turn = _Turn(scheduler)
    scheduler.queue(turn, urgent=urgent)
    try:
        await turn.came
    finally:
        scheduler.forget(turn)


async def filled(
    scheduler: Scheduler,
    field: Any,
    make: Callable[[T], Any],
    items: Sequence[T],
    each: int = ENTRIES_PER_SLICE,
) -> None:
    """Fill a repeated field in slices of `each` entries."""
    for at in range(0, len(items), each):
        if at:
            await next_slice(scheduler)
        field.extend(map(make, items[at : at + each]))


async def in_slices(
    scheduler: Scheduler, make: Callable[[Any], R], items: Iterable[Any], each: int = 4 * ENTRIES_PER_SLICE
) -> list[R]:
    """What `make` returns for each item, in slices."""
    made: list[R] = []
    for item in items:
        made.append(make(item))
        if len(made) % each == 0:
            await next_slice(scheduler)
    return made
