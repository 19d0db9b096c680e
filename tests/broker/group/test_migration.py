"""Online migration between the two group protocols: each transition, what is refused, and the records."""

from __future__ import annotations

from typing import Any

import pytest

from broker.group.classic_member import SESSION_MS, ClassicMember, subscription
from broker.group.consumer_driver import ConsumerDriver, ModelMember, topic_id
from broker.group.group_driver import GroupDriver
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.consumer.messages import ConsumerHeartbeat, DescribeConsumerGroup
from ottla_broker.group.consumer.records import ClassicMetadata, MemberMetadata, read_record
from ottla_broker.group.messages import Heartbeat, Protocol, State
from ottla_broker.group.records import GroupKey, group_record, read_key
from ottla_broker.group.subscription import write_assignment
from ottla_core.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition


def classic_group(driver: ConsumerDriver, count: int = 2, **more: Any) -> list[ClassicMember]:
    members = [ClassicMember(driver, number, topics=("t",), **more) for number in range(count)]
    step(members)
    assert driver.shard.groups["g"].state is State.STABLE
    return members


def step(members: list[ClassicMember], rounds: int = 8) -> None:
    for _ in range(rounds):
        for member in members:
            member.step()


def mixed(driver: ConsumerDriver, classic: list[ClassicMember], new: list[ModelMember]) -> None:
    for _ in range(8):
        mixed_once(driver, classic, new)


def mixed_once(driver: ConsumerDriver, classic: list[ClassicMember], new: list[ModelMember]) -> None:
    driver.settle(new, 1)
    step(classic, 1)


def test_the_first_new_member_upgrades_and_partitions_move_one_by_one() -> None:
    driver = ConsumerDriver({"t": 6})
    classic = classic_group(driver)
    before = [set(member.owned) for member in classic]
    generation = classic[0].generation
    new = ModelMember("new")
    assert driver.beat(new) is None
    assert "g" not in driver.shard.groups
    group = driver.group_of()
    assert (group.epoch, new.epoch, new.owned) == (generation + 1, generation + 1, {})
    assert [member.current.epoch for member in group.members.values() if member.is_classic] == [
        generation
    ] * 2
    with pytest.raises(RebalanceInProgress):
        driver.ask(Heartbeat("g", generation, classic[0].id, None))
    mixed(driver, classic, [new])
    assert [len(member.owned) for member in classic] == [2, 2]
    assert sum(map(len, new.owned.values())) == 2
    assert all(member.owned < old for member, old in zip(classic, before, strict=True))
    assert driver.group_of().state is State.STABLE
    described = driver.ask(DescribeConsumerGroup("g")).members
    assert [each.is_classic for each in described] == [True, True, False]
    assert [each.session_timeout_ms for each in described] == [SESSION_MS, SESSION_MS, 45_000]


def test_the_last_new_member_that_leaves_downgrades_with_a_rebalance() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    mixed(driver, classic, [new])
    epoch = new.epoch
    driver.leave(new)
    assert "g" not in driver.shard.consumers
    assert driver.shard.groups["g"].generation > epoch
    driver.pass_time(0)
    assert driver.shard.groups["g"].state is State.PREPARING
    step(classic)
    assert sorted(len(member.owned) for member in classic) == [3, 3]
    assert driver.shard.groups["g"].state is State.STABLE


def test_a_new_member_whose_session_expires_downgrades_too() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    mixed(driver, classic, [new])
    for _ in range(10):
        driver.pass_time(5_000)
        step(classic, 3)
    assert "g" not in driver.shard.consumers
    assert sorted(len(member.owned) for member in classic) == [3, 3]


def test_a_downgrade_continues_under_the_next_coordinator() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    mixed(driver, classic, [new])
    driver.leave(new)
    driver.reload()  # Before the rebalance began.
    driver.show({"t": 6})
    assert driver.shard.groups["g"].state is State.PREPARING
    step(classic)
    assert sorted(len(member.owned) for member in classic) == [3, 3]


