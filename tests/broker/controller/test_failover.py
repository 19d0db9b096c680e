"""Several brokers on the simulated store: deaths, pauses, stops and returns, and who leads afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from broker.controller.world import Faults, Node, SimWorld, sim_world
from budget import some
from ottla_broker.controller.caretaker import CareConfig
from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.controller.leaders import is_handed_over
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.requests import NewTopic
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import StoreError

T = TypeVar("T")


@pytest.fixture
async def world() -> AsyncIterator[SimWorld]:
    async with sim_world() as made:
        yield made


async def done(world: SimWorld, work: asyncio.Future[T] | asyncio.Task[T]) -> T:
    await world.until(work.done)
    return await work


async def three(world: SimWorld, *topics: NewTopic, **options: object) -> list[Node]:
    """Three brokers, the first of them controller, with topics."""
    nodes = [await world.started(i, **options) for i in (1, 2, 3)]
    if topics:
        results = await done(
            world, asyncio.ensure_future(nodes[0].controller.execute(CreateTopics(tuple(topics))))
        )
        assert [r.error for r in results] == [None] * len(topics)
        revision = nodes[0].controller.last_revision
        await world.until(lambda: all(n.image.revision >= revision for n in nodes))
    return nodes


def states(node: Node) -> list[PartitionImage]:
    return [p for name in sorted(node.image.topics) for p in node.image.topics[name].partitions]


def leaders(node: Node) -> set[int]:
    return {p.leader for p in states(node)}


# ---------------------------------------------------------------------- killed


async def test_leaders_are_spread_and_a_dead_brokers_fall_to_both_others(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 30, 3))
    assert {i: sum(p.leader == i for p in states(one)) for i in (1, 2, 3)} == {1: 10, 2: 10, 3: 10}
    before = states(one)
    began = world.clock.monotonic()
    await three_.kill()
    await world.until(lambda: leaders(two) == {1, 2}, 5)
    assert world.clock.monotonic() - began < 0.5
    for was, now in zip(before, states(two), strict=True):
        assert 3 not in now.isr and now.elr == ()
        assert now.leader_epoch == was.leader_epoch + (was.leader == 3)
    assert {i: sum(p.leader == i for p in states(two)) for i in (1, 2)} == {1: 15, 2: 15}


async def test_clients_get_the_new_leader_instead_of_the_dead_one(world: SimWorld) -> None:
    _, two, three_ = await three(world, NewTopic("a", 6, 3))
    fresh, old = world.clock.monotonic() - 0.1, float("-inf")
    assert two.detector.settling(fresh) is None  # nothing is the matter
    await three_.kill()
    # A client that asks before anybody here has noticed, on a connection that it has had for long.
    waiting = two.detector.settling(old)
    assert waiting is not None
    began = world.clock.monotonic()
    await done(world, asyncio.ensure_future(waiting))
    assert 3 not in leaders(two) and world.clock.monotonic() - began <= 0.5
    await world.clock.advance(1)
    assert two.detector.settling(world.clock.monotonic()) is None


async def test_clients_do_not_wait_for_a_silent_broker(world: SimWorld) -> None:
    one, _, _ = await three(world, NewTopic("a", 3, 3))
    world.cut.add((1, 3))
    one.detector.suspect(3)
    waiting = one.detector.settling(float("-inf"))
    assert waiting is not None
    began = world.clock.monotonic()
    await done(world, asyncio.ensure_future(waiting))
    assert world.clock.monotonic() - began <= 0.11
    assert one.detector.settling(world.clock.monotonic()) is None


async def test_a_dead_controller_is_replaced_as_quickly(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 6, 3))
    epoch, began = one.controller.epoch, world.clock.monotonic()
    await one.kill()
    await world.until(lambda: leaders(two) == {2, 3} == leaders(three_), 5)
    assert world.clock.monotonic() - began < 0.5
    assert max(two.controller.epoch, three_.controller.epoch) > epoch
    assert two.image.controller in (2, 3)


async def test_a_paused_broker_is_replaced_when_its_lease_ends(world: SimWorld) -> None:
    one, two, _ = await three(world, NewTopic("a", 6, 3))
    began = world.clock.monotonic()
    world.paused.add(1)
    for task in one.tasks:
        task.cancel()  # It does nothing more; its connections stay.
    await world.until(lambda: leaders(two) == {2, 3}, 20)
    assert 3.9 < world.clock.monotonic() - began < 7


async def test_a_broker_that_one_cannot_reach_but_another_can_is_not_removed(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 3, 3))
    registered = three_.registration.broker.revision
    before = states(one)
    world.cut.add((1, 3))
    one.detector.suspect(3)
    await world.clock.advance(10)
    assert three_.registration.broker.revision == registered and states(two) == before


async def test_only_half_of_the_brokers_are_removed_before_their_leases_end(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 6, 3))
    began = world.clock.monotonic()
    await asyncio.gather(two.kill(), three_.kill())
    await world.until(lambda: len(one.image.brokers) == 2, 2)
    await world.clock.advance(2)
    assert len(one.image.brokers) == 2  # S4: the other one's lease decides
    await world.until(lambda: len(one.image.brokers) == 1, 10)
    # Rule 17: over half of the members are missing.
    assert leaders(one) != {1}
    await world.until(lambda: leaders(one) == {1}, 10)
    assert 9 < world.clock.monotonic() - began < 15
    assert all(p.isr == (1,) for p in states(one))


async def test_without_in_sync_replicas_the_partition_waits(world: SimWorld) -> None:
    one, _two, three_ = await three(
        world,
        NewTopic("alone", assignments=((3,),)),
        NewTopic("wild", assignments=((3, 1),), config={"unclean.leader.election.enable": "true"}),
    )
    await shrink(world, three_, "wild", (3,))
    await three_.kill()
    await world.until(lambda: len(one.image.brokers) == 2, 2)
    await world.until(lambda: leaders(one) == {NO_BROKER, 1}, 2)
    (alone,), (wild,) = one.image.topics["alone"].partitions, one.image.topics["wild"].partitions
    assert (alone.leader, alone.isr, alone.leader_epoch) == (NO_BROKER, (3,), 1)
    assert (wild.leader, wild.isr) == (1, (1,))
    assert one.controller.unclean_elections == 1
    await world.started(3)
    await world.until(lambda: one.image.topics["alone"].partitions[0].leader == 3, 2)


async def test_an_election_is_judged_by_the_state_that_it_replaces(world: SimWorld) -> None:
    """A broker's image may go from before an in-sync set's growth to after the election in one step."""
    one, two, _three = await three(world, NewTopic("a", assignments=((2, 1),)))
    seen: list[tuple[int, ...]] = []
    await shrink(world, two, "a", (2,))
    one.metadata.subscribe(lambda old, new: seen.append(new.topics["a"].partitions[0].isr))
    await shrink(world, two, "a", (2, 1))
    await two.kill()
    await world.until(lambda: leaders(one) == {1}, 2)
    assert seen[0] == (2, 1)
    assert one.controller.unclean_elections == 0


async def shrink(world: SimWorld, leader: Node, topic: str, isr: tuple[int, ...]) -> PartitionImage | None:
    image = leader.image.topics[topic]
    proposal = leader.isr_writer.propose(image.id, 0, expected=image.partitions[0], isr=isr)
    made = await done(world, asyncio.ensure_future(proposal))
    await world.clock.settle()
    return made


async def test_a_replica_leaving_a_too_small_isr_stays_eligible(world: SimWorld) -> None:
    config = {"min.insync.replicas": "2"}
    one, two, three_ = await three(world, NewTopic("a", assignments=((2, 3, 1),), config=config))
    await two.kill()
    await world.until(lambda: leaders(one) == {3}, 2)
    assert [(p.isr, p.elr) for p in states(one)] == [((3, 1), ())]
    await world.clock.advance(7)
    await three_.kill()
    await world.until(lambda: len(one.image.brokers) == 1, 2)
    await world.until(lambda: leaders(one) == {1}, 10)
    assert [(p.isr, p.elr) for p in states(one)] == [((1,), (3,))]
    assert one.controller.unclean_elections == 0


async def test_the_brokers_default_of_min_insync_counts(world: SimWorld) -> None:
    one, _two, three_ = await three(
        world, NewTopic("a", assignments=((2, 3),)), defaults={"min.insync.replicas": "2"}
    )
    await three_.kill()
    await world.until(lambda: [(p.isr, p.elr) for p in states(one)] == [((2,), (3,))], 2)


async def test_a_lost_log_directory_moves_leaders_and_bars_its_replicas(
    world: SimWorld,
) -> None:
    _one, two, three_ = await three(world, NewTopic("a", assignments=((3, 2, 1), (3, 2, 1))))
    topic_id = two.image.topics["a"].id
    telling = asyncio.ensure_future(three_.registration.announce_offline({topic_id: (0,)}))
    await done(world, telling)
    await world.until(lambda: [p.leader for p in states(two)] == [2, 3], 2)
    lost, kept = states(two)
    assert (lost.isr, lost.leader_epoch) == ((2, 1), 1)
    assert (kept.isr, kept.leader_epoch) == ((3, 2, 1), 0)
    refused = await shrink(world, two, "a", (2, 1, 3))  # W3: its last position is known, and no longer true.
    assert refused == lost
    await done(world, asyncio.ensure_future(three_.registration.announce_offline({})))
    await world.until(lambda: not two.image.brokers[3].offline, 2)
    made = await shrink(world, two, "a", (2, 1, 3))
    assert made is not None and made.isr == (2, 1, 3)


async def test_a_broker_that_returns_catches_up_before_it_is_counted(world: SimWorld) -> None:
    one, _two, three_ = await three(world, NewTopic("a", 3, 3))
    await three_.kill()
    await world.until(lambda: all(3 not in p.isr for p in states(one)), 2)
    again = await world.started(3)
    await world.clock.advance(2)
    assert all(3 not in p.isr and p.leader != 3 for p in states(again))


async def test_rule_1_an_earlier_incarnation_cannot_rejoin_the_isr(world: SimWorld) -> None:
    """A leader's write is under way for so long that whom it adds comes back meanwhile, without the log's tail."""
    one, two, three_ = await three(world, NewTopic("a", assignments=((2, 3, 1),)))
    await shrink(world, two, "a", (2, 1))
    await world.until(lambda: states(one)[0].isr == (2, 1), 2)
    world.store_of(two).before = proposal = _Gate()
    topic = two.image.topics["a"]
    adding = asyncio.ensure_future(
        two.isr_writer.propose(topic.id, 0, expected=topic.partitions[0], isr=(2, 3, 1))
    )
    await world.clock.settle()
    await three_.kill()
    again = world.node(3, torn=True)
    # The controller has looked at the partition, which does not count on 3, and is about to admit it.
    world.store_of(one).before = admission = _Gate()
    starting = asyncio.ensure_future(again.start())
    await world.until(lambda: bool(admission.waiting))
    proposal.open()
    made = await done(world, adding)
    admission.open()
    await done(world, starting)
    await world.until(lambda: one.image.is_admitted(3, again.registration.broker.incarnation))
    assert made == topic.partitions[0]
    assert [p.isr for p in states(one)] == [(2, 1)]


async def test_a_leader_behind_an_announcement_adds_no_replica(world: SimWorld) -> None:
    """A copy is announced as one that cannot be served, and then cut, while a leader's write is under way."""
    _one, two, three_ = await three(world, NewTopic("a", assignments=((2, 3, 1),)))
    await shrink(world, two, "a", (2, 1))
    topic = two.image.topics["a"]
    world.store_of(two).before = proposal = _Gate()
    adding = asyncio.ensure_future(
        two.isr_writer.propose(topic.id, 0, expected=topic.partitions[0], isr=(2, 3, 1))
    )
    await world.until(lambda: bool(proposal.waiting))
    await done(world, asyncio.ensure_future(three_.registration.announce_offline({topic.id: (0,)})))
    proposal.open()
    assert await done(world, adding) == topic.partitions[0]


