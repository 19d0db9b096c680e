"""Turns of unary gRPC calls in the run queue that all connections share; streams use `ottla_broker.visits`. [S]

A unary call is a coroutine, which runs only as its task. So it waits for its turn in the queue, and the turn is charged
with what a small call or a slice of a large one costs (`UNARY_S`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ottla_broker.scheduler import Scheduler

R = TypeVar("R")
T = TypeVar("T")

#: What a small unary call costs beside gRPC's own work, and at most a slice of a large one.
UNARY_S = 0.0005
#: Entries of a response that are made in one slice: some microseconds each.
ENTRIES_PER_SLICE = 64


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
