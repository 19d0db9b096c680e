"""Thousands of connections that begin no TLS handshake, or stop within it: other clients are served all the same."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from attack import effort
from attack.victim import Victim
from certificates import Authority
from ottla_cli.local_cluster import LocalCluster

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
    for each in opened:
        each.close()
    victim.close_look()
