"""Moves that wait for their turn: who begins, and a walk of many partitions that never exceeds the limit and ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.leaders import LiveBrokers
from ottla_broker.controller.move_queue import begun
from ottla_broker.controller.reassignment import announced, cancelled, next_step, wished
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.move_config import MOVES_MAX, check_moves, moves_limit
from ottla_core.errors import InvalidConfig
from ottla_core.ports.store import Entry

ALL = LiveBrokers(frozenset(range(1, 8)))
AT_HOME = PartitionImage((1, 2), leader=1, leader_epoch=5, isr=(1, 2))


def waiting(*target: int, at: PartitionImage = AT_HOME) -> PartitionImage:
    state = wished(at, target)
    assert state is not None and state.planned == target
    return state


def test_a_move_that_copies_waits_and_changes_nothing_else() -> None:
    assert replace(waiting(3, 2), planned=()) == AT_HOME
    assert wished(waiting(3, 2), (3, 2)) is None


def test_a_move_that_copies_nothing_begins_at_once() -> None:
    reordered = wished(AT_HOME, (2, 1))
    assert reordered is not None and (reordered.replicas, reordered.planned) == ((2, 1), ())
    fewer = wished(waiting(3, 2), (1,))
    assert fewer is not None and (fewer.removing, fewer.planned) == ((2,), ())


def test_no_more_begin_than_a_broker_may_copy() -> None:
    moves = {n: waiting(3, 2) for n in range(3)} | {9: waiting(4, 2)}
    first = begun(moves, lambda broker: 2)
    assert sorted(first) == [0, 1, 9]
    assert first[0].adding == (3,) and first[0].planned == ()
    assert begun(moves | first, lambda broker: 2) == {}
    arrived = replace(first[0], isr=(1, 2, 3))
    assert sorted(begun(moves | first | {0: arrived}, lambda broker: 2)) == [2]


def test_a_move_with_two_copies_needs_both_places() -> None:
    busy = begun({0: waiting(3, 2)}, lambda broker: 1)[0]
    assert begun({0: busy, 1: waiting(3, 4)}, lambda broker: 1) == {}


def test_without_a_leader_nothing_begins_and_nothing_counts() -> None:
    lost = replace(AT_HOME, leader=-1)
    assert begun({0: waiting(3, 2, at=lost)}, lambda broker: 1) == {}
    stuck = replace(begun({0: waiting(3, 2)}, lambda broker: 1)[0], leader=-1)
    assert list(begun({0: stuck, 1: waiting(3, 2)}, lambda broker: 1)) == [1]


def test_another_target_waits_behind_the_move_that_it_replaces() -> None:
    moving = begun({0: waiting(3, 2)}, lambda broker: 1)[0]
    redirected = waiting(4, 2, at=moving)
    assert redirected.target == (3, 2) and redirected.wanted == (4, 2)
    full = begun({1: waiting(4, 1)}, lambda broker: 1)
    assert begun({0: redirected} | full, lambda broker: 1) == {}
    after = begun({0: redirected}, lambda broker: 1)[0]
    assert (after.target, after.removing, after.planned) == ((4, 2), (3, 1), ()) or set(after.removing) == {
        1,
        3,
    }
    undone = wished(redirected, (3, 2))
    assert undone == moving, "back to what is under way"


def test_a_waiting_move_is_cancelled_without_a_trace() -> None:
    assert cancelled(waiting(3, 2)) == AT_HOME
    moving = begun({0: waiting(3, 2)}, lambda broker: 1)[0]
    back = cancelled(waiting(4, 2, at=moving))
    assert back is not None and set(back.target) == {1, 2} and back.planned == ()


def test_clients_see_what_a_waiting_move_will_do() -> None:
    shown = announced(waiting(3, 2))
    assert (shown.target, shown.adding, shown.removing) == ((3, 2), (3,), (1,))
    assert announced(AT_HOME) is AT_HOME


def test_it_is_written_down() -> None:
    key = partition_key(UUID(int=1), 0)
    stored = PARTITIONS.decode(Entry(key, PARTITIONS.encode(waiting(3, 2)), 1, 7))
    assert stored.planned == (3, 2)


def test_the_limit_of_one_broker_counts_before_that_of_all() -> None:
    limit = moves_limit({"": {MOVES_MAX: "3"}, "2": {MOVES_MAX: "7"}, "4": {"other": "1"}}, 10)
    assert (limit(1), limit(2), limit(4)) == (3, 7, 3)
    assert moves_limit({}, 10)(1) == 10
    for wrong in ("0", "many", "1001"):
        with pytest.raises(InvalidConfig):
            check_moves({MOVES_MAX: wrong})


BROKERS = st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True).map(tuple)
NUMBERS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("move"), NUMBERS, BROKERS),
        st.tuples(st.just("cancel"), NUMBERS, st.just(())),
        st.tuples(st.just("arrive"), NUMBERS, st.just(())),
        st.tuples(st.just("begin"), NUMBERS, st.just(())),
    ),
    max_size=40,
)


def arrived(state: PartitionImage) -> PartitionImage:
    """Its copies are in sync, the leader hands over and removes the others."""
    isr = (*state.isr, *(r for r in state.copying if r not in state.isr))
    state = next_step(replace(state, isr=isr), ALL) or replace(state, isr=isr)
    if state.is_moving and state.leader in state.target and state.has_caught_up:
        state = replace(state, isr=tuple(r for r in state.isr if r in state.target))
    return next_step(state, ALL) or state


@given(st.lists(BROKERS, min_size=5, max_size=5), st.integers(1, 3), STEPS)
def test_any_walk_keeps_to_the_limit_and_ends(
    homes: list[tuple[int, ...]], limit: int, steps: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    states = {n: PartitionImage(home, leader=home[0], isr=home) for n, home in enumerate(homes)}
    wanted = dict(enumerate(homes))

    def check() -> None:
        copies = Counter(broker for state in states.values() for broker in state.copying)
        assert all(count <= limit for count in copies.values()), copies

    for kind, n, target in steps:
        if kind == "move":
            states[n], wanted[n] = wished(states[n], target) or states[n], target
        elif kind == "cancel":
            states[n], wanted[n] = cancelled(states[n]) or states[n], states[n].original
        elif kind == "arrive":
            states[n] = arrived(states[n])
        else:
            states |= begun(states, lambda broker: limit)
        check()
    for _ in range(60):
        states |= begun(states, lambda broker: limit)
        check()
        states = {n: arrived(state) for n, state in states.items()}
    assert {n: set(state.replicas) for n, state in states.items()} == {n: set(r) for n, r in wanted.items()}
    assert not any(state.is_moving or state.planned for state in states.values())
