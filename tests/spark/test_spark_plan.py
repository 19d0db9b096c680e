"""Micro-batch limits, lost data, cutting of ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_core.ids import TopicPartition
from pyspark_ottla.plan import OffsetRange, limited, ranges_between, split

A, B, C = (TopicPartition("t", n) for n in range(3))
sizes = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)


@given(sizes, st.integers(1, 20_000))
def test_a_limit_is_used_up_and_never_passed(waiting: list[int], limit: int) -> None:
    start = {TopicPartition("t", n): 100 * n for n in range(len(waiting))}
    end = {tp: start[tp] + waiting[tp.partition] for tp in start}
    reached = limited(start, end, limit)
    assert all(start[tp] <= reached[tp] <= end[tp] for tp in start)
    assert sum(reached[tp] - start[tp] for tp in start) == min(limit, sum(waiting))


@given(sizes, st.integers(1, 50))
def test_batches_with_a_limit_reach_the_end(waiting: list[int], limit: int) -> None:
    waiting = [size % 200 for size in waiting]
    at = {TopicPartition("t", n): 0 for n in range(len(waiting))}
    end = {tp: waiting[tp.partition] for tp in at}
    for _ in range(sum(waiting) // limit + 1):
        at = limited(at, end, limit)
    assert at == end


def test_a_small_partition_does_not_starve_beside_a_large_one() -> None:
    assert limited({A: 0, B: 0}, {A: 1_000_000, B: 3}, 10) == {A: 9, B: 1}


def test_without_a_limit_all_is_read() -> None:
    assert limited({A: 5}, {A: 50}, None) == {A: 50}


def test_ranges_skip_what_has_nothing_and_start_new_partitions_at_their_beginning() -> None:
    checked = ranges_between({A: 5, B: 7}, {A: 9, B: 7, C: 4}, {A: 0, B: 0, C: 0})
    assert checked.ranges == [OffsetRange(A, 5, 9), OffsetRange(C, 0, 4)]
    assert checked.losses == []


def test_each_kind_of_loss_has_a_sentence_and_the_rest_is_read() -> None:
    checked = ranges_between({A: 5, B: 70}, {A: 9, C: 4}, {A: 7, C: 1})
    assert checked.ranges == [OffsetRange(A, 7, 9), OffsetRange(C, 1, 4)]
    assert checked.losses == [
        "Partition t-1, read up to offset 70, does not exist any more.",
        "Offsets 5 to 6 of t-0 have expired: the oldest record left is at 7.",
        "Partition t-2 was added, but its first 1 offsets have expired already.",
    ]
    again = ranges_between({A: 100}, {A: 20}, {A: 0})
    assert again.ranges == []
    assert "deleted and made anew" in again.losses[0]


def test_what_has_expired_altogether_is_lost_and_not_read() -> None:
    checked = ranges_between({A: 5}, {A: 9}, {A: 30})
    assert checked.ranges == []
    assert checked.losses == ["Offsets 5 to 8 of t-0 have expired: the oldest record left is at 30."]


@given(sizes, st.integers(1, 40), st.none() | st.integers(1, 3000))
def test_cut_ranges_join_to_the_whole(waiting: list[int], parts: int, most: int | None) -> None:
    whole = [OffsetRange(TopicPartition("t", n), 10, 10 + size) for n, size in enumerate(waiting) if size]
    cut = split(whole, parts, most)
    assert all(each.size > 0 for each in cut)
    if most is not None:
        assert all(each.size <= most for each in cut)
    joined: dict[TopicPartition, tuple[int, int]] = {}
    for each in cut:
        first, last = joined.get(each.tp, (each.start, each.start))
        assert last == each.start
        joined[each.tp] = (first, each.end)
    assert joined == {each.tp: (each.start, each.end) for each in whole}


def test_large_partitions_are_cut_in_proportion() -> None:
    cut = split([OffsetRange(A, 0, 900), OffsetRange(B, 0, 100)], 10)
    assert [each.tp for each in cut].count(A) == 9
    assert cut[-1] == OffsetRange(B, 0, 100)
