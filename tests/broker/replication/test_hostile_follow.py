"""What a hostile or confused peer sends on a Follow stream costs that stream and nothing else."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.replication.cluster import TOPIC_ID, Cluster, cluster
from ottla_broker.replication import follow_stream
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind
from ottla_core.ports.peers import FollowLink, PeerUnavailable
from sim.peers import SimPeers

KEY = wire.partition_key(TOPIC_ID, 0)
STRANGER = UUID(int=99).bytes


async def greeted(world: Cluster, *, follower: int = 3, incarnation: bytes | None = None) -> FollowLink:
    """A stream to broker 1 from somebody who says to be a follower."""
    link = await SimPeers(world.net, follower).follow(1)
    sender = incarnation or world.nodes[follower].incarnation.bytes
    await link.send(wire.encode_hello(sender, world.nodes[1].incarnation.bytes, follower, 1))
    return link


async def ends(link: FollowLink) -> bool:
    """Whether the leader ends the stream, whatever it said before."""
    try:
        async with asyncio.timeout(5):
            while await link.receive() is not None:
                pass
    except PeerUnavailable:
        pass
    return True


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01" * 10,
        b"\xff" * 400,
        wire.encode_positions(STRANGER, STRANGER, []),
        wire.encode_hello(STRANGER, STRANGER, 3, 1),
        wire.encode_hello(STRANGER, STRANGER, 3, 2),
    ],
    ids=["nothing", "short", "junk", "no greeting", "another life of ours", "meant for another"],
)
async def test_a_stream_that_does_not_begin_right_ends(first: bytes) -> None:
    async with cluster() as world:
        link = await SimPeers(world.net, 3).follow(1)
        await link.send(first)
        assert await ends(link)
        await world.nodes[1].write("still here")


async def test_a_stream_that_never_begins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla_broker.replication.follow_server._GREETING_S", 0.05)
    async with cluster() as world:
        assert await ends(await SimPeers(world.net, 3).follow(1))


async def test_junk_after_the_greeting_ends_only_that_stream() -> None:
    async with cluster() as world:
        link = await greeted(world)
        me, ours = world.nodes[3].incarnation.bytes, world.nodes[1].incarnation.bytes
        await link.send(wire.encode_positions(me, ours, []) + b"and then nonsense")
        assert await ends(link)
        await world.nodes[1].write("still here")
        assert await world.agree() == ["still here"]


async def test_rule_9_frames_of_another_incarnation_are_dropped() -> None:
    async with cluster(1, 2, isr=(1, 2), min_insync_replicas="1") as world:
        leader = world.nodes[1]
        await leader.write("a")
        # Somebody with broker 3's id, whom the cluster has not admitted, claims to have everything.
        link = await greeted(world, incarnation=STRANGER)
        ours = leader.incarnation.bytes
        entry = PositionEntry(KEY, PositionKind.WANT, 0, 0, 1, 1)
        await link.send(wire.encode_positions(STRANGER, ours, [entry]))
        await asyncio.sleep(0.1)
        assert world.state.isr == (1, 2)
        assert 3 not in leader.partition.leading.machine.positions  # type: ignore[union-attr]
        # Nor do its positions count when it says to be another on the same stream.
        await link.send(wire.encode_positions(UUID(int=5).bytes, ours, [entry]))
        await leader.write("b")
        await link.close()


async def test_positions_of_partitions_that_do_not_exist_are_harmless() -> None:
    async with cluster() as world:
        link = await greeted(world)
        me, ours = world.nodes[3].incarnation.bytes, world.nodes[1].incarnation.bytes
        unknown = wire.partition_key(UUID(int=12345), 7)
        entries = [
            PositionEntry(unknown, says, epoch, 0, end, end)
            for says in (0, 1, 2, 77)
            for epoch in (-1, 0, 2**31 - 1)
            for end in (-1, 0, 2**62)
        ]
        await link.send(wire.encode_positions(me, ours, entries))
        await world.nodes[1].write("still here")
        await link.close()
        assert await world.agree() == ["still here"]


async def test_a_position_beyond_the_leaders_log_commits_nothing() -> None:
    async with cluster(1, 2, isr=(1, 2, 3), min_insync_replicas="1") as world:
        leader = world.nodes[1]
        pending = leader.append("a")
        assert pending.last_offset == 0
        link = await greeted(world, incarnation=STRANGER)
        ours = leader.incarnation.bytes
        await link.send(
            wire.encode_positions(STRANGER, ours, [PositionEntry(KEY, PositionKind.WANT, 0, 0, 2**40, 2**40)])
        )
        await asyncio.sleep(0.05)
        assert leader.partition.high_watermark == 0
        await link.close()


async def test_a_broker_cannot_follow_as_another() -> None:
    """Who opened the stream was proved; what its greeting says must agree with that."""
    async with cluster(1, 2, isr=(1, 2, 3), min_insync_replicas="1") as world:
        link = await SimPeers(world.net, 2).follow(1)
        me, ours = world.nodes[2].incarnation.bytes, world.nodes[1].incarnation.bytes
        await link.send(wire.encode_hello(me, ours, 3, 1))
        assert await ends(link)
        assert 3 not in world.nodes[1].partition.leading.machine.positions  # type: ignore[union-attr]


async def test_requests_for_unknown_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_stream, "_EARLY_MAX", 100)
    async with cluster() as world:
        link = await greeted(world)
        me, ours = world.nodes[3].incarnation.bytes, world.nodes[1].incarnation.bytes
        unknown = [wire.partition_key(UUID(int=n), n) for n in range(1000)]
        entries = [PositionEntry(key, PositionKind.WANT, 0, -1, 0, 0) for key in unknown]
        await link.send(wire.encode_positions(me, ours, entries))
        streams = world.nodes[1].server._streams
        await world.until(lambda: any(unknown[-1] in stream._early for stream in streams))
        (early,) = (stream._early for stream in streams if stream._early)
        assert list(early) == unknown[-100:], "the newest stay: the others are asked for again"
        await world.nodes[1].write("still here")
        await link.close()


async def test_unread_responses_are_bounded() -> None:
    """A follower that wants what diverges again and again, and takes no answer."""
    async with cluster() as world:
        await world.nodes[1].write("a")
        link = await greeted(world)
        me, ours = world.nodes[3].incarnation.bytes, world.nodes[1].incarnation.bytes
        entry = PositionEntry(KEY, PositionKind.WANT, 0, 0, 2**40, 2**40)
        for _ in range(20):
            await link.send(wire.encode_positions(me, ours, [entry] * 500))
        await asyncio.sleep(0.1)
        assert all(len(stream._told) <= 1 for stream in world.nodes[1].server._streams)
        await link.close()


async def test_a_follower_has_a_few_streams_and_the_newest_stay() -> None:
    async with cluster() as world:
        links = [await greeted(world) for _ in range(10)]
        assert all([await ends(link) for link in links[:6]])
        await asyncio.sleep(0.05)
        held = [stream for stream in world.nodes[1].server._streams if stream.follower == 3]
        assert len(held) <= 4
        for link in links:
            await link.close()
        await world.nodes[1].write("still here")
