"""Which replica a consumer reads from (KIP-392)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.replication.selection import closest
from ottla_core.ids import NO_BROKER

RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}
ALL = {1: 10, 2: 10, 3: 10, 4: 10}


def test_the_follower_in_the_rack_is_chosen() -> None:
    assert closest("b", 5, 1, (1, 2, 3), ALL, RACKS) == 2
    assert closest("c", 10, 1, (1, 2, 3), ALL, RACKS) == 3


def test_the_leader_serves_its_own_rack_unknown_racks_and_consumers_without_one() -> None:
    assert closest("a", 5, 1, (1, 2, 3), ALL, RACKS) == NO_BROKER
    assert closest("elsewhere", 5, 1, (1, 2, 3), ALL, RACKS) == NO_BROKER
    assert closest("", 5, 1, (1, 2, 3), ALL, {**RACKS, 2: ""}) == NO_BROKER


def test_of_several_the_one_that_is_furthest_is_chosen() -> None:
    assert closest("b", 5, 1, (1, 2, 4), {**ALL, 2: 9}, RACKS) == 4
    assert closest("b", 5, 1, (1, 2, 4), ALL, RACKS) == 2


brokers = st.integers(1, 5)


@given(
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 5),
    brokers,
    st.sets(brokers),
    st.dictionaries(brokers, st.integers(-1, 5)),
    st.dictionaries(brokers, st.sampled_from(["a", "b"])),
)
def test_a_chosen_replica_is_in_sync_in_the_rack_and_has_the_offset(
    rack: str,
    offset: int,
    leader: int,
    isr: set[int],
    positions: dict[int, int],
    racks: dict[int, str],
) -> None:
    chosen = closest(rack, offset, leader, sorted(isr), positions, racks)
    if chosen != NO_BROKER:
        assert chosen in isr and chosen != leader
        assert racks[chosen] == rack != racks.get(leader)
        assert positions[chosen] >= offset
