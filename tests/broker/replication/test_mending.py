"""A copy with rotten bits: an error for readers, never spread, and copied again if another replica is complete."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.replication.cluster import NOW_MS, TOPIC_ID, TP, Cluster, Node, cluster
from ottla_broker.controller.leaders import LiveBrokers, Policy, reconcile
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_core.errors import CorruptMessage

#: Within the records of the first batch of a segment: the header is as it should be, the CRC is not.
SPOT = 65


async def three_segments(world: Cluster) -> None:
    """Two sealed ones and the active one, on all brokers, with the same bytes."""
    leader = world.nodes[1]
    for values in (("a", "b"), ("c", "d"), ("e",)):
        for value in values:
            await leader.write(value)
        await world.agree()
        if values != ("e",):
            for node in world.nodes.values():
                node.partition.log.roll(NOW_MS)


class Turns:
    """What the brokers and the controller do now and then, done by hand; keeps every state that there was."""

    def __init__(self, world: Cluster, min_insync: int = 1) -> None:
        self._world = world
        self._policy = Policy(min_insync)
        self.states: list[PartitionImage] = []
        #: Ends of the logs of those that counted, at every turn.
        self.shortest_that_counts = 1 << 62

    async def take(self) -> None:
        world = self._world
        for node in list(world.nodes.values()):
            offline = node.host.give_up_broken()
            entry = world.etcd.entries[BROKERS.key(node.id)]
            registered = BROKERS.decode(entry)
            if registered.offline != offline:
                world._put(BROKERS.key(node.id), BROKERS.encode(replace(registered, offline=offline)))
        image = world.nodes[max(world.nodes)].metadata.image
        state = world.state
        wanted = reconcile(state, LiveBrokers.of(image).for_partition(TOPIC_ID, 0), self._policy)
        if wanted is not None and image.partition(TP) == state:
            world._put(partition_key(TOPIC_ID, 0), PARTITIONS.encode(wanted))
        state = world.state
        self.states.append(state)
        for broker_id in (*state.isr, *state.elr, *state.dropped):
            if broker_id in world.nodes:
                log = world.nodes[broker_id].partition.log
                self.shortest_that_counts = min(self.shortest_that_counts, log.end_offset)
        await asyncio.sleep(0.02)

    async def until_mended(self, node: Node) -> None:
        async with asyncio.timeout(15):
            while node.partition.log.damage is not None or node.id not in self._world.state.isr:
                await self.take()
            await self.take()


async def test_a_damaged_copy_is_kept_while_there_is_no_leader() -> None:
    """Whom an election waits for must not say that it cannot serve: then nobody would ever lead again."""
    async with cluster() as world:
        await three_segments(world)
        node = world.nodes[3]
        node.partition.log.note_damage(0, "a damaged batch")
        assert node.host.give_up_broken() == {TOPIC_ID: (0,)}
        world.change(leader=-1, leader_epoch=1, isr=(1,), torn=(1,), dropped=(3,))
        await world.until(lambda: node.partition.leader_epoch == 1)
        assert node.host.give_up_broken() == {}


@pytest.mark.parametrize("segment", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("broker_id", [1, 2], ids=["leader", "follower"])
async def test_a_damaged_copy_is_replaced(broker_id: int, segment: int) -> None:
    async with cluster() as world:
        await three_segments(world)
        node, turns = world.nodes[broker_id], Turns(world)
        log = node.partition.log
        node.disk.rot(log.segments[segment].file.path, SPOT)
        with pytest.raises(CorruptMessage):
            list(log.verify())
        log.note_damage(log.segments[segment].base_offset, "a damaged batch")
        await turns.until_mended(node)
        assert await world.agree() == ["a", "b", "c", "d", "e"]
        assert list(log.verify())
        assert turns.shortest_that_counts == 5, "nobody counted on a copy that had been cut"
        assert (world.state.leader != 1) == (broker_id == 1)
        await world.nodes[world.state.leader].write("f")
        assert (await world.agree())[-1] == "f"


@pytest.mark.parametrize("min_insync", ["1", "3"])
async def test_a_copy_that_others_cannot_do_without_stays(min_insync: str) -> None:
    isr = (1, 2, 3) if min_insync == "3" else (1,)
    async with cluster(min_insync_replicas=min_insync) as world:
        await three_segments(world)
        node, turns = world.nodes[1], Turns(world, int(min_insync))
        if isr == (1,):
            for broker_id in (2, 3):
                await world.nodes[broker_id].kill()
            await world.in_sync(1)
        node.partition.log.note_damage(0, "a damaged batch")
        for _ in range(5):
            await turns.take()
        assert node.partition.is_leader and node.partition.log.end_offset == 5
        assert node.host.give_up_broken() == {}
        assert world.state.isr == isr


async def test_a_leader_that_finds_damage_for_a_follower_lets_another_lead() -> None:
    """The new copy is never sent what is damaged, and gets it from the next leader."""
    async with cluster() as world:
        await three_segments(world)
        await world.nodes[3].kill()
        await world.in_sync(1, 2)
        damaged = world.nodes[1]
        damaged.disk.rot(damaged.partition.log.segments[0].file.path, SPOT)
        world.disks[3] = type(world.disks[3])()
        fresh = await world.start(3)
        turns = Turns(world)
        await turns.until_mended(fresh)
        await turns.until_mended(damaged)
        assert await world.agree() == ["a", "b", "c", "d", "e"]
        assert fresh.metrics.replication.bad_sections == 0
        assert world.state.leader == 2
        assert turns.shortest_that_counts == 5


async def test_a_log_too_damaged_to_open_is_set_aside_and_replaced() -> None:
    async with cluster() as world:
        await three_segments(world)
        node = world.nodes[3]
        path = node.partition.log.path
        node.partition.log.flush()
        node.dirs.checkpoint_work()()
        await node.kill()
        await world.in_sync(1, 2)
        for name in world.disks[3].list(path):
            if name.endswith((".index", ".timeindex", ".snapshot")):
                world.disks[3].remove(f"{path}/{name}")
        world.disks[3].rot(f"{path}/{0:020d}.log", 16, 0x40)  # the first batch's magic
        again = await world.start(3)
        assert again.host.give_up_broken() == {TOPIC_ID: (0,)}
        turns = Turns(world)
        async with asyncio.timeout(15):
            while 3 not in world.state.isr:
                await turns.take()
        assert await world.agree() == ["a", "b", "c", "d", "e"]
        assert [n for n in world.disks[3].list("/data/log") if n.endswith("-stray")]


async def test_a_leader_finds_damage_in_its_newest_segment_when_a_follower_catches_up() -> None:
    async with cluster(1, 2, isr=(1, 2)) as world:
        leader = world.nodes[1]
        for value in ("a", "b", "c"):
            await leader.write(value)
        leader.disk.rot(leader.partition.log.active.file.path, SPOT)
        follower = await world.start(3)
        await world.until(lambda: leader.partition.log.damage is not None, what="found")
        assert follower.metrics.replication.bad_sections == 0
