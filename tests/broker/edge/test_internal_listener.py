"""The listener for other brokers: what strangers and impostors get at both ends, and what clients do not see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import grpc
import pytest
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from client.fake_services import FakeCluster
from ottla_broker.config import GrpcEdgeConfig, InternalEdgeConfig
from ottla_broker.edge.grpc.internal_server import InternalEdge
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.metrics import GrpcEdgeProbe, InternalProbe
from ottla_broker.replication.call_token import mac_of, make_proof
from ottla_broker.replication.grpc_peers import GrpcPeers, PeerAddress
from ottla_broker.replication.peer_auth import PROOF_KEY, TOKEN_KEY, SecretAuth
from ottla_core.pb import replication_pb2 as pb
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe
from ottla_core.real.clock import RealClock

OURS, THEIRS, FORMER = UUID(int=1), UUID(int=2), UUID(int=3)
SECRET, OTHER_SECRET = b"the secret of all brokers", b"the secret of somebody else"
FOLLOW, PROBE, ASK = (f"/ottla.v1.Replication/{name}" for name in ("Follow", "Probe", "Ask"))
QUESTION = pb.AskRequest(question=b"abc").SerializeToString()


class Neighbour:
    """Notes who calls."""

    incarnation = OURS

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    async def serve(self, link: FollowLink, follower: int) -> None:
        self.calls.append(("serve", follower))
        while (frame := await link.receive()) is not None:
            await link.send(frame)

    async def answer(self, request: bytes, caller: int) -> bytes:
        self.calls.append(("answer", caller))
        return request[::-1]


class Listening(NamedTuple):
    port: int
    neighbour: Neighbour
    probe: InternalProbe

    def peers(self, caller: int, *, incarnation: UUID = OURS, secret: bytes = SECRET) -> GrpcPeers:
        where = PeerAddress("127.0.0.1", self.port, incarnation)
        return GrpcPeers(lambda i: where, SecretAuth([secret], "c", caller, THEIRS))


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    neighbour, probe = Neighbour(), InternalProbe()
    edge = InternalEdge(
        neighbour,
        SecretAuth([SECRET], "c", 1, OURS),
        InternalEdgeConfig(),
        RealClock(),
        probe,
        GrpcEdgeProbe(),
    )
    port = await edge.bind("127.0.0.1", 0)
    await edge.serve()
    yield Listening(port, neighbour, probe)
    await edge.stop(0)


def refusals(probe: InternalProbe) -> dict[str, float]:
    return {sample.labels[0][1]: sample.value for sample in probe.refused.samples()}


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(aio.AioRpcError) as error:
        await (call.read() if hasattr(call, "read") else call)
    code: grpc.StatusCode = error.value.code()
    return code


async def test_a_call_is_served_under_the_name_that_was_proved(listening: Listening) -> None:
    two, three = listening.peers(2), listening.peers(3)
    assert await two.ask(1, b"abc", 10) == b"cba"
    assert await three.ask(1, b"abc", 10) == b"cba"
    link = await two.follow(1)
    await link.send(b"frame")
    assert await link.receive() == b"frame"
    await link.close()
    assert listening.neighbour.calls == [("answer", 2), ("answer", 3), ("serve", 2)]
    assert await two.probe(1, 10) == Probe(Presence.HERE, OURS)
    await two.close()
    await three.close()


@pytest.mark.parametrize(
    "method", [FOLLOW, PROBE, ASK, "/ottla.v1.Replication/Nothing", "/ottla.v1.Log/Produce"]
)
@pytest.mark.parametrize("token", [None, b"", b"\x01" * 81, b"x" * 3000])
async def test_an_unauthenticated_caller_is_refused(
    listening: Listening, method: str, token: bytes | None
) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{listening.port}") as channel:
        metadata = () if token is None else ((TOKEN_KEY, token),)
        assert await refused(channel.unary_unary(method)(QUESTION, metadata=metadata)) == (
            grpc.StatusCode.UNAUTHENTICATED
        )
        assert await refused(channel.stream_stream(method)(metadata=metadata)) == (
            grpc.StatusCode.UNAUTHENTICATED
        )
    assert listening.neighbour.calls == []
    assert sum(refusals(listening.probe).values()) == 2


async def test_a_recorded_token_is_refused(listening: Listening) -> None:
    signed = SecretAuth([SECRET], "c", 2, THEIRS).sign(ASK, 1, OURS)
    metadata = ((TOKEN_KEY, signed.token),)
    async with aio.insecure_channel(f"127.0.0.1:{listening.port}") as channel:
        await channel.unary_unary(ASK)(QUESTION, metadata=metadata)
        for method in (ASK, PROBE):
            assert await refused(channel.unary_unary(method)(QUESTION, metadata=metadata)) == (
                grpc.StatusCode.UNAUTHENTICATED
            )
    assert listening.neighbour.calls == [("answer", 2)]


async def test_brokers_with_another_secret_do_not_reach_each_other(listening: Listening) -> None:
    peers = listening.peers(2, secret=OTHER_SECRET)
    with pytest.raises(PeerUnavailable, match="UNAUTHENTICATED"):
        await peers.follow(1)
    with pytest.raises(PeerUnavailable, match="UNAUTHENTICATED"):
        await peers.ask(1, b"abc", 10)
    assert await peers.probe(1) == Probe(Presence.SILENT), "not a sign of its death"
    await peers.close()
    assert listening.neighbour.calls == []
    assert refusals(listening.probe) == {"bad_token": 3}


async def test_only_a_probe_may_mean_a_former_incarnation(listening: Listening) -> None:
    peers = listening.peers(2, incarnation=FORMER)
    assert await peers.probe(1, 10) == Probe(Presence.HERE, OURS)
    with pytest.raises(PeerUnavailable, match="another incarnation"):
        await peers.follow(1)
    with pytest.raises(PeerUnavailable, match="another incarnation"):
        await peers.ask(1, b"abc", 10)
    await peers.close()
    assert listening.neighbour.calls == []


@pytest.mark.parametrize("has_secret", [False, True], ids=["no proof", "proof of another secret"])
async def test_an_impostor_at_the_address_of_a_broker_is_not_believed(has_secret: bool) -> None:
    """It takes every call; without the secret it cannot prove to be the leader, and its frames are not read."""

    async def greet(context: Any) -> None:
        token = dict(context.invocation_metadata())[TOKEN_KEY]
        if has_secret:
            proof = make_proof(OTHER_SECRET, mac_of(token), 1, OURS)
            await context.send_initial_metadata(((PROOF_KEY, proof),))
        else:
            await context.send_initial_metadata(())

    async def follow(_requests: Any, context: Any) -> None:
        await greet(context)
        await context.write(b"forged")
        await asyncio.sleep(60)

    async def ask(_request: bytes, context: Any) -> bytes:
        await greet(context)
        return pb.AskResponse(answer=b"forged").SerializeToString()

    async def probe(_request: bytes, context: Any) -> bytes:
        await greet(context)
        return pb.ProbeResponse(incarnation=OURS.bytes).SerializeToString()

    server = aio.server()
    handlers = {
        "Follow": grpc.stream_stream_rpc_method_handler(follow),
        "Ask": grpc.unary_unary_rpc_method_handler(ask),
        "Probe": grpc.unary_unary_rpc_method_handler(probe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ottla.v1.Replication", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = Listening(port, Neighbour(), InternalProbe()).peers(2)
    with pytest.raises(PeerUnavailable, match=r"not the broker|without a proof"):
        await peers.follow(1)
    with pytest.raises(PeerUnavailable, match=r"not the broker|without a proof"):
        await peers.ask(1, b"abc", 10)
    assert await peers.probe(1) == Probe(Presence.SILENT)
    await peers.close()
    await server.stop(0)


async def test_a_leader_that_takes_the_call_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla_broker.replication.grpc_peers._FOLLOW_ANSWER_S", 0.2)

    async def silent(_requests: Any, _context: Any) -> None:
        await asyncio.sleep(60)

    server = aio.server()
    handlers = {"Follow": grpc.stream_stream_rpc_method_handler(silent)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ottla.v1.Replication", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = Listening(port, Neighbour(), InternalProbe()).peers(2)
    with pytest.raises(PeerUnavailable, match=r"no answer within 0\.2 s"):
        await peers.follow(1)
    await server.stop(0)


async def test_refusals_are_logged_once_in_a_while_and_without_the_token(
    listening: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{listening.port}") as channel:
        for _ in range(20):
            await refused(channel.unary_unary(ASK)(QUESTION, metadata=((TOKEN_KEY, b"T0KEN" * 9),)))
    said = capsys.readouterr().out
    assert said.count("internal listener refused") == 1
    assert "T0KEN" not in said
    assert refusals(listening.probe) == {"bad_token": 20}


@pytest.mark.integration  # Ten seconds.
@pytest.mark.parametrize("speaks_http2", [True, False], ids=["HTTP/2", "nothing"])
async def test_silent_unauthenticated_connections_are_closed(speaks_http2: bool) -> None:
    neighbour, probe, connections_max = Neighbour(), InternalProbe(), 16
    edge = InternalEdge(
        neighbour,
        SecretAuth([SECRET], "c", 1, OURS),
        replace(InternalEdgeConfig(), connections_max=connections_max),
        RealClock(),
        probe,
        GrpcEdgeProbe(),
    )
    port = await edge.bind("127.0.0.1", 0)
    await edge.serve()
    async with AsyncExitStack() as strangers:
        for _ in range(connections_max):
            if speaks_http2:
                own = ("grpc.use_local_subchannel_pool", 1)
                channel = aio.insecure_channel(f"127.0.0.1:{port}", options=[own])
                await strangers.enter_async_context(channel)
                await asyncio.wait_for(channel.channel_ready(), 10)
            else:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                strangers.callback(writer.close)
        peers = Listening(port, neighbour, probe).peers(2)
        with pytest.raises(PeerUnavailable):
            await peers.ask(1, b"abc", 1)
        async with asyncio.timeout(20):
            while not neighbour.calls:
                with suppress(PeerUnavailable):
                    await peers.ask(1, b"abc", 1)
                await asyncio.sleep(0.1)
        await peers.close()
    await edge.stop(0)


async def test_the_listener_for_clients_does_not_know_the_service() -> None:
    cluster = FakeCluster()
    edge = GrpcEdge(cluster.brokers[0], GrpcEdgeConfig(), SilentProbe())
    port = await edge.start("127.0.0.1", 0)
    token = SecretAuth([SECRET], "c", 2, THEIRS).sign(ASK, 1, OURS).token
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for metadata in ((), ((TOKEN_KEY, token),)):
            for method in (PROBE, ASK):
                code = await refused(channel.unary_unary(method)(QUESTION, metadata=metadata))
                assert code == grpc.StatusCode.UNIMPLEMENTED
            code = await refused(channel.stream_stream(FOLLOW)(metadata=metadata))
            assert code == grpc.StatusCode.UNIMPLEMENTED
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for found in reflection.ServerReflectionInfo(iter([asked])):
            names = {service.name for service in found.list_services_response.service}
    assert "ottla.v1.Log" in names
    assert "ottla.v1.Replication" not in names
    await edge.stop(0)
