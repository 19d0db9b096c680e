"""The controller on the simulated store: changes happen once, whatever gets lost; the fenced change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest

from broker.controller.world import Faults, Node, SimWorld, sim_world
from ottla_broker.controller.commands.alter_broker_config import AlterBrokerConfig
from ottla_broker.controller.commands.alter_group_config import AlterGroupConfig
from ottla_broker.controller.commands.alter_topic_config import AlterTopicConfig
from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.controller.commands.delete_topics import DeleteTopics
from ottla_broker.controller.commands.grow_topic import GrowTopic
from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_broker.controller.producer_id_blocks import PRODUCER_ID_BLOCK, ProducerIdBlocks
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.requests import ConfigChange, NewTopic, TopicResult
from ottla_core.errors import (
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    NotController,
    PolicyViolation,
    RequestError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ports.store import Branch, Delete, Put, StoreError

T = TypeVar("T")


@pytest.fixture
async def world() -> AsyncIterator[SimWorld]:
    async with sim_world() as made:
        yield made


@pytest.fixture
async def node(world: SimWorld) -> Node:
    return await world.started()


async def done(world: SimWorld, work: asyncio.Future[T] | asyncio.Task[T]) -> T:
    await world.until(work.done)
    return await work


async def create(world: SimWorld, node: Node, *topics: NewTopic) -> list[TopicResult]:
    return await done(world, asyncio.ensure_future(node.controller.execute(CreateTopics(tuple(topics)))))


def setting(name: str, value: str) -> tuple[ConfigChange, ...]:
    return (ConfigChange("set", name, value),)


def producer_ids(node: Node) -> Awaitable[range]:
    return ProducerIdBlocks(node.store, node.clock, node.chance, node.metadata).allocate()


def error_of(results: list[TopicResult]) -> RequestError:
    assert len(results) == 1 and results[0].error is not None
    return results[0].error


def partition_keys(world: SimWorld) -> list[str]:
    return [key for key in world.etcd.entries if key.startswith(PARTITIONS.prefix)]


# ---------------------------------------------------------------------- becoming controller


async def test_the_first_broker_becomes_controller_and_admits_itself(world: SimWorld, node: Node) -> None:
    entry = world.etcd.entries[CONTROLLER.key]
    assert node.controller.epoch == entry.create_revision and entry.lease == node.registration.lease
    assert node.image.is_admitted(1, node.registration.broker.incarnation)
    assert world.clock.monotonic() < 0.5


async def test_there_is_one_controller_and_another_takes_over(world: SimWorld, node: Node) -> None:
    other = await world.started(2)
    assert not other.controller.is_active and other.controller.epoch == 0
    assert node.image.is_admitted(2)
    with pytest.raises(NotController):
        await other.controller.execute(CreateTopics((NewTopic("a", 1, 1),)))
    before = node.controller.epoch
    await node.stop()
    await world.until(lambda: other.controller.is_active, 2)
    assert other.controller.epoch > before


async def test_a_fenced_controller_changes_nothing(world: SimWorld, node: Node) -> None:
    """A paused controller whose lease ended, and who does not know it yet."""
    world.store_of(node).silent = True
    world.etcd.transact((), [Branch((), (Delete(CONTROLLER.key),))])
    other = await world.started(2)
    await world.until(lambda: other.controller.is_active)
    assert node.controller.is_active  # so it believes
    revision = world.etcd.revision
    assert isinstance(error_of(await create(world, node, NewTopic("a", 1, 1))), NotController)
    assert world.etcd.revision == revision and not node.controller.is_active


async def test_a_fenced_controller_does_not_confirm_what_its_old_image_shows(
    world: SimWorld, node: Node
) -> None:
    """A move to where a partition was, before the next controller moved it away."""
    other = await world.started(2)
    await create(world, node, NewTopic("a", assignments=((1,),)))
    back = MovePartitions((Move("a", 0, (1,)),))
    (stayed,) = await node.controller.execute(back)
    assert stayed.error is None
    world.store_of(node).silent = True
    world.etcd.transact((), [Branch((), (Delete(CONTROLLER.key),))])
    await world.until(lambda: other.controller.is_active)
    away = MovePartitions((Move("a", 0, (2, 1)),))
    (moved,) = await done(world, asyncio.ensure_future(other.controller.execute(away)))
    assert moved.error is None
    (confirmed,) = await done(world, asyncio.ensure_future(node.controller.execute(back)))
    assert isinstance(confirmed.error, NotController)


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("which", range(1, 6))
async def test_lost_messages_while_starting_do_not_matter(world: SimWorld, lost: str, which: int) -> None:
    starting = world.node()
    faults = Faults(world.store_of(starting), "transact")
    (faults.lose_requests if lost == "request" else faults.lose_replies).add(which)
    await done(world, asyncio.ensure_future(_start_again_until_it_works(starting)))
    await world.until(lambda: starting.controller.is_active, 10)
    assert starting.image.is_admitted(1, starting.registration.broker.incarnation)


async def _start_again_until_it_works(node: Node) -> None:
    while True:
        try:
            return await node.start()
        except StoreError:
            await node.clock.sleep(0.1)


async def test_a_restart_bumps_every_epoch_it_leads_before_admission(world: SimWorld, node: Node) -> None:
    await create(world, node, NewTopic("a", 130, 1), NewTopic("b", 3, 1))
    await node.kill()
    admitted_with: list[int] = []
    again = world.node()
    again.metadata.subscribe(
        lambda old, new: (
            admitted_with.extend(p.leader_epoch for t in new.topics.values() for p in t.partitions)
            if new.is_admitted(1, again.registration.broker.incarnation) and not admitted_with
            else None
        )
    )
    await again.start()
    await world.until(lambda: again.controller.is_active)
    assert len(admitted_with) == 133 and set(admitted_with) == {1}
    states = [p for t in again.image.topics.values() for p in t.partitions]
    assert {(p.leader, p.leader_epoch, p.isr) for p in states} == {(1, 1, (1,))}


# ---------------------------------------------------------------------- creating


async def test_a_created_topic_is_in_the_image_when_the_answer_comes(world: SimWorld, node: Node) -> None:
    wanted = NewTopic("orders", 3, 1, {"retention.ms": "1000"})
    (result,) = await create(world, node, wanted)
    assert (result.error, result.partitions, result.replication_factor) == (None, 3, 1)
    assert result.config == {"retention.ms": "1000"}
    topic = node.image.topics["orders"]
    assert topic.id == result.topic_id and topic.config == result.config
    assert [(p.leader, p.leader_epoch, p.isr, p.replicas) for p in topic.partitions] == [
        (1, 0, (1,), (1,))
    ] * 3
    assert node.controller.last_revision == node.image.revision


async def test_each_topic_of_a_request_stands_alone(world: SimWorld, node: Node) -> None:
    await create(world, node, NewTopic("there", 1, 1))
    results = await create(
        world,
        node,
        NewTopic("there", 1, 1),
        NewTopic("good", 1, 1),
        NewTopic("bad name", 1, 1),
        NewTopic("twice", 1, 1),
        NewTopic("twice", 1, 1),
        NewTopic("go_od", 1, 1),
        NewTopic("go.od", 1, 1),
        NewTopic("many", 1, 3),
        NewTopic("none", 0, 1),
        NewTopic("config", 1, 1, {"retention.ms": "x"}),
        NewTopic("null", 1, 1, {"retention.ms": None}),
    )
    found = {(r.name, type(r.error)) for r in results}
    assert found == {
        ("there", TopicAlreadyExists),
        ("good", type(None)),
        ("bad name", InvalidTopicException),
        ("twice", InvalidRequest),
        ("go_od", type(None)),
        ("go.od", InvalidTopicException),
        ("many", InvalidReplicationFactor),
        ("none", InvalidPartitions),
        ("config", InvalidConfig),
        ("null", InvalidConfig),
    }
    assert sorted(node.image.topics) == ["go_od", "good", "there"]


async def test_validating_only_changes_nothing(world: SimWorld, node: Node) -> None:
    revision = world.etcd.revision
    (good,) = await node.controller.execute(CreateTopics((NewTopic("a", 2, 1),), validate_only=True))
    assert good.error is None and good.partitions == 2 and good.topic_id is None
    (bad,) = await node.controller.execute(CreateTopics((NewTopic("a", 2, 9),), validate_only=True))
    assert isinstance(bad.error, InvalidReplicationFactor)
    assert world.etcd.revision == revision


async def test_chosen_replicas(world: SimWorld, node: Node) -> None:
    other = await world.started(2)
    (result,) = await create(world, node, NewTopic("a", assignments=((2, 1), (1, 2))))
    assert (result.error, result.partitions, result.replication_factor) == (None, 2, 2)
    assert [p.leader for p in other.image.topics["a"].partitions] == [2, 1]
    for wrong in [((1, 1),), ((7,),), ((1,), (1, 2)), ((),), ()]:
        assert isinstance(
            error_of(await create(world, node, NewTopic("b", assignments=wrong))), InvalidReplicaAssignment
        )
    both = NewTopic("b", partitions=3, assignments=((1,),))
    assert isinstance(error_of(await create(world, node, both)), InvalidRequest)


@pytest.mark.parametrize("size", [2, 300])
@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("which", [1, 2, 3, 4])
async def test_creation_happens_once_whatever_is_lost(
    world: SimWorld, node: Node, size: int, lost: str, which: int
) -> None:
    faults = Faults(world.store_of(node), "transact")
    (faults.lose_requests if lost == "request" else faults.lose_replies).add(which)
    (result,) = await create(world, node, NewTopic("a", size, 1))
    assert result.error is None and node.image.topics["a"].id == result.topic_id
    await world.until(lambda: len(partition_keys(world)) == size, 20)
    assert node.image.unnamed == {}
    assert isinstance(error_of(await create(world, node, NewTopic("a", 1, 1))), TopicAlreadyExists)


async def test_a_store_that_stays_away_gives_a_retriable_error_and_no_half_topic(
    world: SimWorld, node: Node
) -> None:
    faults = Faults(world.store_of(node), "transact")
    faults.lose_requests.update(range(2, 99))  # the first chunk is written, all else is lost
    error = error_of(await create(world, node, NewTopic("a", 300, 1)))
    assert isinstance(error, RequestTimedOut) and error.retriable
    assert "a" not in node.image.topics
    faults.lose_requests.clear()
    await world.until(lambda: partition_keys(world) == [], 20)


async def test_what_a_dead_controller_left_half_made_is_cleaned(world: SimWorld, node: Node) -> None:
    await create(world, node, NewTopic("whole", 2, 1))
    Faults(world.store_of(node), "transact").lose_requests.update(range(3, 99))
    half = asyncio.ensure_future(node.controller.execute(CreateTopics((NewTopic("half", 300, 1),))))
    await world.clock.settle()
    half.cancel()
    await node.kill()
    assert len(partition_keys(world)) > 2
    again = await world.started()
    await world.until(lambda: len(partition_keys(world)) == 2, 15)
    assert list(again.image.topics) == ["whole"]


async def test_a_broker_readmitted_meanwhile_is_not_made_leader(world: SimWorld, node: Node) -> None:
    """Rule 5: the write that names a leader compares that broker's membership."""
    entry = world.etcd.entries[MEMBERS.key(1)]
    world.store_of(node).silent = True
    world.etcd.transact((), [Branch((), (Put(entry.key, entry.value),))])
    faults = Faults(world.store_of(node), "transact")
    (result,) = await create(world, node, NewTopic("a", 1, 1))
    assert result.error is None and faults.seen == 2  # refused once, read again, then written


