"""Damage that is met off the loop is counted like what a fetch meets: `ottla_log_corruptions_total`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import pytest

from broker.replication.cluster import InlineOffload
from ottla_broker.config import LogDirsConfig
from ottla_broker.controller.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.log.dirs import LogDirs
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.partition.partition import ACKS_ALL, Partition
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.errors import CorruptMessage
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch
from sim.clock import ManualClock
from sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
#: Within the records of the first batch: headers are as they should be, the CRC is not.
SPOT = 65


class World:
    """One broker's parts around one compacted partition with a sealed segment."""

    def __init__(self) -> None:
        self.disk, self.metrics, self.clock = SimDisk(), Metrics(), ManualClock(NOW_MS)
        self.disk.make_dirs("/data")
        self.dirs = LogDirs(
            self.disk, ["/data/log"], broker_id=1, chance=RealChance(), probe=self.metrics.log
        )
        self.dirs.open(now_ms=NOW_MS)
        self.dirs.join_cluster("c")
        self.host = PartitionHost(1, self.dirs, self.clock, InlineOffload(), self.metrics, lambda image: {})
        state = PartitionImage((1,), leader=1, isr=(1,), revision=2)
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        topics = {"t": TopicImage("t", UUID(int=1), config, (state,), 2)}
        self.host.admit(ClusterImage("c", 2, topics=MappingProxyType(topics)))

    @property
    def partition(self) -> Partition:
        return self.host.find(TP)

    def fill(self) -> None:
        for value in (b"1", b"2"):
            self.partition.append(make_batch([Rec(b"k", value, NOW_MS)]), ACKS_ALL, NOW_MS)
        self.partition.log.roll(NOW_MS)


async def test_by_a_search_for_a_time() -> None:
    world = World()
    world.fill()
    producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
    records = RecordService(world.host, producer_ids, world.clock, InlineOffload(), world.metrics)
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
