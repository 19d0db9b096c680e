"""A fetch where nobody has read lately: its indexes are loaded, or made anew, by a thread and not on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from broker.one_partition import TP, World
from ottla_broker.log.segment import Segment
from ottla_broker.requests import Fetched, FetchWant, Maybe
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.errors import CorruptMessage

T = TypeVar("T")


class Thread:
    """Work that blocks, done at once; knows whether it is being done."""

    busy = False

    async def run(self, work: Callable[[], T]) -> T:
        self.busy = True
        try:
            return work()
        finally:
            self.busy = False


class Reader:
    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._thread = Thread()
        producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
        self._records = RecordService(world.host, producer_ids, world.clock, self._thread, world.metrics)
        #: For each load of a segment that had to be done: whether a thread did it.
        self.loads: list[bool] = []
        shipped = Segment.load

        def load(segment: Segment) -> None:
            if not segment.is_loaded:
                self.loads.append(self._thread.busy)
            shipped(segment)

        monkeypatch.setattr(Segment, "load", load)

    def start(self, offset: int) -> Maybe[list[Fetched]]:
        return self._records.fetch(
            [FetchWant(TP, offset, 1 << 20)], max_wait_s=0, min_bytes=1, max_bytes=1 << 20
        )

    async def fetch(self, offset: int) -> Fetched:
        answer = self.start(offset)
        (found,) = await answer if isinstance(answer, Awaitable) else answer
        return found


@pytest.fixture
def world() -> World:
    made = World()
    made.fill()
    return made


async def test_indexes_are_loaded_by_a_thread_and_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(world, monkeypatch)
    first = await reader.fetch(0)
    assert first.error is None and len(first.records) == world.partition.log.segments[0].size
    assert reader.loads == [True]
    assert not isinstance(reader.start(1), Awaitable), "now they are at hand"
    assert reader.loads == [True]


async def test_a_damaged_index_is_made_anew_by_a_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(world, monkeypatch)
    world.disk.rot(world.partition.log.segments[0].path(".timeindex"), 0)
    assert (await reader.fetch(1)).records
    assert reader.loads == [True] and world.metrics.log.corruptions == 0


async def test_damage_that_a_thread_finds_is_told_and_not_looked_for_on_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(world, monkeypatch)
    world.disk.rot(world.partition.log.segments[0].file.path, 16, 0x40)  # the first batch's magic
    assert isinstance((await reader.fetch(0)).error, CorruptMessage)
    assert reader.loads == [True] and world.metrics.log.corruptions == 1


async def test_a_reader_of_a_segment_that_was_sealed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(world, monkeypatch)
    world.fill()
    assert (await reader.fetch(2)).error is None and (await reader.fetch(3)).records
    assert all(reader.loads)
