"""Connections that say nothing to a gRPC listener for clients: they end, so that they cannot keep others out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from certificates import Authority
from client.fake_services import FakeCluster
from ottla_broker.config import BrokerConfig, GrpcEdgeConfig
from ottla_broker.edge.grpc import server
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.tls_files import TlsFiles
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc
from ottla_core.real.clock import RealClock

CONNECTIONS_MAX = 10


@asynccontextmanager
async def serving(*, credentials: Any = None, logins: Any = None) -> AsyncIterator[int]:
    services = FakeCluster().brokers[0]
    edge = GrpcEdge(
        cast(Any, services),
        GrpcEdgeConfig(connections_max=CONNECTIONS_MAX),
        SilentProbe(),
        credentials=credentials,
        logins=logins,
    )
    port = await edge.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await edge.stop(0.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.parametrize("has_tls", [False, True])
async def test_silent_connections_make_room(
    has_tls: bool, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HANDSHAKE_MS", 1_000)
    credentials, trusted = None, None
    if has_tls:
        certificate = authority.issue("broker", "/CN=broker", into=tmp_path / "broker.pem")
        files = TlsFiles(BrokerConfig.of({"ssl.keystore.location": str(certificate)}).tls, RealClock())
        credentials = files.grpc_credentials(logins=False)
        trusted = grpc.ssl_channel_credentials(authority.file.read_bytes())
    async with serving(credentials=credentials) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        target = f"localhost:{port}"
        options = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 200)]
        channel = (
            aio.secure_channel(target, trusted, options) if trusted else aio.insecure_channel(target, options)
        )
        async with channel:
            call = broker_pb2_grpc.AdminStub(channel).Metadata(
                pb.MetadataRequest(), wait_for_ready=True, timeout=15
            )
            assert (await call).cluster_id == "fake-cluster"
        for reader, writer in silent:
            async with asyncio.timeout(5):
                await reader.read(1 << 16)
            writer.close()


async def test_an_idle_connection_ends_soon_where_clients_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_LOGIN_MAX_MS", 1_000)
    logins = SimpleNamespace(user_of=lambda header: "alice")
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    for given, ends in ((logins, True), (None, False)):
        async with serving(logins=given) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(hello)
            try:
                async with asyncio.timeout(5 if ends else 2):
                    while await reader.read(1 << 16):
                        pass
                assert ends
            except TimeoutError:
                assert not ends
            writer.close()
