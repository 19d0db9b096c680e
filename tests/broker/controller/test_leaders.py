"""What a partition's state should be, given who is here: one case per line, state in, state out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.leaders import (
    LiveBrokers,
    Policy,
    after_return,
    policy_of,
    reconcile,
    waits_for_positions,
    with_isr,
    with_preferred,
)
from ottla_broker.metadata.image import PartitionImage, TopicImage
from ottla_core.ids import NO_BROKER, TopicId

TWO = Policy(min_insync=2)


def state(
    leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = (), torn: tuple[int, ...] = ()
) -> PartitionImage:
    return PartitionImage((1, 2, 3), leader, 7, isr, elr, revision=9, torn=torn)


def here(*alive: int, stopping: tuple[int, ...] = ()) -> LiveBrokers:
    return LiveBrokers(frozenset(alive), frozenset(stopping))


def shown(made: PartitionImage | None) -> tuple[int, tuple[int, ...], tuple[int, ...], int] | None:
    return None if made is None else (made.leader, made.isr, made.elr, made.leader_epoch)


# ---------------------------------------------------------------------- lost


def test_nothing_is_written_when_all_are_here() -> None:
    assert reconcile(state(1, (1, 2, 3)), here(1, 2, 3), TWO) is None
    assert reconcile(state(1, (1, 2)), here(1, 2), TWO) is None  # 3 is away, and was not counted on


def test_a_lost_leader_is_replaced_and_leaves_in_the_same_write() -> None:
    assert shown(reconcile(state(1, (1, 2, 3)), here(2, 3), TWO)) == (2, (2, 3), (), 8)


def test_a_lost_follower_leaves_under_the_same_epoch() -> None:
    assert shown(reconcile(state(1, (1, 2, 3)), here(1, 2), TWO)) == (1, (1, 2), (), 7)


def test_a_lost_follower_of_too_small_a_set_stays_eligible() -> None:
    assert shown(reconcile(state(1, (1, 2)), here(1), TWO)) == (1, (1,), (2,), 7)
    assert shown(reconcile(state(1, (1, 2), (3,)), here(1), Policy(3))) == (1, (1,), (2, 3), 7)


def test_no_replica_leads_that_was_not_in_sync() -> None:
    assert shown(reconcile(state(1, (1,)), here(2, 3), TWO)) == (NO_BROKER, (1,), (), 8)
    waiting = state(NO_BROKER, (1,))
    assert reconcile(waiting, here(2, 3), TWO) is None
    assert reconcile(waiting, here(), TWO) is None
    assert shown(reconcile(waiting, here(1, 2), TWO)) == (1, (1,), (), 8)
    assert shown(reconcile(waiting, here(2, 3), Policy(2, unclean=True))) == (2, (2,), (), 8)


# ---------------------------------------------------------------------- stopping


def test_a_stopping_broker_hands_over_and_leaves_the_isr() -> None:
    assert shown(reconcile(state(1, (1, 2, 3)), here(1, 2, 3, stopping=(1,)), TWO)) == (2, (2, 3), (), 8)
    assert shown(reconcile(state(2, (1, 2, 3)), here(1, 2, 3, stopping=(1,)), TWO)) == (2, (2, 3), (), 7)


def test_a_stopping_broker_stays_in_the_isr_while_too_few_remain() -> None:
    assert shown(reconcile(state(1, (1, 2)), here(1, 2, 3, stopping=(1,)), TWO)) == (2, (1, 2), (), 8)
    assert reconcile(state(2, (1, 2)), here(1, 2, 3, stopping=(1,)), TWO) is None


def test_the_only_one_in_sync_leads_until_it_is_gone() -> None:
    assert reconcile(state(1, (1,)), here(1, 2, 3, stopping=(1,)), TWO) is None
    assert reconcile(state(1, (1, 2)), here(1, 2, stopping=(1, 2)), TWO) is None
    assert shown(reconcile(state(3, (1, 3)), here(1, 2, stopping=(1,)), TWO)) == (1, (1,), (3,), 8)


# ---------------------------------------------------------------------- coming back


def test_a_whole_one_keeps_its_place_but_not_its_leadership() -> None:
    assert shown(after_return(state(1, (1, 2)), {1}, (), here(1, 2), TWO)) == (2, (1, 2), (), 8)
    assert after_return(state(2, (1, 2)), {1}, (), here(1, 2), TWO) is None
    assert shown(after_return(state(1, (1,)), {1}, (), here(1, 2), TWO)) == (1, (1,), (), 8)


def test_a_torn_one_leaves_what_another_leads() -> None:
    assert shown(after_return(state(2, (1, 2), (3,)), {1}, {1}, here(1, 2), TWO)) == (2, (2,), (3,), 7)
    assert shown(after_return(state(2, (2,), (1,)), {1}, {1}, here(1, 2), TWO)) == (2, (2,), (), 7)


def test_a_torn_replica_stays_eligible_while_no_whole_one_is_online() -> None:
    made = after_return(state(NO_BROKER, (1, 2)), {1}, {1}, here(1), TWO)
    assert made is not None and (made.leader, made.isr, made.torn) == (NO_BROKER, (1, 2), (1,))
    assert after_return(made, {3}, (), here(1, 3), TWO) is None
    assert waits_for_positions(made, {1, 2}) == ()
    both = after_return(made, {2}, {2}, here(1, 2), TWO)
    assert both is not None and both.torn == (1, 2) and both.leader == NO_BROKER
    assert waits_for_positions(both, {1, 2}) == (1, 2) and waits_for_positions(both, {1}) == ()
    assert reconcile(both, here(1, 2), TWO) is None
    assert shown(reconcile(both, here(1, 2), TWO, {1: (7, 3), 2: (7, 4)})) == (
        2,
        (2,),
        (),
        both.leader_epoch + 1,
    )


def test_all_that_return_together_are_counted_together() -> None:
    everyone = here(1, 2, 3)
    made = after_return(state(2, (1, 2, 3)), {1, 2, 3}, (), everyone, TWO)
    assert shown(made) == (1, (1, 2, 3), (), 8)


# ---------------------------------------------------------------------- preferred leaders, settings


def test_only_a_first_replica_in_sync_and_here_to_stay_gets_its_leadership_back() -> None:
    assert shown(with_preferred(state(2, (1, 2)), here(1, 2))) == (1, (1, 2), (), 8)
    for partition, who in [
        (state(1, (1, 2)), here(1, 2)),
        (state(2, (2, 3)), here(1, 2, 3)),
        (state(2, (1, 2)), here(2)),
        (state(2, (1, 2)), here(1, 2, stopping=(1,))),
        (state(NO_BROKER, (1, 2)), here(1, 2)),
        (PartitionImage(()), here(1)),
    ]:
        assert with_preferred(partition, who) is None


def test_a_replica_without_committed_records_never_enters_the_elr() -> None:
    assert shown(with_isr(state(1, (1, 2, 3)), (1,), 2)) == (1, (1,), (2, 3), 7)
    assert shown(with_isr(state(1, (1, 2, 3)), (1,), 2, lacking=(2,))) == (1, (1,), (3,), 7)
    assert shown(with_isr(state(1, (1,), (2,)), (1, 3), 2)) == (1, (1, 3), (), 7)


def test_settings_come_from_the_topic_else_from_the_broker() -> None:
    def topic(**config: str) -> TopicImage:
        return TopicImage("t", TopicId(int=1), {k.replace("_", "."): v for k, v in config.items()}, ())

    broker = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    assert policy_of(topic(), {}) == (1, False)
    assert policy_of(topic(), broker) == (2, True)
    own = topic(min_insync_replicas="3", unclean_leader_election_enable="false")
    assert policy_of(own, broker) == (3, False)


sets = st.sets(st.integers(1, 4))


@given(sets, sets, sets, sets, st.integers(1, 3), st.integers(-1, 4))
def test_what_always_holds(
    isr: set[int], elr: set[int], alive: set[int], stopping: set[int], least: int, leader: int
) -> None:
    leader = leader if leader in isr else NO_BROKER
    before = PartitionImage((1, 2, 3, 4), leader, 7, tuple(sorted(isr)), tuple(sorted(elr - isr)))
    who = LiveBrokers(frozenset(alive), frozenset(stopping & alive))
    made = reconcile(before, who, Policy(least))
    if made is None:
        assert leader in alive or leader == NO_BROKER
        if leader in alive:
            assert isr <= alive
        return
    assert set(made.isr) | set(made.elr) <= isr | elr
    assert set(made.isr) | set(made.elr) | set(made.dropped) == isr | elr
    assert made.leader in alive or made.leader == NO_BROKER
    assert made.leader in made.isr or made.leader == NO_BROKER
    # One write is enough: what it makes is fine.
    assert reconcile(made, who, Policy(least)) is None
    assert (made.leader_epoch > 7) == (made.leader != leader)
    if made.leader != NO_BROKER:
        assert set(made.isr) <= alive
        # Nobody who may hold a committed record is forgotten while too few are in sync.
        assert len(made.isr) >= least or set(made.isr) | set(made.elr) == isr | elr
