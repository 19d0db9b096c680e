"""Committed offsets: who may commit, what is found again, and when it goes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.group.group_driver import SESSION_MS, WALL_MS, GroupDriver, subscription
from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.group.messages import (
    BeginVerification,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    EndTransaction,
    FetchOffsets,
    ListGroupIds,
    ListGroups,
    OffsetToCommit,
    State,
)
from ottla_broker.group.records import OffsetValue, offset_record
from ottla_broker.group.verifications import Verification
from ottla_broker.metadata.image import ClusterImage, TopicImage
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla_core.ids import NO_TOPIC_ID, TopicPartition

TP = TopicPartition("t", 0)
WEEK_MS = 7 * 24 * 3600 * 1000
CHECK_MS = 600_000


def offset_of(driver: GroupDriver, tp: TopicPartition = TP) -> int:
    (found,) = driver.ask(FetchOffsets("g", (tp,))).offsets
    return int(found.offset)


def test_commits_without_membership_while_the_group_is_empty() -> None:
    driver = GroupDriver()
    assert offset_of(driver) == -1
    assert driver.commit(offset=5).errors == (None,)
    assert offset_of(driver) == 5
    assert driver.ask(DescribeGroup("g")).state is State.EMPTY
    driver.stable()
    with pytest.raises(UnknownMemberId):
        driver.commit(offset=6)
    assert offset_of(driver) == 5


def test_a_consumer_that_assigns_to_itself_may_have_a_name() -> None:
    driver = GroupDriver()
    driver.commit("my-own-name", -1, offset=5)
    driver.commit("my-own-name", -1, offset=6)
    assert offset_of(driver) == 6


def test_members_commit_in_their_generation_only() -> None:
    driver = GroupDriver()
    with pytest.raises(IllegalGeneration):
        driver.commit("m", 3)
    first, second = driver.stable(2)
    driver.commit(first, 2, offset=8)
    with pytest.raises(IllegalGeneration):
        driver.commit(first, 1, offset=9)
    with pytest.raises(UnknownMemberId):
        driver.commit("stranger", 2, offset=9)
    driver.join(first)
    driver.commit(second, 2, offset=10)  # While the group is called together, all still own what they owned.
    driver.join(second)
    assert driver.state is State.COMPLETING
    with pytest.raises(RebalanceInProgress):
        driver.commit(second, 3, offset=11)
    assert offset_of(driver) == 10


def test_a_commit_is_a_sign_of_life() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    for _ in range(3):
        driver.pass_time(SESSION_MS - 1)
        driver.commit(member, 1)
    assert driver.state is State.STABLE


def test_metadata_that_is_too_long_is_refused_for_itself() -> None:
    driver = GroupDriver()
    offsets = (OffsetToCommit(TP, 1, metadata="ü" * 2049), OffsetToCommit(TopicPartition("t", 1), 2))
    reply = driver.ask(CommitOffsets("g", -1, "", None, offsets))
    assert isinstance(reply.errors[0], OffsetMetadataTooLarge)
    assert reply.errors[1] is None
    assert offset_of(driver) == -1
    assert offset_of(driver, TopicPartition("t", 1)) == 2


def test_everything_a_group_has_committed() -> None:
    driver = GroupDriver()
    for topic in ("b", "a"):
        driver.commit(offset=len(topic), topic=topic)
    found = driver.ask(FetchOffsets("g", None)).offsets
    assert [(each.tp, each.offset) for each in found] == [
        (TopicPartition("a", 0), 1),
        (TopicPartition("b", 0), 1),
    ]


def test_offsets_of_an_empty_group_expire_and_the_group_with_them() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    driver.commit(member, 1)
    driver.leave(member)
    driver.pass_time(WEEK_MS - CHECK_MS)
    assert offset_of(driver) == 7
    driver.pass_time(2 * CHECK_MS)
    assert offset_of(driver) == -1
    assert driver.ask(ListGroups(driver.ask(ListGroupIds()).groups)).groups == ()
    driver.reload()
    assert driver.shard.groups == {}, "tombstones say so to whoever loads next"


def test_offsets_of_a_group_without_membership_expire_after_the_commit() -> None:
    driver = GroupDriver()
    driver.commit(topic="old")
    driver.pass_time(WEEK_MS // 2)
    driver.commit(topic="new")
    driver.pass_time(WEEK_MS // 2 + CHECK_MS)
    assert [o.tp.topic for o in driver.ask(FetchOffsets("g", None)).offsets] == ["new"]


def test_members_keep_what_they_read_and_lose_what_they_do_not() -> None:
    driver = GroupDriver()
    session_ms = 1_800_000  # as long as a group may ask for, so that a week has few heartbeats
    (member,) = driver.stable(1, protocols=(("range", subscription("t")),), session_ms=session_ms)
    driver.commit(member, 1)
    driver.commit(member, 1, topic="former")
    for _ in range(WEEK_MS // 3_600_000 + 1):
        for _ in range(4):
            driver.now_ms += session_ms // 2
            driver.beat(member, 1)
        driver.pass_time(1)
    assert [o.tp.topic for o in driver.ask(FetchOffsets("g", None)).offsets] == ["t"]


def test_a_retention_of_the_clients_own() -> None:
    driver = GroupDriver()
    driver.ask(CommitOffsets("g", -1, "", None, (OffsetToCommit(TP, 1),), retention_ms=60_000))
    driver.pass_time(CHECK_MS)
    assert offset_of(driver) == -1


def test_offsets_go_with_their_topic() -> None:
    driver = GroupDriver()
    first, second = UUID(int=1), UUID(int=2)
    offsets = tuple(
        OffsetToCommit(TopicPartition(topic, 0), 3, topic_id=topic_id)
        for topic, topic_id in (("kept", first), ("deleted", second), ("recreated", first))
    )
    driver.ask(CommitOffsets("g", -1, "", None, offsets))
    before = _image(kept=first, deleted=second, recreated=first)
    after = _image(kept=first, recreated=second)
    driver.see(before, ClusterImage(cluster_id=""))
    written = len(driver.log)
    driver.see(after, before)
    assert len(driver.log) == written + 2
    assert [o.tp.topic for o in driver.ask(FetchOffsets("g", None)).offsets] == ["kept"]
    driver.see(_image(kept=first), None)
    assert len(driver.log) == written + 2, "there is nothing left to remove"


def test_a_new_coordinator_removes_offsets_of_topics_deleted_before_it() -> None:
    driver = GroupDriver()
    driver.commit(topic="deleted")
    driver.reload()
    driver.see(_image(kept=UUID(int=1)))
    assert driver.ask(FetchOffsets("g", None)).offsets == ()


def _image(**topics: UUID) -> ClusterImage:
    made = {name: TopicImage(name, topic_id, {}, ()) for name, topic_id in topics.items()}
    return ClusterImage(cluster_id="", topics=made)


PRODUCER = ProducerIdentity(9, 3)


def pending_commit(driver: GroupDriver, offset: int, producer: ProducerIdentity = PRODUCER) -> None:
    """As a coordinator does for TxnOffsetCommit: the offset record belongs to the producer's transaction."""
    value = OffsetValue(offset, -1, "", WALL_MS, None, NO_TOPIC_ID)
    record = offset_record("g", TP, value)._replace(producer=producer)
    driver.append(record)


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(("commits", "expected"), [(True, 20), (False, 7)])
def test_an_offset_in_a_transaction_counts_when_its_marker_commits(
    commits: bool, expected: int, reload: bool
) -> None:
    driver = GroupDriver()
    driver.commit(offset=7)
    pending_commit(driver, 19)
    pending_commit(driver, 20)
    pending_commit(driver, 30, ProducerIdentity(10, 0))
    assert offset_of(driver) == 7
    driver.append(TransactionMarker(PRODUCER, 1, commits))
    if reload:
        driver.reload()
    assert offset_of(driver) == expected
    assert len(driver.shard.pending_offsets) == 1, "the other producer's transaction is still open"
    driver.append(TransactionMarker(ProducerIdentity(10, 0), 1, True))
    assert offset_of(driver) == 30


