"""The real Peers adapter against a real listener: streams, probes and requests, and how each of them fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from ottla_broker.config import InternalEdgeConfig
from ottla_broker.edge.grpc.internal_server import InternalEdge
from ottla_broker.metrics import GrpcEdgeProbe, InternalProbe
from ottla_broker.replication.grpc_peers import GrpcPeers, PeerAddress
from ottla_broker.replication.peer_auth import SecretAuth
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe
from ottla_core.real.clock import RealClock

INCARNATION = UUID(int=42)
CALLER = 7
SECRET = b"the secret of all brokers"


def auth(broker_id: int, incarnation: UUID, secret: bytes = SECRET) -> SecretAuth:
    return SecretAuth([secret], "a cluster", broker_id, incarnation)


def peers_at(
    port: int, *, known: int = 1, incarnation: UUID = INCARNATION, secret: bytes = SECRET
) -> GrpcPeers:
    """Broker 7, to which only one other broker is known."""
    where = PeerAddress("127.0.0.1", port, incarnation)
    return GrpcPeers(lambda i: where if i == known else None, auth(CALLER, UUID(int=77), secret))


class Neighbour:
    incarnation = INCARNATION

    def __init__(self, serve: Callable[[FollowLink], Awaitable[None]]) -> None:
        self._serve = serve

    async def serve(self, link: FollowLink, follower: int) -> None:
        assert follower == CALLER
        await self._serve(link)

    async def answer(self, request: bytes, caller: int) -> bytes:
        assert caller == CALLER
        if request == b"wait":
            await asyncio.sleep(60)
        return request[::-1]


async def echo(link: FollowLink) -> None:
    while (frame := await link.receive()) is not None:
        await link.send(frame)


@asynccontextmanager
async def listening(
    serve: Callable[[FollowLink], Awaitable[None]] = echo,
) -> AsyncIterator[tuple[GrpcPeers, InternalEdge]]:
    server = InternalEdge(
        Neighbour(serve),
        auth(1, INCARNATION),
        InternalEdgeConfig(),
        RealClock(),
        InternalProbe(),
        GrpcEdgeProbe(),
    )
    port = await server.bind("127.0.0.1", 0)
    await server.serve()
    peers = peers_at(port)
    try:
        yield peers, server
    finally:
        await peers.close()
        await server.stop(0)


async def test_frames_go_both_ways_whole_and_in_order() -> None:
    async with listening() as (peers, _):
        link = await peers.follow(1)
        frames = [b"", b"a", b"b" * 3_000_000, b"c" * 100]
        for frame in frames:
            await link.send(frame)
            assert await link.receive() == frame
        await link.close()


async def test_a_stream_ended_by_the_leader_differs_from_a_broken_one() -> None:
    async def bye(link: FollowLink) -> None:
        await link.send(b"bye")

    async with listening(bye) as (peers, _):
        link = await peers.follow(1)
        assert await link.receive() == b"bye"
        assert await link.receive() is None
        await link.close()
    async with listening() as (peers, server):
        link = await peers.follow(1)
        await link.send(b"x")
        assert await link.receive() == b"x"
        await server.stop(0)
        with pytest.raises(PeerUnavailable):
            await link.receive()
        with pytest.raises(PeerUnavailable):
            await link.send(b"y")
        await link.close()


async def test_a_follower_that_closes_ends_the_leaders_side() -> None:
    ended = asyncio.Event()

    async def serve(link: FollowLink) -> None:
        try:
            await echo(link)
        except PeerUnavailable:
            pass
        finally:
            ended.set()

    async with listening(serve) as (peers, _):
        link = await peers.follow(1)
        await link.send(b"x")
        await link.receive()
        await link.close()
        async with asyncio.timeout(5):
            await ended.wait()


async def test_sending_waits_for_the_reader() -> None:
    async def deaf(link: FollowLink) -> None:
        await asyncio.sleep(60)

    async with listening(deaf) as (peers, _):
        link = await peers.follow(1)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await link.send(b"x" * 1_000_000)
                sent += 1

        flooding = asyncio.ensure_future(flood())
        await asyncio.sleep(0.5)
        assert sent < 20, "nothing is buffered without bound"
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await link.close()


async def test_a_probe_tells_here_from_refused_from_silent() -> None:
    async with listening() as (peers, _):
        assert await peers.probe(1, 10) == Probe(Presence.HERE, INCARNATION)
        assert await peers.probe(2) == Probe(Presence.SILENT)  # Nobody knows where it is.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = peers_at(held.getsockname()[1])
        assert await nobody.probe(1) == Probe(Presence.REFUSED)
        held.listen(1)  # A process that accepts and says nothing, as a paused one does.
        assert await nobody.probe(1, 0.3) == Probe(Presence.SILENT)
        await nobody.close()


async def test_a_question_is_answered_or_unavailable() -> None:
    async with listening() as (peers, server):
        assert await peers.ask(1, b"abc", 5) == b"cba"
        with pytest.raises(PeerUnavailable, match="not registered"):
            await peers.ask(2, b"abc", 5)
        with pytest.raises(PeerUnavailable, match="DEADLINE"):
            await peers.ask(1, b"wait", 0.1)
        waiting = asyncio.ensure_future(peers.ask(1, b"wait", 30))
        await asyncio.sleep(0.1)
        await server.stop(0)
        with pytest.raises(PeerUnavailable):  # At once: this is how a death is noticed.
            async with asyncio.timeout(2):
                await waiting


async def test_following_an_offline_broker_fails_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        peers = peers_at(held.getsockname()[1])
        with pytest.raises(PeerUnavailable):
            async with asyncio.timeout(3):
                await peers.follow(1)
        await peers.close()
