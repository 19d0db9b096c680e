"""Streams and the memory they share: who is not granted is not read from, and nobody is refused for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

from ottla_broker.edge.grpc import share as share_module
from ottla_broker.edge.grpc.answered_stream import AnsweredStream
from ottla_broker.edge.grpc.share import WORTH_COUNTING_BYTES, Share
from ottla_broker.edge.memory import Memory

LARGE = WORTH_COUNTING_BYTES * 4


class FakeCall:
    """A peer that sends a message when the test lets it, and the broker asks for it."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = list(sizes)
        self.reads = 0
        self.sent: list[int] = []
        self._may_send = asyncio.Semaphore(0)
        self.takes_answers = asyncio.Event()
        self.takes_answers.set()

    def send(self, count: int = 100) -> None:
        for _ in range(count):
            self._may_send.release()

    async def read(self) -> Any:
        self.reads += 1
        await self._may_send.acquire()
        return self._sizes.pop(0) if self._sizes else aio.EOF

    async def write(self, answer: int) -> None:
        await self.takes_answers.wait()
        self.sent.append(answer)


@asynccontextmanager
async def served(memory: Memory, *calls: FakeCall, **options: Any) -> AsyncIterator[None]:
    options = {"weigh": lambda size: size} | options
    streams: list[AnsweredStream[int, int]] = [
        AnsweredStream(call, lambda size: size, unanswered_max=4, share=Share(memory), **options)
        for call in calls
    ]
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run())
        yield
    assert memory.used == 0


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_stream_of_large_messages_reads_on_only_when_there_is_room() -> None:
    memory = Memory(limit=2 * LARGE)
    calls = [FakeCall(LARGE, LARGE, LARGE) for _ in range(5)]
    async with served(memory, *calls):
        await _settle()
        assert [call.reads for call in calls] == [1] * 5, "nobody's size is known yet"
        for call in calls:
            call.send(1)
            await _settle()
        # Each has sent one; now two have memory for their next, and the others stand in line.
        assert [call.reads for call in calls] == [2, 2, 1, 1, 1] and memory.used == 2 * LARGE
        for call in calls:
            call.send()
    assert [call.sent for call in calls] == [[LARGE] * 3] * 5


async def test_small_messages_pass_while_the_budget_is_used_up() -> None:
    memory = Memory(limit=LARGE)
    memory.owe(2 * LARGE)
    call = FakeCall(*[100] * 50)
    call.send()
    async with served(memory, call):
        await _settle()
        memory.owe(-2 * LARGE)
    assert call.sent == [100] * 50


async def test_who_falls_quiet_gives_its_place_to_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(share_module, "_QUIET_S", 0.01)
    memory = Memory(limit=LARGE)
    quiet, busy = FakeCall(LARGE), FakeCall(LARGE, LARGE)
    async with served(memory, quiet, busy):
        quiet.send(1)
        await _settle()
        busy.send()
        async with asyncio.timeout(5):
            while len(busy.sent) < 2:
                await asyncio.sleep(0.001)
        quiet.send()


async def test_a_stream_that_breaks_while_it_stands_in_line_leaves_it() -> None:
    memory = Memory(limit=LARGE)
    first, second = FakeCall(LARGE, LARGE), FakeCall(LARGE, LARGE)
    streams: list[AnsweredStream[int, int]] = [
        AnsweredStream(
            call, lambda size: size, unanswered_max=4, share=Share(memory), weigh=lambda size: size
        )
        for call in (first, second)
    ]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    for call in (first, second):
        call.send(1)
        await _settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert memory.used == 0 and memory.reserve(LARGE, lambda: None)


async def test_an_answer_counts_until_its_peer_has_taken_it() -> None:
    memory = Memory(limit=10 * LARGE)
    call = FakeCall(LARGE)
    call.takes_answers.clear()
    call.send()
    async with served(memory, call, weigh=None, weigh_answer=lambda size: size):
        await _settle()
        assert memory.used == LARGE
        call.takes_answers.set()


async def test_an_answer_that_nobody_takes_ends_its_stream(monkeypatch: Any) -> None:
    monkeypatch.setattr("ottla_broker.edge.grpc.answered_stream.STALL_S", 0.01)
    memory = Memory(limit=LARGE)
    call = FakeCall(LARGE)
    call.takes_answers.clear()
    call.send()
    try:
        async with served(memory, call, weigh=None, weigh_answer=lambda size: size):
            pass
    except* Exception as group:
        assert "were not taken" in str(group.exceptions[0].exceptions[0])  # type: ignore[attr-defined]
    assert memory.used == 0
