"""Membership step by step: joins, syncs, turns, fencing and deadlines; G1 to G4 of the group machine."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_client.assignors import Assignor, assignors_for
from ottla_client.errors import GroupTrouble
from ottla_client.group_effects import (
    Effect,
    Identity,
    JoinAnswer,
    LearnTopics,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeTurn,
    Turn,
    Warn,
)
from ottla_client.group_machine import GroupMachine, GroupPolicy, Phase
from ottla_client.group_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


class Bench:
    """A machine with a clock; answers as a coordinator would that has `m1` in a group."""

    def __init__(self, *strategy: str | Assignor, **policy: Any) -> None:
        chosen = {"backoff_s": 1.0, "backoff_max_s": 4.0, "max_poll_interval_s": 100.0, **policy}
        self.machine = GroupMachine(GroupPolicy(assignors_for(strategy or ("cooperative-sticky",)), **chosen))
        self.now = 0.0
        self.generation = 0
        self.machine.subscribe(["t"], self.now)

    def join_effect(self, effects: list[Effect]) -> SendJoin:
        (join,) = [each for each in effects if isinstance(each, SendJoin)]
        return join

    def answer_join(self, join: SendJoin, leader: str = "other", **extra: Any) -> list[Effect]:
        self.generation += 1
        answer = JoinAnswer(
            "m1", self.generation, leader, join.protocols[0][0], extra.pop("members", ()), **extra
        )
        return self.machine.joined(join.attempt, answer, self.now)

    def follow(self, join: SendJoin, *given: TopicPartition) -> list[Effect]:
        """Joined as a follower, and synced with this assignment."""
        (sync,) = self.answer_join(join)
        assert isinstance(sync, SendSync) and not sync.assignments
        return self.machine.synced(sync.attempt, encode_assignment(given), self.now)

    def take_turn(self) -> tuple[Turn, list[Effect]]:
        turn = self.machine.begin_turn()
        assert turn is not None
        return turn, self.machine.turn_done(self.now)

    def beat(self, error: Exception | None = None) -> list[Effect]:
        """The next heartbeat is due and answered."""
        self.now += 3.0
        (beat,) = self.machine.tick(self.now)
        assert isinstance(beat, SendHeartbeat)
        return self.machine.heartbeat_answered(beat.identity, error, self.now)

    def stable(self, *given: TopicPartition) -> None:
        """A member that holds these."""
        effects = self.machine.poll_began(self.now)
        assert self.follow(self.join_effect(effects), *given) == [TakeTurn()]
        turn, effects = self.take_turn()
        assert turn == Turn(tuple(given), added=tuple(given)) and effects == []
        assert self.machine.phase is Phase.MEMBER


def said(join: SendJoin) -> Subscription:
    return decode_subscription(join.protocols[0][1])


# ---------------------------------------------------------------------- joining


def test_nothing_happens_before_the_first_poll() -> None:
    bench = Bench()
    assert bench.machine.tick(1000.0) == [] and bench.machine.wakes_at() is None
    join = bench.join_effect(bench.machine.poll_began(1000.0))
    assert (join.member_id, said(join)) == ("", Subscription(("t",), b"\xff\xff\xff\xff"))


def test_a_member_id_that_is_required_is_used_at_once() -> None:
    bench = Bench()
    join = bench.join_effect(bench.machine.poll_began(0.0))
    again = bench.join_effect(bench.machine.join_refused(join.attempt, MemberIdRequired(), 0.0, "m1"))
    assert again.member_id == "m1" and again.attempt != join.attempt
    assert bench.machine.joined(join.attempt, JoinAnswer("x", 1, "x", "range", ()), 0.0) == []  # G1
    assert bench.machine.identity == Identity("m1", -1)


def test_the_user_gets_partitions_only_in_a_turn() -> None:
    bench = Bench()
    bench.follow(bench.join_effect(bench.machine.poll_began(0.0)), A, B)
    assert bench.machine.held == ()
    turn, effects = bench.take_turn()
    assert turn == Turn((A, B), added=(A, B)) and effects == []
    assert bench.machine.held == (A, B)


def test_the_leader_assigns_to_everybody() -> None:
    bench = Bench("range")
    join = bench.join_effect(bench.machine.poll_began(0.0))
    metadata = encode_subscription(Subscription(("t", "u")))
    members = (("m1", None, join.protocols[0][1]), ("m2", "two", metadata), ("m3", None, b"\xff"))
    warning, learn = bench.answer_join(join, leader="m1", members=members)
    assert isinstance(warning, Warn) and "m3" in warning.sentence
    assert learn == LearnTopics(join.attempt, ("t", "u"))
    (sync,) = bench.machine.topics_learnt(join.attempt, {"t": 4, "u": 0}, 0.0)
    assert isinstance(sync, SendSync) and sync.identity == Identity("m1", 1) and sync.protocol == "range"
    made = {member: decode_assignment(data) for member, data in sync.assignments.items()}
    assert {member: [tp.partition for tp in tps] for member, tps in made.items()} == {
        "m1": [2, 3],
        "m2": [0, 1],
        "m3": [],
    }


def test_a_static_leader_that_came_back_does_not_assign() -> None:
    bench = Bench("range", is_static=True)
    join = bench.join_effect(bench.machine.poll_began(0.0))
    members = (("m1", "one", join.protocols[0][1]),)
    bench.answer_join(join, leader="m1", members=members, skip_assignment=True)
    (sync,) = bench.machine.topics_learnt(join.attempt, {"t": 2}, 0.0)
    assert isinstance(sync, SendSync) and sync.assignments == {}
    bench.machine.synced(sync.attempt, encode_assignment([A, B]), 0.0)
    bench.take_turn()
    # It still notices when the topic grows.
    assert bench.machine.partitions_changed({"t": 2}, 0.0) == []
    assert isinstance(bench.machine.partitions_changed({"t": 3}, 0.0)[0], TakeTurn)


def test_trouble_is_tried_again_with_growing_pauses() -> None:
    bench = Bench()
    effects = bench.machine.poll_began(0.0)
    for error, pause_s in (
        (CoordinatorLoadInProgress(), 1),
        (NotCoordinator(), 2),
        (OSError(), 4),
        (OSError(), 4),
    ):
        join = bench.join_effect(effects)
        assert bench.machine.join_refused(join.attempt, error, bench.now) == []
        bench.now += pause_s
        assert bench.machine.wakes_at() == bench.now
        assert bench.machine.tick(bench.now - 0.01) == []
        effects = bench.machine.tick(bench.now)
    assert bench.join_effect(effects)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InconsistentGroupProtocol(), "support none of our assignors"),
        (GroupMaxSizeReached(), "as many members"),
        (FencedInstanceId(), "group_instance_id"),
    ],
)
def test_fatal_errors_are_reported(error: Exception, sentence: str) -> None:
    bench = Bench()
    join = bench.join_effect(bench.machine.poll_began(0.0))
    assert bench.machine.join_refused(join.attempt, error, 0.0) == [TakeTurn()]
    assert sentence in str(bench.machine.failure)
    assert bench.machine.poll_began(1.0) == [] and bench.machine.wakes_at() is None


def test_a_failing_assignor_is_reported() -> None:
    class Broken:
        name = "broken"
        cooperative = False

        def user_data(self, previous: object, generation: int) -> None:
            return None

        def assign(self, counts: object, members: object) -> dict[str, list[TopicPartition]]:
            raise ZeroDivisionError("oops")

    bench = Bench(Broken())
    join = bench.join_effect(bench.machine.poll_began(0.0))
    bench.answer_join(join, leader="m1", members=(("m1", None, join.protocols[0][1]),))
    bench.machine.topics_learnt(join.attempt, {"t": 1}, 0.0)
    assert isinstance(bench.machine.failure, GroupTrouble) and "oops" in str(bench.machine.failure)


# ---------------------------------------------------------------------- rebalances


def test_eager_gives_all_up_before_it_joins() -> None:
    bench = Bench("range", "cooperative-sticky")
    bench.stable(A, B)
    assert bench.beat(RebalanceInProgress()) == [TakeTurn()]
    # Heartbeats go on until the user has taken its turn.
    assert bench.beat(RebalanceInProgress()) == []
    turn, effects = bench.take_turn()
    assert turn == Turn((), revoked=(A, B))
    join = bench.join_effect(effects)
    assert join.member_id == "m1" and said(join).owned == ()
    bench.follow(join, B)
    assert bench.take_turn()[0] == Turn((B,), added=(B,))


def test_cooperative_joins_at_once_and_keeps_what_stays() -> None:
    bench = Bench()
    bench.stable(A, B)
    join = bench.join_effect(bench.beat(RebalanceInProgress()))
    assert said(join).owned == (A, B) and said(join).generation == 1
    assert bench.machine.held == (A, B)
    bench.follow(join, A)
    turn, effects = bench.take_turn()
    assert turn == Turn((A,), revoked=(B,), added=())
    again = bench.join_effect(effects)
    assert said(again).owned == (A,) and said(again).generation == 2
    bench.follow(again, A)
    turn, effects = bench.take_turn()
    assert turn == Turn((A,), added=()) and effects == []


def test_sticky_tells_what_it_had() -> None:
    bench = Bench("sticky")
    bench.stable(A, C)
    bench.beat(RebalanceInProgress())
    _, effects = bench.take_turn()
    assert (
        said(bench.join_effect(effects)).user_data
        == encode_subscription(Subscription((), None, (A, C), 1))[10:-2]
    )  # partitions and generation, as in a subscription


def test_an_assignment_that_never_reached_the_user_is_given_up_silently() -> None:
    bench = Bench("range")
    bench.follow(bench.join_effect(bench.machine.poll_began(0.0)), A)
    assert bench.join_effect(bench.beat(RebalanceInProgress()))
    assert bench.machine.begin_turn() is None


def test_no_join_while_a_turn_is_due() -> None:
    bench = Bench()
    bench.stable(A, B)
    bench.follow(bench.join_effect(bench.beat(RebalanceInProgress())), A)
    assert bench.beat(RebalanceInProgress()) == []
    _, effects = bench.take_turn()
    assert said(bench.join_effect(effects)).owned == (A,)


def test_a_rebalance_that_restarts_during_the_sync() -> None:
    bench = Bench()
    bench.stable(A)
    join = bench.join_effect(bench.beat(RebalanceInProgress()))
    (sync,) = bench.answer_join(join)
    assert isinstance(sync, SendSync)
    again = bench.join_effect(bench.machine.sync_refused(sync.attempt, RebalanceInProgress(), bench.now))
    assert said(again).owned == (A,) and bench.machine.begin_turn() is None


def test_another_subscription_joins_again() -> None:
    bench = Bench()
    bench.stable(A)
    assert bench.machine.subscribe(["t"], bench.now) == []
    join = bench.join_effect(bench.machine.subscribe(["t", "u"], bench.now))
    assert set(said(join).topics) == {"t", "u"}
    bench.machine.subscribe(["u"], bench.now)
    bench.follow(join, A)
    # The leader knew an older subscription: not adopted, joined again.
    assert bench.machine.begin_turn() is None and bench.machine.phase is Phase.JOINING


# ---------------------------------------------------------------------- being out


@pytest.mark.parametrize(("error", "keeps"), [(UnknownMemberId(), ""), (IllegalGeneration(), "m1")])
def test_what_was_held_is_lost_and_not_revoked(error: Exception, keeps: str) -> None:
    bench = Bench()
    bench.stable(A, B)
    assert bench.beat(error) == [TakeTurn()]
    turn, effects = bench.take_turn()
    assert turn == Turn((), lost=(A, B))
    join = bench.join_effect(effects)
    assert join.member_id == keeps and said(join).owned == () and said(join).generation == -1


def test_lost_while_the_user_is_in_a_turn() -> None:
    bench = Bench()
    bench.stable(A)
    bench.follow(bench.join_effect(bench.beat(RebalanceInProgress())), A, B)
    assert bench.machine.begin_turn() == Turn((A, B), added=(B,))
    identity = bench.machine.identity
    assert bench.machine.commit_refused(identity, UnknownMemberId(), bench.now) == []
    assert bench.machine.turn_done(bench.now) == [TakeTurn()]
    assert bench.take_turn()[0] == Turn((), lost=(A, B))


def test_a_refused_commit_of_an_older_generation_changes_nothing() -> None:
    bench = Bench()
    bench.stable(A)
    assert bench.machine.commit_refused(Identity("m1", 0), IllegalGeneration(), bench.now) == []
    assert bench.machine.phase is Phase.MEMBER and bench.machine.held == (A,)


def test_a_fenced_member_loses_all_and_stays_out() -> None:
    bench = Bench(is_static=True)
    bench.stable(A)
    bench.beat(FencedInstanceId())
    assert bench.take_turn() == (Turn((), lost=(A,)), [])
    assert "group_instance_id" in str(bench.machine.failure)
    assert bench.machine.poll_began(bench.now) == []


def test_a_member_that_does_not_poll_leaves_and_rejoins() -> None:
    bench = Bench()
    bench.stable(A)
    bench.machine.poll_ended(0.0)
    while bench.now < 96:
        bench.beat()
    effects = bench.machine.tick(100.0)
    assert [type(each) for each in effects] == [Warn, SendLeave, TakeTurn]
    assert bench.machine.wakes_at() is None
    bench.now = 500.0
    assert bench.machine.poll_began(bench.now) == []
    turn, effects = bench.take_turn()
    assert turn == Turn((), lost=(A,)) and bench.join_effect(effects).member_id == ""


def test_a_poll_that_waits_is_a_poll() -> None:
    bench = Bench()
    bench.stable(A)  # inside a poll
    for _ in range(50):
        bench.beat()
    assert bench.machine.phase is Phase.MEMBER


def test_a_static_member_does_not_sign_off() -> None:
    for is_static, expected in ((True, []), (False, [SendLeave("m1", "bye")])):
        bench = Bench(is_static=is_static)
        bench.stable(A)
        assert bench.machine.leave(bench.now, "bye") == expected
        assert bench.machine.poll_began(bench.now) == [] and bench.machine.held == ()


def test_a_coordinator_that_is_away_costs_nothing_but_heartbeats() -> None:
    bench = Bench()
    bench.stable(A)
    assert bench.beat(NotCoordinator()) == []
    assert bench.machine.wakes_at() == bench.now + 3.0
    assert bench.beat(OSError()) == [] and bench.beat() == []
    assert bench.machine.held == (A,) and bench.machine.phase is Phase.MEMBER
