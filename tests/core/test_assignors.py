"""Assignors of broker-side groups: every partition once, balance, few moves, racks, pins and custom ones."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_core.assignors.model import Assignment, Assignor, Members, MemberSubscription, Topology
from ottla_core.assignors.plugins import load_assignors
from ottla_core.assignors.registry import BUILT_IN, DEFAULT
from ottla_core.assignors.uniform import parse_pins, pinned
from ottla_core.ids import TopicPartition

TOPICS = ("a", "b", "c")
EXCLUSIVE = [each for each in BUILT_IN.values() if not each.shares_partitions]


@st.composite
def groups(draw: st.DrawFn, same_topics: bool = False) -> tuple[Topology, dict[str, MemberSubscription]]:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1))
    topics = st.frozensets(st.sampled_from(TOPICS))
    shared = draw(topics)
    partitions = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count + 1)]
    members = {}
    for number in range(draw(st.integers(1, 7))):
        members[f"m{number}"] = MemberSubscription(
            shared if same_topics else draw(topics),
            tuple(draw(st.lists(st.sampled_from(partitions), unique=True, max_size=8))),
            draw(st.sampled_from((None, f"i{number}"))),
            draw(st.sampled_from((None, "r1", "r2"))),
        )
    racks = {tp: frozenset(draw(st.sampled_from(((), ("r1",), ("r1", "r2"))))) for tp in partitions}
    return Topology(counts, draw(st.sampled_from((racks, {})))), members


def wanted(topology: Topology, members: Members) -> list[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics if topic in topology.counts}
    return [TopicPartition(topic, n) for topic in sorted(topics) for n in range(topology.counts[topic])]


def assigned(assignor: Assignor, topology: Topology, members: Members) -> Assignment:
    pins = {"pins": "a:0=i0,b:1=i1,c:9=i2"} if assignor.name == "pinned" else {}
    return assignor.assign(topology, members, pins)


def with_owned(members: Members, made: Assignment) -> dict[str, MemberSubscription]:
    return {member_id: replace(member, owned=tuple(made[member_id])) for member_id, member in members.items()}


@pytest.mark.parametrize("assignor", EXCLUSIVE, ids=lambda each: each.name)
@settings(max_examples=examples(150), deadline=None)
@given(groups())
def test_every_partition_has_exactly_one_subscribed_owner(
    assignor: Assignor, group: tuple[Topology, dict[str, MemberSubscription]]
) -> None:
    topology, members = group
    made = assigned(assignor, topology, members)
    assert set(made) == set(members)
    assert sorted(tp for owned in made.values() for tp in owned) == wanted(topology, members)
    assert all(tp.topic in members[member_id].topics for member_id, owned in made.items() for tp in owned)


@pytest.mark.parametrize("assignor", BUILT_IN.values(), ids=lambda each: each.name)
@settings(max_examples=examples(100), deadline=None)
@given(groups())
def test_an_assignment_of_its_own_result_moves_nothing(
    assignor: Assignor, group: tuple[Topology, dict[str, MemberSubscription]]
) -> None:
    topology, members = group
    made = assigned(assignor, topology, members)
    again = assigned(assignor, topology, with_owned(members, made))
    assert {m: sorted(owned) for m, owned in again.items()} == {m: sorted(owned) for m, owned in made.items()}


@settings(max_examples=examples(150), deadline=None)
@given(groups(same_topics=True))
def test_uniform_is_balanced_and_moves_only_what_balance_takes(
    group: tuple[Topology, dict[str, MemberSubscription]],
) -> None:
    topology, members = group
    uniform = BUILT_IN["uniform"]
    made = uniform.assign(topology, members, {})
    sizes = [len(owned) for owned in made.values()]
    assert max(sizes) - min(sizes) <= 1
    members = with_owned(members, made)
    newcomer = replace(next(iter(members.values())), owned=(), instance_id=None)
    after = uniform.assign(topology, members | {"new": newcomer}, {})
    moved = sum(tp not in made[member_id] for member_id in members for tp in after[member_id])
    assert moved == 0  # Only the newcomer gets partitions.
    assert len(after["new"]) == sum(sizes) // (len(members) + 1)


def test_sticky_leaves_partitions_where_they_are_within_its_tolerance() -> None:
    topics = frozenset(["a"])
    members = {
        "x": MemberSubscription(topics, tuple(TopicPartition("a", n) for n in range(6))),
        "y": MemberSubscription(topics, tuple(TopicPartition("a", n) for n in range(6, 10))),
    }
    topology = Topology({"a": 10})
    assert {m: len(p) for m, p in BUILT_IN["sticky"].assign(topology, members, {}).items()} == {
        "x": 6,
        "y": 4,
    }
    exact = BUILT_IN["sticky"].assign(topology, members, {"tolerance": "0"})
    assert {m: len(p) for m, p in exact.items()} == {"x": 5, "y": 5}
    with pytest.raises(ValueError, match="from 0 to 1"):
        BUILT_IN["sticky"].assign(topology, members, {"tolerance": "lots"})


@pytest.mark.parametrize("name", ["uniform", "sticky"])
@pytest.mark.parametrize("topics_of_second", [["a"], ["a", "b"]])
def test_a_member_that_gives_up_partitions_keeps_those_in_its_rack(
    name: str, topics_of_second: list[str]
) -> None:
    """Whether all members read the same topics or not."""
    racks = {TopicPartition("a", n): frozenset([f"r{n % 2}"]) for n in range(6)}
    members = {"one": MemberSubscription(frozenset(["a"]), tuple(sorted(racks)), rack_id="r1")}
    members["two"] = MemberSubscription(frozenset(topics_of_second), rack_id="r0")
    made = BUILT_IN[name].assign(Topology({"a": 6}, racks), members, {"tolerance": "0"})
    assert {member: {tp.partition for tp in owned} for member, owned in made.items()} == {
        "one": {1, 3, 5},
        "two": {0, 2, 4},
    }


def test_members_read_replicas_of_their_rack_where_balance_allows() -> None:
    racks = {TopicPartition("a", n): frozenset([f"r{n % 2}"]) for n in range(10)}
    topics = frozenset(["a"])
    members = {f"m{n}": MemberSubscription(topics, rack_id=f"r{n}") for n in range(2)}
    made = BUILT_IN["uniform"].assign(Topology({"a": 10}, racks), members, {})
    assert [tp.partition % 2 for tp in made["m0"]] == [0] * 5
    assert [tp.partition % 2 for tp in made["m1"]] == [1] * 5


@settings(max_examples=examples(60), deadline=None)
@given(groups(), st.integers(0, 6))
def test_consistent_hash_moves_only_partitions_of_the_member_that_left(
    group: tuple[Topology, dict[str, MemberSubscription]], leaver: int
) -> None:
    topology, members = group
    assignor = BUILT_IN["consistent-hash"]
    before = assignor.assign(topology, members, {})
    left = {member_id: each for member_id, each in members.items() if member_id != f"m{leaver}"}
    after = assignor.assign(topology, left, {})
    assert all(set(before[member_id]) <= set(after[member_id]) for member_id in left)


def test_broadcast_gives_everything_to_everyone() -> None:
    members = {m: MemberSubscription(frozenset(["a", "none"])) for m in ("x", "y")}
    made = BUILT_IN["broadcast"].assign(Topology({"a": 2, "b": 1}), members, {})
    assert made == {m: [TopicPartition("a", 0), TopicPartition("a", 1)] for m in ("x", "y")}


def test_pins_go_to_their_instances_and_the_rest_is_balanced() -> None:
    topics = frozenset(["a"])
    members = {m: MemberSubscription(topics, instance_id=f"i-{m}") for m in ("x", "y")}
    pins = {"pins": "a:0=i-y, a:1=i-y, a:2=i-absent"}
    made = BUILT_IN["pinned"].assign(Topology({"a": 6}), members, pins)
    assert {TopicPartition("a", 0), TopicPartition("a", 1)} <= set(made["y"])
    assert (len(made["x"]), len(made["y"])) == (2, 4)


@pytest.mark.parametrize("name", ["uniform", "sticky", "pinned"])
@settings(max_examples=examples(100), deadline=None)
@given(groups(same_topics=True))
def test_pins_win_over_the_assignor(name: str, group: tuple[Topology, dict[str, MemberSubscription]]) -> None:
    topology, members = group
    pins = {"pins": "a:0=i0,a:1=i0,b:1=i1,c:9=i2"}
    made = BUILT_IN[name].assign(topology, members, pins)
    assert sorted(tp for owned in made.values() for tp in owned) == wanted(topology, members)
    for tp, member_id in pinned(topology, members, pins).items():
        assert tp in made[member_id]
    again = BUILT_IN[name].assign(topology, with_owned(members, made), pins)
    assert again == made, "nothing moves without a reason"


def test_pins_do_not_keep_newcomers_of_a_sticky_group_without_partitions() -> None:
    topics, tps = frozenset(["a"]), [TopicPartition("a", n) for n in range(6)]
    members = {m: MemberSubscription(topics, instance_id=f"i-{m}") for m in ("x", "y", "z")}
    members["x"] = replace(members["x"], owned=tuple(tps))
    made = BUILT_IN["sticky"].assign(Topology({"a": 6}), members, {"pins": "a:0=i-x,a:1=i-y"})
    assert [len(made[m]) for m in ("x", "y", "z")] == [3, 2, 1]


@pytest.mark.parametrize("text", ["a=x", "a:b=x", "a:1=", ":1=x", "a:1=x,a:1=y"])
def test_invalid_pins_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pins"):
        parse_pins(text)


class FirstTakesAll:
    name = "first-takes-all"
    shares_partitions = False

    def assign(self, topology: Topology, members: Members, parameters: object) -> Assignment:
        everything = wanted(topology, members)
        return {m: everything if not number else [] for number, m in enumerate(members)}


def test_custom_assignors_come_from_entry_points() -> None:
    entry = EntryPoint("first-takes-all", f"{__name__}:FirstTakesAll", "ottla.assignors")
    loaded = load_assignors([entry])
    assert isinstance(loaded["first-takes-all"], FirstTakesAll)
    assert DEFAULT == "uniform"
    for name, value in (
        ("uniform", "x:y"),
        ("gone", "no_such_module:X"),
        ("odd", f"{__name__}:FirstTakesAll"),
    ):
        with pytest.raises(ValueError, match=name):
            load_assignors([EntryPoint(name, value, "ottla.assignors")])


@pytest.mark.parametrize("assignor", BUILT_IN.values(), ids=lambda each: each.name)
def test_a_large_group_does_not_hold_the_event_loop(assignor: Assignor) -> None:
    topology = Topology({"a": 900})
    members = {f"m{n:02}": MemberSubscription(frozenset(["a"])) for n in range(10)}
    members = with_owned(members, assignor.assign(topology, members, {}))
    members["m10"] = MemberSubscription(frozenset(["a"]))
    spent = []
    for _ in range(5):
        start = time.process_time()
        assignor.assign(topology, members, {})
        spent.append(time.process_time() - start)
    assert min(spent) < 0.02  # About 1 to 2 ms on a quiet machine.
