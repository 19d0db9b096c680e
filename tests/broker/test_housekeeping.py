"""What is done for all partitions now and then, while clients, followers and operators go on with theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

import pytest

from broker.one_partition import NOW_MS, TP, World
from ottla_broker.config import LogDirsConfig
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.partition.housekeeping import Housekeeping
from sim.disk import SimDisk

T = TypeVar("T")


class Gate:
    """Work that blocks, done when the test says so."""

    def __init__(self, disk: SimDisk) -> None:
        self.waiting: list[tuple[Callable[[], object], asyncio.Future[None]]] = []
        self._disk = disk
        self.is_open = True

    async def run(self, work: Callable[[], T]) -> T:
        if not self.is_open:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append((work, future))
            await future
        return work()

    def let_one_through(self) -> None:
        self.waiting.pop(0)[1].set_result(None)


class House:
    def __init__(self) -> None:
        self.world = World()
        self.gate = Gate(self.world.disk)
        config = replace(
            LogDirsConfig(),
            cleaner_backoff_ms=1000,
            checkpoint_interval_ms=2000,
            retention_check_interval_ms=2000,
        )
        world = self.world
        keeper = Housekeeping(world.host, world.dirs, config, world.clock, self.gate, world.metrics.log)
        self.running = asyncio.create_task(keeper.run())

    def replace_topic(self) -> None:
        """Delete it, and make another one of the same name."""
        state = PartitionImage((1,), leader=1, isr=(1,), revision=4)
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        again = {"t": TopicImage("t", UUID(int=2), config, (state,), 4)}
        self.world.host.on_image(self.world.image, ClusterImage("c", 4, topics=MappingProxyType(again)))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    made.world.fill()
    yield made
    made.running.cancel()
    await asyncio.gather(made.running, return_exceptions=True)


async def test_a_log_is_compacted(house: House) -> None:
    await house.world.clock.advance(1.5)
    log = house.world.partition.log
    assert [h.base_offset for h in log.verify()] == [1]
    assert house.world.dirs.cleaner_offsets[TP] == 2


@pytest.mark.parametrize("steps", range(5))
async def test_a_topic_that_is_deleted_while_it_is_compacted(house: House, steps: int) -> None:
    house.gate.is_open = False
    world = house.world
    await world.clock.advance(1.5)
    for _ in range(steps):
        house.gate.let_one_through()
        await world.clock.advance(0.1)
    assert house.gate.waiting, "a step of the compaction is under way"
    house.replace_topic()
    world.fill()
    expected = [h.base_offset for h in world.partition.log.verify()]
    names = world.disk.list("/data/log/t-0")
    house.gate.is_open = True
    while house.gate.waiting:
        house.gate.let_one_through()
        await world.clock.settle()
    assert not house.running.done(), house.running
    assert [h.base_offset for h in world.partition.log.verify()] == expected
    assert [n for n in world.disk.list("/data/log/t-0") if not n.endswith(".cleaned")] == names
    assert world.metrics.log.corruptions == 0


async def test_the_rest_does_not_wait_for_a_compaction(house: House) -> None:
    house.gate.is_open = False
    await house.world.clock.advance(1.5)
    assert len(house.gate.waiting) == 1, "the compaction"
    house.gate.is_open = True
    await house.world.clock.advance(3)
    assert house.world.disk.exists("/data/log/recovery-point-offset-checkpoint")
    assert len(house.gate.waiting) == 1


async def test_a_cut_while_its_log_is_compacted_is_no_failure(house: House) -> None:
    house.gate.is_open = False
    world = house.world
    await world.clock.advance(1.5)
    world.partition.log.truncate_to(1, now_ms=NOW_MS)
    house.gate.is_open = True
    house.gate.let_one_through()
    await world.clock.advance(0.2)
    assert not house.running.done(), house.running
    assert [h.base_offset for h in world.partition.log.verify()] == [0]
    assert world.partition.log.broken is None


async def test_a_directory_that_cannot_be_synced_goes_offline(house: House) -> None:
    house.gate.is_open = False
    world = house.world
    await world.clock.advance(1.5)
    while not [n for n in world.disk.list("/data/log/t-0") if n.endswith(".swap")]:
        house.gate.let_one_through()
        await world.clock.advance(0.1)
    world.disk.fail("sync_dir", "t-0")
    house.gate.is_open = True
    house.gate.let_one_through()
    await world.clock.advance(0.2)
    assert world.partition.log.broken is not None and world.dirs.offline
    assert not house.running.done(), house.running


async def test_what_is_written_behind_a_cut_is_compacted_again(house: House) -> None:
    """As after a copy was mended: the offsets were cleaned once, what is there now was not."""
    world = house.world
    world.fill(4)
    await world.clock.advance(1.5)
    log = world.partition.log
    assert world.dirs.cleaner_offsets[TP] == log.end_offset == 6
    log.truncate_to(1, now_ms=NOW_MS)
    assert world.dirs.cleaner_offsets[TP] == log.end_offset
    world.fill(8)
    await world.clock.advance(1)
    assert [h.base_offset for h in log.verify()][-1:] == [log.end_offset - 1]
    assert len(list(log.verify())) == 1


async def test_a_deleted_log_that_cannot_be_removed_is_tried_again(house: House) -> None:
    world = house.world
    house.replace_topic()
    world.disk.fail("remove_tree", times=2)
    await world.clock.advance(100)
    assert not house.running.done(), house.running
    assert not [n for n in world.disk.list("/data/log") if n.endswith("-delete")]
