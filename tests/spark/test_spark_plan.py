"""Micro-batch limits, lost data, cutting of ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_core.ids import TopicPartition
from pyspark_ottla.offsets import Position
from pyspark_ottla.plan import (
    OffsetRange,
    first_of,
    from_beginning,
    limited,
    losses_until,
    next_end,
    not_before,
    ranges_between,
    split,
    waits_for_more,
)

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


OLD, NEW = {"t": "id-1"}, {"t": "id-2"}


def test_the_end_of_the_first_micro_batch_keeps_its_start() -> None:
    """Spark asks for the start again, also after a restart, and then gets a later one."""
    end = next_end(Position({A: 5}, OLD, initial=True), Position({A: 9}, OLD), {}, None)
    assert end == Position({A: 9}, OLD, started_at={A: 5})
    assert first_of(Position({A: 30}, OLD, initial=True), end) == Position({A: 5}, OLD)
    assert first_of(end, Position({A: 12}, OLD)) == end


def test_a_start_after_the_goal_of_available_now_moves_the_goal() -> None:
    start = Position({A: 50, B: 3}, OLD, initial=True)
    assert not_before(Position({A: 40, B: 9}, OLD), start) == Position({A: 50, B: 9}, OLD)
    # Offsets of another topic have nothing to do with each other.
    assert not_before(Position({A: 40}, NEW), start) == Position({A: 40}, NEW)


def test_a_first_micro_batch_that_was_logged_without_its_start_is_read_as_far_as_is_known() -> None:
    start = Position({A: 50, B: 2}, OLD, initial=True)
    assert first_of(start, Position({A: 40, B: 9})) == Position({A: 40, B: 2}, OLD)


def test_the_same_end_is_the_same_text() -> None:
    start = Position({A: 5}, OLD, started_at={A: 1})
    assert next_end(start, Position({A: 5}, OLD), {}, None) is start
    # A checkpoint without ids gets them with the next micro-batch.
    assert next_end(Position({A: 5}), Position({A: 5}, OLD), {}, None) == Position({A: 5}, OLD)


def test_a_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    start, latest = Position({A: 50}, OLD), Position({A: 150}, NEW)
    assert from_beginning(start, latest) == [A]
    assert next_end(start, latest, {A: 0}, 10) == Position({A: 10}, NEW)
    checked = ranges_between(start, latest, Position({A: 0}, NEW))
    assert checked.ranges == [OffsetRange(A, 0, 150, "id-2")]
    assert checked.losses == ["Topic 't' was deleted and created again since it was last read."]


def test_what_was_planned_of_a_topic_that_is_gone_is_lost() -> None:
    start, end = Position({A: 5, B: 7}, OLD), Position({A: 9, B: 7}, OLD)
    again = ranges_between(start, end, Position({A: 0, B: 0}, NEW))
    assert again.ranges == []
    assert again.losses == ["Partition t-0 cannot be read up to offset 9: it was deleted and created again."]
    deleted = ranges_between(start, end, Position({}))
    assert deleted.ranges == []
    assert deleted.losses == ["Partition t-0 cannot be read up to offset 9: it no longer exists."]


def test_without_an_id_no_topic_counts_as_created_again() -> None:
    assert losses_until(Position({A: 5}), Position({A: 9}, NEW)) == []
    checked = ranges_between(Position({A: 5}), Position({A: 9}, NEW), Position({A: 0}, NEW))
    assert checked.ranges == [OffsetRange(A, 5, 9, "id-2")]


def test_ranges_skip_what_has_nothing_and_start_new_partitions_at_their_beginning() -> None:
    now = Position({A: 0, B: 0, C: 0}, OLD)
    checked = ranges_between(Position({A: 5, B: 7}, OLD), Position({A: 9, B: 7, C: 4}, OLD), now)
    assert checked.ranges == [OffsetRange(A, 5, 9, "id-1"), OffsetRange(C, 0, 4, "id-1")]
    assert checked.losses == []


def test_each_kind_of_loss_has_a_sentence_and_the_rest_is_read() -> None:
    checked = ranges_between(Position({A: 5, B: 70}), Position({A: 9, C: 4}), Position({A: 7, C: 1}))
    assert checked.ranges == [OffsetRange(A, 7, 9), OffsetRange(C, 1, 4)]
    assert checked.losses == [
        "Partition t-1, read up to offset 70, no longer exists.",
        "Offsets 5 to 6 of t-0 have expired: the earliest offset is 7.",
        "Partition t-2 was added, but its first 1 offsets have expired already.",
    ]


def test_an_end_before_the_start_is_a_loss_and_no_new_topic_is_guessed_from_it() -> None:
    known = ranges_between(Position({A: 100}, OLD), Position({A: 20}, OLD), Position({A: 0}, OLD))
    assert known.ranges == []
    assert known.losses == [
        "Partition t-0 ends at offset 20, before offset 100 where reading stopped: records at its end were lost."
    ]
    (unknown,) = ranges_between(Position({A: 100}), Position({A: 20}), Position({A: 0})).losses
    assert unknown.endswith("records at its end were lost, or the topic was deleted and created again.")


def test_what_has_expired_altogether_is_lost_and_not_read() -> None:
    checked = ranges_between(Position({A: 5}), Position({A: 9}), Position({A: 30}))
    assert checked.ranges == []
    assert checked.losses == ["Offsets 5 to 8 of t-0 have expired: the earliest offset is 30."]


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


def test_a_micro_batch_waits_for_enough_records_but_not_too_long() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    start, latest = Position({a: 5, b: 5}, {"t": "1"}), Position({a: 7, b: 6}, {"t": "1"})
    assert waits_for_more(start, latest, 4, 0.0, 10.0)
    assert not waits_for_more(start, latest, 3, 0.0, 10.0), "there are three"
    assert not waits_for_more(start, latest, None, 0.0, 10.0)
    assert not waits_for_more(start, latest, 4, 10.0, 10.0), "the delay is over"
    assert not waits_for_more(start, Position({a: 7, b: 6}, {"t": "2"}), 4, 0.0, 10.0), "another topic"
    assert not waits_for_more(Position({a: 5}, {"t": "1"}), latest, 4, 0.0, 10.0), "a new partition"
