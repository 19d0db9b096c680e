"""Broker-side groups: joins, fencing, static members, timeouts, regular expressions, and classic groups beside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.group.consumer_driver import TIMEOUT_MS, ConsumerDriver, ModelMember, topic_id
from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.consumer.messages import ConsumerHeartbeat, DescribeConsumerGroup
from ottla_broker.group.consumer.pace import heartbeat_interval_ms
from ottla_broker.group.consumer.records import CurrentAssignment, read_record
from ottla_broker.group.messages import (
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    GroupType,
    ListGroupIds,
    ListGroups,
    State,
)
from ottla_broker.group_config import GroupSettings
from ottla_broker.requests import ProducerIdentity
from ottla_core.assignors.model import Assignment, Members, Topology
from ottla_core.assignors.registry import BUILT_IN
from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from ottla_core.ids import TopicPartition

T = topic_id("t")


def sizes(*members: ModelMember) -> list[int]:
    return [sum(map(len, member.owned.values())) for member in members]


def test_a_second_member_gets_half_and_the_first_keeps_the_rest() -> None:
    driver = ConsumerDriver({"t": 4})
    one, two = ModelMember("one"), ModelMember("two")
    assert driver.beat(one) is None
    assert (sizes(one), one.epoch) == ([4], 1)
    driver.beat(two)
    assert sizes(two) == [0]  # All partitions still have an owner.
    assert driver.group_of().state is State.RECONCILING
    driver.settle([one, two], 3)
    assert sizes(one, two) == [2, 2]
    assert driver.group_of().state is State.STABLE
    assert one.revocations == 1


@pytest.mark.parametrize(
    ("members", "interval_ms", "waiting_ms"),
    [(1, 500, 100), (10, 500, 100), (11, 550, 110), (60, 3000, 600), (1000, 5000, 5000)],
)
def test_few_members_send_heartbeats_often(members: int, interval_ms: int, waiting_ms: int) -> None:
    assert heartbeat_interval_ms(members, 500, 5000, waits=False) == interval_ms
    assert heartbeat_interval_ms(members, 500, 5000, waits=True) == waiting_ms
    assert heartbeat_interval_ms(members, 5000, 5000, waits=False) == 5000
    assert heartbeat_interval_ms(members, 500, 50, waits=False) == 50
    assert heartbeat_interval_ms(members, 50, 5000, waits=True) <= waiting_ms


def test_a_member_that_waits_for_partitions_asks_soon_and_a_setting_is_kept() -> None:
    def joined(driver: ConsumerDriver, name: str) -> int:
        request = ConsumerHeartbeat("g", name, 0, rebalance_timeout_ms=1000, topics=("t",))
        return int(driver.ask(request).heartbeat_interval_ms)

    driver = ConsumerDriver({"t": 4})
    assert [joined(driver, name) for name in ("one", "two")] == [500, 100]
    driver = ConsumerDriver({"t": 4})
    driver.group_settings["g"] = GroupSettings.of({"consumer.heartbeat.interval.ms": "700"})
    assert [joined(driver, name) for name in ("one", "two")] == [700, 700]


def test_a_partition_moves_only_after_its_owner_has_reported_its_revocation() -> None:
    driver = ConsumerDriver({"t": 2})
    one, two = ModelMember("one"), ModelMember("two")
    driver.beat(one)
    before = dict(one.owned)
    driver.beat(two)
    assert driver.beat(one) is None  # It learns what it loses,
    driver.beat(two)
    assert sizes(two) == [0]  # and has not said yet that it did.
    reply = driver.ask(ConsumerHeartbeat("g", "one", one.epoch, owned=before))
    assert reply.member_epoch == one.epoch
    driver.beat(one)
    driver.beat(two)
    assert sizes(one, two) == [1, 1]


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    driver = ConsumerDriver({"t": 2})
    one, two = ModelMember("one"), ModelMember("two")
    driver.beat(one)
    driver.beat(two)
    driver.beat(one)
    for _ in range(TIMEOUT_MS // 5000 + 1):
        driver.pass_time(5000)
        driver.beat(two)
        driver.send(ConsumerHeartbeat("g", "one", one.epoch))
    assert sizes(two) == [2]
    assert isinstance(driver.beat(one), UnknownMemberId)


def test_a_silent_member_is_removed_and_its_partitions_move() -> None:
    driver = ConsumerDriver({"t": 4})
    one, two = ModelMember("one"), ModelMember("two")
    driver.settle([one, two], 4)
    for _ in range(10):
        driver.pass_time(5000)
        driver.beat(two)
    assert sizes(two) == [4]


def test_wrong_epochs_are_fenced() -> None:
    driver = ConsumerDriver({"t": 2})
    one = ModelMember("one")
    driver.beat(one)
    for epoch in (one.epoch + 1, 77):
        with pytest.raises(FencedMemberEpoch):
            driver.ask(ConsumerHeartbeat("g", "one", epoch))
    with pytest.raises(UnknownMemberId):
        driver.ask(ConsumerHeartbeat("g", "none", 1))
    with pytest.raises(UnknownMemberId):
        driver.ask(ConsumerHeartbeat("none", "one", 1))


def test_a_lost_reply_is_repeated() -> None:
    driver = ConsumerDriver({"t": 2})
    one, two = ModelMember("one"), ModelMember("two")
    driver.settle([one, two], 4)
    driver.leave(two)
    assert driver.beat(one, lose_reply=True) is None
    assert driver.beat(one) is None
    assert sizes(one) == [2]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topics": None}, InvalidRequest),
        ({"rebalance_timeout_ms": -1}, InvalidRequest),
        ({"owned": {T: frozenset([1])}}, InvalidRequest),
        ({"assignor": "none"}, UnsupportedAssignor),
        ({"regex": "("}, InvalidRegularExpression),
    ],
)
def test_bad_joins_are_refused_and_leave_nothing_behind(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    driver = ConsumerDriver({"t": 2})
    full = {"rebalance_timeout_ms": 1000, "topics": ("t",), "owned": {}} | changes
    with pytest.raises(error):
        driver.ask(ConsumerHeartbeat("g", "m", 0, **full))  # type: ignore[arg-type]
    assert not driver.log
    assert "g" not in driver.shard.consumers


def test_the_size_of_a_group_is_limited() -> None:
    driver = ConsumerDriver({"t": 2}, group_consumer_max_size="1")
    driver.beat(ModelMember("one"))
    assert isinstance(driver.beat(ModelMember("two")), GroupMaxSizeReached)


def test_a_static_member_returns_to_its_partitions() -> None:
    driver = ConsumerDriver({"t": 4})
    one, two = ModelMember("one", instance_id="i"), ModelMember("two")
    driver.settle([one, two], 4)
    before, epoch = dict(one.owned), driver.group_of().epoch
    again = ModelMember("again", instance_id="i")
    assert isinstance(driver.beat(again), UnreleasedInstanceId)
    driver.leave(one, -2)
    driver.beat(two)
    assert driver.beat(again) is None
    assert again.owned == before
    assert driver.group_of().epoch == epoch
    assert two.revocations == 0
    one.epoch = epoch
    assert isinstance(driver.beat(one), FencedInstanceId)
    driver.leave(again, -2)
    for _ in range(10):
        driver.pass_time(5000)
        driver.beat(two)
    assert sizes(two) == [4]


def test_topics_that_appear_and_grow_are_assigned() -> None:
    driver = ConsumerDriver({"t": 1})
    one = ModelMember("one", ("t", "later"))
    driver.beat(one)
    driver.show({"t": 3, "later": 2})
    driver.settle([one], 2)
    assert sizes(one) == [5]
    driver.show({"t": 3})
    driver.settle([one], 2)
    assert sizes(one) == [3]


def test_regular_expressions_are_resolved_by_the_broker() -> None:
    driver = ConsumerDriver({"t-1": 1, "x": 1, "__consumer_offsets": 50})
    one = ModelMember("one", topics=None, regex="t-.*|__.*")
    assert driver.beat(one) is None
    assert one.owned == {topic_id("t-1"): frozenset([0])}
    driver.show({"t-1": 1, "t-2": 2, "x": 1})
    driver.settle([one], 2)
    assert sizes(one) == [3]
    one.regex, one.topics = "", ("x",)
    driver.settle([one], 3)
    assert one.owned == {topic_id("x"): frozenset([0])}
    assert not driver.group_of().regexes


def test_a_regular_expression_gives_a_member_only_topics_that_it_may_describe() -> None:
    """Another member with the same expression gets the others; changed rights count from the next heartbeat."""
    driver = ConsumerDriver({"t-1": 2, "t-2": 2})
    one = ModelMember("one", topics=None, regex="t-.*")
    two = ModelMember("two", topics=None, regex="t-.*")
    seen: set[str] = {"t-1"}
    rights: list[object] = [object()]

    def settle(rounds: int = 6) -> None:
        for _ in range(rounds):
            assert driver.beat(one, may_describe=seen.__contains__, rights=rights[0]) is None
            assert topic_id("t-2") not in one.owned or "t-2" in seen
            assert driver.beat(two) is None

    settle()
    assert set(one.owned) <= {topic_id("t-1")} and topic_id("t-2") in two.owned
    assert len(two.owned[topic_id("t-2")]) == 2 and sizes(one, two) == [2, 2]
    driver.show({"t-1": 2, "t-2": 2, "t-3": 4})
    settle()
    assert set(one.owned) == {topic_id("t-1")}
    seen.add("t-3")
    rights[0] = object()
    settle()
    assert topic_id("t-3") in one.owned
    seen.discard("t-3")
    rights[0] = object()
    settle()
    assert set(one.owned) == {topic_id("t-1")} and sizes(one, two) == [2, 6]
    epoch = driver.group_of().epoch
    rights[0] = object()
    settle()
    assert driver.group_of().epoch == epoch, "other rights of others cost no rebalance"


def test_the_assignor_is_set_or_voted_for() -> None:
    driver = ConsumerDriver({"t": 2, "u": 2})
    one, two = ModelMember("one", ("t", "u")), ModelMember("two", ("t", "u"))
    driver.settle([one, two], 4)
    assert driver.ask(DescribeConsumerGroup("g")).assignor == "uniform"
    driver.group_settings["g"] = GroupSettings.of({"consumer.assignor": "broadcast"})
    for _ in range(3):
        for member in (one, two):
            request = ConsumerHeartbeat("g", member.id, member.epoch, owned=member.owned)
            decision = driver.shard.handle(request, 10_000, driver.now)
            driver.log += decision.records
            driver._take_over(member, decision.replies[0][1])
    assert sizes(one, two) == [4, 4]


@pytest.mark.parametrize("assignor", ["pinned", "uniform", "sticky", "range", "consistent-hash"])
def test_pins_are_honoured(assignor: str) -> None:
    driver = ConsumerDriver({"t": 4})
    driver.group_settings["g"] = GroupSettings.of(
        {"consumer.assignor": assignor, "consumer.assignor.pins": "t:0=i,t:1=i,t:2=i"}
    )
    one, two = ModelMember("one", instance_id="i"), ModelMember("two", instance_id="j")
    driver.settle([one, two], 5)
    assert one.owned[T] >= frozenset([0, 1, 2])
    assert one.owned[T] | two.owned.get(T, frozenset()) == frozenset(range(4))


def test_offsets_need_the_current_epoch() -> None:
    driver = ConsumerDriver({"t": 2})
    one = ModelMember("one")
    driver.beat(one)
    fetch = FetchOffsets("g", (TopicPartition("t", 0),), "one", one.epoch)
    assert driver.ask(fetch).offsets[0].offset == -1
    assert driver.ask(FetchOffsets("g", None)).offsets == ()
    with pytest.raises(StaleMemberEpoch):
        driver.ask(FetchOffsets("g", None, "one", one.epoch + 1))
    with pytest.raises(UnknownMemberId):
        driver.ask(FetchOffsets("g", None, "two", one.epoch))
    errors = driver.ask(DeleteOffsets("g", (TopicPartition("t", 0), TopicPartition("u", 0)))).errors
    assert isinstance(errors[0], GroupSubscribedToTopic)
    assert errors[1] is None


@pytest.mark.parametrize("producer", [None, ProducerIdentity(9, 3)])
def test_a_member_commits_with_an_earlier_epoch_what_it_has_kept(producer: ProducerIdentity | None) -> None:
    driver = ConsumerDriver({"t": 3, "u": 1})
    one, two = ModelMember("one"), ModelMember("two")
    driver.beat(one)
    earlier = one.epoch
    driver.beat(two)
    driver.beat(one)  # It learns what it has to revoke; its epoch stays until it has.
    kept, (lost,) = one.owned[T], frozenset(range(3)) - one.owned[T]
    assert one.epoch == earlier and driver.commits("one", earlier, *kept, lost, producer=producer)
    driver.settle([one, two], 4)
    assert one.epoch > earlier and two.owned[T] == {lost}
    for _ in range(2):
        assert driver.commits("one", earlier, *kept, producer=producer)
        assert not driver.commits("one", earlier, lost, producer=producer), "its new owner may have committed"
        assert not driver.commits("one", earlier, *kept, lost, producer=producer)
        assert not driver.commits("one", earlier, 0, topic="u", producer=producer)
        assert not driver.commits("one", earlier - 1, *kept, producer=producer)
        assert not driver.commits("one", one.epoch + 1, *kept, producer=producer)
        assert not driver.commits("two", earlier, lost, producer=producer), "it was given it later"
        driver.reload()
        driver.show(driver.counts)
    driver.leave(two)
    driver.settle([one], 3)
    assert driver.commits("one", earlier, *kept, producer=producer)
    assert not driver.commits("one", earlier, lost, producer=producer), "it has it again, since a later epoch"
    with pytest.raises(StaleMemberEpoch):
        driver.ask(FetchOffsets("g", None, "one", earlier))


def test_a_member_that_joins_again_or_was_removed_commits_nothing_with_earlier_epochs() -> None:
    driver = ConsumerDriver({"t": 2})
    one, two = ModelMember("one", instance_id="i"), ModelMember("two")
    driver.settle([one, two], 4)
    (owned,), epoch = one.owned[T], one.epoch
    driver.leave(one, -2)
    assert not driver.commits("one", epoch, owned), "its next process has it"
    again = ModelMember("again", instance_id="i")
    driver.beat(again)
    assert not driver.commits("one", epoch, owned)
    driver.leave(two)
    driver.settle([again], 3)
    assert driver.commits("again", epoch, owned)
    epoch, again.epoch, again.owned = again.epoch, 0, {}
    three = ModelMember("three")
    driver.beat(three)
    driver.settle([again, three], 4)
    assert not driver.commits("again", epoch, 0) and not driver.commits("again", epoch, 1)


def test_records_without_epochs_of_partitions_are_read_as_of_the_members_epoch() -> None:
    def record(tag: str) -> StateRecord:
        value = "000000000005000000040002" + T.bytes.hex() + "030000000000000001" + tag
        return StateRecord(b"\0\x08\0\x01g\0\x01m", bytes.fromhex(value + "0100"))

    for tag, expected in (
        ("00", (5, 5)),  # As brokers before KIP-1251 wrote it.
        ("01000100", (5, 5)),  # Null.
        ("010009030000000200000005", (2, 5)),
    ):
        found = read_record(record(tag))
        assert found is not None and isinstance(found.value, CurrentAssignment)
        assert (found.value.has_since(T, 0), found.value.has_since(T, 1)) == expected
        assert found.value.has_since(T, 2) is None and read_record(found.encoded()) == found
    with pytest.raises(Undecodable, match="2 partitions have 1 epochs"):
        read_record(record("0100050200000002"))


def test_offsets_in_a_transaction_need_no_member() -> None:
    driver = ConsumerDriver({"t": 2})
    driver.beat(ModelMember("one"))
    with pytest.raises(UnknownMemberId):
        driver.commit()
    assert driver.commit(producer=ProducerIdentity(9, 3)).errors == (None,)
    with pytest.raises(StaleMemberEpoch):
        driver.commit("one", 7, producer=ProducerIdentity(9, 3))


def test_a_group_is_listed_described_and_deleted_with_its_type() -> None:
    driver = ConsumerDriver({"t": 2})
    one = ModelMember("one")
    driver.beat(one)
    (listed,) = driver.ask(ListGroups(driver.ask(ListGroupIds()).groups)).groups
    assert (listed.group, listed.type, listed.state) == ("g", GroupType.CONSUMER, State.STABLE)
    described = driver.ask(DescribeConsumerGroup("g"))
    assert described.members[0].assignment == described.members[0].target == one.owned
    with pytest.raises(NonEmptyGroup):
        driver.ask(DeleteGroup("g"))
    driver.leave(one)
    driver.ask(DeleteGroup("g"))
    assert "g" not in driver.shard.consumers
    driver.reload()
    assert not driver.ask(ListGroups(driver.ask(ListGroupIds()).groups)).groups


class Moody:
    """An assignor of somebody else's."""

    name = "moody"
    shares_partitions = False
    makes: Callable[[], Assignment]

    def assign(self, topology: Topology, members: Members, parameters: Mapping[str, str]) -> Assignment:
        return self.makes()


