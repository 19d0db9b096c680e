"""Replaying an internal topic from a log that is damaged, or moves meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from broker.group.consumer_driver import image_of, topic_id
from broker.one_partition import NOW_MS, World
from broker.replication.cluster import InlineOffload
from ottla_broker.coordination.batching import batches_of
from ottla_broker.coordination.loading import replay_log
from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import Now, Shard, StateRecord
from ottla_broker.group.records import OffsetValue, offset_record
from ottla_broker.group.shard import GroupShard
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metrics import GroupsProbe
from ottla_broker.partition.partition import ACKS_ALL
from ottla_core.errors import CorruptMessage
from ottla_core.ids import TopicPartition
from ottla_core.ports.offload import Offload
from ottla_core.real.clock import RealClock

T = TypeVar("T")


class Values:
    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def replay(self, record: StateRecord) -> None:
        self.seen.append(record.value)


async def replayed(world: World, offload: Offload) -> list[bytes | None]:
    shard, partition = Values(), world.partition
    await replay_log(
        partition,
        partition.leader_epoch,
        partition.log.end_offset,
        cast("Shard", shard),
        RealClock(),
        offload,
    )
    return shard.seen


async def test_damage_is_an_error_and_no_state() -> None:
    world = World()
    world.fill()
    assert await replayed(world, InlineOffload()) == [b"1", b"2"]
    log = world.partition.log
    found = log.segments[0].locate(1)
    assert found is not None
    world.disk.rot(log.segments[0].file.path, found[0] + found[1].size - 2)  # its value
    for is_cold in (False, True):
        world.disk.cold = is_cold
        with pytest.raises(CorruptMessage):
            await replayed(world, InlineOffload())
        assert log.damage is not None, "so another replica leads, and this one is repaired"
        log.segments[0].damage = None


async def test_a_segment_that_is_replaced_while_it_is_read() -> None:
    world = World()
    world.fill()
    world.disk.cold = True
    log = world.partition.log

    class Replaced(InlineOffload):
        moves = 3

        async def run(self, work: Callable[[], T]) -> T:
            if self.moves:
                self.moves -= 1
                log.segments[0].rename_to("")  # Closes its files, as a replacement does.
            return await super().run(work)

    assert await replayed(world, Replaced()) == [b"1", b"2"]


async def test_a_coordinator_with_100_000_offsets_is_ready_within_a_second() -> None:
    world, topics = World(), [f"topic-{number}" for number in range(10)]
    records = [
        offset_record(
            f"group-{group}",
            TopicPartition(topic, index),
            OffsetValue(index, 3, "", NOW_MS, None, topic_id(topic)),
        )
        for group in range(100)
        for topic in topics
        for index in range(100)
    ]
    for start in range(0, len(records), 1000):
        for batch in batches_of(records[start : start + 1000], NOW_MS):
            world.partition.append(batch, ACKS_ALL, NOW_MS)
    partition, image = world.partition, image_of(dict.fromkeys(topics, 100))
    spent_s = []
    gc.collect()
    gc.disable()  # As in brokers, which collect when they have time.
    try:
        for _ in range(3):  # The best of three, in CPU time: other processes share the machine.
            shard = GroupShard(GroupsConfig(), GroupsProbe(), record_bytes_max=1_000_000)
            began_s, end = time.thread_time(), partition.log.end_offset
            await replay_log(partition, partition.leader_epoch, end, shard, RealClock(), InlineOffload())
            shard.loaded(Now(NOW_MS, 0))
            shard.on_metadata(MetadataChange(None, image), Now(NOW_MS, 0))
            spent_s.append(time.thread_time() - began_s)
    finally:
        gc.enable()
    assert len(shard.offsets) == 100_000
    assert min(spent_s) < 1.0, spent_s
