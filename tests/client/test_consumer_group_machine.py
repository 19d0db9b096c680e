"""Membership of a broker-side group step by step; C1 to C6 of the consumer group machine."""

from __future__ import annotations

from typing import Any

import pytest

from ottla_client.consumer_group_machine import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerEffect,
    ConsumerGroupMachine,
    ConsumerGroupPolicy,
    HeartbeatAnswer,
    Phase,
    SendConsumerHeartbeat,
    SendConsumerLeave,
)
from ottla_client.errors import BrokerSideNotOffered, CannotConnect, GroupTrouble, NotServed
from ottla_client.group_effects import Identity, TakeTurn, Turn, Warn
from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRegularExpression,
    NotCoordinator,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from ottla_core.ids import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))
INTERVAL_S = 5.0


class Bench:
    """A machine with a clock, and the answers of a coordinator."""

    def __init__(self, **policy: Any) -> None:
        chosen = {"backoff_s": 1.0, "backoff_max_s": 4.0, "max_poll_interval_s": 100.0, **policy}
        self.machine = ConsumerGroupMachine(ConsumerGroupPolicy("m1", **chosen))
        self.now = 0.0
        self.epoch = 0
        self.machine.subscribe(["t"], self.now)

    def beat_in(self, effects: list[ConsumerEffect]) -> SendConsumerHeartbeat:
        (beat,) = [each for each in effects if isinstance(each, SendConsumerHeartbeat)]
        return beat

    def next_beat(self) -> SendConsumerHeartbeat:
        self.now += INTERVAL_S
        return self.beat_in(self.machine.tick(self.now))

    def answer(
        self,
        beat: SendConsumerHeartbeat,
        *given: TopicPartition,
        unchanged: bool = False,
        topic_id: str = "id",
    ) -> list[ConsumerEffect]:
        self.epoch += 1
        assigned = None if unchanged else dict.fromkeys(given, topic_id)
        told = HeartbeatAnswer("m1", self.epoch, INTERVAL_S, assigned)
        return self.machine.heartbeat_answered(beat.attempt, told, self.now)

    def refuse(self, beat: SendConsumerHeartbeat, error: Exception) -> list[ConsumerEffect]:
        return self.machine.heartbeat_refused(beat.attempt, error, self.now)

    def take_turn(self) -> tuple[Turn, list[ConsumerEffect]]:
        turn = self.machine.begin_turn()
        assert turn is not None
        return turn, self.machine.turn_done(self.now)

    def stable(self, *given: TopicPartition) -> None:
        """A member that holds these, and has reported that."""
        join = self.beat_in(self.machine.poll_began(self.now))
        assert self.answer(join, *given) == [TakeTurn()]
        turn, effects = self.take_turn()
        assert turn == Turn(given, added=given)
        assert self.answer(self.beat_in(effects), unchanged=True) == []
        assert self.machine.phase is Phase.MEMBER


# ---------------------------------------------------------------------- joining and reconciling


def test_the_first_poll_joins_with_everything() -> None:
    bench = Bench()
    assert bench.machine.tick(1000.0) == [] and bench.machine.wakes_at() is None
    beat = bench.beat_in(bench.machine.poll_began(1000.0))
    assert beat == SendConsumerHeartbeat(1, Identity("m1", 0), True, ("t",), "", {})
    assert bench.machine.identity == Identity()
    assert bench.machine.tick(2000.0) == []  # C1: one in flight.


def test_a_turn_gives_partitions_and_is_reported_at_once() -> None:
    bench = Bench()
    join = bench.beat_in(bench.machine.poll_began(bench.now))
    assert bench.answer(join, A, B) == [TakeTurn()]
    assert bench.machine.held == () and bench.machine.identity == Identity("m1", 1)
    turn, effects = bench.take_turn()
    assert turn == Turn((A, B), added=(A, B)) and bench.machine.held == (A, B)
    report = bench.beat_in(effects)
    assert (report.is_full, report.owned, report.identity.generation) == (False, {A: "id", B: "id"}, 1)
    bench.answer(report, unchanged=True)
    assert bench.next_beat().owned is None


