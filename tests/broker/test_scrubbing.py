"""The scrubber: finds damage where nobody reads, at a bounded rate, and goes on where it was."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from broker.one_partition import NOW_MS, TP, World
from broker.replication.cluster import InlineOffload
from ottla_broker.config import LogDirsConfig
from ottla_broker.log.scrub import STEP_BYTES
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.partition.scrubbing import FIRST_ROUND_S, Scrubber
from sim.batches import Rec, make_batch
from sim.disk import SimFile

T = TypeVar("T")
SPOT = 65
DAY_S = 86_400
RATE = 1 << 20


@asynccontextmanager
async def scrubbing(world: World, *, rate: int = RATE, offload: Any = None) -> AsyncIterator[Scrubber]:
    config = replace(LogDirsConfig(), scrub_bytes_per_s=rate)
    scrubber = Scrubber(
        world.host, world.dirs, config, world.clock, offload or InlineOffload(), world.metrics.log
    )
    task = asyncio.create_task(scrubber.run())
    yield scrubber
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world() -> World:
    """Three closed segments and the active one."""
    made = World(cleanup_policy="delete")
    for _ in range(3):
        made.fill()
    return made


def large(world: World, steps: int) -> None:
    """A closed segment that takes so many steps."""
    for _ in range(steps):
        world.partition.append(make_batch([Rec(b"k", b"x" * STEP_BYTES, NOW_MS)]), ACKS_ALL, NOW_MS)
    world.partition.log.roll(NOW_MS)


@pytest.mark.parametrize("segment", range(3))
@pytest.mark.parametrize("spot", [SPOT, 0, 9, 16], ids=["records", "offset", "length", "magic"])
async def test_damage_in_a_closed_segment_is_found_and_counted_once(
    world: World, segment: int, spot: int
) -> None:
    log = world.partition.log
    world.disk.rot(log.segments[segment].file.path, spot)
    async with scrubbing(world):
        await world.clock.advance(FIRST_ROUND_S + 10)
        probe = world.metrics.log
        assert (probe.scrub_damaged, probe.corruptions, probe.scrub_rounds) == (1, 1, 1)
        assert [s.damage is not None for s in log.segments] == [n == segment for n in range(4)]
        await world.clock.advance(DAY_S)
        assert (probe.scrub_damaged, probe.scrub_rounds) == (1, 2)


async def test_whole_segments_are_read_at_the_rate_and_again_the_next_day(world: World) -> None:
    large(world, 8)
    size = sum(s.size for s in world.partition.log.segments[:-1])
    async with scrubbing(world):
        await world.clock.advance(FIRST_ROUND_S + 1.0)
        probe = world.metrics.log
        assert RATE * 0.5 < probe.scrubbed_bytes < RATE * 1.5
        await world.clock.advance(10)
        assert (probe.scrubbed_bytes, probe.scrub_rounds, probe.corruptions) == (size, 1, 0)
        await world.clock.advance(DAY_S)
        assert (probe.scrubbed_bytes, probe.scrub_rounds) == (2 * size, 2)


async def test_a_round_goes_on_after_a_restart(world: World) -> None:
    large(world, 8)
    async with scrubbing(world):
        await world.clock.advance(FIRST_ROUND_S + 1.0)
    done = world.metrics.log.scrubbed_bytes
    world.dirs.checkpoint_work()()
    kept = world.dirs.dirs[0].read_offsets("scrub-offset-checkpoint")
    assert kept == world.dirs.scrub_offsets and kept[TP] > 6
    async with scrubbing(world):
        await world.clock.advance(FIRST_ROUND_S + 20)
    size = sum(s.size for s in world.partition.log.segments[:-1])
    assert done < size == world.metrics.log.scrubbed_bytes
    assert world.dirs.scrub_offsets == {}, "the next round begins anew"


async def test_it_can_be_turned_off(world: World) -> None:
    async with scrubbing(world, rate=0):
        await world.clock.advance(10 * DAY_S)
    assert world.metrics.log.scrubbed_bytes == 0


class During:
    """Something happens while a thread reads."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what: Callable[[], object] | None = what

    async def run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            if self._what is not None:
                what, self._what = self._what, None
                what()


@pytest.mark.parametrize("offset", [0, 1, 3])
async def test_a_log_that_is_cut_meanwhile_is_not_damaged(world: World, offset: int) -> None:
    log = world.partition.log
    world.disk.rot(log.segments[0].file.path, SPOT)
    world.disk.rot(log.segments[1].file.path, SPOT)
    cut = During(lambda: log.truncate_to(offset, now_ms=NOW_MS))
    async with scrubbing(world, offload=cut):
        await world.clock.advance(FIRST_ROUND_S + 10)
    # Cut to 3, the first segment is as it was, and its damage is real.
    assert world.metrics.log.scrub_damaged == (1 if offset == 3 else 0)


async def test_sectors_that_cannot_be_read_are_damage_of_their_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.partition.log.segments[1].file.path
    shipped = SimFile.read

    def read(file: SimFile, position: int, size: int) -> bytes:
        if file.path == path:
            raise OSError(errno.EIO, "bad sector")
        return shipped(file, position, size)

    monkeypatch.setattr(SimFile, "read", read)
    async with scrubbing(world):
        await world.clock.advance(FIRST_ROUND_S + 10)
    log = world.partition.log
    assert world.metrics.log.scrub_damaged == 1 and log.segments[1].damage is not None
    assert log.broken is None
