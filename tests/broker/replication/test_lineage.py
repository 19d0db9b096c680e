"""Two logs by their epochs: a follower that does what it is told ends as a beginning of its leader's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.replication.lineage import EpochEnd, agrees, cut_for, end_of, last_epoch, leading
from ottla_core.ids import NO_EPOCH

Model = list[int]  # The epoch of each record, by offset.


def lineage_of(log: Model) -> list[tuple[int, int]]:
    return [(e, at) for at, e in enumerate(log) if at == 0 or log[at - 1] != e]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Model, Model]:
    """A leader and a follower whose logs came to be by elections: each epoch is written by one of them."""
    logs: tuple[Model, Model] = ([], [])
    for epoch in range(draw(st.integers(1, 6))):
        writer = draw(st.integers(0, 1))
        own, other = logs[writer], logs[1 - writer]
        own.extend([epoch] * draw(st.integers(0, 4)))
        if draw(st.booleans()):
            # The other follows for a while: it becomes a beginning of the writer's log.
            other[:] = own[: draw(st.integers(0, len(own)))]
    return logs


@given(histories())
def test_following_the_leader_ends_in_a_common_beginning(logs: tuple[Model, Model]) -> None:
    leader, follower = logs
    entries = leading(lineage_of(leader), 99, len(leader))
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    for _ in range(20):
        own = lineage_of(follower)
        told = agrees(entries, len(leader), last_epoch(own, len(follower)), len(follower))
        if told is None:
            break
        cut = cut_for(own, told, len(follower))
        assert cut < len(follower), "every answer makes the log shorter"
        del follower[cut:]
    else:
        raise AssertionError("it did not end")
    assert follower == leader[: len(follower)]
    assert len(follower) == common, "nothing was thrown away that both had"


def test_the_end_of_an_epoch_is_where_the_next_one_began() -> None:
    entries = [(2, 10), (5, 20), (7, 30)]
    assert end_of(entries, 5, 40) == EpochEnd(5, 30)
    assert end_of(entries, 6, 40) == EpochEnd(5, 30)
    assert end_of(entries, 9, 40) == EpochEnd(7, 40)
    # Kafka says the same of an epoch from before retention: it ended where the first known one began.
    assert end_of(entries, 1, 40) == EpochEnd(1, 10)


def test_a_leader_that_wrote_nothing_yet_still_ends_the_epoch_before() -> None:
    entries = leading([(2, 10)], 7, 15)
    assert end_of(entries, 6, 15) == EpochEnd(2, 15)
    assert leading([(7, 15)], 7, 20) == [(7, 15)]


def test_an_epoch_that_wrote_nothing_is_not_the_last_one() -> None:
    assert last_epoch([(2, 0), (3, 8)], 8) == 2
    assert last_epoch([(2, 0), (3, 8)], 9) == 3
    assert last_epoch([], 5) == NO_EPOCH


def test_an_empty_log_agrees_unless_it_is_ahead() -> None:
    assert agrees([(1, 0)], 10, NO_EPOCH, 10) is None
    assert agrees([(1, 0)], 10, NO_EPOCH, 11) == EpochEnd(NO_EPOCH, 10)
    assert cut_for([], EpochEnd(NO_EPOCH, 10), 11) == 10
