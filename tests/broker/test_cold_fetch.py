"""Where nobody has read lately: indexes are loaded, read or made anew by a thread and not on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from broker.one_partition import TP, World
from broker.one_thread import Thread
from ottla_broker.config import LogDirsConfig
from ottla_broker.log.segment import Rescan, Segment
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.requests import Fetched, FetchWant, Maybe
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.errors import CorruptMessage
from ottla_core.records.batch import header_at
from sim.disk import SimFile


class Reader:
    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._thread = Thread()
        producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
        self._records = RecordService(
            world.host, producer_ids, world.clock, self._thread, world.metrics, world.scheduler
        )
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


async def test_a_damaged_index_is_rebuilt_by_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(world, monkeypatch)
    world.disk.rot(world.partition.log.segments[0].path(".timeindex"), 0)
    assert (await reader.fetch(1)).records
    assert reader.loads == [True] and world.metrics.log.corruptions == 0


async def test_damage_found_by_a_thread_is_reported_without_blocking_the_loop(
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


class ColdMachine:
    """A page cache that holds what was read since it was dropped, and who it was that waited for the disk."""

    def __init__(self, thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits_on_loop: list[str] = []
        pages: set[tuple[str, int]] = set()
        shipped = SimFile.read

        def touched(file: SimFile, position: int, size: int) -> set[tuple[str, int]]:
            end = min(position + size, file.size())
            return {(file.path, page) for page in range(position // 4096, -(-end // 4096))}

        def read(file: SimFile, position: int, size: int) -> bytes:
            cold = touched(file, position, size) - pages
            if cold and not thread.busy:
                self.waits_on_loop.append(file.path)
            pages.update(cold)
            return shipped(file, position, size)

        def read_cached(file: SimFile, position: int, size: int) -> bytes | None:
            return None if touched(file, position, size) - pages else shipped(file, position, size)

        monkeypatch.setattr(SimFile, "read", read)
        monkeypatch.setattr(SimFile, "read_cached", read_cached)


@pytest.fixture
async def large() -> World:
    """Three pages of index, of which nothing is in memory."""
    made = World(index_interval_bytes="100")
    made.fill(3000)
    made.fill(10)
    for segment in made.partition.log.segments[:-1]:
        segment.close()
    return made


async def test_no_page_of_an_index_and_no_header_is_waited_for_on_the_loop(
    large: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread()
    machine = ColdMachine(thread, monkeypatch)
    producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
    records = RecordService(large.host, producer_ids, large.clock, thread, large.metrics, large.scheduler)
    for offset in (1500, 1, 2990, 3005):
        wants = [FetchWant(TP, offset, 5000)]
        answer = records.fetch(wants, max_wait_s=0, min_bytes=1, max_bytes=5000)
        (found,) = await answer if isinstance(answer, Awaitable) else answer
        assert found.error is None
        assert header_at(found.records).base_offset == offset
    assert machine.waits_on_loop == []


async def test_a_cache_that_keeps_nothing_is_not_asked_for_ever(large: World) -> None:
    large.disk.cold = True
    reader = RecordService(
        large.host,
        ProducerIds(lambda: asyncio.sleep(0, range(0))),
        large.clock,
        Thread(),
        large.metrics,
        large.scheduler,
    )
    answer = reader.fetch([FetchWant(TP, 1500, 5000)], max_wait_s=0, min_bytes=1, max_bytes=5000)
    assert isinstance(answer, Awaitable)
    (found,) = await answer
    assert header_at(found.records).base_offset == 1500


async def test_retention_and_compaction_ask_the_disk_on_a_thread(
    large: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread()
    machine = ColdMachine(thread, monkeypatch)
    config = replace(LogDirsConfig(), cleaner_backoff_ms=1000, retention_check_interval_ms=500)
    keeper = Housekeeping(large.host, large.dirs, config, large.clock, thread, large.metrics.log)
    running = asyncio.create_task(keeper.run())
    await large.clock.advance(0.7)
    assert all(segment.is_known for segment in large.partition.log.segments[:-1])
    for segment in large.partition.log.segments[:-1]:
        segment.close()
    await large.clock.advance(0.5)
    assert large.metrics.log.compactions == 1
    assert machine.waits_on_loop == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_lies_behind_damage_is_served_and_the_damage_looked_for_once(
    large: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(large, monkeypatch)
    segment = large.partition.log.segments[0]
    found = segment.locate(1500)
    assert found is not None
    large.disk.rot(segment.file.path, found[0] + 16, 0x40)  # its magic
    scans: list[bool] = []
    shipped = Segment.rescan

    def rescan(segment: Segment, **options: Any) -> Rescan:
        scans.append(True)
        return shipped(segment, **options)

    monkeypatch.setattr(Segment, "rescan", rescan)
    for _ in range(3):
        assert isinstance((await reader.fetch(1500)).error, CorruptMessage)
        for offset in (1400, 1600, 3005):
            answer = await reader.fetch(offset)
            assert answer.error is None and header_at(answer.records).base_offset == offset
    assert scans == [True]
    large.partition.log.truncate_to(1400)
    assert segment.damage is None


async def test_what_has_rotted_on_the_disk_is_not_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(world, monkeypatch)
    world.fill()
    log = world.partition.log
    world.disk.rot(log.segments[0].file.path, 65)  # Within the records: headers are as they should be.
    world.disk.cold = True
    answer = await reader.fetch(0)
    assert isinstance(answer.error, CorruptMessage) and not answer.records
    assert world.metrics.log.corruptions == 1 and log.damage is not None
    assert (await reader.fetch(2)).records
