"""Placement against a deliberately dumb twin, and against what it promises."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.placement import Site, place
from ottla_core.errors import InvalidPartitions, InvalidReplicationFactor


def dumb_place(
    brokers: list[int], partitions: int, factor: int, start: int, shift: int
) -> list[tuple[int, ...]]:
    """The same without arithmetic: rotate lists by hand."""
    order = sorted(brokers)
    for _ in range(start):
        order.append(order.pop(0))
    placed = []
    for done in range(1, partitions + 1):
        leader, others = order[0], order[1:]
        for _ in range(shift):
            if others:
                others.append(others.pop(0))
        placed.append((leader, *others[: factor - 1]))
        order.append(order.pop(0))
        if done % len(order) == 0:
            shift += 1
    return placed


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[int], int, int, int, int]:
    brokers = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=9, unique=True))
    factor = draw(st.integers(1, len(brokers)))
    return brokers, draw(st.integers(1, 60)), factor, draw(st.integers(0, 20)), draw(st.integers(0, 20))


@given(worlds())
def test_it_is_the_dumb_twin(world: tuple[list[int], int, int, int, int]) -> None:
    brokers, partitions, factor, start, shift = world
    placed = place([Site(b) for b in brokers], partitions, factor, start=start, shift=shift)
    assert placed == dumb_place(brokers, partitions, factor, start, shift)


@given(worlds())
def test_leaders_are_spread_evenly_and_replicas_differ(world: tuple[list[int], int, int, int, int]) -> None:
    brokers, partitions, factor, start, shift = world
    placed = place([Site(b) for b in brokers], partitions, factor, start=start, shift=shift)
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[b] for b in brokers]
    assert max(counts) - min(counts) <= 1


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=9),
    st.data(),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_racks_are_used_before_any_is_used_twice(
    racks: list[str], data: st.DataObject, start: int, shift: int
) -> None:
    sites = [Site(i, rack) for i, rack in enumerate(racks)]
    rack_of = dict(sites)
    factor = data.draw(st.integers(1, len(sites)))
    for replicas in place(sites, 30, factor, start=start, shift=shift):
        assert len(set(replicas)) == factor
        assert len({rack_of[r] for r in replicas}) == min(factor, len(set(racks)))


@given(worlds(), st.integers(1, 30))
def test_growing_goes_on_where_creation_stopped(
    world: tuple[list[int], int, int, int, int], more: int
) -> None:
    brokers, partitions, factor, start, shift = world
    sites = [Site(b) for b in brokers]
    whole = place(sites, partitions + more, factor, start=start, shift=shift)
    grown = place(sites, more, factor, start=start, shift=shift, first=partitions)
    assert place(sites, partitions, factor, start=start, shift=shift) + grown == whole


def test_a_dead_brokers_leaderships_fall_to_all_others() -> None:
    placed = place([Site(b) for b in range(4)], 24, 2, start=0, shift=0)
    assert Counter(second for first, second in placed if first == 0) == {1: 2, 2: 2, 3: 2}


def test_a_rack_that_is_not_known_turns_racks_off() -> None:
    sites = [Site(0, "a"), Site(1, "a"), Site(2, None)]
    assert place(sites, 3, 2, start=0, shift=0) == [(0, 1), (1, 2), (2, 0)]


def test_refusals_say_why() -> None:
    with pytest.raises(
        InvalidReplicationFactor, match=r"factor 3 asks for more brokers.*1 broker is available"
    ):
        place([Site(1)], 1, 3, start=0, shift=0)
    with pytest.raises(InvalidReplicationFactor, match="0 brokers are available"):
        place([], 1, 1, start=0, shift=0)
    with pytest.raises(InvalidReplicationFactor):
        place([Site(1)], 1, 0, start=0, shift=0)
    with pytest.raises(InvalidPartitions):
        place([Site(1)], 0, 1, start=0, shift=0)