def test_a_static_member_that_restarts_right_after_a_downgrade_is_given_partitions() -> None:
    """Its JoinGroup comes before the rebalance that the downgrade starts, and must not cancel it."""
    driver = ConsumerDriver({"t": 6})
    new = ModelMember("new")
    driver.settle([new], 2)
    static = ClassicMember(driver, 1, cooperative=False, topics=("t",), instance_id="s")
    static.join()
    driver.leave(new)
    static.restart()
    step([static], 1)
    for _ in range(4):
        driver.pass_time(1_000)
        step([static], 1)
    assert len(static.owned) == 6


def test_an_upgraded_group_is_loaded_with_its_classic_members() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    mixed(driver, classic, [new])
    owned = [set(member.owned) for member in classic]
    driver.reload()
    driver.show({"t": 6})
    mixed(driver, classic, [new])
    assert [member.owned for member in classic] == owned
    rebalances = [member.rebalances for member in classic]
    for _ in range(2):
        driver.pass_time(SESSION_MS - 1)
        mixed_once(driver, classic, [new])
    assert [member.rebalances for member in classic] == rebalances
    driver.pass_time(SESSION_MS + 1)
    assert not any(member.is_classic for member in driver.group_of().members.values())


def test_members_that_wait_in_a_rebalance_are_asked_to_join_again() -> None:
    driver = ConsumerDriver({"t": 4}, delay_ms=3_000)
    waiting = ClassicMember(driver, 0)
    waiting.step()
    ticket = waiting.joining
    assert ticket is not None and ticket not in driver.replies
    new = ModelMember("new")
    assert driver.beat(new) is None
    assert isinstance(driver.replies[ticket], RebalanceInProgress)
    mixed(driver, [waiting], [new])
    assert len(waiting.owned) == 2


def test_offsets_survive_both_ways() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    before = frozenset(classic[0].owned)
    tp = min(before)
    assert classic[0].commit(tp, 42) is None
    mixed(driver, classic, [new])
    assert driver.shard.offsets.of("g")[tp].offset == 42
    kept = min(classic[0].owned)
    assert classic[0].commit(kept, 43) is None
    classic[0].generation -= 1
    assert classic[0].commit(kept, 43) is None, "it has had it since then"
    for lost in before - classic[0].owned:
        assert isinstance(classic[0].commit(lost, 1), IllegalGeneration)
    classic[0].generation += 1
    driver.leave(new)
    for _ in range(2):
        assert driver.shard.offsets.of("g")[kept].offset == 43
        driver.reload()


def test_the_records_are_tombstones_of_the_old_kind_and_the_new_one() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    start = len(driver.log)
    driver.beat(new)
    first, *others = [entry for entry in driver.log[start:] if isinstance(entry, StateRecord)]
    assert (read_key(first.key), first.value) == (GroupKey("g"), None)
    found = [read_record(each) for each in others]
    assert [each.kind for each in found[:8] if each is not None] == [5, 5, 3, 7, 7, 6, 8, 8]
    carried = found[0].value if found[0] is not None else None
    assert isinstance(carried, MemberMetadata) and carried.classic is not None
    assert carried.classic.protocols[0].name == "cooperative-sticky"
    mixed(driver, classic, [new])
    start = len(driver.log)
    driver.leave(new)
    *tombstones, last = [entry for entry in driver.log[start:] if isinstance(entry, StateRecord)]
    assert read_key(last.key) == GroupKey("g") and last.value is not None
    assert [each.value for each in tombstones[-2:]] == [None, None]
    # Nothing of the broker-side group is left after compaction.
    newest = {entry.key: entry for entry in driver.log if isinstance(entry, StateRecord)}
    assert [read_key(key) for key, entry in newest.items() if entry.value is not None] == [GroupKey("g")]


def test_metadata_of_a_classic_member_has_kafkas_bytes() -> None:
    classic = ClassicMetadata(45_000, (Protocol("range", b"\x00\x01"),))
    #       present, session timeout, 1 protocol: "range", 2 bytes, no tags; no tags
    assert classic.encoded().hex() == "01" + "0000afc8" + "02" + "0672616e6765" + "030001" + "00" + "00"
    assert ClassicMetadata.decoded(classic.encoded()) == classic
    assert ClassicMetadata.decoded(b"\xff") is None


