"""Thousands of connections that begin no handshake, or stop within it: other clients are served all the same."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from confluent_kafka import Producer

from attack import effort
from attack.victim import Victim
from certificates import Authority
from ottla_cli.local_cluster import LocalCluster
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

#: More than `max.connections`, so that without a bound of their own they would shut others out.
CONNECTIONS = 10_000 if effort.IS_LONG else 900
GROWTH_MAX = 150 << 20


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[LocalCluster, int, Authority]]:
    authority = Authority(tmp_path / "ca")
    certificate = authority.issue("broker", "/CN=broker", into=tmp_path / "broker.pem")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "advertised.listeners": "SSL://localhost:0",
        "ssl.keystore.location": str(certificate),
        "max.connections": "300",
        "grpc.listeners": "NATIVE://127.0.0.1:0,NATIVE_SSL://127.0.0.1:0",
        "listener.security.protocol.map": "NATIVE:PLAINTEXT,NATIVE_SSL:SSL",
        "grpc.connections.max": "600",
    }
    with LocalCluster(settings=settings) as cluster:
        facts = json.loads(Path(cluster.folder.file("broker-0.ready")).read_text())
        yield cluster, int(facts["listener.SSL"].rpartition(":")[2]), authority


def hello() -> bytes:
    """The first message of a handshake."""
    given, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(given, sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


#: gRPC gives a handshake 10 s; a client may have to wait for one, and for its own attempts to connect.
GRPC_WAIT_S = 30.0
SOON = [("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 500)]


def test_half_open_connections_to_grpc_make_room(secured: tuple[LocalCluster, int, Authority]) -> None:
    """gRPC refuses connections beyond its limit, and cuts none off for others: it is the time limit that makes room."""
    cluster, _, authority = secured
    victim = Victim(cluster)
    victim.create("ordinary", 1)
    facts = json.loads(Path(cluster.folder.file("broker-0.ready")).read_text())
    ports = [int(facts[name].rpartition(":")[2]) for name in ("grpc", "listener.NATIVE_SSL")]
    before, first = victim.memory(), hello()
    opened = list[socket.socket]()
    for port in ports:
        for number in range(300):
            opened.append(socket.create_connection(("127.0.0.1", port), 20))
            if number % 2:
                opened[-1].sendall(first[:100] if port == ports[1] else b"PRI * HTTP/2.0")
    began = time.monotonic()
    trusted = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with (
        grpc.insecure_channel(f"localhost:{ports[0]}", SOON) as plain,
        grpc.secure_channel(f"localhost:{ports[1]}", trusted, SOON) as tls,
    ):
        for channel in (plain, tls):
            asked = broker_pb2_grpc.AdminStub(channel).Metadata(
                pb.MetadataRequest(topics=["ordinary"]), wait_for_ready=True, timeout=GRPC_WAIT_S
            )
            assert [topic.name for topic in asked.topics] == ["ordinary"]
    print(f"served after {time.monotonic() - began:.1f} s, memory +{(victim.memory() - before) >> 20} MB")
    assert victim.memory() - before < GROWTH_MAX
    for each in opened:
        each.close()
    victim.close_look()


def test_half_open_handshakes_do_not_shut_others_out(secured: tuple[LocalCluster, int, Authority]) -> None:
    cluster, port, authority = secured
    victim = Victim(cluster)
    victim.create("ordinary", 1)
    before, first = victim.memory(), hello()
    opened, waits = list[socket.socket](), list[float]()
    for number in range(CONNECTIONS):
        opened.append(socket.create_connection(("127.0.0.1", port), 20))
        if number % 2:
            opened[-1].sendall(first if number % 4 == 1 else first[:100])
        if number % (CONNECTIONS // 3) == CONNECTIONS // 6:
            began = time.monotonic()
            producer = Producer(
                {
                    "bootstrap.servers": f"localhost:{port}",
                    "security.protocol": "ssl",
                    "ssl.ca.location": str(authority.file),
                    "message.timeout.ms": 10_000,
                }
            )
            producer.produce("ordinary", b"x")
            assert producer.flush(15) == 0
            waits.append(time.monotonic() - began)
    assert len(waits) == 3 and max(waits) < 5.0, waits
    assert victim.memory() - before < GROWTH_MAX
    assert victim.metric("ottla_kafka_connections_dropped_total") > 0
    # More than the plaintext listener has, which say nothing either.
    opened += [socket.create_connection(("127.0.0.1", victim.port()), 20) for _ in range(400)]
    victim.close_look()
    for each in opened:
        each.close()