def _raises() -> Assignment:
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("makes", "why"),
    [
        (_raises, "RuntimeError('not today')"),
        (lambda: {"one": [TopicPartition("t", 7)]}, "one cannot have t-7"),
        (lambda: {"one": [TopicPartition("t", 0)] * 2}, "a partition has two members"),
        (lambda: {"stranger": [TopicPartition("t", 0)]}, "KeyError('stranger')"),
    ],
)
def test_the_assignor_that_is_in_force_is_shown(makes: Callable[[], Assignment], why: str) -> None:
    moody = Moody()
    moody.makes = lambda: {"one": [TopicPartition("t", n) for n in range(2)]}
    driver = ConsumerDriver({"t": 2})
    driver.assignors = {**BUILT_IN, "moody": moody}
    driver.reload()
    driver.show({"t": 2})
    one = ModelMember("one")
    assert driver.beat(one, assignor="moody") is None

    def shown() -> tuple[str, str]:
        found = driver.ask(DescribeConsumerGroup("g"))
        return found.assignor, found.assignor_failure

    assert shown() == ("moody", "")
    moody.makes = makes
    driver.show({"t": 3})
    driver.settle([one], 3)
    assert sizes(one) == [3]
    for _ in range(2):
        assert shown()[0] == "uniform" and why in shown()[1] and "moody" in shown()[1]
        driver.reload()
        driver.show({"t": 3})
    moody.makes = lambda: {"one": [TopicPartition("t", 0)]}
    driver.show({"t": 4})
    driver.settle([one], 3)
    assert shown() == ("moody", "") and sizes(one) == [1]


