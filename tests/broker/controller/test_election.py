"""Who leads next: every case is events in, state out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.election import elect
from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER


def partition(isr: tuple[int, ...], elr: tuple[int, ...] = (), leader: int = 1) -> PartitionImage:
    return PartitionImage((1, 2, 3), leader, 7, isr, elr, revision=9)


def outcome(made: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return made.leader, made.isr, made.elr


def test_the_first_replica_in_the_isr_leads_with_a_new_epoch() -> None:
    made = elect(partition((3, 2, 1)), alive={1, 2, 3})
    assert outcome(made) == (1, (3, 2, 1), ()) and made.leader_epoch == 8 and made.revision == 9


def test_the_lost_leave_the_isr_in_the_same_write() -> None:
    assert outcome(elect(partition((1, 2, 3)), alive={2, 3})) == (2, (2, 3), ())


def test_a_replica_leaving_a_too_small_isr_goes_to_the_elr() -> None:
    assert outcome(elect(partition((1, 2, 3)), alive={3}, min_insync=2)) == (3, (3,), (1, 2))


def test_the_elr_stands_in_when_the_isr_is_away() -> None:
    assert outcome(elect(partition((1,), (3, 2)), alive={2, 3}, min_insync=2)) == (2, (2,), (1, 3))


def test_no_other_replica_is_ever_elected() -> None:
    made = elect(partition((1,)), alive={2, 3}, min_insync=2)
    assert outcome(made) == (NO_BROKER, (1,), ()) and made.leader_epoch == 8


def test_a_restarted_broker_leads_only_if_no_other_can() -> None:
    assert elect(partition((1, 2)), alive={1, 2}, reluctant={1}).leader == 2
    assert elect(partition((1,)), alive={1, 2}, reluctant={1}).leader == 1


def test_a_torn_replica_does_not_count() -> None:
    assert outcome(elect(partition((1, 2)), alive={1, 2, 3}, torn={1})) == (2, (2,), ())
    assert outcome(elect(partition((1,), (2,)), alive={1, 2}, torn={1}, min_insync=2)) == (2, (2,), ())


def test_a_torn_replica_is_not_taken_while_a_whole_one_may_come_back() -> None:
    made = elect(partition((1, 2)), alive={1}, torn={1})
    # It stays known, with its mark: if 2 turns out to be torn as well, the longer log of the two is to lead.
    assert outcome(made) == (NO_BROKER, (1, 2), ()) and made.torn == (1,)
    assert elect(made, alive={1}).leader == NO_BROKER
    back = elect(made, alive={1, 2})
    assert outcome(back) == (2, (2,), ()) and back.torn == ()
    both = elect(made, alive={1, 2}, torn={2})
    assert both.leader == NO_BROKER and set(both.torn) == {1, 2}
    assert elect(both, alive={1, 2}, positions={1: (7, 5), 2: (7, 4)}).leader == 1


def test_an_unclean_election_is_the_last_resort() -> None:
    assert outcome(elect(partition((1,)), alive={2, 3}, unclean=True)) == (2, (2,), ())
    assert elect(partition((1, 3)), alive={2, 3}, unclean=True).leader == 3
    # A torn copy of what was in sync is still nearer to the truth than another.
    made = elect(partition((1, 3)), alive={2, 3}, torn={3}, unclean=True)
    assert outcome(made) == (3, (3,), ()) and made.torn == ()
    assert elect(partition((1,)), alive=set(), unclean=True).leader == NO_BROKER


def test_the_only_replica_leads_even_if_torn() -> None:
    assert outcome(elect(partition((1,)), alive={1}, torn={1})) == (1, (1,), ())


def test_when_all_are_torn_the_longest_log_of_all_wins() -> None:
    both = partition((1, 2))
    torn = {1, 2}
    assert elect(both, alive={1}, torn=torn, positions={1: (3, 9)}).leader == NO_BROKER
    assert elect(both, alive={1, 2}, torn=torn, positions={1: (3, 9)}).leader == NO_BROKER
    made = elect(both, alive={1, 2}, torn=torn, positions={1: (3, 9), 2: (4, 1)})
    assert outcome(made) == (2, (2,), ())
    assert elect(both, alive={1, 2}, torn=torn, positions={1: (4, 1), 2: (4, 1)}).leader == 1


def test_dropped_replicas_are_considered_when_all_others_are_torn() -> None:
    # 1 was dead already when it was elected: power lost, its lease still alive.
    elected = elect(partition((1, 3), leader=3), alive={1, 2})
    assert outcome(elected) == (1, (1,), ()) and elected.dropped == (3,)
    torn = elect(elected, alive={1, 2}, torn={1})
    assert torn.leader == NO_BROKER and torn.isr == (1,) and torn.dropped == (3,)
    assert elect(torn, alive={1, 2}, positions={1: (7, 4)}).leader == NO_BROKER
    made = elect(torn, alive={1, 3}, positions={1: (7, 4), 3: (7, 9)})
    assert outcome(made) == (3, (3,), ()) and made.dropped == (1,)
    # What 1 wrote as a leader after all is newer than anything 3 has.
    assert elect(torn, alive={1, 3}, positions={1: (8, 4), 3: (7, 9)}).leader == 1


def test_a_dropped_replica_is_not_elected_while_a_whole_one_may_return() -> None:
    elected = elect(partition((1, 3), leader=3), alive={1, 2})
    assert elect(elected, alive={2, 3}).leader == NO_BROKER
    again = elect(elected, alive={1, 2, 3})
    assert outcome(again) == (1, (1,), ()) and again.dropped == (3,)


sets = st.sets(st.integers(1, 4))


@given(sets, sets, sets, sets, st.integers(1, 3))
def test_what_always_holds(
    isr: set[int], elr: set[int], alive: set[int], torn: set[int], min_insync: int
) -> None:
    before = PartitionImage((1, 2, 3, 4), 1, 7, tuple(isr), tuple(elr - isr))
    made = elect(before, alive=alive, torn=torn, min_insync=min_insync)
    safe = isr | elr
    assert made.leader_epoch == 8 and made.replicas == before.replicas
    assert set(made.isr) | set(made.elr) <= safe and not set(made.isr) & set(made.elr)
    assert set(made.isr) | set(made.elr) | set(made.dropped) == safe
    if made.leader != NO_BROKER:
        assert made.leader in safe & alive and made.leader in made.isr
        assert made.leader not in torn or safe <= torn
    elif safe - torn:
        # Somebody whole is away: what may still be elected later is not forgotten.
        assert not (safe - torn) & alive and set(made.isr) | set(made.elr) >= (isr - torn)
