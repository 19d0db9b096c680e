"""An event loop on virtual time, and the ports that follow from it: clock, offload, chance.

`SimLoop` runs the shipped asyncio code unchanged: time stands still while anybody can run, and jumps to the next timer
when nobody can. It has no selector and refuses threads; when nothing can ever happen again it raises `Deadlock`.

Every callback belongs to a `Place` (a simulated process), or to none (the world itself): tasks and timers inherit it
through their context from who made them. A place that is stopped runs nothing, as after SIGSTOP: what is due waits in
line, and time passes for it all the same. A place that is dead never runs anything again, as after `kill -9`: no
`finally`, no farewell. The coroutines of the dead are closed at the end of the world, by `bury`.

It leans on private parts of BaseEventLoop (`_ready`, `_scheduled`, `_run_once`); `test_loop.py` pins what is used.
Callbacks that are ready run in the order they came: asyncio code may rely on that. What is to happen in another order
has to be delayed at a port.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from ottla_core.ports.clock import Clock
from ottla_core.real.chance import RealChance

T = TypeVar("T")

_CANCELLED_MAX = 500
#: Turns at one moment: a few dozen are usual.
_TURNS_MAX = 100_000


class Deadlock(RuntimeError):
    """Everybody waits and no timer is armed, or somebody runs and time does not go on."""


class Place:
    """Where code runs: one life of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.is_dead = False
        #: What became due while it was stopped, in order.
        self.waiting: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return self.name


_here: contextvars.ContextVar[Place | None] = contextvars.ContextVar("place", default=None)


def here() -> Place | None:
    """The place of the code that asks; None for the world's own."""
    return _here.get()


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._cancelled = 0
        #: Turns so far, and when time last went on: a bound on runs that never end in no time at all.
        self.turns = self._turned = 0
        self._tasks_of: dict[asyncio.Task[Any], Place | None] = {}
        self.set_task_factory(self._make_task)

    # ------------------------------------------------------------------ time

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        ready = self._ready  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)
        if self._cancelled > _CANCELLED_MAX:
            scheduled[:] = [timer for timer in scheduled if not timer.cancelled()]
            heapq.heapify(scheduled)
            self._cancelled = 0
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Deadlock(f"nothing can happen any more at {self._now:.3f} s")
            if scheduled[0].when() > self._now:
                self._now, self._turned = scheduled[0].when(), self.turns
        if self.turns - self._turned > _TURNS_MAX:
            raise Deadlock(f"time stands still at {self._now:.3f} s: somebody runs again and again")
        while scheduled and scheduled[0].when() <= self._now:
            ready.append(heapq.heappop(scheduled))
        self.turns += 1
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        place = handle._context.get(_here)  # type: ignore[attr-defined]
        if place is None or not (place.is_dead or place.is_stopped):
            handle._run()
        elif not place.is_dead:
            place.waiting.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1

    # ------------------------------------------------------------------ places

    def _make_task(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        context = options.get("context")
        self._tasks_of[task] = here() if context is None else context.get(_here)
        task.add_done_callback(self._forget, context=contextvars.Context())
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks_of.pop(task, None)

    def spawn(self, place: Place | None, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task in a place, whoever asks for it."""
        context = contextvars.Context()
        context.run(_here.set, place)
        return self.create_task(work, context=context)

    def resume(self, place: Place) -> None:
        place.is_stopped = False
        waiting, place.waiting = place.waiting, []
        self._ready.extend(waiting)  # type: ignore[attr-defined]

    def bury(self) -> None:
        """Close what is left of the dead and of the world's end, without a word about it."""
        self.set_exception_handler(lambda loop, context: None)
        for task in list(self._tasks_of):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        with self._current():
            for _ in range(5):
                for task, place in list(self._tasks_of.items()):
                    if place is not None:
                        place.is_dead, place.is_stopped = False, False
                        self.resume(place)
                    task.cancel()
                for _ in range(20):
                    self.call_soon(lambda: None)
                    self._run_once()
        self._stopping = False
        self.run_until_complete(self.shutdown_asyncgens())
        with self._current():
            for task in list(self._tasks_of):
                # What had to wake it was dropped when its place died; some have never run at all.
                with suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Code that asks for the current loop gets this one. Else asyncio makes a real one, which nothing closes."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    # ------------------------------------------------------------------ what a simulation has not

    def run_in_executor(self, *arguments: Any) -> NoReturn:
        raise RuntimeError("no threads in the simulation")

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError("no threads in the simulation")

    def _write_to_self(self) -> None:
        return None

    def _process_events(self, events: Any) -> None:
        return None


def chance_for(seed: int, concern: str) -> RealChance:
    """Chance of its own for each concern: a new draw in one does not reshuffle the others."""
    return RealChance(int.from_bytes(hashlib.sha256(f"{seed}/{concern}".encode()).digest()[:8], "big"))


class SimClock:
    """The clock of one process: the loop's time, and a wall clock that is wrong by `skew_ms`, which may change."""

    def __init__(self, loop: SimLoop, skew_ms: Callable[[], int] = lambda: 0) -> None:
        self._loop = loop
        self._skew_ms = skew_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self._skew_ms() + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimOffload:
    """Work that blocks: done in one go after a delay, and reported after another."""

    def __init__(self, clock: Clock, delay_s: Callable[[], float]) -> None:
        self._clock = clock
        self._delay_s = delay_s

    async def run(self, work: Callable[[], T]) -> T:
        await self._clock.sleep(self._delay_s())
        try:
            return work()
        finally:
            await self._clock.sleep(self._delay_s())
