from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from structlog.testing import capture_logs

from ottla_core.real.clock import RealClock
from ottla_operator.schedule import Key, Schedule

A: Key = ("Topic", "shop", "a")
B: Key = ("Topic", "shop", "b")


class Watched:
    def __init__(self) -> None:
        self.seen: list[Key] = []
        self.at_once = 0
        self.most = 0
        self.delay_s: float | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.fail = 0

    async def look(self, key: Key) -> float | None:
        self.seen.append(key)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.hold.wait()
            if self.fail:
                self.fail -= 1
                raise RuntimeError("unforeseen")
        finally:
            self.at_once -= 1
        return self.delay_s

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.seen) < count:
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(watched: Watched, workers: int = 8) -> AsyncIterator[Schedule]:
    schedule = Schedule(watched.look, RealClock(), workers=workers)
    task = asyncio.create_task(schedule.run())
    try:
        yield schedule
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_comes_back_when_asked_to() -> None:
    watched = Watched()
    watched.delay_s = 0.01
    async with running(watched) as schedule:
        schedule.soon(A)
        await watched.until(3)
        schedule.drop(A)
        await asyncio.sleep(0.05)
        count = len(watched.seen)
        await asyncio.sleep(0.05)
        assert len(watched.seen) == count


async def test_never_twice_at_the_same_time_but_once_more_after() -> None:
    watched = Watched()
    watched.hold.clear()
    async with running(watched) as schedule:
        schedule.soon(A)
        await watched.until(1)
        schedule.soon(A)
        schedule.soon(A)
        await asyncio.sleep(0.02)
        assert watched.seen == [A]
        watched.hold.set()
        await watched.until(2)
        await asyncio.sleep(0.02)
        assert watched.seen == [A, A] and watched.most == 1


async def test_only_so_many_at_once() -> None:
    watched = Watched()
    watched.hold.clear()
    async with running(watched, workers=2) as schedule:
        for number in range(6):
            schedule.soon(("Topic", "shop", str(number)))
        await watched.until(2)
        await asyncio.sleep(0.02)
        assert watched.at_once == 2
        watched.hold.set()
        await watched.until(6)
        assert watched.most == 2


async def test_a_failure_is_retried_and_delays_no_other_key() -> None:
    watched = Watched()
    watched.fail = 1
    with capture_logs() as lines:
        async with running(watched) as schedule:
            schedule.soon(A)
            await watched.until(1)
            schedule.soon(B)
            await watched.until(3)  # A again after a second
    assert watched.seen.count(A) == 2
    (line,) = lines
    assert (line["event"], line["kind"], line["retry_in_s"]) == ("reconciliation failed", A[0], 1.0)
