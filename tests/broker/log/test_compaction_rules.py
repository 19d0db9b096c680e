"""Compaction's decisions, without files: when, how much, and what becomes of a batch and of a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.compaction import (
    KEY_COST_BYTES,
    CleanableSegment,
    CleanPlan,
    Fate,
    KeyMap,
    Transactions,
    group,
    judge,
    keeps_record,
    new_horizon,
    plan,
)
from ottla_broker.log.producers import LastRecord, Marker
from ottla_broker.topic_config import INT_MAX, TopicConfig
from ottla_core.records.batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, TRANSACTIONAL_FLAG, BatchHeader

COMPACT = TopicConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.5, segment_bytes=250)
#: Four closed segments and the active one: 100 bytes and 10 offsets each, a second apart.
SEGMENTS = [CleanableSegment(n * 10, n * 10 + 10, 100, n * 1000 + 900, n * 1000) for n in range(5)]
COMMIT, ABORT = Marker(is_commit=True, coordinator_epoch=0), Marker(is_commit=False, coordinator_epoch=0)


def due(
    config: TopicConfig = COMPACT,
    *,
    now_ms: int = 5000,
    first_dirty: int = 0,
    start: int = 0,
    stable: int = 50,
) -> CleanPlan | None:
    return plan(
        SEGMENTS,
        now_ms=now_ms,
        config=config,
        first_dirty_offset=first_dirty,
        start_offset=start,
        stable_offset=stable,
    )


def header(offset: int, *, pid: int = -1, epoch: int = 0, count: int = 1, flags: int = 0) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, flags, count - 1, 5000, 5000, pid, epoch, 0, count)


def test_all_but_the_active_segment() -> None:
    assert due() == CleanPlan(0, 40, 0, 400, overdue=False)


def test_only_where_the_policy_says_so_and_there_is_something_closed() -> None:
    assert due(TopicConfig()) is None
    only_active = plan(
        SEGMENTS[:1], now_ms=0, config=COMPACT, first_dirty_offset=0, start_offset=0, stable_offset=9
    )
    assert only_active is None


@pytest.mark.parametrize(("stable", "end"), [(39, 30), (40, 40), (10, 10)])
def test_never_above_the_stable_offset(stable: int, end: int) -> None:
    made = due(stable=stable)
    assert made is not None
    assert made.end_offset == end
    assert due(stable=9) is None


def test_the_young_wait() -> None:
    made = due(replace(COMPACT, min_compaction_lag_ms=3000))
    assert made is not None
    assert made.end_offset == 20  # the third segment's newest record is from 2900


@pytest.mark.parametrize(
    ("first_dirty", "is_due"), [(0, True), (10, True), (20, False), (30, False), (40, False)]
)
def test_the_dirty_ratio(first_dirty: int, is_due: bool) -> None:
    assert (due(first_dirty=first_dirty) is not None) == is_due


def test_max_compaction_lag_overrides_the_ratio() -> None:
    config = replace(COMPACT, max_compaction_lag_ms=1900)
    made = due(config, first_dirty=30)
    assert made is not None
    assert made.overdue
    assert due(replace(COMPACT, max_compaction_lag_ms=2000), first_dirty=30) is None


def test_a_checkpoint_that_cannot_be_right_means_the_whole_log() -> None:
    for impossible in (51, 4):
        made = due(first_dirty=impossible, start=5)
        assert made is not None
        assert made.first_dirty_offset == 5


def test_groups_stay_legal_segments() -> None:
    assert [len(g) for g in group(SEGMENTS[:4], COMPACT)] == [2, 2]
    assert [len(g) for g in group(SEGMENTS[:3], replace(COMPACT, segment_bytes=50))] == [1, 1, 1]
    full_index = [s._replace(index_bytes=8) for s in SEGMENTS[:2]]
    assert len(group(full_index, replace(COMPACT, segment_index_bytes=15))) == 2
    far = [SEGMENTS[0], SEGMENTS[1]._replace(end_offset=INT_MAX + 2)]
    assert len(group(far, COMPACT)) == 2
    assert len(group([far[0], far[1]._replace(end_offset=INT_MAX + 1)], COMPACT)) == 1
    assert group([], COMPACT) == []


@given(st.lists(st.integers(0, 300), max_size=12))
def test_groups_cover_all_in_order(sizes: list[int]) -> None:
    segments = [CleanableSegment(n, n + 1, size, 0, 0) for n, size in enumerate(sizes)]
    groups = group(segments, COMPACT)
    assert [s for g in groups for s in g] == segments
    assert all(len(g) == 1 or sum(s.size_bytes for s in g) <= 250 for g in groups)


def test_the_key_map_takes_whole_batches_until_it_is_full() -> None:
    keys = KeyMap(limit_bytes=3 * KEY_COST_BYTES)
    assert keys.add_batch([(b"a", 0), (b"b", 1), (b"a", 2)], 2)
    assert not keys.add_batch([(b"c", 3), (b"d", 4)], 4)
    assert keys.latest_offset == 2
    assert keys.newest(b"c") == -1
    assert keys.add_batch([(b"a", 3), (b"c", 4)], 4)
    assert (keys.newest(b"a"), keys.newest(b"b"), keys.newest(b"c")) == (3, 1, 4)
    assert keys.latest_offset == 4


def test_a_batch_larger_than_the_map_still_gets_on() -> None:
    keys = KeyMap(limit_bytes=1)
    assert keys.add_batch([(bytes([n]), n) for n in range(10)], 9)
    assert not keys.add_batch([(b"x", 10)], 10)


def test_long_keys_are_distinguished() -> None:
    keys = KeyMap()
    keys.add_batch([(b"k" * 1000 + b"1", 1), (b"k" * 1000 + b"2", 2), (b"", 3)], 3)
    assert keys.newest(b"k" * 1000 + b"1") == 1
    assert keys.newest(b"k" * 1000 + b"2") == 2
    assert keys.newest(b"") == 3


@pytest.mark.parametrize(
    ("key", "has_value", "offset", "kept"),
    [
        (b"a", True, 5, True),
        (b"a", True, 4, False),
        (b"a", False, 5, True),
        (None, True, 5, False),
        (b"unmapped", True, 5, True),  # its newest record lies in the part that was cleaned before
        (None, True, 11, True),  # beyond the map: the next round's business
        (b"a", True, 11, True),
    ],
)
def test_which_records_stay(key: bytes | None, has_value: bool, offset: int, kept: bool) -> None:
    keys = KeyMap()
    keys.add_batch([(b"a", 5)], 10)
    assert keeps_record(key, has_value, offset, header(offset), keys, 5000) == kept


@pytest.mark.parametrize(("now_ms", "kept"), [(4999, True), (5000, False)])
def test_tombstones_go_when_their_horizon_has_passed(now_ms: int, kept: bool) -> None:
    keys = KeyMap()
    keys.add_batch([(b"a", 5)], 10)
    stamped = header(5, flags=DELETE_HORIZON_FLAG)
    assert keeps_record(b"a", False, 5, stamped, keys, now_ms) == kept
    assert keeps_record(b"a", True, 5, stamped, keys, now_ms)


def verdict_of(
    h: BatchHeader, *, discardable: bool = False, last: dict[int, LastRecord] | None = None
) -> Fate:
    return judge(h, discardable=discardable, now_ms=5000, last_records=last or {}, end_offset=100).fate


def test_fates_of_data() -> None:
    assert verdict_of(header(5)) is Fate.KEEP_IF_ANY
    assert verdict_of(header(5, pid=1), discardable=True) is Fate.DROP
    assert verdict_of(header(99)) is Fate.KEEP_EMPTY
    assert verdict_of(header(5, pid=1, count=3), last={1: LastRecord(7, 0)}) is Fate.KEEP_EMPTY
    assert verdict_of(header(5, pid=1, count=3), last={1: LastRecord(8, 0)}) is Fate.KEEP_IF_ANY
    aborted = judge(
        header(5, pid=1), discardable=True, now_ms=0, last_records={1: LastRecord(5, 0)}, end_offset=100
    )
    assert aborted.fate is Fate.KEEP_EMPTY
    assert aborted.drop_records


def test_fates_of_markers() -> None:
    flags = CONTROL_FLAG | TRANSACTIONAL_FLAG
    fresh = judge(
        header(5, pid=1, flags=flags), discardable=True, now_ms=5000, last_records={}, end_offset=100
    )
    assert fresh == (Fate.KEEP_IF_ANY, False, True)
    stamped = header(5, pid=1, flags=flags | DELETE_HORIZON_FLAG)
    assert verdict_of(stamped, discardable=True) is Fate.DROP
    assert verdict_of(stamped, discardable=False) is Fate.KEEP_IF_ANY
    fence = {1: LastRecord(-1, 0)}
    assert verdict_of(stamped, discardable=True, last=fence) is Fate.KEEP_EMPTY
    assert verdict_of(stamped, discardable=True, last={1: LastRecord(-1, 1)}) is Fate.DROP


def test_horizons_are_stamped_once() -> None:
    config = replace(COMPACT, delete_retention_ms=70)
    calm = judge(header(5), discardable=False, now_ms=10, last_records={}, end_offset=100)
    assert new_horizon(header(5), calm, keeps_tombstone=False, now_ms=10, config=config) is None
    assert new_horizon(header(5), calm, keeps_tombstone=True, now_ms=10, config=config) == 80
    stamped = header(5, flags=DELETE_HORIZON_FLAG)
    assert new_horizon(stamped, calm, keeps_tombstone=True, now_ms=10, config=config) is None
    marker = header(5, pid=1, flags=CONTROL_FLAG)
    ended = judge(marker, discardable=True, now_ms=10, last_records={}, end_offset=100)
    assert new_horizon(marker, ended, keeps_tombstone=False, now_ms=10, config=config) == 80


def test_transactions_are_followed_through_the_log() -> None:
    data, control = TRANSACTIONAL_FLAG, TRANSACTIONAL_FLAG | CONTROL_FLAG
    entry = AbortedTransaction(1, 10, 14, 15)
    walk = Transactions([entry, AbortedTransaction(3, 30, 31, 32)])
    assert not walk.is_aborted(header(5, pid=1, flags=data))
    assert not walk.is_needless(header(6, pid=1, flags=control), COMMIT)
    assert walk.is_needless(header(7, pid=1, flags=control), COMMIT)
    assert walk.is_aborted(header(10, pid=1, flags=data))
    assert not walk.is_aborted(header(11, pid=2, flags=data))
    assert not walk.is_aborted(header(12, pid=1))
    assert not walk.is_needless(header(14, pid=1, flags=control), ABORT)
    assert not walk.is_aborted(header(15, pid=1, flags=data))
    assert walk.is_needless(header(31, pid=3, flags=control), ABORT)
    assert walk.is_needless(header(33, pid=4, flags=control), None)
    assert walk.kept == [entry]