# ---------------------------------------------------------------------- deleting and growing


@pytest.mark.parametrize("size", [2, 300])
@pytest.mark.parametrize("lost", ["request", "reply", "nothing"])
async def test_deletion_leaves_nothing(world: SimWorld, node: Node, size: int, lost: str) -> None:
    await create(world, node, NewTopic("a", size, 1))
    faults = Faults(world.store_of(node), "transact")
    if lost != "nothing":
        (faults.lose_requests if lost == "request" else faults.lose_replies).update({1, 3})
    (result,) = await done(world, asyncio.ensure_future(node.controller.execute(DeleteTopics(("a",)))))
    assert result.error is None and "a" not in node.image.topics
    await world.until(lambda: partition_keys(world) == [], 20)
    (again,) = await done(world, asyncio.ensure_future(node.controller.execute(DeleteTopics(("a",)))))
    assert isinstance(again.error, UnknownTopicOrPartition)


async def test_a_topic_created_again_has_another_id(world: SimWorld, node: Node) -> None:
    (first,) = await create(world, node, NewTopic("a", 1, 1))
    await node.controller.execute(DeleteTopics(("a",)))
    (second,) = await create(world, node, NewTopic("a", 1, 1))
    assert second.error is None and first.topic_id != second.topic_id


@pytest.mark.parametrize("lost", ["request", "reply", "nothing"])
@pytest.mark.parametrize("total", [3, 400])
async def test_growth_adds_and_moves_nothing(world: SimWorld, node: Node, lost: str, total: int) -> None:
    await create(world, node, NewTopic("a", 2, 1, {"retention.ms": "7"}))
    before = node.image.topics["a"]
    faults = Faults(world.store_of(node), "transact")
    if lost != "nothing":
        (faults.lose_requests if lost == "request" else faults.lose_replies).update({1, 3})
    result = await done(world, asyncio.ensure_future(node.controller.execute(GrowTopic("a", total))))
    assert result.error is None and result.partitions == total
    after = node.image.topics["a"]
    assert len(after.partitions) == total and after.partitions[:2] == before.partitions
    assert (after.id, after.config) == (before.id, before.config)
    assert len(partition_keys(world)) == total