@pytest.mark.parametrize("reload", [False, True])
def test_a_later_commit_outside_of_transactions_overtakes_pending_ones(reload: bool) -> None:
    driver = GroupDriver()
    pending_commit(driver, 20)
    driver.commit(offset=25)
    assert driver.shard.pending_offsets.of("g") == {TP}, "unstable until the marker, as in Kafka"
    if reload:
        driver.reload()
    driver.append(TransactionMarker(PRODUCER, 1, True))
    assert offset_of(driver) == 25


#: What a history of one key consists of: a commit by nobody's or by a producer's transaction, or a producer's end.
_STEPS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from([None, 9, 10])),
    st.tuples(st.sampled_from(["commits", "aborts"]), st.sampled_from([9, 10])),
)


@given(st.lists(_STEPS, max_size=12), st.integers(0, 12))
def test_of_committed_offsets_the_last_one_in_the_log_counts(
    steps: list[tuple[str, int | None]], reloads_at: int
) -> None:
    driver, log = GroupDriver(), list[tuple[int, int | None]]()
    committed = {-1}  # Places in the log whose commits count.
    for place, (what, producer_id) in enumerate(steps):
        if place == reloads_at:
            driver.reload()
        if what != "commit":
            assert producer_id is not None
            driver.append(TransactionMarker(ProducerIdentity(producer_id, 0), 1, what == "commits"))
            ended = [at for at, of in log if of == producer_id]
            committed |= set(ended) if what == "commits" else set()
            log = [each for each in log if each[1] != producer_id]
        elif producer_id is None:
            driver.commit(offset=place)
            committed.add(place)
        else:
            pending_commit(driver, place, ProducerIdentity(producer_id, 0))
            log.append((place, producer_id))
        assert offset_of(driver) == max(committed)
    driver.reload()
    assert offset_of(driver) == max(committed)


def test_offsets_in_a_transaction_need_no_member() -> None:
    """TxnOffsetCommit before version 3 (kafkajs), or without the group's metadata (sarama), does not name one."""
    driver = GroupDriver()
    driver.stable()
    assert driver.commit(offset=20, producer=PRODUCER).errors == (None,)
    driver.append(TransactionMarker(PRODUCER, 1, True))
    assert offset_of(driver) == 20
    with pytest.raises(UnknownMemberId):
        driver.commit("gone", 1, producer=PRODUCER)