@pytest.mark.parametrize("eager", [True, False])
def test_a_static_classic_member_becomes_a_new_one_and_back_without_moving_partitions(eager: bool) -> None:
    driver = ConsumerDriver({"t": 6})
    one, two = members = [ClassicMember(driver, n, not eager, ("t",), instance_id=f"i{n}") for n in range(2)]
    step(members)
    had, other = set(one.owned), set(two.owned)
    one.die()  # A static member of the classic protocol does not leave.
    new = ModelMember("new", instance_id="i0")
    assert driver.beat(new) is None
    mixed(driver, [two], [new])
    assert two.owned == other
    driver.leave(new, -2)
    assert "g" in driver.shard.consumers, "its place is kept"
    one.restart()
    one.step()
    assert "g" not in driver.shard.consumers
    rebalances = two.rebalances
    driver.pass_time(0)
    step([one, two])
    assert (one.owned, two.owned, two.rebalances) == (had, other, rebalances)


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    driver = ConsumerDriver({"t": 6})
    one = ClassicMember(driver, 0, instance_id="i")
    step([one])
    new = ModelMember("new", instance_id="i")
    assert driver.beat(new) is None
    with pytest.raises(FencedInstanceId):
        driver.ask(Heartbeat("g", one.generation, one.id, "i"))
    again = driver.join(one.id, instance="i", protocols=[("cooperative-sticky", subscription(["t"]))])
    assert isinstance(driver.replies[again], FencedInstanceId)


def test_a_member_that_does_not_join_or_sync_in_time_is_removed() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new")
    mixed(driver, classic, [new])
    late = classic[0]
    other = ModelMember("other")
    driver.beat(other)  # Everybody has to move.
    for _ in range(15):
        driver.pass_time(5_000)
        driver.settle([new, other], 1)
        step(classic[1:], 1)
        try:
            driver.ask(Heartbeat("g", late.generation, late.id, None))
        except RebalanceInProgress:
            continue
        except UnknownMemberId:
            break
    else:
        raise AssertionError("it was never removed")
    request = driver.join_request(protocols=[("cooperative-sticky", subscription(["t"]))], session_ms=300_000)
    never_syncs = driver.joined(driver.send(request)).member_id
    for _ in range(13):
        driver.pass_time(5_000)
        mixed(driver, classic[1:], [new, other])
    assert never_syncs not in driver.group_of().members


def test_a_member_waits_until_all_its_partitions_are_free() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver, 1), ModelMember("new")
    driver.beat(new)
    joined = ClassicMember(driver, 9, topics=("t",))
    joined.step()
    assert not joined.owned
    rebalances = joined.rebalances
    joined.step()
    assert joined.rebalances == rebalances, "nothing is free yet"
    mixed(driver, [*classic, joined], [new])
    assert [len(each.owned) for each in (*classic, joined)] == [2, 2]


def test_an_administrator_removes_members_of_both_kinds() -> None:
    driver = ConsumerDriver({"t": 6})
    classic, new = classic_group(driver), ModelMember("new", instance_id="i")
    mixed(driver, classic, [new])
    removed = GroupDriver.leave(driver, ("", "i"), "nobody", classic[1].id)
    assert [type(each.error) for each in removed.members] == [type(None), UnknownMemberId, type(None)]
    assert list(driver.shard.groups["g"].members) == [classic[0].id]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_no_upgrade_if_the_policy_says_so(policy: str) -> None:
    driver = ConsumerDriver({"t": 2}, group_consumer_migration_policy=policy)
    (one,) = classic_group(driver, 1)
    refused = driver.beat(ModelMember("new"))
    assert isinstance(refused, GroupIdNotFound) and "group.consumer.migration.policy" in str(refused)
    one.leave()
    assert driver.beat(ModelMember("new")) is None, "a group without members belongs to neither protocol"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_no_downgrade_if_the_policy_says_so(policy: str) -> None:
    driver = ConsumerDriver({"t": 2}, group_consumer_migration_policy=policy)
    new, one = ModelMember("new"), ClassicMember(driver, 1, topics=("t",))
    driver.beat(new)
    mixed(driver, [one], [new])
    driver.leave(new)
    step([one])
    assert "g" in driver.shard.consumers
    assert len(one.owned) == 2


