"""The classic protocol, transition by transition: who waits, who is answered with what, and what time does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.group import classic_member
from broker.group.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver, subscription
from ottla_broker.group.messages import HeartbeatReply, State, SyncReply
from ottla_broker.group.records import read_group
from ottla_broker.group.subscription import write_assignment
from ottla_core.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    MessageTooLarge,
    RebalanceInProgress,
    RequestError,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition


def refusal(driver: GroupDriver, ticket: int) -> type[RequestError]:
    reply = driver.replies[ticket]
    assert isinstance(reply, RequestError), reply
    return type(reply)


# ---------------------------------------------------------------------- joining


def test_the_first_member_gets_its_id_and_then_leads() -> None:
    driver = GroupDriver()
    told = driver.joined(driver.join(id_first=True))
    assert isinstance(told.error, MemberIdRequired)
    assert driver.state is State.EMPTY
    joined = driver.joined(driver.join(told.member_id, id_first=True))
    assert (joined.error, joined.member_id, joined.generation) == (None, told.member_id, 1)
    assert joined.leader_id == joined.member_id
    assert [m.member_id for m in joined.members] == [joined.member_id]
    assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
    assert driver.state is State.COMPLETING
    assert driver.log == [], "a generation is written down with its assignment, not before"


def test_an_id_that_was_never_handed_out_is_unknown() -> None:
    driver = GroupDriver()
    assert refusal(driver, driver.join("made-up")) is UnknownMemberId
    driver.stable()
    assert refusal(driver, driver.join("made-up")) is UnknownMemberId


def test_an_unused_member_id_expires_and_delays_no_rebalance() -> None:
    driver = GroupDriver()
    (first,) = driver.stable()
    pending = driver.joined(driver.join(id_first=True)).member_id
    assert driver.state is State.STABLE, "an id that was handed out is no member"
    ticket = driver.join()
    driver.join(first)
    assert ticket not in driver.replies, "the one with the new id is waited for"
    driver.pass_time(SESSION_MS)
    assert driver.joined(ticket).generation == 2
    assert refusal(driver, driver.join(pending)) is UnknownMemberId


def test_a_group_without_members_leaves_nothing_behind() -> None:
    driver = GroupDriver()
    driver.join(id_first=True)
    driver.pass_time(SESSION_MS)
    assert driver.shard.groups == {}
    assert driver.log == []


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = GroupDriver(delay_ms=3000)
    first = driver.join()
    driver.pass_time(2900)
    second = driver.join()
    driver.pass_time(200)
    assert first not in driver.replies, "somebody came during the delay: another one begins"
    driver.pass_time(2900)
    assert driver.joined(first).generation == driver.joined(second).generation == 1
    assert len(driver.joined(first).members) == 2
    assert driver.joined(second).members == ()


def test_the_first_rebalance_does_not_wait_for_ever() -> None:
    driver = GroupDriver(delay_ms=3000)
    tickets = [driver.join(rebalance_ms=10_000)]
    for _ in range(9):
        driver.pass_time(1100)
        tickets.append(driver.join(rebalance_ms=10_000))
    driver.pass_time(100)
    assert driver.joined(tickets[0]).generation == 1, "ten seconds are the rebalance timeout"


def test_a_second_member_makes_the_first_join_again() -> None:
    driver = GroupDriver()
    (first,) = driver.stable()
    assert driver.beat(first, 1) == HeartbeatReply()
    ticket = driver.join()
    assert driver.state is State.PREPARING
    with pytest.raises(RebalanceInProgress):
        driver.beat(first, 1)
    assert ticket not in driver.replies
    again = driver.join(first)
    assert driver.joined(ticket).generation == driver.joined(again).generation == 2
    assert driver.joined(ticket).leader_id == first, "who leads goes on leading"
    assert {m.member_id for m in driver.joined(again).members} == {first, driver.joined(ticket).member_id}


def test_a_member_that_does_not_rejoin_is_removed() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    ticket = driver.join(second, protocols=(("range", subscription("t", "u")),))
    for _ in range(7):
        driver.pass_time(SESSION_MS - 1)
        try:
            driver.beat(first, 2)
        except RequestError as error:
            assert isinstance(error, RebalanceInProgress | UnknownMemberId), error
    reply = driver.joined(ticket)
    assert reply.generation == 3
    assert reply.leader_id == second, "the leader was the one who did not come"
    with pytest.raises(UnknownMemberId):
        driver.beat(first, 2)


def test_a_join_that_is_sent_twice_is_answered_once() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    one = driver.join(second, protocols=(("range", b"new"),))
    two = driver.join(second, protocols=(("range", b"new"),))
    assert refusal(driver, one) is RebalanceInProgress
    driver.join(first)
    assert driver.joined(two).generation == 3


def test_a_lost_join_reply_is_given_again() -> None:
    driver = GroupDriver()
    first = driver.joined(driver.join()).member_id
    again = driver.joined(driver.join(first))
    assert (again.generation, driver.state) == (1, State.COMPLETING)
    assert len(again.members) == 1
    driver.sync(first, 1, {first: b"all"})
    assert driver.state is State.STABLE


def test_joining_a_stable_group_with_nothing_new_changes_nothing_except_for_the_leader() -> None:
    driver = GroupDriver()
    leader, other = driver.stable(2)
    reply = driver.joined(driver.join(other))
    assert (reply.generation, driver.state, reply.members) == (2, State.STABLE, ())
    driver.join(leader)
    assert driver.state is State.PREPARING, "the leader wants partitions to be assigned again"


def test_other_protocols_begin_a_rebalance() -> None:
    driver = GroupDriver()
    _, other = driver.stable(2)
    driver.join(other, protocols=(("range", subscription("t", "u")),))
    assert driver.state is State.PREPARING


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        ("connect", (("range", b""),)),
        ("consumer", (("sticky", b""),)),
        ("consumer", ()),
        ("", (("range", b""),)),
    ],
)
def test_members_need_something_in_common(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver = GroupDriver()
    driver.stable()
    ticket = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert refusal(driver, ticket) is InconsistentGroupProtocol
    assert driver.state is State.STABLE
    if not (protocol_type and protocols):
        fresh = GroupDriver()
        assert refusal(fresh, fresh.join(protocol_type=protocol_type, protocols=protocols)) is (
            InconsistentGroupProtocol
        )
        assert fresh.shard.groups == {}


def test_the_vote_is_for_what_all_know_and_most_like() -> None:
    driver = GroupDriver(delay_ms=1000)
    driver.join(protocols=(("a", b""), ("b", b""), ("only-mine", b"")))
    driver.join(protocols=(("b", b""), ("a", b"")))
    last = driver.join(protocols=(("b", b""), ("a", b"")))
    driver.pass_time(2000)
    assert driver.joined(last).protocol == "b"


def test_a_group_has_a_largest_size() -> None:
    driver = GroupDriver(group_max_size="1")
    (first,) = driver.stable()
    assert refusal(driver, driver.join()) is GroupMaxSizeReached
    assert refusal(driver, driver.join(id_first=True)) is GroupMaxSizeReached
    assert driver.joined(driver.join(first)).generation == 2, "who is in may come again"


def test_a_group_of_before_the_limit_was_lowered_shrinks() -> None:
    driver = GroupDriver(group_max_size="3")
    ids = driver.stable(3)
    driver.settings = replace(driver.settings, size_max=2)
    driver.reload()
    assert driver.state is State.PREPARING
    tickets = [driver.join(each) for each in ids]
    assert driver.joined(tickets[0]).generation == driver.joined(tickets[1]).generation == 4
    assert refusal(driver, tickets[2]) is GroupMaxSizeReached
    assert list(driver.group.members) == ids[:2]


def test_a_member_that_says_too_much_is_refused() -> None:
    driver = GroupDriver()
    assert refusal(driver, driver.join(protocols=(("range", bytes(100_001)),))) is MessageTooLarge
    member = driver.joined(driver.join()).member_id
    assert refusal(driver, driver.sync(member, 1, {member: bytes(100_001)})) is MessageTooLarge
    assert driver.state is State.COMPLETING
    assert driver.replies[driver.sync(member, 1, {member: b"less"})].assignment == b"less"


def test_a_new_member_whose_connection_broke_is_given_up() -> None:
    driver = GroupDriver()
    (first,) = driver.stable()
    ticket = driver.join(rebalance_ms=10**7)
    for _ in range(301):
        driver.pass_time(1000)
        if first in driver.group.members:
            try:
                driver.beat(first, 1)
            except RebalanceInProgress:
                continue
    assert refusal(driver, ticket) is UnknownMemberId


# ---------------------------------------------------------------------- syncing


def test_syncs_wait_for_the_leader_and_each_gets_its_own() -> None:
    driver = GroupDriver()
    first = driver.joined(driver.join()).member_id
    driver.sync(first, 1, {})
    joined = driver.join()
    driver.join(first)
    second = driver.joined(joined).member_id
    waiting = driver.sync(second, 2)
    assert waiting not in driver.replies
    done = driver.sync(first, 2, {first: b"one", second: b"two", "stranger": b"three"})
    assert driver.replies[waiting] == SyncReply("consumer", "range", b"two")
    assert driver.replies[done] == SyncReply("consumer", "range", b"one")
    assert driver.state is State.STABLE
    assert driver.replies[driver.sync(second, 2)].assignment == b"two", "a late or repeated sync"
    written = read_group(driver.log[-1].value or b"")
    assert {m.member_id: m.assignment for m in written.members} == {first: b"one", second: b"two"}
    assert written.generation == 2


def test_whom_the_leader_forgets_gets_nothing() -> None:
    driver = GroupDriver()
    member = driver.joined(driver.join()).member_id
    assert driver.replies[driver.sync(member, 1, {})].assignment == b""


def test_syncs_that_make_no_sense() -> None:
    driver = GroupDriver()
    member = driver.joined(driver.join()).member_id
    assert refusal(driver, driver.sync(member, 2)) is IllegalGeneration
    assert refusal(driver, driver.sync("other", 1)) is UnknownMemberId
    assert refusal(driver, driver.sync(member, 1, protocol="sticky")) is InconsistentGroupProtocol
    assert refusal(driver, driver.sync(member, 1, protocol_type="connect")) is InconsistentGroupProtocol
    assert refusal(driver, driver.sync(member, 1, instance_id="i")) is UnknownMemberId
    assert driver.state is State.COMPLETING
    driver.sync(member, 1, {member: b"x"})
    driver.join()
    assert refusal(driver, driver.sync(member, 1)) is RebalanceInProgress


def test_a_rebalance_ends_the_waiting_for_the_leader() -> None:
    driver = GroupDriver()
    leader, other = driver.stable(2)
    tickets = [driver.join(leader), driver.join(other)]
    assert {driver.joined(t).generation for t in tickets} == {3}
    waiting = driver.sync(other, 3)
    driver.join()
    assert refusal(driver, waiting) is RebalanceInProgress
    assert driver.state is State.PREPARING


def test_a_member_that_never_syncs_is_removed() -> None:
    driver = GroupDriver()
    leader, other = driver.stable(2)
    driver.join(leader)
    driver.join(other)
    driver.sync(leader, 3, {leader: b"l", other: b"o"})
    for _ in range(7):
        driver.pass_time(SESSION_MS - 1000)
        for member in (leader, other):
            if driver.state is State.STABLE:
                driver.beat(member, 3)
    assert driver.state is State.PREPARING, "its partitions would stay unread"
    assert list(driver.group.members) == [leader]


def test_a_leader_that_never_syncs_is_replaced() -> None:
    driver = GroupDriver()
    leader, other = driver.stable(2)
    driver.join(leader)
    driver.join(other)
    waiting = driver.sync(other, 3)
    driver.pass_time(SESSION_MS)
    assert refusal(driver, waiting) is RebalanceInProgress
    again = driver.joined(driver.join(other))
    assert again.leader_id == other
    assert again.generation == 4


# ---------------------------------------------------------------------- heartbeats and leaving


def test_heartbeats_keep_a_member_in() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    for _ in range(5):
        driver.pass_time(SESSION_MS - 1)
        assert driver.beat(member, 1) == HeartbeatReply()
    driver.pass_time(SESSION_MS)
    assert driver.state is State.EMPTY
    with pytest.raises(UnknownMemberId):
        driver.beat(member, 1)
    assert read_group(driver.log[-1].value or b"").members == ()


def test_heartbeats_of_another_generation_are_refused() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    for generation in (0, 2):
        with pytest.raises(IllegalGeneration):
            driver.beat(member, generation)
    joined = driver.joined(driver.join(member))
    assert driver.state is State.COMPLETING
    assert driver.beat(member, joined.generation) == HeartbeatReply(), "between join and sync"


def test_a_member_that_leaves_makes_room_at_once() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    assert driver.leave(first).members[0].error is None
    assert driver.state is State.PREPARING
    assert driver.group.leader_id == second
    assert driver.joined(driver.join(second)).generation == 3
    assert isinstance(driver.leave(first).members[0].error, UnknownMemberId)


def test_several_leave_with_one_request() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    reply = driver.leave(first, "stranger", second)
    assert [type(m.error) for m in reply.members] == [type(None), UnknownMemberId, type(None)]
    assert driver.state is State.EMPTY
    assert driver.group.generation == 3, "an empty group is a generation of its own"
    assert driver.group.protocol is None


def test_leaving_ends_the_pending_join_of_that_member() -> None:
    driver = GroupDriver()
    (first,) = driver.stable()
    waiting = driver.join()
    second = list(driver.group.members)[-1]
    driver.leave(second)
    assert refusal(driver, waiting) is UnknownMemberId
    assert driver.joined(driver.join(first)).generation == 2


def test_the_last_awaited_member_leaves() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    waiting = driver.join(second, protocols=(("range", b"x"),))
    driver.leave(first)
    assert driver.joined(waiting).generation == 3


def test_leaving_a_group_that_does_not_exist() -> None:
    assert isinstance(GroupDriver().leave("m").members[0].error, UnknownMemberId)


def test_an_id_that_was_only_handed_out_can_leave() -> None:
    driver = GroupDriver()
    (first,) = driver.stable()
    pending = driver.joined(driver.join(id_first=True)).member_id
    assert driver.leave(pending).members[0].error is None
    assert driver.state is State.STABLE, "nobody who owned anything has gone"
    assert driver.beat(first, 1) == HeartbeatReply()


# ---------------------------------------------------------------------- static members


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    driver = GroupDriver()
    leader, old = driver.stable(1, instance="a")[0], None
    joined = driver.join(instance="b")
    driver.join(leader, instance="a")
    old = driver.joined(joined).member_id
    driver.sync(old, 2, instance_id="b")
    driver.sync(leader, 2, {leader: b"A", old: b"B"}, instance_id="a")
    back = driver.joined(driver.join(instance="b"))
    assert driver.state is State.STABLE
    assert back.member_id != old
    assert (back.generation, back.leader_id, back.skip_assignment) == (2, leader, False)
    assert driver.replies[driver.sync(back.member_id, 2, instance_id="b")].assignment == b"B"
    with pytest.raises(FencedInstanceId):
        driver.beat(old, 2, "b")
    with pytest.raises(UnknownMemberId):
        driver.beat(old, 2)
    assert {m.member_id for m in read_group(driver.log[-1].value or b"").members} == {leader, back.member_id}


@pytest.mark.parametrize("can_skip", [True, False])
def test_a_static_leader_that_comes_back_does_not_assign_again(can_skip: bool) -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance="a")
    back = driver.joined(driver.join(instance="a", can_skip=can_skip))
    assert driver.group.leader_id == back.member_id
    assert back.generation == 1
    if can_skip:
        assert (back.leader_id, back.skip_assignment) == (back.member_id, True)
        assert [m.instance_id for m in back.members] == ["a"]
    else:
        assert (back.leader_id, back.members) == (old, ()), "it must not take itself for the leader"


def test_a_static_member_with_other_topics_begins_a_rebalance() -> None:
    driver = GroupDriver()
    driver.stable(1, instance="a")
    back = driver.joined(driver.join(instance="a", protocols=(("range", subscription("t", "u")),)))
    assert back.generation == 2


def test_a_static_member_that_restarts_before_it_has_revoked_begins_a_rebalance() -> None:
    """Cooperative: what it had to give up is assigned when it joins again, and its successor does not know of that."""
    driver = GroupDriver()
    kept, moving = TopicPartition("t", 0), TopicPartition("t", 1)
    (leader,) = driver.stable(1, instance="a")
    other = driver.join()
    owned = classic_member.subscription(("t",), (kept, moving))
    driver.join(leader, instance="a", protocols=(("range", owned),))
    other_id = driver.joined(other).member_id
    driver.sync(leader, 2, {leader: write_assignment(1, [kept]), other_id: b""}, instance_id="a")
    fresh = (("range", classic_member.subscription(("t",))),)
    back = driver.join(instance="a", protocols=fresh)
    assert driver.state is State.PREPARING
    driver.join(other_id)
    leader = driver.joined(back).member_id
    driver.sync(leader, 3, {leader: write_assignment(1, [kept])}, instance_id="a")
    back = driver.join(instance="a", protocols=fresh)
    assert driver.joined(back).generation == 3, "with nothing to revoke, it goes on"


def test_two_processes_with_one_instance_id_fence_each_other() -> None:
    driver = GroupDriver()
    (first,) = driver.stable(1, instance="a")
    other = driver.join()
    waiting = driver.join(first, instance="a")
    assert driver.joined(waiting).generation == 2
    other_id = driver.joined(other).member_id
    parked = driver.sync(first, 2, instance_id="a") if first != driver.group.leader_id else None
    second = driver.join(instance="a")
    if parked is not None:
        assert refusal(driver, parked) is FencedInstanceId
    driver.join(other_id)
    assert driver.joined(second).generation == 3
    assert refusal(driver, driver.join(first, instance="a")) is FencedInstanceId


def test_a_static_member_without_its_id_has_to_rejoin() -> None:
    """librdkafka goes on sending heartbeats after it has given up its id, and takes a fence for its end."""
    driver = GroupDriver()
    (first,) = driver.stable(instance="one")
    with pytest.raises(UnknownMemberId):
        driver.beat("", 1, "one")
    with pytest.raises(UnknownMemberId):
        driver.commit("", 1, instance_id="one")
    with pytest.raises(FencedInstanceId):
        driver.beat("another", 1, "one")
    assert driver.beat(first, 1, "one") == HeartbeatReply()


def test_a_static_member_is_waited_for_until_its_session_ends() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(1, instance="a")
    driver.pass_time(SESSION_MS - 1)
    assert driver.state is State.STABLE
    driver.pass_time(1)
    assert driver.state is State.EMPTY
    assert member not in driver.group.members


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    driver = GroupDriver()
    driver.stable(1, instance="a")
    assert isinstance(driver.leave(("", "b")).members[0].error, UnknownMemberId)
    assert isinstance(driver.leave(("wrong", "a")).members[0].error, FencedInstanceId)
    assert driver.leave(("", "a")).members[0].error is None
    assert driver.state is State.EMPTY


# ---------------------------------------------------------------------- a new coordinator


def test_a_new_coordinator_goes_on_with_the_generation() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    driver.commit(first, 2, offset=11)
    driver.reload()
    assert driver.state is State.STABLE
    assert driver.beat(first, 2) == HeartbeatReply()
    assert driver.replies[driver.sync(second, 2)].assignment == second.encode()
    driver.pass_time(SESSION_MS)
    assert driver.state is State.EMPTY, "sessions run again from the take-over on"


def test_a_rebalance_that_the_new_coordinator_knows_nothing_of() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    driver.join(first)
    driver.join(second)
    assert driver.group.generation == 3
    driver.reload()
    assert refusal(driver, driver.sync(first, 3, {first: b"new"})) is IllegalGeneration
    again = [driver.join(first), driver.join(second)]
    assert {driver.joined(t).generation for t in again} == {3}, "generation 3 was nobody's yet"


def test_rebalance_timeout_is_that_of_the_most_patient() -> None:
    driver = GroupDriver()
    first = driver.joined(driver.join(rebalance_ms=1000)).member_id
    driver.sync(first, 1, {})
    ticket = driver.join(rebalance_ms=REBALANCE_MS)
    driver.pass_time(SESSION_MS - 1)
    assert ticket not in driver.replies
    driver.pass_time(REBALANCE_MS)
    assert driver.joined(ticket).generation == 2


def test_a_new_coordinator_knows_what_members_said_last() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    joined = driver.joined(driver.join(member, protocols=(("range", subscription("t", "u")),)))
    driver.sync(member, joined.generation, {member: b"more"})
    driver.reload()
    assert driver.group.subscribed_topics() == {"t", "u"}
