"""DeleteRecords of several partitions: one timeout, outcomes in order, nothing left waiting."""

from __future__ import annotations

import asyncio

import pytest

from ottla_broker.edge.deleting import each_deleted
from ottla_broker.requests import WAIT_S_MAX, Maybe
from ottla_core.errors import OffsetOutOfRange, RequestTimedOut
from ottla_core.ids import TopicPartition

WANTED = [(TopicPartition("orders", index), 10 * index) for index in range(40)]


class Partitions:
    """Every fourth partition is refused, and of the others every second waits for its replicas."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled = 0
        self.timeouts: set[float] = set()
        self.replicated = asyncio.Event()

    def delete(self, tp: TopicPartition, offset: int, timeout_s: float) -> Maybe[int]:
        self.started.append(tp.partition)
        self.timeouts.add(timeout_s)
        if tp.partition % 4 == 0:
            raise OffsetOutOfRange("beyond the end")
        return self._wait(tp.partition, offset) if tp.partition % 2 else offset

    async def _wait(self, index: int, offset: int) -> int:
        try:
            await self.replicated.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if index == 39:
            raise RequestTimedOut("a replica has not deleted")
        return offset


async def test_outcomes_are_in_order_and_all_start_before_the_first_is_awaited() -> None:
    partitions = Partitions()
    answer = asyncio.ensure_future(each_deleted(partitions.delete, WANTED, 5.0))
    while len(partitions.started) < len(WANTED):
        await asyncio.sleep(0)
    assert not answer.done()
    partitions.replicated.set()
    outcomes = await answer

    assert partitions.started == list(range(40))
    for index, outcome in enumerate(outcomes):
        if index == 39:
            assert isinstance(outcome, RequestTimedOut)
        elif index % 4 == 0:
            assert isinstance(outcome, OffsetOutOfRange)
        else:
            assert outcome == 10 * index
    assert partitions.timeouts == {5.0}


async def test_a_cancelled_request_leaves_nothing_waiting() -> None:
    partitions = Partitions()
    answer = asyncio.ensure_future(each_deleted(partitions.delete, WANTED, 5.0))
    while len(partitions.started) < len(WANTED):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    await asyncio.sleep(0)
    assert partitions.cancelled == 20


@pytest.mark.parametrize(("asked", "used"), [(0.0, 1.0), (-3.0, 1.0), (1e9, WAIT_S_MAX)])
async def test_the_timeout_has_bounds(asked: float, used: float) -> None:
    partitions = Partitions()
    await each_deleted(partitions.delete, WANTED[:1], asked)
    assert partitions.timeouts == {used}
