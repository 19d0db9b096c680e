"""Assignors: every partition once, balanced, and sticky beside a twin that tries all there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_client.assignors import (
    Assignments,
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_for,
    wanted_partitions,
)
from ottla_client.group_protocol import Subscription
from ottla_core.assignors.sticky import Claim, balance
from ottla_core.ids import TopicPartition

ALL: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)
TOPICS = ("a", "b", "c")


@st.composite
def groups(draw: st.DrawFn, same_topics: bool = False) -> tuple[dict[str, int], list[GroupMember]]:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1))
    topics = st.lists(st.sampled_from(TOPICS), unique=True).map(tuple)
    shared = draw(topics)
    members = [
        GroupMember(
            f"m{number}",
            Subscription(shared if same_topics else draw(topics)),
            f"i{9 - number}" if draw(st.booleans()) else None,
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    return counts, draw(st.permutations(members))


def rejoined(assignor: Assignor, members: list[GroupMember], made: Assignments, at: int) -> list[GroupMember]:
    """The members with what they were given, as they would say it when they join again."""
    return [
        GroupMember(
            member.member_id,
            Subscription(
                member.subscription.topics,
                assignor.user_data(made.get(member.member_id, []), at),
                tuple(made.get(member.member_id, [])) if assignor.cooperative else (),
                at,
            ),
            member.instance_id,
        )
        for member in members
    ]


def settled(
    assignor: Assignor, counts: dict[str, int], members: list[GroupMember], at: int = 1
) -> Assignments:
    """The outcome after as many rebalances as it takes: two, for a cooperative one."""
    made = assignor.assign(counts, members)
    for generation in range(at, at + 3):
        again = assignor.assign(counts, rejoined(assignor, members, made, generation))
        if again == made:
            return made
        made = again
    raise AssertionError("it does not settle")


def check_each_once(counts: dict[str, int], members: list[GroupMember], made: Assignments) -> None:
    assert set(made) == {member.member_id for member in members}
    given_out = [tp for partitions in made.values() for tp in partitions]
    assert sorted(given_out) == sorted(wanted_partitions(counts, members))
    for member in members:
        assert {tp.topic for tp in made[member.member_id]} <= set(member.subscription.topics)


@pytest.mark.parametrize("assignor", ALL, ids=lambda each: each.name)
@settings(deadline=None, max_examples=examples(50))
@given(group=groups())
def test_every_partition_once_and_only_to_subscribers(
    assignor: Assignor, group: tuple[dict[str, int], list[GroupMember]]
) -> None:
    counts, members = group
    made = assignor.assign(counts, members)
    check_each_once(counts, members, made)
    assert made == assignor.assign(counts, list(reversed(members)))


@pytest.mark.parametrize("assignor", ALL[1:], ids=lambda each: each.name)
@settings(deadline=None, max_examples=examples(50))
@given(group=groups(same_topics=True))
def test_balanced_if_all_read_the_same(
    assignor: Assignor, group: tuple[dict[str, int], list[GroupMember]]
) -> None:
    sizes = [len(partitions) for partitions in assignor.assign(*group).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=examples(50))
@given(groups())
def test_no_single_move_makes_sticky_better(group: tuple[dict[str, int], list[GroupMember]]) -> None:
    counts, members = group
    made = StickyAssignor().assign(counts, members)
    for giver, taker in product(members, members):
        if any(tp.topic in taker.subscription.topics for tp in made[giver.member_id]):
            assert len(made[giver.member_id]) <= len(made[taker.member_id]) + 1


def test_range_gives_runs_and_round_robin_deals() -> None:
    members = [GroupMember(name, Subscription(("a", "b"))) for name in "xyz"]
    counts = {"a": 4, "b": 2}
    assert {k: [str(tp) for tp in v] for k, v in RangeAssignor().assign(counts, members).items()} == {
        "x": ["a-0", "a-1", "b-0"],
        "y": ["a-2", "b-1"],
        "z": ["a-3"],
    }
    assert {k: [str(tp) for tp in v] for k, v in RoundRobinAssignor().assign(counts, members).items()} == {
        "x": ["a-0", "a-3"],
        "y": ["a-1", "b-0"],
        "z": ["a-2", "b-1"],
    }


def test_static_members_keep_their_place_under_a_new_id() -> None:
    def members(first: str) -> list[GroupMember]:
        return [
            GroupMember(first, Subscription(("a",)), "one"),
            GroupMember("m", Subscription(("a",)), "two"),
        ]

    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        before, after = (assignor.assign({"a": 4}, members(first)) for first in ("aaa", "zzz"))
        assert before["aaa"] == after["zzz"]


# ---------------------------------------------------------------------- stickiness


def fewest_moves(counts: dict[str, int], claims: dict[str, Claim]) -> int:
    """The twin: tries every balanced assignment (all members read everything) for the one that moves least."""
    owner = {tp: member for member, claim in claims.items() for tp in claim.owned}
    partitions = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    best = len(partitions)
    for choice in product(claims, repeat=len(partitions)):
        sizes = [choice.count(member) for member in claims]
        if max(sizes) - min(sizes) <= 1:
            moves = sum(owner.get(tp, who) != who for tp, who in zip(partitions, choice, strict=True))
            best = min(best, moves)
    return best


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.data())
def test_as_few_moves_as_any_balanced_assignment(partitions: int, members: int, data: st.DataObject) -> None:
    counts = {"a": partitions}
    owners = data.draw(
        st.lists(st.integers(-1, members - 1), min_size=partitions, max_size=partitions), label="owners"
    )
    claims = {
        f"m{number}": Claim(
            frozenset(["a"]),
            tuple(TopicPartition("a", n) for n, own in enumerate(owners) if own == number),
            1,
        )
        for number in range(members)
    }
    made = balance(counts, claims)
    moves = sum(
        tp not in made[member] for member, claim in claims.items() for tp in claim.owned
    )  # fmt: skip
    assert moves == fewest_moves(counts, claims)


@pytest.mark.parametrize("assignor", ALL[2:], ids=lambda each: each.name)
@settings(deadline=None, max_examples=examples(50))
@given(group=groups(), data=st.data())
def test_few_partitions_move_when_a_member_joins_or_leaves(
    assignor: Assignor, group: tuple[dict[str, int], list[GroupMember]], data: st.DataObject
) -> None:
    counts, members = group
    before = settled(assignor, counts, members)
    known = rejoined(assignor, members, before, 5)
    if len(members) > 1 and data.draw(st.booleans()):
        changed = [member for member in known if member.member_id != members[0].member_id]
    else:
        changed = [*known, GroupMember("new", Subscription(tuple(TOPICS)))]
    after = settled(assignor, counts, changed, at=6)
    check_each_once(counts, changed, after)
    if len({member.subscription.topics for member in changed}) == 1:
        fair = -(-sum(map(len, after.values())) // len(changed))
        for member in changed:
            stayed = set(before.get(member.member_id, [])) & set(after[member.member_id])
            had = len(before.get(member.member_id, []))
            assert len(stayed) >= min(had, fair - 1)


@settings(deadline=None, max_examples=examples(50))
@given(group=groups(), data=st.data())
def test_cooperative_assigns_no_partition_that_is_still_held(
    group: tuple[dict[str, int], list[GroupMember]], data: st.DataObject
) -> None:
    """Whatever the members claim, true or stale."""
    counts, members = group
    everything = [TopicPartition(topic, n) for topic in TOPICS for n in range(13)]
    claimed = [
        GroupMember(
            member.member_id,
            Subscription(
                member.subscription.topics,
                None,
                tuple(data.draw(st.lists(st.sampled_from(everything), max_size=6, unique=True))),
                data.draw(st.integers(-1, 3)),
            ),
            member.instance_id,
        )
        for member in members
    ]
    made = CooperativeStickyAssignor().assign(counts, claimed)
    for member, other in product(claimed, claimed):
        if member is not other:
            fresh = set(made[member.member_id]) - set(member.subscription.owned)
            assert not fresh & set(other.subscription.owned)
    given_out = [tp for partitions in made.values() for tp in partitions]
    assert len(given_out) == len(set(given_out))
    check_each_once(counts, claimed, settled(CooperativeStickyAssignor(), counts, claimed, at=5))


def test_a_newer_claim_wins_and_a_tie_loses_for_both() -> None:
    a0 = TopicPartition("a", 0)
    topics = frozenset(["a"])
    made = balance({"a": 2}, {"x": Claim(topics, (a0,), 1), "y": Claim(topics, (a0,), 2)})
    assert made["y"] == [a0]
    tied = {"x": Claim(topics, (), 2), "y": Claim(topics, (a0,), 2), "z": Claim(topics, (a0,), 2)}
    assert balance({"a": 1}, tied)["x"] == [a0]


def test_ten_members_and_nine_hundred_partitions_move_no_more_than_they_must() -> None:
    assignor = CooperativeStickyAssignor()
    members = [GroupMember(f"m{n:02}", Subscription(("a",))) for n in range(9)]
    before = settled(assignor, {"a": 900}, members)
    known = [*rejoined(assignor, members, before, 5), GroupMember("m99", Subscription(("a",)))]
    after = settled(assignor, {"a": 900}, known, at=6)
    assert {len(partitions) for partitions in after.values()} == {90}
    assert sum(len(set(before[m]) - set(after[m])) for m in before) == 90


def test_strategies_by_name() -> None:
    assert [each.name for each in assignors_for("range")] == ["range"]
    own = RangeAssignor()
    assert assignors_for(["cooperative-sticky", own, "range"])[1].name == "range"
    with pytest.raises(ValueError, match="there is no 'rangee'; choose from range, roundrobin"):
        assignors_for(["rangee"])
    with pytest.raises(ValueError, match="at least one"):
        assignors_for([])
