"""The event loop seen from outside: its next turn, work in several turns, and how late it is. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from types import coroutine
from typing import TypeVar

from ottla_broker.steps import Steps

R = TypeVar("R")

#: Four samples a second cost an idle broker nothing, and a stall of a quarter of a second is never missed.
LAG_PROBE_S = 0.25


def next_turn(call: Callable[[], None]) -> None:
    """Call back in the next iteration of the loop, after everything that is due in this one."""
    asyncio.get_running_loop().call_soon(call)


def loop_time() -> float:
    """The clock of the running loop."""
    return asyncio.get_running_loop().time()


@coroutine
def give_way() -> Generator[None, None, None]:
    """Await it to let everything else that is due run first."""
    yield


async def in_turns(steps: Steps[R]) -> R:
    """One slice per turn of the loop."""
    with closing(steps):
        while True:
            try:
                pause = next(steps)
            except StopIteration as last:
                result: R = last.value
                return result
            if pause is None:
                await give_way()
            else:
                await asyncio.wait((asyncio.ensure_future(pause),))


def awaited(result: Awaitable[R]) -> Steps[R]:
    """Inside of steps what `await` is inside of a coroutine."""
    future = asyncio.ensure_future(result)
    try:
        yield future
    except GeneratorExit:
        future.cancel()
        raise
    return future.result()


def settled(result: R | Awaitable[R]) -> Steps[R]:
    """The same for what may be there at once."""
    return (yield from awaited(result)) if isinstance(result, Awaitable) else result


class LagProbe:
    """Measures how late a timer fires: everything that held the loop shows in it."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LAG_PROBE_S, self._look, loop.time() + LAG_PROBE_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, due: float) -> None:
        self._observe(max(0.0, asyncio.get_running_loop().time() - due))
        self.start()
