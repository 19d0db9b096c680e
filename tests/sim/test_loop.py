"""The simulated loop itself: time, order, places, and the private parts of asyncio that it leans on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from sim.loop import Deadlock, Place, SimClock, SimLoop, SimOffload, chance_for, here

T = TypeVar("T")


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.bury()
    made.close()


def run(loop: SimLoop, work: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(work)


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def work() -> list[float]:
        seen = []
        for seconds in (3600.0, 0.5, 0.0):
            await asyncio.sleep(seconds)
            seen.append(loop.time())
        return seen

    assert run(loop, work()) == [3600.0, 3600.5, 3600.5]


def test_asyncio_works_as_ever(loop: SimLoop) -> None:
    async def late(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def work() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(7))
            got = group.create_task(queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await late(9)
        return [got.result(), await asyncio.gather(late(3), late(1)), loop.time()]

    assert run(loop, work()) == [7, [3, 1], 5.0]


def test_says_when_nothing_can_happen_any_more(loop: SimLoop) -> None:
    with pytest.raises(Deadlock):
        run(loop, asyncio.Event().wait())  # type: ignore[arg-type]


def test_refuses_threads(loop: SimLoop) -> None:
    with pytest.raises(RuntimeError, match="no threads"):
        loop.run_in_executor(None, print)
    with pytest.raises(RuntimeError, match="no threads"):
        loop.call_soon_threadsafe(print)


async def _tick(seen: list[float], loop: SimLoop) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(loop.time())


def test_a_stopped_place_runs_nothing_and_finds_time_gone(loop: SimLoop) -> None:
    place, seen = Place("p"), list[float]()

    async def work() -> None:
        loop.spawn(place, _tick(seen, loop))
        await asyncio.sleep(2.5)
        place.is_stopped = True
        await asyncio.sleep(10)
        assert seen == [1, 2]
        loop.resume(place)
        await asyncio.sleep(1.5)

    run(loop, work())
    assert seen == [1, 2, 12.5, 13.5]


def test_a_dead_place_never_runs_again_not_even_to_clean_up(loop: SimLoop) -> None:
    place, said = Place("p"), list[str]()

    async def life() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            said.append("farewell")

    async def work() -> None:
        task = loop.spawn(place, life())
        await asyncio.sleep(1)
        place.is_dead = True
        task.cancel()
        await asyncio.sleep(100)
        assert said == []

    run(loop, work())


def test_what_a_place_begins_belongs_to_it(loop: SimLoop) -> None:
    place = Place("p")

    async def work() -> list[Place | None]:
        async def child() -> Place | None:
            return here()

        async def parent() -> Place | None:
            return await asyncio.create_task(child())

        return [here(), await loop.spawn(place, parent()), await loop.spawn(None, child())]

    assert run(loop, work()) == [None, place, None]


def test_offload_takes_its_time_and_passes_errors_on(loop: SimLoop) -> None:
    clock = SimClock(loop)
    offload = SimOffload(clock, lambda: 0.25)

    def fail() -> None:
        raise OSError("disk")

    async def work() -> int:
        with pytest.raises(OSError, match="disk"):
            await offload.run(fail)
        return await offload.run(clock.wall_ms)

    assert run(loop, work()) == 1_700_000_000_750
    assert loop.time() == 1.0


def test_each_concern_has_chance_of_its_own() -> None:
    first = [chance_for(1, concern).below(1 << 40) for concern in ("net", "disk", "net")]
    assert first[0] == first[2] != first[1]
    assert chance_for(2, "net").below(1 << 40) != first[0]


def test_asyncio_still_has_what_the_loop_leans_on() -> None:
    made = SimLoop()
    try:
        for name in ("_ready", "_scheduled", "_stopping", "_run_once", "_timer_handle_cancelled"):
            assert hasattr(asyncio.BaseEventLoop, name) or hasattr(made, name), name
        handle = made.call_soon(print)
        assert handle._context is not None  # type: ignore[attr-defined]
        handle.cancel()
    finally:
        made.close()