def begun(driver: GroupDriver, producer: ProducerIdentity = PRODUCER) -> Verification:
    verification = Verification(producer.producer_id)
    driver.ask(BeginVerification(verification))
    return verification


def commit_verified(driver: GroupDriver, verification: Verification, offset: int = 20) -> None:
    wanted = (OffsetToCommit(TP, offset),)
    driver.ask(
        CommitOffsets("g", -1, "", None, wanted, producer=PRODUCER, verification=verification),
    )


def test_an_offset_is_refused_if_its_transaction_ended_while_it_was_verified() -> None:
    """Else it would begin a transaction that nothing ends."""
    driver = GroupDriver()
    verification = begun(driver)
    driver.ask(EndTransaction(TransactionMarker(PRODUCER, 1, True)))
    with pytest.raises(CoordinatorNotAvailable):
        commit_verified(driver, verification)
    assert len(driver.shard.pending_offsets) == 0
    commit_verified(driver, begun(driver))
    assert len(driver.shard.pending_offsets) == 1


def test_an_offset_is_refused_if_another_coordinator_took_over_while_it_was_verified() -> None:
    driver = GroupDriver()
    verification = begun(driver)
    driver.reload()
    with pytest.raises(CoordinatorNotAvailable):
        commit_verified(driver, verification)


def test_a_marker_of_another_producer_refuses_nothing() -> None:
    driver = GroupDriver()
    verification, other = begun(driver), ProducerIdentity(10, 0)
    begun(driver, other)
    driver.ask(EndTransaction(TransactionMarker(other, 1, True)))
    commit_verified(driver, verification)
    assert len(driver.shard.verifications) == 1
    verification.end()
    assert len(driver.shard.verifications) == 0


def test_pending_offsets_go_with_their_group() -> None:
    driver = GroupDriver()
    driver.commit(offset=7)
    pending_commit(driver, 20)
    assert len(driver.shard.pending_offsets) == 1
    driver.ask(DeleteGroup("g"))
    assert len(driver.shard.pending_offsets) == 0
    driver.append(TransactionMarker(PRODUCER, 1, True))
    assert offset_of(driver) == -1


def test_deleting_offsets() -> None:
    driver = GroupDriver()
    with pytest.raises(GroupIdNotFound):
        driver.ask(DeleteOffsets("g", (TP,)))
    (member,) = driver.stable()
    driver.commit(member, 1)
    driver.commit(member, 1, topic="former")
    reply = driver.ask(DeleteOffsets("g", (TP, TopicPartition("former", 0), TopicPartition("never", 0))))
    assert [type(e) for e in reply.errors] == [GroupSubscribedToTopic, type(None), type(None)]
    assert (offset_of(driver), offset_of(driver, TopicPartition("former", 0))) == (7, -1)


def test_offsets_of_members_that_are_no_consumers_are_theirs() -> None:
    driver = GroupDriver()
    driver.stable(1, protocol_type="connect")
    with pytest.raises(NonEmptyGroup):
        driver.ask(DeleteOffsets("g", (TP,)))


def test_deleting_a_group() -> None:
    driver = GroupDriver()
    with pytest.raises(GroupIdNotFound):
        driver.ask(DeleteGroup("g"))
    (member,) = driver.stable()
    driver.commit(member, 1)
    with pytest.raises(NonEmptyGroup):
        driver.ask(DeleteGroup("g"))
    driver.leave(member)
    driver.ask(DeleteGroup("g"))
    assert driver.ask(DescribeGroup("g")).state is State.DEAD
    assert offset_of(driver) == -1
    driver.reload()
    assert driver.shard.groups == {}
    assert len(driver.shard.offsets) == 0


def test_what_is_shown_of_a_group() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    shown = driver.ask(DescribeGroup("g"))
    assert (shown.state, shown.protocol_type, shown.protocol) == (State.STABLE, "consumer", "range")
    assert [(m.member_id, m.assignment, m.client_host) for m in shown.members] == [
        (member, member.encode(), "/127.0.0.1")
    ]
    driver.join()
    shown = driver.ask(DescribeGroup("g"))
    assert (shown.state, shown.protocol) == (State.PREPARING, "")
    assert {m.assignment for m in shown.members} == {b""}, "during a rebalance they are nobody's"
    (listed,) = driver.ask(ListGroups(driver.ask(ListGroupIds()).groups)).groups
    assert (listed.group, listed.state, listed.protocol_type) == ("g", State.PREPARING, "consumer")


def test_a_record_that_makes_no_sense_costs_only_itself() -> None:
    driver = GroupDriver()
    driver.commit(offset=1)
    broken = driver.log[-1]._replace(value=b"\x00")
    driver.log.append(broken)
    driver.commit(offset=2, topic="u")
    driver.reload()
    assert offset_of(driver) == 1
    assert offset_of(driver, TopicPartition("u", 0)) == 2
    assert driver.probe.records_skipped == 1
