"""Streams and the memory they share: who is not granted is not read from, and nobody is refused for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio
from structlog.testing import capture_logs

from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc import share as share_module
from ottla_broker.edge.grpc import turns as turns_module
from ottla_broker.edge.grpc.answered_stream import AnsweredStream
from ottla_broker.edge.grpc.log_service import LogService
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.refusal import Refusals
from ottla_broker.edge.grpc.share import WORTH_COUNTING_BYTES, Share
from ottla_broker.edge.grpc.turns import Turns
from ottla_broker.edge.memory import Memory
from ottla_broker.event_loop import loop_time, next_turn
from ottla_broker.scheduler import Scheduler

LARGE = WORTH_COUNTING_BYTES * 4


def scheduler() -> Scheduler:
    return Scheduler(loop_time, next_turn, lambda _: None)


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
        AnsweredStream(
            call, lambda size: size, unanswered_max=4, share=Share(memory), scheduler=scheduler(), **options
        )
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


async def test_a_silent_stream_gives_its_slot_to_others(monkeypatch: Any) -> None:
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
            call,
            lambda size: size,
            unanswered_max=4,
            share=Share(memory),
            scheduler=scheduler(),
            weigh=lambda size: size,
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


async def test_an_unread_response_ends_its_stream(monkeypatch: Any) -> None:
    monkeypatch.setattr("ottla_broker.edge.grpc.answered_stream.STALL_S", 0.01)
    memory = Memory(limit=LARGE)
    call = FakeCall(LARGE)
    call.takes_answers.clear()
    call.send()
    try:
        async with served(memory, call, weigh=None, weigh_answer=lambda size: size):
            pass
    except* Exception as group:
        assert "were not read" in str(group.exceptions[0].exceptions[0])  # type: ignore[attr-defined]
    assert memory.used == 0


# ------------------------------------------------------------------ turns


async def test_only_as_many_streams_are_read_as_longest_messages_fit() -> None:
    turns = Turns(2)
    calls = [FakeCall(100, 100) for _ in range(5)]
    async with served(Memory(limit=LARGE), *calls, turns=turns):
        await _settle()
        assert [call.reads for call in calls] == [1, 1, 0, 0, 0] and turns.waiting == 3
        calls[0].send(1)
        await _settle()
        assert [call.reads for call in calls] == [1, 1, 1, 0, 0], "after its message the next in line is read"
        for call in calls:
            call.send()
    assert [call.sent for call in calls] == [[100, 100]] * 5 and turns.waiting == 0


async def test_a_silent_stream_ends_when_another_waits_for_its_place(monkeypatch: Any) -> None:
    monkeypatch.setattr(turns_module, "QUIET_S", 0.05)
    silent, other = FakeCall(100), FakeCall(100)
    other.send()
    async with asyncio.timeout(5), served(Memory(limit=LARGE), silent, other, turns=Turns(1)):
        pass  # The silent one never sends and never closes: without its end this would not end.
    assert silent.reads == 1 and other.sent == [100]


async def test_a_silent_stream_stays_while_there_are_places(monkeypatch: Any) -> None:
    monkeypatch.setattr(turns_module, "QUIET_S", 0.01)
    silent, other = FakeCall(100), FakeCall(*[100] * 20)
    other.send()
    async with asyncio.timeout(5), served(Memory(limit=LARGE), silent, other, turns=Turns(2)):
        while len(other.sent) < 20:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        silent.send()
    assert silent.sent == [100]


async def test_no_more_streams_end_than_places_are_wanted(monkeypatch: Any) -> None:
    monkeypatch.setattr(turns_module, "QUIET_S", 0.02)
    silent = [FakeCall(100) for _ in range(4)]
    other = FakeCall(100)
    async with asyncio.timeout(5), served(Memory(limit=LARGE), *silent, other, turns=Turns(4)):
        while other.reads == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for call in (*silent, other):
            call.send()
    assert sorted(len(call.sent) for call in silent) == [0, 1, 1, 1] and other.sent == [100]


async def test_a_stream_that_breaks_gives_its_place_or_its_place_in_line_back() -> None:
    turns, memory = Turns(1), Memory(limit=LARGE)
    calls = [FakeCall(100) for _ in range(3)]
    tasks = [
        asyncio.create_task(
            AnsweredStream(
                call,
                lambda size: size,
                unanswered_max=4,
                share=Share(memory),
                scheduler=scheduler(),
                turns=turns,
            ).run()
        )
        for call in calls
    ]
    await _settle()
    for task in tasks[:2]:
        task.cancel()
    await _settle()
    assert [call.reads for call in calls] == [1, 0, 1] and turns.waiting == 0
    calls[2].send()
    await asyncio.wait_for(tasks[2], 5)
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_peer_that_goes_while_it_is_answered_is_nobodys_fault() -> None:
    class Gone(FakeCall):
        async def write(self, answer: int) -> None:
            raise aio.InternalError("Failed 'execute_batch': (<grpc._cython...>, 1)")

    memory, call = Memory(limit=LARGE), Gone(LARGE, 100)
    service = LogService(None, GrpcEdgeConfig(), SilentProbe(), Refusals(), memory, Turns(1), scheduler())  # type: ignore[arg-type]
    call.send()
    weigh = {"weigh": lambda size: size, "weigh_answer": lambda size: size}
    stream: AnsweredStream[int, int] = AnsweredStream(
        call, lambda size: size, unanswered_max=4, share=Share(memory), scheduler=scheduler(), **weigh
    )
    with capture_logs() as lines:
        await service._serve("fetch", stream, call)  # The fake has no abort(): nobody is left to be told.
    assert memory.used == 0 and not lines
