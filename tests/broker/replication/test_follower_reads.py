"""Consumers that read from followers (rule 23): below the high watermark, in the leader's epoch, woken like others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.replication.cluster import TP, Cluster, InlineOffload, Node, cluster
from ottla_broker.event_loop import next_turn
from ottla_broker.requests import Fetched, FetchWant
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.delayed_fetch import DelayedFetch, FetchLimits
from ottla_broker.service.reread_check import RereadCheck
from ottla_core.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestError,
    UnknownLeaderEpoch,
)
from ottla_core.ids import NO_BROKER
from sim.batches import read_batches


async def fetch(
    node: Node, offset: int = 0, *, rack: str | None = "", epoch: int = -1, wait_s: float = 0.0
) -> Fetched:
    wants = [FetchWant(TP, offset, 1 << 20, epoch)]
    limits = FetchLimits(wait_s, 1, 1 << 20, False, None, rack)
    clock = node.cluster.clock
    scheduler = Scheduler(clock.monotonic, next_turn, lambda _: None)
    found = DelayedFetch(
        node.host, InlineOffload(), node.metrics, wants, limits, RereadCheck(), clock, scheduler
    ).start()
    (got,) = await found if isinstance(found, Awaitable) else found
    return got


def values(got: Fetched) -> list[str]:
    assert got.error is None, got.error
    return [(record.value or b"").decode() for _, record in read_batches(got.records)]


async def read(node: Node, offset: int = 0, **more: float) -> list[str]:
    return values(await fetch(node, offset, **more))  # type: ignore[arg-type]


def racks(world: Cluster, of: dict[int, str]) -> None:
    for node in world.nodes.values():
        node.host.replication.racks = of


async def test_a_follower_serves_what_is_committed_and_nothing_above() -> None:
    async with cluster(min_insync_replicas="2") as world:
        leader, follower = world.nodes[1], world.nodes[2]
        await leader.write("a", "b")
        await world.until(lambda: follower.partition.high_watermark == 2)
        assert await read(follower) == ["a", "b"]
        assert isinstance((await fetch(follower, rack=None)).error, NotLeaderOrFollower)
        # Replica 3 is in sync and gone: what follower 2 has beyond is not committed, and perhaps never will be.
        await world.nodes[3].kill()
        leader.append("c")
        await world.until(lambda: follower.partition.log.end_offset == 3)
        assert await read(follower) == ["a", "b"]
        got = await fetch(follower, 2)
        assert (values(got), got.high_watermark) == ([], 2)


async def test_a_waiting_reader_wakes_when_the_followers_high_watermark_advances() -> None:
    async with cluster() as world:
        leader, follower = world.nodes[1], world.nodes[2]
        waiting = asyncio.ensure_future(read(follower, wait_s=60.0))
        await world.until(lambda: bool(follower.partition._readers))
        await leader.write("a")
        assert await asyncio.wait_for(waiting, 10) == ["a"]


async def test_epochs_fence_readers_on_followers_too() -> None:
    async with cluster() as world:
        follower = world.nodes[2]
        await world.nodes[1].write("a")
        await world.until(lambda: follower.partition.high_watermark == 1)
        epoch = world.state.leader_epoch
        assert values(await fetch(follower, epoch=epoch)) == ["a"]
        assert isinstance((await fetch(follower, epoch=epoch + 1)).error, UnknownLeaderEpoch)
        waiting = asyncio.ensure_future(fetch(follower, 1, epoch=epoch, wait_s=60.0))
        await world.until(lambda: bool(follower.partition._readers))
        world.elect(3)
        assert isinstance((await asyncio.wait_for(waiting, 10)).error, FencedLeaderEpoch)
        world.elect(NO_BROKER)
        await world.until(lambda: follower.partition.following is None)
        assert isinstance((await fetch(follower)).error, NotLeaderOrFollower)


async def test_a_reader_of_a_truncated_follower_gets_an_error() -> None:
    async with cluster() as world:
        follower = world.nodes[2]
        for value in "abc":
            await world.nodes[1].write(value)
        await world.until(lambda: follower.partition.high_watermark == 3)
        waiting = asyncio.ensure_future(fetch(follower, 3, wait_s=60.0))
        await world.until(lambda: bool(follower.partition._readers))
        # As after an unclean election of a replica that lacks records.
        following = follower.partition.following
        assert following is not None
        following._truncate(1)
        error: RequestError | None = (await asyncio.wait_for(waiting, 10)).error
        assert isinstance(error, OffsetOutOfRange)


async def test_the_leader_names_the_replica_in_the_readers_rack_while_it_is_in_sync() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        racks(world, {1: "a", 2: "b", 3: "c"})
        await leader.write("x")
        got = await fetch(leader, rack="b", wait_s=60.0)
        assert (got.preferred_replica, got.records) == (2, b"")
        for rack in ("", "a", "elsewhere"):
            got = await fetch(leader, rack=rack)
            assert (got.preferred_replica, values(got)) == (NO_BROKER, ["x"])
        # A follower names no other, and one that died is named no longer, even before it leaves the ISR.
        assert (await fetch(world.nodes[2], rack="c")).preferred_replica == NO_BROKER
        await world.nodes[2].kill()
        await world.until(lambda: 2 not in leader.partition.leading.machine.positions)  # type: ignore[union-attr]
        assert values(await fetch(leader, rack="b")) == ["x"]


@pytest.mark.parametrize("rack", [None, ""])
async def test_without_a_selector_leaders_serve_everybody(rack: str | None) -> None:
    async with cluster() as world:
        await world.nodes[1].write("x")
        assert values(await fetch(world.nodes[1], rack=rack)) == ["x"]
        assert values(await fetch(world.nodes[1], rack="b")) == ["x"]
