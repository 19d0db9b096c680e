"""The measurement of coordinators, in small: the next broker answers as the killed one, and has loaded in time."""

from __future__ import annotations

import pytest

from ottla_bench.coordinators import SETTINGS, outages
from ottla_cli.local_cluster import LocalCluster

#: The goal of the measurement is a second. This is wall time on a machine that may run other tests meanwhile.
LOADED_WITHIN_S = 5.0


@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_coordinators_of_killed_brokers_are_replaced() -> None:
    with LocalCluster(brokers=3, settings=SETTINGS) as cluster:
        (groups,), (transactions,) = await outages(cluster, offsets=10_000, transactions=300, runs=1)
    for outage in (groups, transactions):
        assert 0 < outage.loading_s < LOADED_WITHIN_S
        assert outage.loading_s < outage.from_kill_s < 20