def test_partitions_are_reported_as_revoked_only_after_the_turn() -> None:
    bench = Bench()
    bench.stable(A, B)
    assert bench.answer(bench.next_beat(), A) == [TakeTurn()]
    waiting = bench.next_beat()
    assert waiting.owned is None and bench.machine.held == (A, B)  # C3: still read.
    bench.refuse(waiting, CannotConnect("lost"))
    bench.now += 1
    again = bench.beat_in(bench.machine.tick(bench.now))
    assert again.is_full and again.owned == {A: "id", B: "id"}
    bench.answer(again, A)
    turn, effects = bench.take_turn()
    assert turn == Turn((A,), revoked=(B,))
    assert bench.beat_in(effects).owned == {A: "id"}


def test_revocation_precedes_addition() -> None:
    bench = Bench()
    bench.stable(A)
    bench.answer(bench.next_beat(), B, C)
    turn, effects = bench.take_turn()
    assert turn == Turn((), revoked=(A,)) and TakeTurn() in effects
    turn, _ = bench.take_turn()
    assert turn == Turn((B, C), added=(B, C))


def test_a_partition_of_a_recreated_topic_is_another_one() -> None:
    bench = Bench()
    bench.stable(A)
    bench.answer(bench.next_beat(), A, topic_id="new")
    assert bench.take_turn()[0] == Turn((), revoked=(A,))
    assert bench.take_turn()[0] == Turn((A,), added=(A,))
    assert bench.machine._held == {A: "new"}


def test_what_never_reached_the_user_is_given_back_at_once() -> None:
    bench = Bench()
    join = bench.beat_in(bench.machine.poll_began(bench.now))
    bench.answer(join, A)
    back = bench.answer(bench.next_beat())
    assert bench.beat_in(back).owned == {} and bench.machine.begin_turn() is None


def test_an_answer_during_a_turn_is_planned_after_it() -> None:
    bench = Bench()
    bench.stable(A, B)
    bench.answer(bench.next_beat(), A)
    assert bench.machine.begin_turn() == Turn((A,), revoked=(B,))
    bench.answer(bench.next_beat())
    effects = bench.machine.turn_done(bench.now)
    assert TakeTurn() in effects and bench.machine.held == (A,)
    assert bench.take_turn()[0] == Turn((), revoked=(A,))


def test_a_new_subscription_is_sent_at_once_and_old_answers_are_dropped() -> None:
    bench = Bench()
    bench.stable(A)
    old = bench.next_beat()
    beat = bench.beat_in(bench.machine.subscribe([], bench.now, "u.*"))
    assert (beat.is_full, beat.topics, beat.regex, beat.owned) == (True, (), "u.*", {A: "id"})
    assert bench.answer(old) == [] and bench.machine.begin_turn() is None


# ---------------------------------------------------------------------- fencing and errors


@pytest.mark.parametrize("error", [FencedMemberEpoch(), UnknownMemberId()])
def test_a_fenced_member_loses_everything_before_it_joins_again(error: Exception) -> None:
    bench = Bench()
    bench.stable(A)
    effects = bench.refuse(bench.next_beat(), error)
    assert TakeTurn() in effects and bench.machine.identity == Identity()
    assert bench.machine.tick(bench.now + 50) == []  # C4: not while the user holds partitions.
    turn, effects = bench.take_turn()
    assert turn == Turn((), lost=(A,))
    join = bench.beat_in(effects)
    assert (join.identity, join.is_full, join.owned) == (Identity("m1", 0), True, {})


def test_a_member_that_is_fenced_during_a_turn_loses_what_the_turn_gave() -> None:
    bench = Bench()
    bench.stable(A, B)
    bench.answer(bench.next_beat(), A)
    bench.machine.begin_turn()
    bench.refuse(bench.next_beat(), FencedMemberEpoch())
    bench.machine.turn_done(bench.now)
    assert bench.take_turn()[0] == Turn((), lost=(A,))


def test_a_refused_commit_may_be_the_first_sign() -> None:
    bench = Bench()
    bench.stable(A)
    assert bench.machine.commit_refused(Identity("m1", 99), UnknownMemberId(), bench.now) == []
    bench.machine.commit_refused(bench.machine.identity, UnknownMemberId(), bench.now)
    assert bench.take_turn()[0] == Turn((), lost=(A,))


