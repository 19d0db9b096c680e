"""Replaying an internal topic from a log that is damaged, or moves meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from broker.one_partition import World
from broker.replication.cluster import InlineOffload
from ottla_broker.coordination.loading import replay_log
from ottla_broker.coordination.shard import Shard, StateRecord
from ottla_core.errors import CorruptMessage
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
