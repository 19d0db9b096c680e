"""Throttled replication: token buckets, and replicas that catch up at the rate while others are not delayed."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.cluster import Cluster, cluster
from ottla_broker.replication.throttle import RECHECK_S, Throttle
from ottla_broker.throttle_config import FOLLOWER_RATE, LEADER_RATE, rates

RATE = 400_000
VALUE = "x" * 10_000


def test_without_a_rate_anything_passes() -> None:
    throttle = Throttle()
    throttle.take(1 << 40, 5.0)
    assert (throttle.room(5.0), throttle.wait_s(5.0)) == (None, 0.0)


def test_a_debt_is_paid_before_more_passes() -> None:
    throttle = Throttle()
    throttle.set_rate(1000, 0.0)
    assert throttle.room(10.0) == 250
    throttle.take(750, 10.0)
    assert throttle.room(10.25) == -250
    assert 0 < throttle.wait_s(10.25) <= RECHECK_S
    assert (throttle.room(10.625), throttle.wait_s(10.625)) == (125, 0.0)


def test_a_changed_rate_counts_from_now_on() -> None:
    throttle = Throttle()
    throttle.set_rate(1000, 0.0)
    throttle.take(1_000_000, 1.0)
    throttle.set_rate(100_000, 1.0)
    assert throttle.wait_s(1.1) == 0.0
    throttle.set_rate(None, 1.2)
    assert throttle.room(1.2) is None
    throttle.set_rate(0, 1.3)
    assert throttle.wait_s(1000.0) == RECHECK_S


@given(
    st.integers(1_000, 10**9), st.lists(st.tuples(st.floats(0, 2), st.integers(1, 2_000_000)), max_size=50)
)
def test_what_passes_is_at_most_the_rate_and_one_overdraft(
    rate: int, wishes: list[tuple[float, int]]
) -> None:
    throttle, now, passed, last = Throttle(), 0.0, 0, 0
    throttle.set_rate(rate, now)
    for pause_s, size in wishes:
        now += pause_s
        if not throttle.wait_s(now):
            throttle.take(size, now)
            passed, last = passed + size, size
        assert passed - last <= rate * (now + 0.25) + 1


def test_rates_of_a_broker() -> None:
    assert rates({}) == (None, None)
    assert rates({LEADER_RATE: "5", FOLLOWER_RATE: str((1 << 63) - 1)}) == (5, None)


def _set_rates(world: Cluster, leader: int | None, follower: int | None) -> None:
    for node in world.nodes.values():
        node.host.replication.throttles.set_rates(leader, follower, world.clock.monotonic())


async def _catch_up(world: Cluster) -> float:
    """Broker 3 returns with an empty log and copies; seconds until it is in sync. Writes meanwhile do not wait."""
    began = time.monotonic()
    writes_s: list[float] = []
    await world.start(3)
    _set_rates(world, *world.rates)  # type: ignore[attr-defined]
    while 3 not in world.state.isr:
        wrote = time.monotonic()
        await world.nodes[1].write("meanwhile")
        writes_s.append(time.monotonic() - wrote)
        await asyncio.sleep(0.02)
        assert time.monotonic() - began < 20
    # One may meet a pause of the machine; throttled writes would all wait.
    assert median(writes_s) < 0.1, "catching up delays in-sync replicas"
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("side", "replicas"),
    [("leader", "0:1"), ("follower", "0:3"), ("leader", "*"), ("follower", "*")],
)
async def test_a_replica_that_catches_up_is_throttled_on_either_side(side: str, replicas: str) -> None:
    settings = {f"{side}_replication_throttled_replicas": replicas}
    async with cluster(1, 2, isr=(1, 2), **settings) as world:
        for _ in range(10):
            await world.nodes[1].write(*[VALUE] * 12)
        world.rates = (RATE, None) if side == "leader" else (None, RATE)  # type: ignore[attr-defined]
        took_s = await _catch_up(world)
        # 1.2 MB at 0.4 MB/s; the bucket holds a quarter of a second, and the last section is an overdraft.
        assert 1.9 < took_s < 4.5
        probe = world.nodes[1].metrics.replication if side == "leader" else world.nodes[3].metrics.replication
        assert (probe.throttled_out if side == "leader" else probe.throttled_in) > 1_000_000
        await world.agree()


@pytest.mark.parametrize("replicas", ["0:9", "1:1,1:3", "none", ""])
async def test_replicas_that_are_not_listed_are_not_throttled(replicas: str) -> None:
    settings = {f"{side}_replication_throttled_replicas": replicas for side in ("leader", "follower")}
    async with cluster(1, 2, isr=(1, 2), **settings) as world:
        await world.nodes[1].write(*[VALUE] * 100)
        world.rates = (1, 1)  # type: ignore[attr-defined]
        assert await _catch_up(world) < 2.0


async def test_in_sync_replicas_are_never_throttled() -> None:
    settings = {f"{side}_replication_throttled_replicas": "*" for side in ("leader", "follower")}
    async with cluster(**settings) as world:
        _set_rates(world, 1, 1)
        began = time.monotonic()
        for _ in range(20):
            await world.nodes[1].write(VALUE)
        assert time.monotonic() - began < 2.0
        assert world.nodes[1].metrics.replication.throttled_out == 0


async def test_a_removed_throttle_ends_the_waiting() -> None:
    settings = {f"{side}_replication_throttled_replicas": "*" for side in ("leader", "follower")}
    async with cluster(1, 2, isr=(1, 2), **settings) as world:
        await world.nodes[1].write(*[VALUE] * 100)
        _set_rates(world, 0, 0)
        await world.start(3)
        world.nodes[3].host.replication.throttles.set_rates(0, 0, world.clock.monotonic())
        await asyncio.sleep(0.5)
        assert 3 not in world.state.isr
        _set_rates(world, None, None)
        await world.in_sync(1, 2, 3)
