"""A broker's registration: taken, kept, lost, taken back."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.controller.world import Faults, SimWorld, directory, sim_world
from ottla_broker.membership.registration import BrokerIdTaken
from ottla_broker.metadata.cluster_id import find_or_create_cluster_id
from ottla_broker.metadata.history import Seen
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.watcher import LostHistory
from ottla_core.ports.store import Branch, Delete, StoreError


def registered(world: SimWorld, broker_id: int = 1) -> UUID | None:
    entry = world.etcd.entries.get(BROKERS.key(broker_id))
    return None if entry is None else BROKERS.decode(entry).incarnation


async def test_it_stays_as_long_as_it_renews() -> None:
    async with sim_world() as world:
        node = await world.started()
        await world.clock.advance(60)
        assert registered(world) == node.registration.broker.incarnation
        assert node.registration.confirmed and world.store_of(node).counts["keep_alive"] >= 29
        await node.kill()
        assert node.registration.confirmed
        await world.clock.advance(6.1)
        assert not node.registration.confirmed
        world.etcd.expire()
        assert registered(world) is None


async def test_leaving_is_immediate() -> None:
    async with sim_world() as world:
        node = await world.started()
        await node.stop()
        world.etcd.expire()
        assert registered(world) is None and CONTROLLER.key not in world.etcd.entries
        assert not node.registration.confirmed and not node.registration.lease


async def test_an_id_that_another_live_broker_has_is_refused_with_a_sentence() -> None:
    async with sim_world() as world:
        await world.started()
        other = world.node(directories=(UUID(int=1, version=4),))
        starting = world.clock.monotonic()
        task = asyncio.ensure_future(other.registration.register(10))
        await world.clock.advance(12)
        with pytest.raises(BrokerIdTaken, match=r"id 1 is taken by a live broker at 127\.0\.0\.1:9092"):
            await task
        assert world.clock.monotonic() - starting >= 10


async def test_an_id_of_a_dead_broker_on_another_disk_is_free_after_its_lease() -> None:
    async with sim_world() as world:
        node = await world.started()
        await node.kill()
        other = await world.started(directories=(UUID(int=1, version=4),))
        assert registered(world) == other.registration.broker.incarnation
        assert 5 < world.clock.monotonic() < 9


async def test_a_crashed_predecessor_on_the_same_disk_is_not_waited_for() -> None:
    async with sim_world() as world:
        node = await world.started()
        epoch = node.controller.epoch
        await node.kill()
        again = await world.started()
        assert world.clock.monotonic() < 1
        assert registered(world) == again.registration.broker.incarnation
        assert again.controller.epoch > epoch and again.controller.is_active


async def test_a_lost_lease_is_replaced_and_nothing_happened() -> None:
    async with sim_world() as world:
        node = await world.started()
        members = world.etcd.entries[MEMBERS.key(1)].mod_revision
        store = world.store_of(node)

        async def away(operation: str) -> None:
            raise StoreError("cut off")

        store.before = away
        await world.clock.advance(10)
        assert not node.registration.confirmed
        world.etcd.expire()
        assert registered(world) is None
        store.before = None
        await world.until(lambda: node.controller.is_active and registered(world) is not None)
        assert registered(world) == node.registration.broker.incarnation
        assert world.etcd.entries[MEMBERS.key(1)].mod_revision == members


async def test_a_short_absence_of_the_store_does_not_cost_the_lease() -> None:
    async with sim_world() as world:
        node = await world.started()
        await world.clock.advance(9)
        store, lease = world.store_of(node), node.registration.lease

        async def away(operation: str) -> None:
            if operation == "keep_alive":
                raise StoreError("cut off")

        store.before = away
        await world.clock.advance(3.7)
        store.before = None
        await world.clock.advance(10)
        assert node.registration.lease == lease and node.registration.confirmed


async def test_a_key_that_others_removed_is_put_back_under_the_living_lease() -> None:
    async with sim_world() as world:
        node = await world.started()
        lease, before = node.registration.lease, node.registration.broker.revision
        world.etcd.transact((), [Branch((), (Delete(BROKERS.key(1)),))])
        await world.clock.advance(1)
        assert registered(world) == node.registration.broker.incarnation
        assert node.registration.lease == lease and node.registration.broker.revision > before


@pytest.mark.parametrize("operation", ["transact", "grant_lease", "get"])
@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_lost_messages_do_not_matter(operation: str, which: int, lost: str) -> None:
    async with sim_world() as world:
        node = world.node()
        faults = Faults(world.store_of(node), operation)
        (faults.lose_requests if lost == "request" else faults.lose_replies).add(which)
        task = asyncio.ensure_future(node.registration.register(20))
        await world.clock.advance(3)
        await task
        entry = world.etcd.entries[BROKERS.key(1)]
        assert registered(world) == node.registration.broker.incarnation
        assert (node.registration.broker.revision, node.registration.lease) == (
            entry.create_revision,
            entry.lease,
        )
        assert BROKERS.decode(entry).directories == (directory(1),)


async def test_a_store_that_stays_away_is_an_error_in_time() -> None:
    async with sim_world() as world:
        node = world.node()

        async def away(operation: str) -> None:
            raise StoreError("away")

        world.store_of(node).before = away
        task = asyncio.ensure_future(node.registration.register(5))
        await world.clock.advance(6)
        with pytest.raises(StoreError, match="away"):
            await task


async def test_the_cluster_id_is_made_once_and_never_over_a_known_one() -> None:
    async with sim_world() as world:
        one, two = world.node(1), world.node(2)
        made = await find_or_create_cluster_id(one.store, one.chance, Seen())
        assert len(made) == 22
        assert await find_or_create_cluster_id(two.store, two.chance, Seen()) == made
        assert await find_or_create_cluster_id(two.store, two.chance, Seen(made, 99)) == made
        with pytest.raises(LostHistory, match="another cluster"):
            await find_or_create_cluster_id(two.store, two.chance, Seen("B" * 22))
    async with sim_world() as empty:
        node = empty.node()
        with pytest.raises(LostHistory, match="emptied or replaced"):
            await find_or_create_cluster_id(node.store, node.chance, Seen("B" * 22))
        assert empty.etcd.entries == {}
