"""TLS on both edges: handshakes, principals, reloaded files, and clients that do not finish a handshake."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from broker.edge.fakes import FakeServices
from broker.edge.kafka_peer import Peer, request_frame
from certificates import Authority
from client.fake_services import FakeCluster
from ottla_broker.caller import ANONYMOUS
from ottla_broker.config import BrokerConfig, GrpcEdgeConfig, KafkaEdgeConfig
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.edge.kafka import tls_accept
from ottla_broker.edge.kafka.server import KafkaEdge
from ottla_broker.edge.kafka.tls_accept import Security
from ottla_broker.edge.seats import Seats
from ottla_broker.metrics import KafkaEdgeProbe
from ottla_broker.setting import ConfigError
from ottla_broker.tls_files import TlsFiles
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc
from ottla_core.real.clock import RealClock


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Secured:
    """A Kafka edge that speaks TLS over fake services."""

    def __init__(self, settings: dict[str, str], seats: int = 100) -> None:
        config = BrokerConfig.of(settings).tls
        self.files = TlsFiles(config, RealClock())
        self.services, self.probe, self.seats = FakeServices(), KafkaEdgeProbe(), Seats(seats)
        self.edge = KafkaEdge(
            cast(Any, self.services),
            KafkaEdgeConfig(),
            self.probe,
            seats=self.seats,
            security=Security(self.files.context, config.principal_rules),
        )
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Secured]:
        self.port = await self.edge.start("127.0.0.1", 0)
        try:
            yield self
        finally:
            await self.edge.stop(1.0)

    async def connect(self, authority: Authority, certificate: Path | None = None) -> Peer:
        context = ssl.create_default_context(cafile=str(authority.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return Peer(*await asyncio.open_connection("localhost", self.port, ssl=context))


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def settings(authority: Authority, folder: Path, **more: str) -> dict[str, str]:
    certificate = authority.issue("broker", "/CN=broker", into=folder / "broker.pem")
    given = {"ssl.keystore.location": str(certificate), "ssl.truststore.location": str(authority.file)}
    return given | {name.replace("_", "."): value for name, value in more.items()}


async def test_a_client_without_a_certificate_is_anonymous(authority: Authority, tmp_path: Path) -> None:
    async with Secured(settings(authority, tmp_path)).serving() as secured:
        peer = await secured.connect(authority)
        await peer.ask(18, 0)
        assert secured.services.caller.principal == ANONYMOUS
        assert secured.seats.taken == 1
        peer.close()
        await until(lambda: secured.seats.taken == 0)


async def test_the_principal_comes_from_the_certificate(authority: Authority, tmp_path: Path) -> None:
    given = settings(authority, tmp_path, ssl_client_auth="required")
    given["ssl.principal.mapping.rules"] = "RULE:^CN=(.*?),O=Example$/$1/U"
    alice = authority.issue("alice", "/O=Example/CN=alice")
    mallory = authority.issue("mallory", "/O=Other/CN=alice")
    async with Secured(given).serving() as secured:
        peer = await secured.connect(authority, alice)
        await peer.ask(18, 0)
        assert secured.services.caller.principal == "User:ALICE"
        peer.close()
        for certificate in (None, mallory):
            refused = await secured.connect(authority, certificate)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ssl.SSLError)):
                await refused.ask(18, 0)
            refused.close()
        await until(lambda: secured.seats.taken == 0)


async def test_requests_that_come_with_the_handshake_are_answered_in_order(
    authority: Authority, tmp_path: Path
) -> None:
    async with Secured(settings(authority, tmp_path)).serving() as secured:
        # Everything the client has to say is there when its handshake ends.
        context = ssl.create_default_context(cafile=str(authority.file))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", secured.port)
        frames = b"".join(request_frame(18, 0, number, {}) for number in range(300))
        is_done = False
        while not is_done:
            try:
                tls.do_handshake()
                tls.write(frames)
                is_done = True
            except ssl.SSLWantReadError:
                pass
            writer.write(outgoing.read())
            if not is_done:
                incoming.write(await reader.read(1 << 16))
        answered = b""
        size = None
        async with asyncio.timeout(20):
            while size is None or len(answered) < 300 * size:
                try:
                    answered += tls.read(1 << 16)
                    size = 4 + int.from_bytes(answered[:4], "big")
                except ssl.SSLWantReadError:
                    incoming.write(await reader.read(1 << 16))
        numbers = [int.from_bytes(answered[at + 4 : at + 8], "big") for at in range(0, len(answered), size)]
        assert numbers == list(range(300))
        writer.close()


async def test_half_open_handshakes_are_counted_and_end(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_accept, "HANDSHAKE_S", 1.0)
    async with Secured(settings(authority, tmp_path), seats=20).serving() as secured:
        silent = [await asyncio.open_connection("127.0.0.1", secured.port) for _ in range(30)]
        await until(lambda: secured.probe.connections_dropped.of("too many handshakes").n == 25)
        await until(lambda: secured.seats.taken == 5)
        await until(lambda: secured.seats.taken == 0)
        (await secured.connect(authority)).close()
        for _, writer in silent:
            writer.close()


async def test_garbage_instead_of_a_handshake_closes_the_connection(
    authority: Authority, tmp_path: Path
) -> None:
    async with Secured(settings(authority, tmp_path)).serving() as secured:
        plain = await Peer.connect(secured.port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, AssertionError)):
            await plain.ask(18, 0)
        plain.close()
        await until(lambda: secured.seats.taken == 0)
        assert secured.probe.connections_opened == 0


async def test_replaced_files_are_used_for_the_next_connection(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla_broker.tls_files._CHECK_S", 0.0)
    given = settings(authority, tmp_path)

    async def subject(secured: Secured) -> str:
        peer = await secured.connect(authority)
        found: Any = peer.writer.get_extra_info("peercert")
        peer.close()
        return str(dict(part[0] for part in found["subject"])["commonName"])

    async with Secured(given).serving() as secured:
        assert await subject(secured) == "broker"
        authority.issue("second", "/CN=second", into=tmp_path / "broker.pem")
        assert await subject(secured) == "second"
        (tmp_path / "broker.pem").write_text("half a file")
        assert await subject(secured) == "second", "the former certificate stays in use"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "missing.pem", "TLS cannot be set up"),
        (tmp_path / "bad.pem", "set up"),
    ):
        (tmp_path / "bad.pem").write_text("nothing")
        with pytest.raises(ConfigError, match=reason):
            TlsFiles(BrokerConfig.of({"ssl.keystore.location": str(path)}).tls, RealClock())


async def test_a_certificate_has_one_principal_on_both_protocols(
    authority: Authority, tmp_path: Path
) -> None:
    """An ACL that denies one of two names would not bind the other."""
    given = settings(authority, tmp_path, ssl_client_auth="required")
    ann = authority.issue("ann", "/O=Ex/GN=Ann/emailAddress=ann@example.com/CN=José, Ann")
    async with Secured(given).serving() as secured:
        peer = await secured.connect(authority, ann)
        await peer.ask(18, 0)
        over_kafka = secured.services.caller.principal
        peer.close()
    config = BrokerConfig.of(given).tls
    async with FakeCluster() as cluster:
        broker = cluster.brokers[0]
        edge = GrpcEdge(
            broker,
            GrpcEdgeConfig(),
            SilentProbe(),
            credentials=TlsFiles(config, RealClock()).grpc_credentials(),
            rules=config.principal_rules,
        )
        port = await edge.start("127.0.0.1", 0)
        with_key = grpc.ssl_channel_credentials(
            authority.file.read_bytes(), ann.read_bytes(), ann.read_bytes()
        )
        async with aio.secure_channel(f"localhost:{port}", with_key) as channel:
            await broker_pb2_grpc.AdminStub(channel).Metadata(pb.MetadataRequest(), timeout=20)  # type: ignore[no-untyped-call]
        await edge.stop(0.1)
    expected = "User:CN=José\\, Ann,emailAddress=ann@example.com,givenName=Ann,O=Ex"
    assert (over_kafka, broker.caller.principal) == (expected, expected)


def _only(version: ssl.TLSVersion, authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.set_alpn_protocols(["h2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")  # Else the client refuses to offer it.
    return context


@pytest.mark.parametrize("protocol", ["kafka", "grpc"])
async def test_tls_1_2_and_1_3_are_spoken_and_1_1_is_not(
    protocol: str, authority: Authority, tmp_path: Path
) -> None:
    given = settings(authority, tmp_path)
    config = BrokerConfig.of(given).tls
    async with AsyncExitStack() as stack:
        if protocol == "kafka":
            port = (await stack.enter_async_context(Secured(given).serving())).port
        else:
            cluster = await stack.enter_async_context(FakeCluster())
            credentials = TlsFiles(config, RealClock()).grpc_credentials()
            edge = GrpcEdge(cluster.brokers[0], GrpcEdgeConfig(), SilentProbe(), credentials=credentials)
            port = await edge.start("127.0.0.1", 0)
            stack.push_async_callback(edge.stop, 0.1)
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            _, writer = await asyncio.open_connection("localhost", port, ssl=_only(version, authority))
            assert writer.get_extra_info("ssl_object").version() == name
            writer.transport.abort()
        old = _only(ssl.TLSVersion.TLSv1_1, authority)
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("localhost", port, ssl=old)
        # The client did offer it: a server of the past accepts.
        past = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        past.load_cert_chain(given["ssl.keystore.location"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            past.minimum_version = ssl.TLSVersion.TLSv1_1
        past.set_ciphers("ALL:@SECLEVEL=0")
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=past)
        _, writer = await asyncio.open_connection("localhost", server.sockets[0].getsockname()[1], ssl=old)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.1"
        writer.transport.abort()
        server.close()
        await server.wait_closed()


async def test_grpc_has_the_principal_of_the_certificate(authority: Authority, tmp_path: Path) -> None:
    config = BrokerConfig.of(settings(authority, tmp_path, ssl_client_auth="required")).tls
    alice = authority.issue("alice-grpc", "/O=Example/CN=alice").read_bytes()
    async with FakeCluster() as cluster:
        broker = cluster.brokers[0]
        credentials = TlsFiles(config, RealClock()).grpc_credentials()
        edge = GrpcEdge(
            broker, GrpcEdgeConfig(), SilentProbe(), credentials=credentials, rules=config.principal_rules
        )
        port = await edge.start("127.0.0.1", 0)
        roots = authority.file.read_bytes()
        with_key = grpc.ssl_channel_credentials(roots, alice, alice)
        async with aio.secure_channel(f"localhost:{port}", with_key) as channel:
            await broker_pb2_grpc.AdminStub(channel).Metadata(pb.MetadataRequest(), timeout=20)  # type: ignore[no-untyped-call]
        assert broker.caller.principal == "User:CN=alice,O=Example"
        async with aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(roots)) as channel:
            with pytest.raises(aio.AioRpcError):
                await broker_pb2_grpc.AdminStub(channel).Metadata(pb.MetadataRequest(), timeout=20)  # type: ignore[no-untyped-call]
        await edge.stop(0.1)
