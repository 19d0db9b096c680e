"""Moving a partition: the state of each step, and a walk of random steps that always ends where it should."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.leaders import LiveBrokers
from ottla_broker.controller.reassignment import cancelled, next_step, toward
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.replication.effects import ProposeIsr
from ottla_broker.replication.leader import Leader

ALL = LiveBrokers(frozenset(range(1, 8)))
AT_HOME = PartitionImage((1, 2, 3), leader=1, leader_epoch=5, isr=(1, 2, 3))


def moving(partition: PartitionImage, *target: int) -> PartitionImage:
    moved = toward(partition, target)
    assert moved is not None
    return moved


def test_a_move_names_what_it_adds_and_removes() -> None:
    moved = moving(AT_HOME, 4, 3, 5)
    assert moved.replicas == (4, 3, 5, 1, 2)
    assert (moved.adding, moved.removing) == ((4, 5), (1, 2))
    assert moved.target == (4, 3, 5)
    assert set(moved.original) == {1, 2, 3}
    assert moved.isr == AT_HOME.isr and moved.leader == 1, "nothing changes for writers"


def test_the_same_target_again_changes_nothing() -> None:
    assert toward(AT_HOME, (1, 2, 3)) is None
    assert toward(moving(AT_HOME, 4, 5), (4, 5)) is None


def test_another_order_is_complete_at_once() -> None:
    moved = moving(AT_HOME, 3, 1, 2)
    assert moved.replicas == (3, 1, 2) and not moved.is_moving


def test_nothing_is_removed_before_all_added_replicas_are_in_sync() -> None:
    moved = moving(AT_HOME, 4, 5, 6)
    assert next_step(replace(moved, isr=(1, 2, 3, 4, 5)), ALL) is None


def test_a_leader_that_leaves_hands_over_first() -> None:
    moved = replace(moving(AT_HOME, 4, 3), isr=(1, 2, 3, 4))
    step = next_step(moved, ALL)
    assert step is not None
    assert (step.leader, step.leader_epoch) == (4, 6)
    assert step.isr == moved.isr and step.is_moving


def test_leadership_goes_to_no_replica_that_is_offline_or_stopping() -> None:
    moved = replace(moving(AT_HOME, 4, 5, 6), isr=(1, 2, 3, 4, 5, 6))
    step = next_step(moved, LiveBrokers(frozenset({1, 2, 5, 6}), stopping=frozenset({5})))
    assert step is not None and step.leader == 6


def test_a_replica_that_still_counts_is_not_removed() -> None:
    moved = replace(moving(AT_HOME, 4, 3), isr=(3, 4), leader=4)
    for field in ("elr", "dropped"):
        assert next_step(replace(moved, **{field: (2,)}), ALL) is None
    done = next_step(moved, ALL)
    assert done is not None
    assert (done.replicas, done.adding, done.removing) == ((4, 3), (), ())
    assert done.leader_epoch == moved.leader_epoch + 1, "removed brokers that have not seen it are fenced"


def test_a_move_that_removes_nothing_keeps_the_epoch() -> None:
    moved = replace(moving(AT_HOME, 1, 2, 3, 4), isr=(1, 2, 3, 4))
    done = next_step(moved, ALL)
    assert done is not None and done.leader_epoch == moved.leader_epoch


def test_a_cancelled_move_goes_back() -> None:
    assert cancelled(AT_HOME) is None
    back = cancelled(moving(AT_HOME, 4, 5, 6))
    assert back is not None
    assert set(back.target) == {1, 2, 3} and set(back.removing) == {4, 5, 6}
    done = next_step(back, ALL)
    assert done is not None and set(done.replicas) == {1, 2, 3}


def test_a_redirected_move_can_still_be_cancelled() -> None:
    redirected = moving(moving(AT_HOME, 4, 5), 5, 6)
    assert redirected.target == (5, 6)
    assert set(redirected.original) == {1, 2, 3}
    assert set(redirected.removing) == {1, 2, 3, 4}
    assert not replace(redirected, isr=(1, 2, 3, 4)).has_caught_up
    assert replace(redirected, isr=(1, 5, 6)).has_caught_up, "broker 4 is no longer wanted"


def test_min_insync_is_that_of_the_smaller_side() -> None:
    grown = moving(PartitionImage((1,), leader=1, isr=(1,)), 1, 2, 3)
    assert grown.needed_in_sync(2) == 1, "it stays writable while the others copy"
    shrunk = moving(AT_HOME, 1)
    assert shrunk.needed_in_sync(2) == 1


def test_a_partition_that_copies_is_not_under_replicated() -> None:
    assert not moving(AT_HOME, 1, 2, 3, 4).is_under_replicated
    assert replace(moving(AT_HOME, 1, 2, 3, 4), isr=(1, 2)).is_under_replicated


def led(partition: PartitionImage, min_insync: int) -> PartitionImage:
    """What the partition's leader makes of it while all replicas are connected and have everything."""
    machine = Leader(
        partition.leader,
        partition,
        now=0.0,
        epoch_start=0,
        position=10,
        high_watermark=10,
        min_insync=min_insync,
        lag_max_s=30.0,
        admitted={},
    )
    for broker_id in partition.replicas:
        machine._positions[broker_id] = 10
    proposed = next((effect for effect in machine.begun() if isinstance(effect, ProposeIsr)), None)
    if proposed is None:
        return partition
    return replace(partition, isr=proposed.isr, elr=proposed.elr, dropped=())


BROKERS = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.just("lead"),
        st.just("plan"),
        st.just("cancel"),
        BROKERS,
        st.integers(1, 6),  # This broker falls out of the ISR.
    ),
    max_size=30,
)


@given(BROKERS, st.integers(1, 3), STEPS)
def test_any_walk_keeps_the_invariants_and_ends(
    home: tuple[int, ...], min_insync: int, steps: list[str | int | tuple[int, ...]]
) -> None:
    state = PartitionImage(home, leader=home[0], isr=home)
    wanted = home
    for step in steps:
        was = state
        if step == "lead":
            state = led(state, min_insync)
        elif step == "plan":
            state = next_step(state, ALL) or state
        elif step == "cancel":
            wanted = state.original
            state = cancelled(state) or state
        elif isinstance(step, tuple):
            wanted = step
            state = toward(state, step) or state
        elif isinstance(step, int) and step != state.leader:
            state = replace(state, isr=tuple(r for r in state.isr if r != step))
        assert state.leader in state.isr and set(state.isr) <= set(state.replicas)
        assert set(was.isr) - set(was.removing) <= set(state.isr) | {step}, "only removed replicas leave"
        if len(state.replicas) < len(was.replicas):
            assert set(state.isr) <= set(state.target)
            assert len(state.isr) >= min(min_insync, len(state.target)) or set(was.isr) == set(state.isr)
    for _ in range(20):
        state = led(state, min_insync)
        state = next_step(state, ALL) or state
    assert not state.is_moving
    assert set(state.replicas) == set(wanted)
    assert set(state.isr) == set(wanted)
