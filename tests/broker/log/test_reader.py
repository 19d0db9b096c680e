"""The one way to batches: the page cache, else a thread, else a look that waits."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import pytest

from broker.one_partition import World
from broker.one_thread import Thread
from ottla_broker.log import reader as reading
from ottla_broker.log.reader import COLD_LOOKS_MAX, Batches, LogReader
from ottla_broker.log.reading import Extent, NotLoaded
from ottla_core.errors import KafkaStorageError
from sim.disk import SimFile

T = TypeVar("T")


@pytest.fixture
def world() -> World:
    made = World()
    made.fill()
    return made


def located(world: World, reader: LogReader) -> Extent:
    world.partition.log.segments[0].load()
    extent = reader.locate(world.partition.log, 0, 1 << 20, limit_offset=2)
    assert extent is not None
    return extent


async def test_what_is_in_memory_needs_no_thread(world: World) -> None:
    reader = LogReader(Thread())
    extent = located(world, reader)
    data = reader.cached(extent)
    assert data is not None and len(data) == extent.size
    found = await reader.read(world.partition.log, 0, 1 << 20, limit_offset=2)
    assert found == Batches(data, is_checked=False)


async def test_a_thread_loads_indexes_and_reads_and_checks_batches(world: World) -> None:
    log, thread = world.partition.log, Thread()
    reader = LogReader(thread)
    with pytest.raises(NotLoaded):
        reader.locate(log, 0, 1 << 20, limit_offset=2)
    world.disk.cold = True
    found = await reader.read(log, 0, 1 << 20, limit_offset=2)
    assert found is not None and len(found.data) == log.segments[0].size and found.is_checked
    assert await reader.read(log, 2, 1 << 20, limit_offset=2) is None


async def test_damage_is_reported_with_the_batches_before_it(world: World) -> None:
    log, reader = world.partition.log, LogReader(Thread())
    extent = located(world, reader)
    second = log.segments[0].locate(1)
    assert second is not None
    world.disk.rot(extent.file.path, second[0] + second[1].size - 2)
    found = await reader.on_thread(extent, check=True)
    assert len(found.data) == second[0] and found.damage is not None
    world.disk.rot(extent.file.path, second[0] - 2)
    found = await reader.on_thread(extent)
    assert found.data == b"" and found.damage is not None


async def test_a_segment_that_is_gone_gives_no_bytes(world: World) -> None:
    reader = LogReader(Thread())
    extent = located(world, reader)
    world.partition.log.segments[0].rename_to("")  # Closes its files, as a replacement does.
    extent.file.close()
    assert reader.cached(extent) is None
    assert await reader.on_thread(extent) == Batches(b"")


async def test_what_is_large_is_copied_by_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread()
    reader, busy = LogReader(thread), list[bool]()
    extent, shipped = located(world, reader), SimFile.read_cached

    def read_cached(file: SimFile, position: int, size: int) -> bytes | None:
        busy.append(thread.busy)
        return shipped(file, position, size)

    monkeypatch.setattr(SimFile, "read_cached", read_cached)
    monkeypatch.setattr(reading, "_LARGE_BYTES", extent.size - 1)
    assert reader.cached(extent) is None and busy == []
    found = await reader.on_thread(extent)
    assert len(found.data) == extent.size and not found.is_checked and busy == [True]


class BadDisk:
    def __init__(self) -> None:
        self.attempts = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.attempts += 1
        raise OSError(errno.EIO, "bad sector")


async def test_an_error_of_the_disk_is_shown_by_a_look_that_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, disk = world.partition.log, BadDisk()

    def fail(file: SimFile, position: int, size: int) -> bytes:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(SimFile, "read", fail)
    with pytest.raises(KafkaStorageError):
        await LogReader(disk).read(log, 0, 1 << 20, limit_offset=2)
    assert disk.attempts == 1 and log.broken is not None


async def test_a_cache_that_keeps_nothing_ends_in_a_look_that_waits(world: World) -> None:
    log, reader, looks = world.partition.log, LogReader(Thread()), 0
    log.segments[0].load()
    world.disk.cold = True
    while True:
        try:
            extent = reader.locate(log, 1, 1 << 20, limit_offset=2)
            break
        except NotLoaded as cold:
            looks += 1
            await reader.warm(cold)
    assert extent is not None and looks == COLD_LOOKS_MAX