def test_groups_that_cannot_be_upgraded() -> None:
    connect = ConsumerDriver({"t": 2})
    connect.stable(1, protocol_type="connect")
    assert "connect" in str(connect.beat(ModelMember("new")))
    broken = ConsumerDriver({"t": 2})
    broken.stable(1, protocols=[("range", b"\x00")])
    assert "decoded" in str(broken.beat(ModelMember("new")))
    small = ConsumerDriver({"t": 2}, group_consumer_max_size="1")
    classic_group(small, 2)
    assert "group.consumer.max.size" in str(small.beat(ModelMember("new")))
    full = ConsumerDriver({"t": 2}, group_consumer_max_size="1")
    (kept,) = classic_group(full, 1)
    assert isinstance(full.beat(ModelMember("new")), GroupMaxSizeReached)
    kept.heartbeat()
    assert len(kept.owned) == 2, "a refused upgrade changes nothing"
    streams = ConsumerDriver({"t": 2})
    ticket = streams.join(protocols=[("stream", subscription(["t"]))])
    reply = streams.joined(ticket)
    data = write_assignment(1, [TopicPartition("t", 0)])[:-4] + b"\x00\x00\x00\x01x"
    streams.sync(reply.member_id, reply.generation, {reply.member_id: data})
    assert "custom assignor" in str(streams.beat(ModelMember("new")))
    assert streams.shard.groups["g"].members


def test_data_of_a_known_assignor_does_not_prevent_an_upgrade() -> None:
    """librdkafka's cooperative-sticky puts its generation there, if the leader was in the group before."""
    driver = ConsumerDriver({"t": 2})
    reply = driver.joined(driver.join(protocols=one_protocol()))
    data = write_assignment(0, [TopicPartition("t", 0)])[:-4] + bytes.fromhex("000000080000000000000002")
    driver.sync(reply.member_id, reply.generation, {reply.member_id: data})
    assert driver.beat(ModelMember("new")) is None
    assert driver.group_of().members[reply.member_id].current.assigned == {topic_id("t"): frozenset({0})}


def test_a_partition_that_two_members_were_given_is_carried_over_once() -> None:
    driver = ConsumerDriver({"t": 2})
    ids = driver.stable(2)
    group = driver.shard.groups["g"]
    twice = write_assignment(1, [TopicPartition("t", 0)])
    driver.append(group_record("g", group.to_value(dict.fromkeys(ids, twice))))
    assert driver.beat(ModelMember("new")) is None
    driver.group_of().validate()


def test_joins_that_a_broker_side_group_refuses() -> None:
    driver = ConsumerDriver({"t": 2})
    new = ModelMember("new")
    driver.beat(new)
    one = ClassicMember(driver, 1)
    mixed(driver, [one], [new])

    def refused(**more: Any) -> type:
        return type(driver.replies[driver.join(**more)])

    assert refused(protocol_type="connect") is InconsistentGroupProtocol
    assert refused(protocols=[("range", subscription(["t"]))]) is InconsistentGroupProtocol  # None in common.
    assert refused(protocols=[("cooperative-sticky", b"")]) is InconsistentGroupProtocol
    assert refused(member_id="x", instance="none", protocols=one_protocol()) is UnknownMemberId
    given = driver.joined(driver.join(id_first=True, protocols=one_protocol()))
    assert given.error is not None and given.member_id not in driver.group_of().members
    assert driver.joined(driver.join(given.member_id, id_first=True, protocols=one_protocol())).generation > 0
    with pytest.raises(UnknownMemberId):
        driver.ask(Heartbeat("g", new.epoch, "new", None))
    with pytest.raises(UnknownMemberId):
        driver.ask(ConsumerHeartbeat("g", one.id, one.generation))


def one_protocol() -> list[tuple[str, bytes]]:
    return [("cooperative-sticky", subscription(["t"]))]


def test_a_classic_member_can_join_a_group_of_new_members_only() -> None:
    driver = ConsumerDriver({"t": 4})
    new = ModelMember("new")
    driver.beat(new)
    one = ClassicMember(driver, 1, cooperative=False, topics=("t",))
    mixed(driver, [one], [new])
    assert len(one.owned) == 2
    one.leave()
    mixed(driver, [], [new])
    assert sum(map(len, new.owned.values())) == 4
    assert isinstance(driver.group_of().members["new"].metadata, MemberMetadata)
