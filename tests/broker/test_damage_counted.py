"""Damage that is met off the loop is counted like what a fetch meets: `ottla_log_corruptions_total`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from broker.one_partition import NOW_MS, TP, World
from broker.replication.cluster import InlineOffload
from ottla_broker.config import LogDirsConfig
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.errors import CorruptMessage

#: Within the records of the first batch: headers are as they should be, the CRC is not.
SPOT = 65


async def test_by_a_search_for_a_time() -> None:
    world = World()
    world.fill()
    producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
    records = RecordService(
        world.host, producer_ids, world.clock, InlineOffload(), world.metrics, world.scheduler
    )
    world.disk.rot(world.partition.log.segments[0].file.path, SPOT)
    searching = records.list_offset(TP, NOW_MS)
    assert isinstance(searching, Awaitable)
    with pytest.raises(CorruptMessage):
        await searching
    assert world.metrics.log.corruptions == 1


async def test_by_the_cleaner() -> None:
    world = World()
    world.fill()
    world.disk.rot(world.partition.log.segments[0].file.path, SPOT)
    config = replace(LogDirsConfig(), cleaner_backoff_ms=1000)
    keeper = Housekeeping(world.host, world.dirs, config, world.clock, InlineOffload(), world.metrics.log)
    running = asyncio.create_task(keeper.run())
    await world.clock.advance(1.5)
    assert world.metrics.log.corruptions == 1
    await world.clock.advance(1.0)
    assert world.metrics.log.corruptions == 2, "each time it is met"
    running.cancel()
