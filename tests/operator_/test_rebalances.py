"""A Rebalance resource: proposal, approval, progress, end; as a pure function, and as a look."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from operator_.bodies import cluster, rebalance, topic
from operator_.twins import World
from ottla_client.rebalance import Broker, Placed
from ottla_client.rebalance_pace import COPIES_PER_BROKER, Layout, Ongoing
from ottla_operator.plan import CreateTopic
from ottla_operator.rebalance_plan import moves_in, next_step
from ottla_operator.rebalances import RebalanceLook
from ottla_operator.scaler import pinned_partitions
from ottla_operator.specs import RebalanceSpec

_LAYOUT = Layout(
    (Broker(0), Broker(1), Broker(2)),
    frozenset({0, 1, 2}),
    tuple(Placed("t", n, (n % 2,), 1 << 20) for n in range(30)),
)


def _spec(**more: Any) -> RebalanceSpec:
    return RebalanceSpec("main", **more)


def _moved(layout: Layout, moves: Any, *, moving: bool = False) -> Layout:
    to = {(move.topic, move.partition): move.after for move in moves}
    partitions = tuple(
        replace(each, replicas=to.get((each.topic, each.partition), each.replicas))
        for each in layout.partitions
    )
    busy = {(m.topic, m.partition): Ongoing(m.added, m.removed) for m in moves} if moving else {}
    return replace(layout, partitions=partitions, moving=busy)


def test_a_proposal_waits_and_stays_as_it_was_shown() -> None:
    first = next_step(_spec(), None, _LAYOUT)
    assert (first.facts["state"], first.condition.reason) == ("Proposed", "AwaitingApproval")
    assert first.moves == () and first.facts["moveCount"] == len(first.facts["moves"]) >= 10
    assert first.facts["brokers"][2]["replicasAfter"] == 10
    grown = replace(_LAYOUT, partitions=tuple(replace(each, size=2 << 20) for each in _LAYOUT.partitions))
    assert next_step(_spec(), first.facts, grown).facts["moves"] == first.facts["moves"]


def test_a_proposal_that_no_longer_fits_is_made_again() -> None:
    first = next_step(_spec(), None, _LAYOUT)
    after = _moved(_LAYOUT, moves_in(first.facts)[:1])
    again = next_step(_spec(), first.facts, after)
    assert again.facts["moveCount"] == first.facts["moveCount"] - 1


def test_an_approved_proposal_runs_a_few_moves_at_a_time_until_it_is_done() -> None:
    facts: Any = next_step(_spec(), None, _LAYOUT).facts
    layout, rounds = _LAYOUT, 0
    while facts["state"] != "Done":
        step = next_step(_spec(approved=True), facts, layout)
        added = [broker for move in step.moves for broker in move.added]
        assert all(added.count(each) <= COPIES_PER_BROKER for each in added)
        layout, facts, rounds = _moved(layout, step.moves), step.facts, rounds + 1
        assert rounds < 50
    assert facts["movesDone"] == facts["moveCount"]
    assert [sum(b in each.replicas for each in layout.partitions) for b in range(3)] == [10, 10, 10]
    assert next_step(_spec(approved=True), facts, _LAYOUT).moves == (), "it is final"


def test_stopping_cancels_what_moves_and_starts_nothing() -> None:
    proposed = next_step(_spec(), None, _LAYOUT)
    running = next_step(_spec(approved=True), proposed.facts, _LAYOUT)
    layout = _moved(_LAYOUT, running.moves, moving=True)
    stopped = next_step(_spec(approved=True, stopped=True), running.facts, layout)
    assert set(stopped.cancel) == {(move.topic, move.partition) for move in running.moves}
    assert (stopped.moves, stopped.facts["state"]) == ((), "Stopped")


def test_a_partition_that_another_client_moved_is_left_alone() -> None:
    proposed = next_step(_spec(), None, _LAYOUT)
    chosen = moves_in(proposed.facts)[0]
    other = replace(chosen, after=(chosen.after[0] + 10,))
    step = next_step(_spec(approved=True), proposed.facts, _moved(_LAYOUT, [other]))
    assert (chosen.topic, chosen.partition) not in {(move.topic, move.partition) for move in step.moves}


def test_a_drain_is_cordoned_when_it_starts_and_refused_if_it_cannot_end() -> None:
    proposed = next_step(_spec(drain=(1,)), None, _LAYOUT)
    assert proposed.cordon == ()
    assert next_step(_spec(drain=(1,), approved=True), proposed.facts, _LAYOUT).cordon == (1,)
    refused = next_step(_spec(drain=(0, 1, 2)), None, _LAYOUT)
    assert (refused.condition.reason, refused.facts) == ("Refused", {})


@pytest.fixture
def world() -> World:
    made = World()
    made.put(cluster())
    return made


async def test_a_rebalance_is_proposed_approved_and_done(world: World) -> None:
    await world.brokers.do(CreateTopic("orders", 9, 1, {}))
    await world.brokers.do(CreateTopic("fixed", 1, 1, {}))
    world.put(topic("fixed", assignment=[{"partition": 0, "brokers": [0]}]))
    key = world.put(rebalance())
    look = RebalanceLook(world.tools, settled_s=30)
    assert await look.look(key) == 30
    assert world.condition("Rebalance", "even") == ("Unknown", "AwaitingApproval")
    before = copy.deepcopy(world.brokers.topics)
    await look.look(key)
    assert world.brokers.topics == before, "not without approval"
    body = copy.deepcopy(world.sync("Rebalance", "even"))
    body["spec"]["approved"] = True
    body["metadata"]["generation"] += 1
    world.put(body)
    for _ in range(10):
        await look.look(key)
        world.sync("Rebalance", "even")
    assert world.condition("Rebalance", "even") == ("True", "Done")
    held = [(await world.brokers.layout()).held_by(each) for each in range(3)]
    assert sorted(held) == [3, 3, 4]
    assert world.brokers.topics["fixed"].partitions[0].replicas == (0,), "its placement is declared"
    assert [reason for reason, _ in world.kube.events if reason in ("Proposed", "Running", "Done")] == [
        "Proposed",
        "Running",
        "Done",
    ]
    assert await look.look(key) is None


async def test_a_change_of_a_final_rebalance_is_seen_and_changes_nothing(world: World) -> None:
    """`kubectl wait` waits for a condition of the current generation: after an approval with nothing to move, too."""
    key = world.put(rebalance())
    look = RebalanceLook(world.tools)
    await look.look(key)
    before = copy.deepcopy(world.sync("Rebalance", "even"))
    assert world.condition("Rebalance", "even") == ("True", "Done")
    body = copy.deepcopy(before)
    body["spec"]["approved"] = True
    body["metadata"]["generation"] += 1
    world.put(body)
    assert await look.look(key) is None
    status = world.sync("Rebalance", "even")["status"]
    generation = before["metadata"]["generation"] + 1
    assert status["observedGeneration"] == generation
    assert [row.pop("observedGeneration") for row in status["conditions"]] == [generation]
    (condition,) = before["status"]["conditions"]
    assert status["conditions"] == [
        {name: condition[name] for name in condition if name != "observedGeneration"}
    ]


async def test_a_rebalance_moves_partitions_that_a_topic_does_not_place(world: World) -> None:
    await world.brokers.do(CreateTopic("orders", 9, 1, {}))
    world.put(topic(partitions=9, assignment=[{"partition": 4, "brokers": [0]}]))
    key = world.put(rebalance(approved=True))
    look = RebalanceLook(world.tools, settled_s=30)
    for _ in range(10):
        await look.look(key)
        world.sync("Rebalance", "even")
    assert world.condition("Rebalance", "even") == ("True", "Done")
    assert [(await world.brokers.layout()).held_by(each) for each in range(3)] == [3, 3, 3]
    assert world.brokers.topics["orders"].partitions[4].replicas == (0,)


async def test_a_placement_that_is_not_in_force_pins_nothing(world: World) -> None:
    """Another resource owns the topic."""
    await world.brokers.do(CreateTopic("orders", 3, 1, {}))
    world.put(topic(partitions=3))
    young = topic("young", topicName="orders", partitions=3, assignment=[{"partition": 0, "brokers": [0]}])
    young["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    world.put(young)
    assert pinned_partitions(world.cast, ("shop", "main")) == set()
    world.cast.remove("Topic", ("shop", "orders"))
    assert pinned_partitions(world.cast, ("shop", "main")) == {("orders", 0)}


async def test_a_rebalance_without_brokers_keeps_its_proposal(world: World) -> None:
    await world.brokers.do(CreateTopic("orders", 9, 1, {}))
    key = world.put(rebalance())
    look = RebalanceLook(world.tools)
    await look.look(key)
    world.sync("Rebalance", "even")
    world.links.brokers = None
    await look.look(key)
    assert world.condition("Rebalance", "even") == ("False", "BrokersAway")
    assert world.status("Rebalance", "even")["state"] == "Proposed"
