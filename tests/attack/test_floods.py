"""Busy clients against three real brokers: others are served meanwhile, groups join, and no lease ends.

A flood is one connection to each broker that always has requests under way: one-byte records to 900 partitions in turn,
ListOffsets or Fetch over all of them, Metadata. What they must not do is to starve a quiet client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest

from attack import effort
from attack.kafka_wire import HostileClient
from attack.victim import Victim
from ottla_bench.flood_client import FloodJob, Floods
from ottla_bench.flood_requests import FLOODS, fetch
from ottla_bench.leadership_changes import EtcdChanges
from ottla_bench.quiet_client import QuietJob, observe
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

#: Longer than a lease, which is six seconds.
SECONDS = effort.seconds(8, 0.05)
#: Each of the three brokers leads a third of them.
PARTITIONS = 2700
#: Of a client that writes up to fifty records a second, on a machine that others use as well. An idle one shows less
#: than a third of it; a broker that serves a flood without a pause shows none at all, or 5 to 15 s.
GAP_MAX_S = 3.0
JOIN_MAX_S = 4.0


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with LocalCluster(brokers=3, settings=settings) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 6, 3, min_insync_replicas="2")
        made.create("flooded", PARTITIONS)
        yield made


#: The heaviest, and all at once; `make attack` also runs each alone.
CASES = [("produce",), FLOODS, *((name,) for name in FLOODS[1:] if effort.IS_LONG)]


@pytest.mark.parametrize("floods", CASES, ids=lambda names: "all" if names == FLOODS else names[0])
def test_a_flood_does_not_starve_a_quiet_client(victim: Victim, floods: Sequence[str]) -> None:
    bootstrap = victim.cluster.kafka_bootstrap
    name = "-".join(floods)
    with EtcdChanges(victim.cluster.etcd_endpoint) as changes:
        with Floods(FloodJob(bootstrap, "flooded", floods, seconds=SECONDS + 100)) as running:
            time.sleep(1)
            seen = observe(QuietJob(bootstrap, "ordinary", 6, SECONDS, name))
        time.sleep(1)
    print(f"{name}: {seen}, {running.answers}, {changes.expired} leases, {changes.controllers} controllers")
    assert all(running.answers.get(flood, 0) > 0 for flood in floods), "the flood itself is served"
    assert (changes.expired, changes.controllers) == (0, 0), "a lease ended"
    assert seen.failed == 0
    assert seen.gap_s < GAP_MAX_S
    assert seen.joins > 0 and seen.join_s < JOIN_MAX_S
    victim.close_look()


#: More than any client fetches while the quiet client writes; the fetches wait for it for as long as the test lasts.
NEVER_BYTES = 50 << 20


async def _hold_fetches(victim: Victim, partitions: dict[int, list[int]], connections: int) -> None:
    """Fetches at each leader of `ordinary` that wait and look at each write, until this is cancelled."""
    clients: list[HostileClient] = []
    try:
        for leader, numbers in partitions.items():
            frame = fetch("ordinary", numbers, 1, wait_ms=300_000, min_bytes=NEVER_BYTES)
            for _ in range(connections):
                clients.append(await HostileClient.connect(victim.port(leader)))
                clients[-1].send(frame)
                await clients[-1].writer.drain()
        await asyncio.sleep(3600)
    finally:
        for client in clients:
            client.close()


async def test_fetches_that_wait_do_not_stop_their_brokers(victim: Victim) -> None:
    """Five small frames to each broker, which name the partitions that are written thousands of times."""
    leaders = victim.leaders("ordinary")
    led = {each: [n for n, leader in leaders.items() if leader == each] for each in set(leaders.values())}
    repeated = {leader: numbers * (60_000 // len(numbers)) for leader, numbers in led.items()}
    with EtcdChanges(victim.cluster.etcd_endpoint) as changes:
        holding = asyncio.create_task(_hold_fetches(victim, repeated, 5))
        await asyncio.sleep(2)
        job = QuietJob(victim.cluster.kafka_bootstrap, "ordinary", 6, SECONDS, "waiting")
        seen = await asyncio.to_thread(observe, job)
        waiting = sum(victim.metric("ottla_waiting_fetches", number) for number in victim.pids)
        assert not holding.done()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await asyncio.sleep(1)
    print(f"{waiting:.0f} waiting: {seen}, {changes.expired} leases, {changes.controllers} controllers")
    assert waiting >= 15, "the fetches themselves wait"
    assert (changes.expired, changes.controllers) == (0, 0), "a lease ended"
    assert seen.failed == 0
    assert seen.gap_s < GAP_MAX_S
    assert seen.joins > 0 and seen.join_s < JOIN_MAX_S
    victim.close_look()
