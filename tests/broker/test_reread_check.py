"""What is read twice from the page cache is checked the second time: a stuck consumer finds the damage it meets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.one_partition import TP, World
from broker.one_thread import Thread
from ottla_broker.requests import Fetched, FetchWant, Maybe
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_broker.service.reread_check import REMEMBERED, WHOLE_FOR_S, RereadCheck
from ottla_core.errors import CorruptMessage
from ottla_core.ids import TopicPartition

#: Within the records of the first batch: headers are as they should be, the CRC is not.
SPOT = 65


class Reader:
    def __init__(self, world: World) -> None:
        producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
        self._records = RecordService(
            world.host, producer_ids, world.clock, Thread(), world.metrics, world.scheduler
        )

    def start(self, offset: int) -> Maybe[list[Fetched]]:
        want = [FetchWant(TP, offset, 1 << 20)]
        return self._records.fetch(want, max_wait_s=0, min_bytes=1, max_bytes=1 << 20)

    async def fetch(self, offset: int) -> Fetched:
        answer = self.start(offset)
        (found,) = await answer if isinstance(answer, Awaitable) else answer
        return found


@pytest.fixture
def world() -> World:
    made = World()
    made.fill(3)
    made.partition.log.segments[0].load()
    return made


async def test_a_reader_that_is_stuck_finds_damage_in_the_page_cache(world: World) -> None:
    reader = Reader(world)
    world.disk.rot(world.partition.log.segments[0].file.path, SPOT)
    assert (await reader.fetch(0)).error is None, "the page cache is served unchecked the first time"
    for count in (1, 2):
        assert isinstance((await reader.fetch(0)).error, CorruptMessage)
        assert world.metrics.log.corruptions == count
    assert world.partition.log.damage is not None
    assert world.metrics.log.rereads_checked == 2 and world.metrics.log.reads_cold == 0


async def test_damage_deeper_in_the_answer_is_found_too(world: World) -> None:
    """Some clients throw away the whole answer, and ask again from its beginning."""
    reader = Reader(world)
    first = next(iter(world.partition.log.verify()))
    world.disk.rot(world.partition.log.segments[0].file.path, first.size + SPOT)
    await reader.fetch(0)
    again = await reader.fetch(0)
    assert again.error is None and len(again.records) == first.size, "what comes before the damage is served"
    assert world.metrics.log.corruptions == 1 and world.partition.log.damage is not None
    await reader.fetch(1)
    assert isinstance((await reader.fetch(1)).error, CorruptMessage)


async def test_readers_of_whole_data_share_one_check_a_second(world: World) -> None:
    reader = Reader(world)
    for _ in range(10):
        assert (await reader.fetch(0)).error is None
    assert world.metrics.log.rereads_checked == 1
    await world.clock.advance(WHOLE_FOR_S)
    assert (await reader.fetch(0)).error is None
    assert world.metrics.log.rereads_checked == 2
    assert isinstance(reader.start(0), list), "served from the page cache, without a thread"


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    check = RereadCheck()
    for offset in range(2 * REMEMBERED + 1):
        check.served(TP, offset)
    remembered = [offset for offset in range(2 * REMEMBERED + 1) if check.is_due(TP, offset, 0.0)]
    assert remembered == list(range(REMEMBERED, 2 * REMEMBERED + 1))
    assert not check.is_due(TopicPartition("t", 1), REMEMBERED, 0.0)
