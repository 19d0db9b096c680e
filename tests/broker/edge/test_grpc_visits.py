"""Requests of gRPC streams share the run queue: many busy streams do not hold the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla_broker.edge.grpc.visits import ENTRIES_PER_SLICE, UNARY_S, entered, filled
from ottla_broker.event_loop import next_turn
from ottla_broker.scheduler import SLICE_S, TURN_S, Scheduler
from ottla_broker.steps import Steps
from ottla_broker.visits import visited

STEP_S = 0.0003


class Machine:
    """A clock that moves only while work is done, and the length of each turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[float] = []
        self.scheduler = Scheduler(lambda: self.now, next_turn, self.turns.append)

    def work(self, answer: str) -> str:
        self.now += STEP_S
        return answer

    def slices(self, answer: str, count: int) -> Steps[str]:
        for _ in range(count):
            self.work(answer)
            yield None
        return answer

    async def all(self, *begins: Callable[[], str | Steps[str]]) -> list[str]:
        return await asyncio.gather(*(visited(self.scheduler, begin) for begin in begins))


async def test_a_request_on_a_quiet_broker_runs_at_once() -> None:
    machine = Machine()
    steps = visited(machine.scheduler, lambda: machine.work("a"))
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value == "a"


async def test_many_streams_do_not_hold_the_loop() -> None:
    machine = Machine()
    answers = await machine.all(*[lambda n=n: machine.work(str(n)) for n in range(100)])
    assert answers == [str(n) for n in range(100)]
    await asyncio.sleep(0)
    assert max(machine.turns) <= TURN_S + SLICE_S and len(machine.turns) >= 100 * STEP_S / TURN_S / 1.5


async def test_large_requests_give_way_after_each_slice() -> None:
    machine = Machine()
    order: list[str] = []

    def begin(name: str, count: int) -> Callable[[], Steps[str]]:
        def steps() -> Steps[str]:
            result = yield from machine.slices(name, count)
            order.append(name)
            return result

        return steps

    assert await machine.all(begin("large", 200), begin("small", 1)) == ["large", "small"]
    assert order == ["small", "large"] and max(machine.turns) <= TURN_S + SLICE_S


async def test_a_request_that_waits_is_resumed_and_others_go_on() -> None:
    machine = Machine()
    granted = asyncio.get_running_loop().create_future()

    def waits() -> Steps[str]:
        yield granted
        return f"got {granted.result()}"

    waiting = asyncio.create_task(visited(machine.scheduler, waits))
    assert await machine.all(lambda: machine.work("b")) == ["b"]
    granted.set_result("it")
    assert await waiting == "got it"


async def test_errors_reach_the_stream() -> None:
    machine = Machine()

    def fails() -> Steps[str]:
        yield None
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await visited(machine.scheduler, fails)


async def test_a_stream_that_ends_leaves_the_queue_and_closes_its_request() -> None:
    machine = Machine()
    closed = []

    def endless() -> Steps[str]:
        try:
            while True:
                machine.work("")
                yield None
        finally:
            closed.append(True)

    task = asyncio.create_task(visited(machine.scheduler, endless))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert closed and machine.scheduler.waiting == 0


async def test_small_unary_calls_share_the_turns() -> None:
    """Each is a task of its own: without the queue, all of them would run in one turn."""
    machine = Machine()
    loop, in_turn, turns = asyncio.get_running_loop(), 0, []

    def count_turn() -> None:
        nonlocal in_turn
        turns.append(in_turn)
        in_turn = 0
        if sum(turns) < 100:
            loop.call_soon(count_turn)

    async def call() -> None:
        nonlocal in_turn
        await entered(machine.scheduler)
        machine.now += STEP_S
        in_turn += 1

    loop.call_soon(count_turn)
    await asyncio.gather(*(call() for _ in range(100)))
    assert max(turns) <= round(TURN_S / UNARY_S) + 1


async def test_urgent_unary_calls_go_first() -> None:
    machine = Machine()
    order: list[str] = []

    async def call(name: str, urgent: bool) -> None:
        await entered(machine.scheduler, urgent=urgent)
        order.append(name)

    await asyncio.gather(*(call(f"bulk {n}", False) for n in range(40)), call("heartbeat", True))
    assert order.index("heartbeat") < 10


async def test_a_long_response_is_filled_in_slices() -> None:
    machine = Machine()
    made: list[int] = []
    field: list[int] = []
    other = 0

    async def watch() -> None:
        nonlocal other
        while len(field) < 5000:
            other += 1
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await filled(machine.scheduler, field, lambda n: made.append(n) or n, range(5000))
    await watching
    assert field == made == list(range(5000))
    assert other >= 5000 // ENTRIES_PER_SLICE // round(TURN_S / UNARY_S)


async def test_a_call_that_is_cancelled_leaves_the_queue() -> None:
    machine = Machine()
    calls = [asyncio.ensure_future(entered(machine.scheduler)) for _ in range(20)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert not machine.scheduler.is_busy
