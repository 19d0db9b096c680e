"""Commands about moves, elections and cordons: checks, plans and results, without a store."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from ottla_broker.controller.command import Tools
from ottla_broker.controller.commands.cordon_broker import CordonBroker
from ottla_broker.controller.commands.elect_leaders import ElectLeaders
from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_broker.controller.commands.unregister_broker import UnregisterBroker
from ottla_broker.controller.topic_checks import check_growth, check_new_topic
from ottla_broker.metadata.image import BrokerImage, ClusterImage, MemberImage, PartitionImage, TopicImage
from ottla_broker.requests import NewTopic, PartitionResult
from ottla_core.errors import InvalidReplicaAssignment, RequestError

LIFE = UUID(int=1)
TOOLS = cast(Tools, SimpleNamespace())
AT_HOME = PartitionImage((1, 2, 3), leader=1, leader_epoch=5, isr=(1, 2, 3), revision=7)


def cluster(*partitions: PartitionImage, online: tuple[int, ...] = (1, 2, 3, 4), **more: Any) -> ClusterImage:
    topic = TopicImage("t", UUID(int=9), {}, partitions)
    return ClusterImage(
        "c",
        brokers={i: BrokerImage(i, LIFE, ()) for i in online},
        members={i: MemberImage(i, LIFE) for i in (1, 2, 3, 4)},
        topics={"t": topic},
        names_by_id={topic.id: "t"},
        **more,
    )


def names(results: list[PartitionResult]) -> list[str | None]:
    return [None if each.error is None else each.error.name for each in results]


def executed(command: MovePartitions | ElectLeaders, image: ClusterImage) -> tuple[int, list[str | None]]:
    """The number of partitions that would be written, and the names of the errors."""
    (change,) = command.changes(image, TOOLS)
    planned = change.plan(image)
    written = sum(len(stage.branches) for stage in planned.stages)
    return written, names(change.result(None))


def test_each_partition_is_checked_by_itself() -> None:
    moves = (
        Move("t", 0, (4, 2, 3)),
        Move("t", 1, None),
        Move("t", 2, (4,)),
        Move("u", 0, (4,)),
        Move("t", 3, (4, 4)),
        Move("t", 4, (9,)),
        Move("t", 5, ()),
    )
    assert executed(MovePartitions(moves), cluster(*[AT_HOME] * 6)) == (
        2,
        [
            None,
            "NO_REASSIGNMENT_IN_PROGRESS",
            None,
            "UNKNOWN_TOPIC_OR_PARTITION",
            *["INVALID_REPLICA_ASSIGNMENT"] * 3,
        ],
    )


def test_of_two_moves_of_one_partition_neither_is_made() -> None:
    twice = MovePartitions((Move("t", 0, (4,)), Move("t", 0, (3,))))
    assert executed(twice, cluster(AT_HOME)) == (0, ["INVALID_REQUEST"] * 2)


@pytest.mark.parametrize(
    ("state", "factor"),
    [
        (replace(AT_HOME, replicas=(4, 2, 3, 1), adding=(4,), removing=(1,)), 3),
        (replace(AT_HOME, replicas=(1, 2, 3, 4), adding=(4,)), 4),
        (replace(AT_HOME, replicas=(1, 2, 3), removing=(3,)), 2),
        (replace(AT_HOME, planned=(1, 2)), 2),
    ],
    ids=["a replica moves", "one is added", "one is removed", "one will be removed"],
)
def test_a_topic_that_grows_during_a_move_gets_the_replication_factor_that_it_will_have(
    state: PartitionImage, factor: int
) -> None:
    (added,) = check_growth(cluster(state), "t", 2, None, lambda _: 0)
    assert len(added) == factor


def test_a_topic_grows_during_the_drain_of_a_cordoned_broker() -> None:
    state = replace(AT_HOME, replicas=(4, 2, 3, 1), adding=(4,), removing=(1,))
    (added,) = check_growth(cluster(state, cordons={1: ()}), "t", 2, None, lambda _: 0)
    assert sorted(added) == [2, 3, 4]


def test_the_replication_factor_stays_if_asked() -> None:
    image = cluster(replace(AT_HOME, replicas=(1, 2, 3, 4), adding=(4,)))
    moves = MovePartitions((Move("t", 0, (4, 3)),), keep_replication_factor=True)
    assert executed(moves, image) == (0, ["INVALID_REPLICATION_FACTOR"])
    assert executed(replace(moves, moves=(Move("t", 0, (4, 3, 2)),)), image) == (1, [None])


def test_a_cordoned_broker_gets_no_new_replica_and_keeps_its_own() -> None:
    image = cluster(AT_HOME, AT_HOME, cordons={3: (), 4: ()})
    moves = MovePartitions((Move("t", 0, (4, 2)), Move("t", 1, (3, 2))))
    assert executed(moves, image) == (1, ["INVALID_REPLICA_ASSIGNMENT", None])
    placed = check_new_topic(image, NewTopic("new", 8, 2), {}, lambda config: None, lambda limit: 0)
    assert {broker for replicas in placed.placement for broker in replicas} == {1, 2}
    with pytest.raises(InvalidReplicaAssignment, match="cordoned"):
        check_new_topic(
            image, NewTopic("new", assignments=((4, 1),)), {}, lambda config: None, lambda limit: 0
        )


def test_a_cancelled_move_that_completed_meanwhile_is_no_refusal() -> None:
    moving = replace(AT_HOME, replicas=(4, 2, 3, 1), adding=(4,), removing=(1,))
    command = MovePartitions((Move("t", 0, None),))
    (change,) = command.changes(cluster(moving), TOOLS)
    assert change.plan(cluster(moving))
    assert not change.plan(cluster(AT_HOME))
    assert names(change.result(None)) == [None]
    refused = MovePartitions((Move("t", 0, None),)).changes(cluster(AT_HOME), TOOLS)[0].result(None)
    assert names(command.after_retry(refused, cluster(moving), cluster(AT_HOME))) == [None]


def test_preferred_leaders_on_demand() -> None:
    image = cluster(
        AT_HOME,
        replace(AT_HOME, leader=2),
        replace(AT_HOME, leader=2, isr=(2, 3)),
    )
    assert executed(ElectLeaders({"t": (0, 1, 2)}), image) == (
        1,
        ["ELECTION_NOT_NEEDED", None, "PREFERRED_LEADER_NOT_AVAILABLE"],
    )
    # All partitions: those that need nothing are not listed.
    assert executed(ElectLeaders(None), image) == (1, [None, "PREFERRED_LEADER_NOT_AVAILABLE"])


def test_unclean_elections_are_for_partitions_without_a_leader() -> None:
    lost = replace(AT_HOME, leader=-1, isr=(1,))
    image = cluster(lost, AT_HOME, replace(lost, replicas=(1,)), online=(2, 3, 4))
    written, errors = executed(ElectLeaders({"t": (0, 1, 2)}, unclean=True), image)
    assert (written, errors) == (2, [None, None, "ELIGIBLE_LEADERS_NOT_AVAILABLE"])
    with_leader = cluster(replace(AT_HOME, leader=2, isr=(2,)), online=(2, 3))
    assert executed(ElectLeaders({"t": (0,)}, unclean=True), with_leader)[1] == ["ELECTION_NOT_NEEDED"]


def test_cordons_are_set_once() -> None:
    assert CordonBroker(4).plan(cluster(AT_HOME), TOOLS)
    assert not CordonBroker(4).plan(cluster(AT_HOME, cordons={4: ()}), TOOLS)
    assert CordonBroker(4, cordoned=False).plan(cluster(AT_HOME, cordons={4: ()}), TOOLS)
    with pytest.raises(RequestError, match="no broker 9"):
        CordonBroker(9).plan(cluster(AT_HOME), TOOLS)


def test_only_an_offline_broker_without_replicas_is_unregistered() -> None:
    def planned(broker: int, image: ClusterImage) -> bool:
        (change,) = UnregisterBroker(broker).changes(image, TOOLS)
        return bool(change.plan(image))

    with pytest.raises(RequestError, match="online"):
        planned(4, cluster(AT_HOME))
    with pytest.raises(RequestError, match="replicas of 1 partition"):
        planned(3, cluster(AT_HOME, online=(1, 2)))
    assert planned(4, cluster(AT_HOME, online=(1, 2, 3)))
    with pytest.raises(RequestError, match="no broker 9"):
        planned(9, cluster(AT_HOME))