def test_errors_that_pass_are_tried_again_with_everything() -> None:
    bench = Bench()
    bench.stable(A)
    for wait_s in (1.0, 2.0, 4.0, 4.0):
        beat = bench.next_beat()
        bench.refuse(beat, NotCoordinator())
        assert bench.machine.wakes_at() == bench.now + wait_s
    assert bench.next_beat().is_full and bench.machine.held == (A,)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FencedInstanceId(), "group_instance_id"),
        (GroupIdNotFound("It is for Connect."), "group_protocol='consumer': It is for Connect."),
        (UnsupportedAssignor("The broker has no assignor 'x'."), "no assignor"),
    ],
)
def test_fatal_errors_are_raised_by_the_poll(error: Exception, words: str) -> None:
    bench = Bench()
    bench.stable(A)
    effects = bench.refuse(bench.next_beat(), error)
    assert words in str(bench.machine.failure) and bench.machine.phase is Phase.OUT
    leave = SendConsumerLeave(Identity("m1", LEAVE_EPOCH))  # C6; who was replaced is no member.
    assert effects == [*([] if isinstance(error, FencedInstanceId) else [leave]), TakeTurn()]
    assert bench.take_turn()[0] == Turn((), lost=(A,))
    assert bench.machine.poll_began(bench.now + 1) == []


@pytest.mark.parametrize(
    "error", [NotServed("old"), UnsupportedVersion(), GroupIdNotFound(), InvalidRegularExpression()]
)
def test_a_member_may_fall_back_where_the_protocol_is_not_offered(error: Exception) -> None:
    """It leaves, loses what it holds in a turn, and only then a poll finds the reason."""
    bench = Bench(may_fall_back=True)
    bench.stable(A)
    effects = bench.refuse(bench.next_beat(), error)
    assert SendConsumerLeave(Identity("m1", LEAVE_EPOCH)) in effects and TakeTurn() in effects
    assert isinstance(bench.machine.failure, BrokerSideNotOffered)
    assert bench.take_turn() == (Turn((), lost=(A,)), [])
    assert bench.machine.poll_began(bench.now) == [] and bench.machine.held == ()


def test_a_broker_that_does_not_know_the_call_is_fatal_without_a_fallback() -> None:
    bench = Bench()
    bench.refuse(bench.beat_in(bench.machine.poll_began(bench.now)), NotServed("An older broker."))
    assert "An older broker. Use group_protocol='classic'" in str(bench.machine.failure)


def test_an_unreleased_instance_id_is_awaited_for_a_session() -> None:
    bench = Bench(is_static=True, unreleased_max_s=20.0)
    beat = bench.beat_in(bench.machine.poll_began(bench.now))
    effects = bench.refuse(beat, UnreleasedInstanceId())
    assert [type(each) for each in effects] == [Warn]
    for _ in range(3):
        assert bench.refuse(bench.next_beat(), UnreleasedInstanceId()) == []
    assert bench.machine.failure is None
    bench.refuse(bench.next_beat(), UnreleasedInstanceId())
    assert isinstance(bench.machine.failure, GroupTrouble)


# ---------------------------------------------------------------------- leaving


@pytest.mark.parametrize(("is_static", "epoch"), [(False, LEAVE_EPOCH), (True, LEAVE_STATIC_EPOCH)])
def test_leaving(is_static: bool, epoch: int) -> None:
    bench = Bench(is_static=is_static)
    bench.stable(A)
    beat = bench.next_beat()
    assert bench.machine.leave(bench.now, "done") == [SendConsumerLeave(Identity("m1", epoch))]
    assert bench.machine.held == () and bench.machine.wakes_at() is None
    assert bench.answer(beat, A) == [] and bench.machine.phase is Phase.OUT


def test_a_join_in_flight_is_left_too_but_not_a_join_that_was_never_sent() -> None:
    bench = Bench()
    assert bench.machine.leave(bench.now, "done") == []
    bench.machine.subscribe(["t"], bench.now)
    bench.machine.poll_began(bench.now)
    assert bench.machine.leave(bench.now, "done") == [SendConsumerLeave(Identity("m1", LEAVE_EPOCH))]


def test_a_member_that_does_not_poll_leaves_and_joins_with_the_next_poll() -> None:
    bench = Bench()
    bench.stable(A)
    bench.machine.poll_ended(bench.now)
    bench.now += 100
    effects = bench.machine.tick(bench.now)
    assert [type(each) for each in effects] == [Warn, SendConsumerLeave, TakeTurn]
    bench.machine.poll_began(bench.now)
    turn, effects = bench.take_turn()
    assert turn == Turn((), lost=(A,)) and bench.beat_in(effects).identity == Identity("m1", 0)
