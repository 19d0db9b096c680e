"""How a leader cuts what it sends into frames: at once when nothing is under way, together when something is."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import pytest

from broker.one_thread import Thread
from broker.replication.cluster import NOW_MS, TOPIC_ID, Cluster, cluster
from ottla_broker.replication import follow_stream
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind
from ottla_core.ports.peers import FollowLink
from sim.batches import read_batches
from sim.disk import SimFile
from sim.peers import SimPeers

T = TypeVar("T")
KEY = wire.partition_key(TOPIC_ID, 0)


class HandFollower:
    """Broker 3's copy of the partition, by hand: it reports when the test says so."""

    def __init__(self, link: FollowLink, own: UUID, leader: UUID) -> None:
        self._link = link
        self._own, self._leader = own.bytes, leader.bytes

    async def report(self, says: PositionKind, end: int) -> None:
        entry = PositionEntry(KEY, says, 0, 0 if end else -1, end, end)
        await self._link.send(wire.encode_positions(self._own, self._leader, [entry]))

    async def lengths(self, within_s: float = 5.0) -> list[int]:
        """The lengths of the records in the next frame that has any; empty if none comes in time."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    frame = await self._link.receive()
                    assert frame is not None
                    sections = wire.decode_batches(frame, wire.decode_header(frame).count)
                    records = b"".join(bytes(section.records) for section in sections)
                    if records:
                        return [len(record.value or b"") for _, record in read_batches(records)]
        except TimeoutError:
            return []


async def followed_by_hand(world: Cluster) -> HandFollower:
    link = await SimPeers(world.net, 3).follow(1)
    own, leader = world.nodes[3].incarnation, world.nodes[1].incarnation
    await link.send(wire.encode_hello(own.bytes, leader.bytes, 3, 1))
    follower = HandFollower(link, own, leader)
    await follower.report(PositionKind.WANT, 0)
    await asyncio.sleep(0.05)
    return follower


async def test_a_write_alone_leaves_at_once_and_small_ones_behind_it_go_together() -> None:
    async with cluster() as world:
        follower, leader = await followed_by_hand(world), world.nodes[1]
        leader.append("a")
        assert await follower.lengths() == [1]
        for value in ("bb", "cc", "dd"):
            leader.append(value)
        assert await follower.lengths(0.1) == []
        await follower.report(PositionKind.HAVE, 1)
        assert await follower.lengths() == [2, 2, 2]


async def test_what_is_large_does_not_wait_for_the_frame_before_but_for_the_one_before_that() -> None:
    async with cluster() as world:
        follower, leader = await followed_by_hand(world), world.nodes[1]
        leader.append("a")
        assert await follower.lengths() == [1]
        leader.append("b")
        leader.append("x" * 600_000)
        assert await follower.lengths() == [1, 600_000]
        leader.append("y" * 600_000)
        assert await follower.lengths(0.1) == []
        await follower.report(PositionKind.HAVE, 1)
        assert await follower.lengths() == [600_000]


async def test_a_follower_that_begins_again_is_sent_everything_again() -> None:
    async with cluster() as world:
        follower, leader = await followed_by_hand(world), world.nodes[1]
        leader.append("a")
        assert await follower.lengths() == [1]
        leader.append("b")
        await follower.report(PositionKind.WANT, 0)
        assert await follower.lengths() == [1, 1]


class BadThread:
    """Work that blocks fails, until it is mended."""

    def __init__(self) -> None:
        self.attempts, self.is_mended = 0, False

    async def run(self, work: Callable[[], T]) -> T:
        self.attempts += 1
        await asyncio.sleep(0)
        if not self.is_mended:
            raise OSError(errno.EIO, "bad sector")
        return work()


def _bad_sector(file: SimFile, position: int, size: int) -> bytes | None:
    raise OSError(errno.EIO, "bad sector")


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_read_that_fails_is_tried_again_after_a_pause(
    is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does the stream end, which carries all other partitions as well, nor is the disk asked without end."""
    monkeypatch.setattr(follow_stream, "_REREAD_S", 0.2, raising=False)
    async with cluster() as world:
        leader, thread = world.nodes[1], BadThread()
        await world.nodes[2].kill()
        await leader.write("both are here", acks=1)
        await world.until(lambda: world.nodes[3].partition.log.end_offset == 1)
        leader.server._around = leader.server._around._replace(offload=thread)
        follower = await followed_by_hand(world)
        assert await follower.lengths() == [13]
        await follower.report(PositionKind.HAVE, 1)
        if is_cold:
            leader.disk.cold = True
        else:
            monkeypatch.setattr(SimFile, "read_cached", _bad_sector)
        leader.append("a")
        assert await follower.lengths(0.3) == []
        assert 1 <= thread.attempts <= 3
        thread.is_mended = True
        assert await follower.lengths() == [1]


async def test_indexes_of_what_is_copied_late_are_read_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as world:
        leader, thread = world.nodes[1], Thread()
        leader.server._around = leader.server._around._replace(offload=thread)
        for text in ("a", "b"):
            await leader.write(text)
            await world.agree()  # The other two are served by their own streams, and are done.
            leader.partition.log.roll(NOW_MS)
        on_loop: list[str] = []
        shipped = SimFile.read

        def read(file: SimFile, position: int, size: int) -> bytes:
            if not thread.busy and file._disk is leader.disk:
                on_loop.append(file.path)
            return shipped(file, position, size)

        monkeypatch.setattr(SimFile, "read", read)
        monkeypatch.setattr(SimFile, "read_cached", shipped)
        follower = await followed_by_hand(world)
        assert await follower.lengths() == [1]
        await follower.report(PositionKind.HAVE, 1)
        assert await follower.lengths() == [1]
        assert on_loop == []