def test_an_empty_group_changes_its_kind() -> None:
    driver = ConsumerDriver({"t": 2})
    (classic,) = driver.stable(1)
    one = ModelMember("one")
    super(ConsumerDriver, driver).leave(classic)
    assert driver.beat(one) is None
    assert "g" not in driver.shard.groups
    driver.reload()
    driver.show({"t": 2})
    assert driver.beat(one) is None
    driver.leave(one)
    driver.stable(1)
    assert "g" not in driver.shard.consumers
    driver.reload()
    assert driver.shard.groups["g"].members
    with pytest.raises(GroupIdNotFound):
        driver.ask(DescribeConsumerGroup("g"))


def test_a_join_into_a_large_group_does_not_hold_the_event_loop() -> None:
    driver = ConsumerDriver({"t": 900})
    members = [ModelMember(f"m{number:02}") for number in range(10)]
    driver.settle(members, 5)
    assert sizes(*members) == [90] * 10
    newcomer = ModelMember("new")
    request = ConsumerHeartbeat("g", "new", 0, "c", "h", None, None, 1000, ("t",), owned={})
    start = time.process_time()
    decision = driver.shard.handle(request, 10_000, driver.now)
    spent = time.process_time() - start
    assert decision.records
    driver.beat(newcomer)
    driver.settle([*members, newcomer], 4)
    assert min(sizes(*members, newcomer)) >= 81
    assert spent < 0.05  # About 4 ms on a quiet machine.
