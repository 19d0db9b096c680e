"""segment.jitter.ms spreads the rolls of many partitions that were made at the same moment."""

from __future__ import annotations

from ottla_broker.log.log import Log
from ottla_broker.topic_config import TopicConfig
from sim.batches import Rec, make_batch
from sim.disk import SimDisk

NOW = 1_700_000_000_000


def rolled_after(partition: int, config: TopicConfig) -> int:
    """How old the first segment of a partition becomes."""
    log = Log.open(SimDisk(), f"/data/t-{partition}", config, clean=True, now_ms=NOW)
    for age in range(0, 1100, 10):
        log.append(make_batch([Rec(b"k", b"v", NOW + age)]), leader_epoch=0, now_ms=NOW + age)
        if len(log.segments) > 1:
            return age
    raise AssertionError("never rolled")


def test_without_jitter_all_roll_at_once() -> None:
    assert {rolled_after(n, TopicConfig(segment_ms=1000)) for n in range(5)} == {1010}


def test_with_jitter_they_spread_but_none_too_far() -> None:
    ages = [rolled_after(n, TopicConfig(segment_ms=1000, segment_jitter_ms=500)) for n in range(40)]
    assert min(ages) > 500
    assert max(ages) <= 1010
    assert len(set(ages)) > 15


def test_a_jitter_beyond_the_age_itself_is_bounded_by_it() -> None:
    assert rolled_after(0, TopicConfig(segment_ms=1000, segment_jitter_ms=10**9)) <= 1010