class _Gate:
    """Transactions wait here until it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self._opened = asyncio.Event()

    async def __call__(self, operation: str) -> None:
        if operation == "transact":
            self.waiting += 1
            await self._opened.wait()

    def open(self) -> None:
        self._opened.set()


async def test_a_quick_restart_moves_leaders_but_keeps_the_in_sync_set(world: SimWorld) -> None:
    one, _two, three_ = await three(world, NewTopic("a", 3, 3))
    await three_.kill()
    await world.started(3)  # Before anybody noticed: it buries its former life itself.
    assert 3 not in leaders(one)
    assert all(sorted(p.isr) == [1, 2, 3] for p in states(one)) or all(3 not in p.isr for p in states(one))


# ---------------------------------------------------------------------- all at once


async def test_a_cluster_that_starts_together_keeps_its_in_sync_sets(world: SimWorld) -> None:
    nodes = await three(world, NewTopic("a", 9, 3), NewTopic("b", assignments=((2,),)))
    for node in nodes:
        await node.kill()
    await world.clock.advance(30)
    began = world.clock.monotonic()
    again = [world.node(i) for i in (1, 2, 3)]
    await asyncio.gather(*(asyncio.wait_for(node.start(), 5) for node in again))
    await world.until(lambda: all(again[0].image.is_admitted(i) for i in (1, 2, 3)), 20)
    await world.until(lambda: NO_BROKER not in leaders(again[0]), 2)
    assert world.clock.monotonic() - began < 2
    assert all(sorted(p.isr) == [1, 2, 3] for p in again[0].image.topics["a"].partitions)


async def test_the_first_of_three_waits_a_lease_for_the_others(world: SimWorld) -> None:
    nodes = await three(world, NewTopic("a", 3, 3))
    for node in nodes:
        await node.kill()
    await world.clock.advance(30)
    alone = world.node(1)
    await alone.start()
    await world.clock.advance(3)
    assert not alone.controller.is_active and not alone.image.is_admitted(
        1, alone.registration.broker.incarnation
    )
    await world.until(lambda: alone.controller.is_active, 10)
    assert leaders(alone) == {1}


async def test_after_a_power_cut_the_longest_log_leads(world: SimWorld) -> None:
    nodes = await three(world, NewTopic("a", assignments=((1, 2, 3),)))
    for node in nodes:
        await node.kill()
    await world.clock.advance(30)
    again = [world.node(i, torn=True) for i in (1, 2, 3)]
    ends = {1: (0, 10), 2: (0, 40), 3: (0, 30)}

    async def ask(broker_id: int, wanted: object) -> list[tuple[int, int]]:
        return [ends[broker_id]]

    for node in again:
        node.controller._caretaker._ask_positions = ask  # type: ignore[assignment]
    await asyncio.gather(*(asyncio.wait_for(node.start(), 5) for node in again[:2]))
    await world.until(lambda: again[0].image.is_admitted(2, again[1].registration.broker.incarnation), 20)
    await world.clock.advance(5)
    assert leaders(again[0]) == {NO_BROKER}  # the third may be whole
    await again[2].start()
    await world.until(lambda: leaders(again[0]) == {2}, 20)
    assert [(p.isr, p.elr, p.torn) for p in states(again[0])] == [((2,), (), ())]


# ---------------------------------------------------------------------- stopping


async def test_a_stop_moves_leaders_away_first(world: SimWorld) -> None:
    one, two, _ = await three(world, NewTopic("a", 9, 3), NewTopic("alone", assignments=((2,),)))
    assert not is_handed_over(two.image, 2, {})
    await two.registration.announce_stop()
    await world.until(lambda: is_handed_over(two.image, 2, {}), 2)
    for partition in two.image.topics["a"].partitions:
        assert partition.leader != 2 and 2 not in partition.isr and len(partition.isr) == 2
    assert two.image.topics["alone"].partitions[0].leader == 2  # nobody else has it
    (result,) = await done(
        world, asyncio.ensure_future(one.controller.execute(CreateTopics((NewTopic("new", 4, 2),))))
    )
    assert result.error is None
    assert all(2 not in p.replicas for p in one.image.topics["new"].partitions)
    await two.stop()
    await world.until(lambda: one.image.topics["alone"].partitions[0].leader == NO_BROKER, 2)


async def test_a_stop_keeps_enough_in_sync(world: SimWorld) -> None:
    config = {"min.insync.replicas": "2"}
    one, two, _ = await three(world, NewTopic("a", assignments=((2, 3),), config=config))
    await two.registration.announce_stop()
    await world.until(lambda: is_handed_over(two.image, 2, {}), 2)
    (state,) = states(two)
    assert (state.leader, state.isr) == (3, (2, 3))
    await two.stop()
    await world.until(lambda: [(p.isr, p.elr) for p in states(one)] == [((3,), (2,))], 2)


async def test_a_controller_that_stops_makes_room(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 9, 3))
    await one.registration.announce_stop()
    await world.until(lambda: is_handed_over(one.image, 1, {}), 2)
    assert leaders(one) == {2, 3}
    await one.controller.resign()
    await world.until(lambda: two.controller.is_active or three_.controller.is_active, 2)
    assert one.controller.epoch == 0


# ---------------------------------------------------------------------- preferred leaders


async def test_leaderships_go_back_after_a_while_and_not_at_once(world: SimWorld) -> None:
    care = CareConfig(rebalance_interval_s=5, rebalance_grace_s=3, rebalance_max=2)
    one, two, three_ = await three(world, NewTopic("a", 12, 3), care=care)
    await three_.kill()
    await world.until(lambda: 3 not in leaders(one), 2)
    again = await world.started(3, care=care)
    await rejoin(world, [one, two], 3)
    assert 3 not in leaders(one)
    seen = {0}

    def back() -> bool:
        seen.add(sum(p.leader == 3 for p in states(one)))
        return max(seen) == 4

    await world.until(back, 30)
    assert seen == {0, 2, 4}  # two at a time
    assert all(p.leader == p.replicas[0] for p in states(again))


async def rejoin(world: SimWorld, nodes: list[Node], broker_id: int) -> None:
    """What leaders do when a follower has caught up."""
    proposals = []
    for node in nodes:
        await world.until(lambda node=node: node.image.is_admitted(broker_id))  # type: ignore[misc]
        own = node.registration.broker.id
        for topic in node.image.topics.values():
            for index, state in enumerate(topic.partitions):
                if state.leader == own and broker_id in state.replicas:
                    isr = (*state.isr, broker_id)
                    proposals.append(node.isr_writer.propose(topic.id, index, expected=state, isr=isr))
    made = await done(world, asyncio.gather(*proposals))
    assert all(state is not None and broker_id in state.isr for state in made)


# ---------------------------------------------------------------------- a controller that dies in its work


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("which", some(range(1, 8)))
async def test_the_next_controller_goes_on_wherever_the_last_one_died(
    world: SimWorld, lost: str, which: int
) -> None:
    """Broker 3 dies; the controller dies at its n-th transaction about it, before or after the store took it."""
    one, two, three_ = await three(world, NewTopic("a", 300, 3), NewTopic("b", 300, 3))
    store, seen = world.store_of(one), 0

    async def strike(operation: str) -> None:
        if operation == "transact" and seen >= which:
            raise StoreError("the process is dead")

    async def count(operation: str) -> None:
        nonlocal seen
        if operation == "transact":
            seen += 1
            if seen == which and lost == "request":
                raise StoreError("the process is dead")

    store.before, store.after = count, strike
    await three_.kill()
    await world.clock.advance(0.3)
    await one.kill()
    await world.until(lambda: leaders(two) == {2}, 30)
    epochs = [p.leader_epoch for p in states(two)]
    assert all(p.isr == (2,) for p in states(two)) and max(epochs) <= 2


async def test_a_paused_controller_changes_nothing_when_it_wakes(world: SimWorld) -> None:
    one, two, three_ = await three(world, NewTopic("a", 200, 3))
    gate = asyncio.Event()

    async def stand_still(operation: str) -> None:
        await gate.wait()

    world.store_of(one).before = stand_still
    world.paused.add(1)
    creating = asyncio.ensure_future(one.controller.execute(CreateTopics((NewTopic("late", 5, 3),))))
    await world.until(lambda: two.controller.is_active or three_.controller.is_active, 20)
    await world.until(lambda: 1 not in leaders(two), 5)
    revision, before = world.etcd.revision, states(two)
    world.store_of(one).before = None
    gate.set()
    (result,) = await done(world, creating)
    assert result.error is not None and result.error.retriable
    world.paused.clear()
    await world.until(lambda: 1 in two.image.brokers, 20)
    assert "late" not in two.image.topics and states(two) == before
    # It came back with the same incarnation: nothing happened but its registration.
    assert world.etcd.revision == revision + 1
    assert CONTROLLER.key in world.etcd.entries


async def test_losing_a_thousand_leaders_takes_tens_of_transactions(world: SimWorld) -> None:
    nodes = await three(world, *(NewTopic(f"t{i}", 100, 3) for i in range(10)))
    one, _two, three_ = nodes
    faults = Faults(world.store_of(one), "transact")
    await three_.kill()
    await world.until(lambda: leaders(one) == {1, 2}, 5)
    await world.clock.advance(1)
    assert all(3 not in p.isr for p in states(one))
    assert 8 <= faults.seen <= 12
