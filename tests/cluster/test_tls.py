"""TLS with a real broker and stock clients: both directions, wrong CAs, client certificates, replaced files."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from certificates import Authority
from ottla_cli.local_cluster import LocalCluster

with warnings.catch_warnings():
    # kafka-python 3.0 loads its schemas in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.integration


class Secured:
    """A broker with a plaintext listener and a TLS listener that requires client certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.strangers = Authority(folder / "ca"), Authority(folder / "other", "other-ca")
        self.certificate = self.authority.issue("broker", "/CN=broker", into=folder / "broker.pem")
        self.alice = self.authority.issue("alice", "/O=Example/CN=alice")
        self.cluster = LocalCluster(
            settings={
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "advertised.listeners": "SSL://localhost:0",
                "listener.security.protocol.map": "grpc:SSL",
                "grpc.advertised": "localhost:0",
                "ssl.keystore.location": str(self.certificate),
                "ssl.truststore.location": str(self.authority.file),
                "ssl.client.auth": "required",
            }
        )
        self.cluster.start()
        facts = json.loads(Path(self.cluster.folder.file("broker-0.ready")).read_text())
        self.plain = facts["kafka"]
        self.port = int(facts["listener.SSL"].rpartition(":")[2])
        self.secured = f"localhost:{self.port}"
        self.grpc = f"localhost:{facts['grpc'].rpartition(':')[2]}"
        admin = AdminClient({"bootstrap.servers": self.plain})
        for made in admin.create_topics([NewTopic("t", 1, 1)], operation_timeout=20).values():
            made.result(timeout=30)

    def librdkafka(self, **more: str) -> dict[str, Any]:
        given = {
            "bootstrap.servers": self.secured,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.file),
            "ssl.certificate.location": str(self.alice),
            "ssl.key.location": str(self.alice),
        }
        return given | {name.replace("_", "."): value for name, value in more.items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tls"))
    yield made
    made.cluster.stop()


def test_librdkafka_writes_and_kcat_and_kafka_python_read(secured: Secured) -> None:
    producer = Producer(secured.librdkafka() | {"linger.ms": 5})
    values = [f"{number}-".encode() + b"x" * 2000 for number in range(2000)]
    for value in values:
        producer.produce("t", value)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(secured.librdkafka(group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["t"])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(found) < len(values) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(500, timeout=1) if not message.error()]
    consumer.close()
    assert found == values
    given = [
        part
        for name, value in secured.librdkafka().items()
        if name != "bootstrap.servers"
        for part in ("-X", f"{name}={value}")
    ]
    said = subprocess.run(
        ["kcat", "-b", secured.secured, *given, "-C", "-t", "t", "-o", "beginning", "-c", "3", "-f", "%s\n"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.split(b"\n")[:3] == values[:3]
    other = kafka.KafkaConsumer(
        "t",
        bootstrap_servers=[secured.secured],
        security_protocol="SSL",
        ssl_cafile=str(secured.authority.file),
        ssl_certfile=str(secured.alice),
        ssl_keyfile=str(secured.alice),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    assert next(iter(other)).value == values[0]
    other.close()


def reasons(settings: dict[str, Any]) -> str:
    """What librdkafka says about a connection that fails."""
    told: list[str] = []
    producer = Producer(settings | {"error_cb": lambda error: told.append(str(error))})
    deadline = time.monotonic() + 30
    while not told and time.monotonic() < deadline:
        producer.poll(0.2)
    return " ".join(told)


def test_wrong_certificates_are_refused_with_a_reason_on_both_sides(secured: Secured) -> None:
    assert "certificate verify failed" in reasons(
        secured.librdkafka(ssl_ca_location=str(secured.strangers.file))
    )
    stranger = str(secured.strangers.issue("stranger", "/CN=stranger"))
    told = reasons(secured.librdkafka(ssl_certificate_location=stranger, ssl_key_location=stranger))
    assert told, "librdkafka reports the closed connection"
    log_path = Path(secured.cluster.brokers[0].child.log_path)
    deadline = time.monotonic() + 30
    # The client may see the closed connection before the broker has written why.
    while "unable to get local issuer certificate" not in (log := log_path.read_text()):
        assert time.monotonic() < deadline, log[-2000:]
        time.sleep(0.1)
    assert "TLS handshake failed" in log
    assert secured.cluster.dead == []


def test_an_expired_certificate_is_refused_with_a_reason_on_both_sides(secured: Secured) -> None:
    old = str(secured.authority.issue("old", "/CN=old", days=-1))
    began = time.monotonic()
    told = reasons(secured.librdkafka(ssl_certificate_location=old, ssl_key_location=old))
    assert told and time.monotonic() - began < 20
    log_path = Path(secured.cluster.brokers[0].child.log_path)
    while "certificate has expired" not in log_path.read_text():
        assert time.monotonic() - began < 30
        time.sleep(0.1)


def test_aiokafka_is_told_of_a_wrong_authority(secured: Secured) -> None:
    began = time.monotonic()
    context = ssl.create_default_context(cafile=str(secured.strangers.file))
    login: dict[str, Any] = {
        "bootstrap_servers": [secured.secured],
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def write() -> None:
        client = aiokafka.AIOKafkaProducer(**login, request_timeout_ms=5000)
        try:
            await client.start()
        finally:
            await client.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(write())
    assert time.monotonic() - began < 20


def test_a_replaced_certificate_is_served_without_a_restart(secured: Secured) -> None:
    def served() -> str:
        context = ssl.create_default_context(cafile=str(secured.authority.file))
        context.load_cert_chain(secured.alice)
        with (
            socket.create_connection(("127.0.0.1", secured.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as tls,
        ):
            found: Any = tls.getpeercert()
        return str(dict(part[0] for part in found["subject"])["commonName"])

    assert served() == "broker"
    secured.authority.issue("renewed", "/CN=renewed", into=secured.certificate)
    deadline = time.monotonic() + 30
    while served() != "renewed":
        assert time.monotonic() < deadline
        time.sleep(0.2)
