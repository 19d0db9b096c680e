"""Busy clients against three real brokers: others are served meanwhile, groups join, and no lease ends.

A flood is one connection to each broker that always has requests under way: one-byte records to 900 partitions in turn,
ListOffsets or Fetch over all of them, Metadata. What they must not do is to starve a quiet client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from attack import effort
from attack.victim import Victim
from ottla_bench.flood_client import FloodJob, Floods
from ottla_bench.flood_requests import FLOODS
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
