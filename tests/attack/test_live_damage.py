"""A byte that flips in the files of a running broker, leader or follower: noticed, counted, and copied again.

Nobody has to ask for it: closed segments are read again and again in the background.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from attack.follower_copy import Copy, flip
from attack.victim import Victim
from cluster.steady_writer import read_all
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with LocalCluster(brokers=3, settings={"log.scrub.interval.ms": "2000"}) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1, 3)
        yield made


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_flipped_byte_is_noticed_and_repaired(victim: Victim, role: str) -> None:
    copy = Copy(victim, f"rot-{role}")
    damaged = copy.follower if role == "follower" else copy.leader
    sound = copy.leader if role == "follower" else copy.follower
    before = victim.metric("ottla_log_corruptions_total", damaged)
    flip(copy, damaged)
    took_s = victim.until(lambda: copy.is_same(damaged, sound), f"repair on broker {damaged}", 60)
    print(f"{role}: repaired after {took_s:.1f} s")
    assert victim.metric("ottla_log_corruptions_total", damaged) > before
    assert read_all(victim.cluster.kafka_bootstrap, copy.topic, 1) == copy.values
    victim.close_look()
