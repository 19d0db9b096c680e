"""Administrative requests to any broker: done by the controller, in time, and each edit counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

import pytest

from broker.controller.world import Node, SimWorld, sim_world
from ottla_broker.config import BrokerConfig
from ottla_broker.requests import ConfigChange, NewTopic, TopicResult
from ottla_broker.service.configs import ConfigService
from ottla_broker.service.controller_calls import UNFINISHED_MAX, ControllerCalls
from ottla_broker.service.topics import TopicService
from ottla_core.errors import (
    InvalidConfig,
    InvalidGroupId,
    InvalidReplicationFactor,
    NotController,
    RequestTimedOut,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ports.store import StoreError

T = TypeVar("T")


class Admin:
    """The services of one broker."""

    def __init__(self, world: SimWorld, node: Node) -> None:
        self.world, self.node = world, node
        config = BrokerConfig.of({"broker.id": str(node.registration.broker.id)})
        self.calls = ControllerCalls(
            node.registration.broker.id, node.controller, node.metadata, world.clock, node.rpc
        )
        self.topics = TopicService(config.topics, node.metadata, self.calls)
        self.configs = ConfigService(config, node.metadata, self.calls)

    async def create(self, *topics: NewTopic, timeout_s: float = 10) -> list[TopicResult]:
        return await done(self.world, self.topics.create(topics, validate_only=False, timeout_s=timeout_s))


@pytest.fixture
async def world() -> AsyncIterator[SimWorld]:
    async with sim_world() as made:
        yield made


@pytest.fixture
async def admins(world: SimWorld) -> AsyncIterator[list[Admin]]:
    """Of three brokers, the first of them controller."""
    made = [Admin(world, await world.started(i)) for i in (1, 2, 3)]
    yield made
    for admin in made:
        await admin.calls.close()


async def done(world: SimWorld, work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    await world.until(task.done)
    return await task


def errors(results: Sequence[TopicResult]) -> list[type | None]:
    return [None if r.error is None else type(r.error) for r in results]


async def test_any_broker_takes_them_and_shows_the_result(world: SimWorld, admins: list[Admin]) -> None:
    _, other, _ = admins
    wanted = NewTopic("a", 3, 2, {"retention.ms": "7"})
    (made,) = await other.create(wanted)
    topic = other.node.image.topics["a"]
    assert (made.error, made.topic_id, made.partitions, made.replication_factor) == (None, topic.id, 3, 2)
    assert made.config == topic.config == {"retention.ms": "7"}
    results = await other.create(NewTopic("a", 1, 1), NewTopic("b", 1, 9), NewTopic("c", 1, 1))
    assert errors(results) == [TopicAlreadyExists, InvalidReplicationFactor, None]
    assert "9" in str(results[1].error)
    grow = other.topics.grow("a", 5, None, validate_only=False, timeout_s=5)
    assert (await done(world, grow)).error is None and len(other.node.image.topics["a"].partitions) == 5
    chosen = other.topics.grow("a", 6, ((2, 3),), validate_only=False, timeout_s=5)
    assert (await done(world, chosen)).error is None
    assert other.node.image.topics["a"].partitions[5].replicas == (2, 3)
    gone = await done(world, other.topics.delete(["a", "nope"], timeout_s=5))
    assert errors(gone) == [None, UnknownTopicOrPartition] and "a" not in other.node.image.topics


async def test_validating_elsewhere_changes_nothing(world: SimWorld, admins: list[Admin]) -> None:
    revision = world.etcd.revision
    task = admins[1].topics.create([NewTopic("a", 1, 1)], validate_only=True, timeout_s=5)
    assert errors(await done(world, task)) == [None]
    assert world.etcd.revision == revision


async def test_two_edits_at_once_both_count(world: SimWorld, admins: list[Admin]) -> None:
    await admins[0].create(NewTopic("a", 1, 1))
    changes = [
        ConfigChange("set", "retention.ms", "1000"),
        ConfigChange("set", "segment.bytes", "1048576"),
        ConfigChange("append", "cleanup.policy", "compact"),
    ]
    edits = [
        admin.configs.alter_topic("a", [change], validate_only=False)
        for admin, change in zip(admins, changes, strict=True)
    ]
    await done(world, asyncio.gather(*edits))
    await world.until(lambda: len(admins[2].node.image.topics["a"].config) == 3)
    assert admins[2].node.image.topics["a"].config == {
        "retention.ms": "1000",
        "segment.bytes": "1048576",
        "cleanup.policy": "delete,compact",
    }
    both = [
        admin.configs.alter_broker(None, [ConfigChange("set", name, "5")], validate_only=False)
        for admin, name in zip(admins, ("log.retention.ms", "log.roll.ms"), strict=False)
    ]
    await done(world, asyncio.gather(*both))
    assert admins[0].node.image.broker_configs[""] == {"log.retention.ms": "5", "log.roll.ms": "5"}
    names = ("consumer.session.timeout.ms", "consumer.rebalance.timeout.ms", "consumer.assignor")
    own = [
        admin.configs.alter_group("g", [ConfigChange("set", name, "7000")], validate_only=False)
        for admin, name in zip(admins, names, strict=True)
    ]
    await done(world, asyncio.gather(*own))
    await world.until(lambda: len(admins[2].node.image.group_configs["g"]) == 3)
    described = {each.name: (each.value, each.source) for each in admins[2].configs.describe_group("g")}
    assert {name: described[name] for name in names} == dict.fromkeys(names, ("7000", "group"))
    await done(world, admins[1].configs.replace_group("g", {names[2]: "range"}, validate_only=False))
    assert admins[1].node.image.group_configs == {"g": {"consumer.assignor": "range"}}
    for values, said in (({names[0]: "5999"}, "brokers take 6000"), ({names[0]: "soon"}, "whole number")):
        with pytest.raises(InvalidConfig, match=said):
            await admins[1].configs.replace_group("g", values, validate_only=False)
    with pytest.raises(InvalidGroupId):
        await admins[1].configs.replace_group("", {}, validate_only=True)
    with pytest.raises(InvalidConfig):
        await admins[1].configs.alter_topic(
            "a", [ConfigChange("set", "retention.ms", "soon")], validate_only=False
        )
    await done(world, admins[1].configs.replace_topic("a", {"retention.ms": "9"}, validate_only=False))
    assert admins[1].node.image.topics["a"].config == {"retention.ms": "9"}


async def test_a_controller_that_dies_under_way_is_waited_for(world: SimWorld, admins: list[Admin]) -> None:
    first, other, _ = admins
    gate = asyncio.Event()

    async def hold(operation: str) -> None:
        await gate.wait()

    world.store_of(first.node).before = hold
    creating = asyncio.ensure_future(
        other.topics.create([NewTopic("a", 3, 2)], validate_only=False, timeout_s=20)
    )
    await world.clock.advance(0.1)
    assert not creating.done()
    await first.node.kill()
    assert errors(await done(world, creating)) == [None]
    assert len(other.node.image.topics["a"].partitions) == 3


async def test_what_the_dead_controller_had_done_is_not_an_error(
    world: SimWorld, admins: list[Admin]
) -> None:
    first, other, _ = admins
    await other.create(NewTopic("old", 1, 2), NewTopic("doomed", 1, 2))

    async def die_after(operation: str) -> None:
        if operation == "transact":
            await first.node.kill()

    world.store_of(first.node).after = die_after
    (made, known) = await other.create(NewTopic("a", 3, 2), NewTopic("old", 1, 2), timeout_s=20)
    assert made.error is None and made.topic_id == other.node.image.topics["a"].id
    assert isinstance(known.error, TopicAlreadyExists)


async def test_without_a_controller_the_answer_comes_in_time(world: SimWorld, admins: list[Admin]) -> None:
    first, other, third = admins
    for node in (first.node, third.node):
        await node.kill()
    world.store_of(other.node).before = _away
    began = world.clock.monotonic()
    task = asyncio.ensure_future(other.topics.create([NewTopic("a", 1, 1)], validate_only=False, timeout_s=3))
    await world.until(task.done, 5)
    with pytest.raises((RequestTimedOut, NotController)):
        await task
    assert 2.5 < world.clock.monotonic() - began < 3.5


async def test_a_change_that_takes_too_long_goes_on_alone(world: SimWorld, admins: list[Admin]) -> None:
    first = admins[0]
    gate = asyncio.Event()

    async def hold(operation: str) -> None:
        if operation == "transact":
            await gate.wait()

    world.store_of(first.node).before = hold
    with pytest.raises(RequestTimedOut, match="may still happen"):
        await first.create(NewTopic("a", 1, 1), timeout_s=1)
    gate.set()
    await world.until(lambda: "a" in first.node.image.topics, 5)


async def test_changes_that_wait_for_the_store_are_limited(world: SimWorld, admins: list[Admin]) -> None:
    first = admins[0]
    world.store_of(first.node).before = _never
    waiting = [
        asyncio.ensure_future(
            first.topics.create([NewTopic(f"t{i}", 1, 1)], validate_only=False, timeout_s=1)
        )
        for i in range(UNFINISHED_MAX)
    ]
    await world.clock.settle()
    with pytest.raises(ThrottlingQuotaExceeded):
        await first.topics.create([NewTopic("more", 1, 1)], validate_only=False, timeout_s=1)
    await world.clock.advance(1.1)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(r, RequestTimedOut) for r in results)


async def test_questions_that_make_no_sense_are_answered_with_a_sentence(admins: list[Admin]) -> None:
    answer = admins[0].node.rpc.answer
    for request in (b"", b"[]", b"\xff", b"{}", b'{"v":1,"ask":"x"}', b'{"v":9,"ask":"hold"}', b"1" * 9000):
        assert b'"error"' in await answer(request, 2)
    assert b'"error"' in await answer(b'{"v":1,"ask":"create_topics","topics":[{}],"validate_only":false}', 2)
    assert b'"error"' in await answer(b'{"v":1,"ask":"witness","broker":"x"}', 2)
    assert b'"error"' in await answer(b'{"v":1,"ask":"witness","broker":1e999}', 2)


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500])
async def test_a_deeply_nested_question_is_answered_with_a_sentence(
    admins: list[Admin], nested: bytes
) -> None:
    answer = admins[0].node.rpc.answer
    assert b"not valid" in await answer(nested, 2)
    assert b"not valid" in await answer(b'{"v":1,"ask":"hold","x":' + nested + b"}", 2)


async def test_what_a_bad_question_says_is_not_repeated(admins: list[Admin]) -> None:
    assert len(await admins[0].node.rpc.answer(b"\xff" * 1_000_000, 2)) < 1000


async def _away(operation: str) -> None:
    raise StoreError("the store is away")


async def _never(operation: str) -> None:
    await asyncio.Event().wait()


async def test_settings_that_exist_only_at_run_time_are_shown_as_they_were_set(
    world: SimWorld, admins: list[Admin]
) -> None:
    admin = admins[1]
    await admin.create(NewTopic("a", 1, 1))
    rate, replicas = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    change = ConfigChange("set", rate, "500")
    await done(world, admin.configs.alter_broker(2, [change], validate_only=False))
    await done(
        world, admin.configs.alter_topic("a", [ConfigChange("set", replicas, "0:1")], validate_only=False)
    )
    shown = {each.name: each for each in admin.configs.describe_broker(2)}
    assert (shown[rate].value, shown[rate].source) == ("500", "dynamic-broker")
    topic = {each.name: each.value for each in admin.configs.describe_topic("a")}
    assert topic[replicas] == "0:1"
    cleared = [ConfigChange("delete", rate), ConfigChange("delete", "no.such.setting")]
    await done(world, admin.configs.alter_broker(2, cleared, validate_only=False))
    assert rate not in {each.name for each in admin.configs.describe_broker(2)}


async def test_a_broker_shows_its_listeners_under_kafkas_names(world: SimWorld, admins: list[Admin]) -> None:
    admin = admins[1]
    shown = {each.name: each for each in admin.configs.describe_broker(2)}
    assert shown["listeners"].value == "kafka://127.0.0.1:9092"
    assert shown["advertised.listeners"].value == "kafka://127.0.0.1:9092"
    assert all(shown[name].read_only for name in ("listeners", "listener.security.protocol.map"))