async def test_growth_refusals(world: SimWorld, node: Node) -> None:
    await create(world, node, NewTopic("a", 2, 1), NewTopic("__consumer_offsets", 2, 1))

    async def grow(*arguments: Any, **options: Any) -> TopicResult:
        return await node.controller.execute(GrowTopic(*arguments, **options))

    for name, total, kind in [
        ("a", 2, InvalidPartitions),
        ("a", 1, InvalidPartitions),
        ("a", 10**9, InvalidPartitions),
        ("__consumer_offsets", 3, InvalidPartitions),
        ("nope", 3, UnknownTopicOrPartition),
    ]:
        assert isinstance((await grow(name, total)).error, kind), (name, total)
    assert isinstance((await grow("a", 4, ((1,),))).error, InvalidReplicaAssignment)
    assert (await grow("a", 4, ((1,), (1,)), validate_only=True)).error is None
    assert len(node.image.topics["a"].partitions) == 2


# ---------------------------------------------------------------------- configuration and ids


async def test_configuration_is_replaced_as_a_whole(
    world: SimWorld, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(world, node, NewTopic("a", 2, 1, {"retention.ms": "7"}))
    partitions = node.image.topics["a"].partitions
    await node.controller.execute(AlterTopicConfig("a", values={"segment.bytes": "1048576"}))
    assert node.image.topics["a"].config == {"segment.bytes": "1048576"}
    assert node.image.topics["a"].partitions is partitions
    with pytest.raises(InvalidConfig):
        await node.controller.execute(AlterTopicConfig("a", values={"retention.ms": "soon"}))
    with pytest.raises(UnknownTopicOrPartition):
        await node.controller.execute(AlterTopicConfig("b", values={}))
    await node.controller.execute(AlterBrokerConfig("", setting("log.retention.ms", "5")))
    await node.controller.execute(AlterBrokerConfig("1", setting("log.retention.ms", "6")))
    assert node.image.broker_configs == {"": {"log.retention.ms": "5"}, "1": {"log.retention.ms": "6"}}
    await node.controller.execute(AlterBrokerConfig("1", (ConfigChange("delete", "log.retention.ms"),)))
    assert list(node.image.broker_configs) == [""]
    with pytest.raises(InvalidRequest):
        await node.controller.execute(AlterBrokerConfig("one", ()))
    await node.controller.execute(AlterGroupConfig("readers", values={"consumer.assignor": "range"}))
    assert node.image.group_configs == {"readers": {"consumer.assignor": "range"}}
    with monkeypatch.context() as patch:
        patch.setattr("ottla_broker.controller.commands.alter_group_config.GROUP_CONFIGS_MAX", 1)
        await node.controller.execute(AlterGroupConfig("readers", values={"consumer.assignor": "sticky"}))
        with pytest.raises(PolicyViolation):
            await node.controller.execute(AlterGroupConfig("writers", values={"consumer.assignor": "range"}))
    await node.controller.execute(AlterGroupConfig("readers", values={}))
    assert node.image.group_configs == {}


async def test_setting_what_is_set_writes_nothing(world: SimWorld, node: Node) -> None:
    await create(world, node, NewTopic("a", 2, 1, {"retention.ms": "7"}))
    revision = world.etcd.revision
    await node.controller.execute(AlterTopicConfig("a", values={"retention.ms": "7"}))
    assert world.etcd.revision == revision


async def test_producer_ids_are_given_once(world: SimWorld, node: Node) -> None:
    other = await world.started(2)
    asked = [producer_ids(n) for n in (node, other) for _ in range(5)]
    blocks = await done(world, asyncio.gather(*asked))
    given = [i for block in blocks for i in block]
    assert len(given) == len(set(given)) == 10 * PRODUCER_ID_BLOCK


async def test_a_lost_reply_never_gives_a_block_twice(world: SimWorld, node: Node) -> None:
    first = await producer_ids(node)
    Faults(world.store_of(node), "transact").lose_replies.add(1)
    second = await done(world, asyncio.ensure_future(producer_ids(node)))
    assert first.stop + PRODUCER_ID_BLOCK <= second.start
    Faults(world.store_of(node), "get").lose_requests.update(range(99))
    with pytest.raises(CoordinatorNotAvailable):
        await done(world, asyncio.ensure_future(producer_ids(node)))


# ---------------------------------------------------------------------- history


async def test_the_stores_history_is_bounded(world: SimWorld, node: Node) -> None:
    for n in range(30):
        await node.controller.execute(AlterBrokerConfig("", setting("log.retention.ms", str(n))))
        await world.clock.advance(60)
    assert 0 < world.etcd.compacted < world.etcd.revision
    assert world.etcd.revision - world.etcd.compacted <= 13
    assert node.image.broker_configs[""] == {"log.retention.ms": "29"}


async def test_a_store_that_lost_history_is_not_written(world: SimWorld, node: Node) -> None:
    backup = world.etcd.backup()
    await create(world, node, NewTopic("a", 1, 1))
    world.etcd.restore(backup)
    await world.until(lambda: node.metadata.refusal is not None, 30)
    revision = world.etcd.revision
    with pytest.raises(NotController, match="older backup"):
        await node.controller.execute(CreateTopics((NewTopic("b", 1, 1),)))
    with pytest.raises(CoordinatorNotAvailable, match="older backup"):
        await producer_ids(node)
    assert world.etcd.revision == revision
