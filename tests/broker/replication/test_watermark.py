"""The high watermark against its dumb twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.replication.watermark import UNKNOWN, committed, followed

BROKERS = st.integers(0, 4)
SETS = st.lists(BROKERS, max_size=5, unique=True).map(tuple)


def dumb(
    current: int,
    positions: dict[int, int],
    isr: tuple[int, ...],
    proposed: tuple[int, ...] | None,
    needed: int,
) -> int:
    """The design's sentence, word by word."""
    other = set(isr) if proposed is None else set(proposed)
    union, both = set(isr) | other, set(isr) & other
    if len(both) < needed or not union:
        return current
    return max(current, min(positions.get(b, UNKNOWN) for b in union))


@given(
    st.integers(0, 20),
    st.dictionaries(BROKERS, st.integers(0, 30)),
    SETS,
    st.none() | SETS,
    st.integers(1, 3),
)
def test_committed_is_what_the_rules_say(
    current: int,
    positions: dict[int, int],
    isr: tuple[int, ...],
    proposed: tuple[int, ...] | None,
    needed: int,
) -> None:
    assert committed(current, positions, isr, proposed, needed) == dumb(
        current, positions, isr, proposed, needed
    )


def test_an_unknown_position_holds_it_back() -> None:
    assert committed(3, {1: 10, 2: 9}, (1, 2, 3), None, 2) == 3
    assert committed(3, {1: 10, 2: 9, 3: 7}, (1, 2, 3), None, 2) == 7


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_follower_never_goes_back_nor_beyond_its_log(current: int, told: int, end: int) -> None:
    mark = followed(current, told, end)
    assert mark >= current
    assert mark <= max(current, min(told, end))
