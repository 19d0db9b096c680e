"""Which segments may go: each rule by example, all of them against a dumb twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.log.retention import SegmentFacts, expired, wants_roll
from ottla_broker.topic_config import TopicConfig

KEEP = TopicConfig(retention_ms=-1, retention_bytes=-1)
#: Three closed segments and the active one; 100 bytes and 10 offsets each.
SEGMENTS = [SegmentFacts(n * 10, n * 10 + 10, 100, n * 1000) for n in range(4)]


def count(
    config: TopicConfig, *, now_ms: int = 0, start_offset: int = 0, committed_offset: int = 1000
) -> int:
    return expired(
        SEGMENTS, now_ms=now_ms, config=config, start_offset=start_offset, committed_offset=committed_offset
    )


def test_nothing_to_remove() -> None:
    assert count(KEEP, now_ms=10**15) == 0
    assert expired([], now_ms=0, config=TopicConfig(), start_offset=0, committed_offset=0) == 0


@pytest.mark.parametrize(("now_ms", "gone"), [(500, 0), (501, 1), (1501, 2), (10**9, 3)])
def test_by_time_never_the_active_one(now_ms: int, gone: int) -> None:
    assert count(replace(KEEP, retention_ms=500), now_ms=now_ms) == gone


@pytest.mark.parametrize(("limit", "gone"), [(400, 0), (301, 0), (300, 1), (299, 1), (100, 3), (0, 3)])
def test_by_size_keeps_at_least_the_limit(limit: int, gone: int) -> None:
    assert count(replace(KEEP, retention_bytes=limit)) == gone


@pytest.mark.parametrize(("start_offset", "gone"), [(9, 0), (10, 1), (29, 2), (40, 3)])
def test_below_the_start_offset_whatever_the_policy(start_offset: int, gone: int) -> None:
    for policy in ("delete", "compact", ""):
        config = replace(KEEP, cleanup_policy=frozenset({policy}) - {""})
        assert count(config, start_offset=start_offset) == gone


def test_compacted_topics_do_not_expire() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1)
    assert count(config, now_ms=10**9) == 0
    assert count(replace(config, cleanup_policy=frozenset({"compact", "delete"})), now_ms=10**9) == 3


@pytest.mark.parametrize(("committed", "gone"), [(0, 0), (9, 0), (10, 1), (25, 2)])
def test_never_above_the_committed_offset(committed: int, gone: int) -> None:
    config = replace(KEEP, retention_ms=0, retention_bytes=0)
    assert count(config, now_ms=10**9, start_offset=35, committed_offset=committed) == gone


def test_an_old_segment_waits_for_the_younger_one_before_it() -> None:
    segments = [SEGMENTS[0]._replace(max_timestamp_ms=9_000), *SEGMENTS[1:]]
    config = replace(KEEP, retention_ms=500)
    assert expired(segments, now_ms=9_100, config=config, start_offset=0, committed_offset=99) == 0


def test_an_expired_active_segment_is_rolled_so_that_it_can_go() -> None:
    active = SEGMENTS[-1]
    config = replace(KEEP, retention_ms=500)
    assert not wants_roll(active, now_ms=3500, config=config, start_offset=0)
    assert wants_roll(active, now_ms=3501, config=config, start_offset=0)
    assert wants_roll(active, now_ms=0, config=KEEP, start_offset=40)
    assert not wants_roll(active, now_ms=10**9, config=KEEP, start_offset=39)
    assert not wants_roll(active._replace(size_bytes=0), now_ms=10**9, config=config, start_offset=99)


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    ages=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    retention_ms=st.integers(-1, 5),
    retention_bytes=st.integers(-1, 12),
    start=st.integers(0, 12),
    committed=st.integers(0, 12),
)
def test_against_the_twin(
    sizes: list[int], ages: list[int], retention_ms: int, retention_bytes: int, start: int, committed: int
) -> None:
    segments = [SegmentFacts(2 * n, 2 * n + 2, size, 10 - ages[n]) for n, size in enumerate(sizes)]
    config = TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    got = expired(segments, now_ms=10, config=config, start_offset=start, committed_offset=committed)

    def fine(gone: int) -> bool:
        """Removing this many breaks no rule, and each one removed had a reason."""
        removed, left = segments[:gone], segments[gone:]
        by_time = retention_ms >= 0 and all(10 - s.max_timestamp_ms > retention_ms for s in removed)
        by_size = retention_bytes >= 0 and sum(s.size_bytes for s in left) >= retention_bytes
        by_start = all(s.end_offset <= start for s in removed)
        committed_only = all(s.end_offset <= committed for s in removed)
        return bool(left) and committed_only and (gone == 0 or by_time or by_size or by_start)

    assert got == max(gone for gone in range(len(segments) + 1) if fine(gone))
