"""TLS between three real brokers: from plaintext and back, a replaced certificate, and a broker with a foreign CA."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from certificates import Authority
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: Certificates name no addresses of brokers: all have this name.
NAME = "localhost"


class Differing(LocalCluster):
    """A cluster whose brokers have settings of their own."""

    def __init__(self, own: list[dict[str, str]], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._own = own

    def _broker_settings(self, broker_id: int) -> dict[str, str]:
        return super()._broker_settings(broker_id) | self._own[broker_id]


class Secured:
    """Three brokers with certificates; they serve plaintext to each other until a test restarts them with SSL."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.pem = [self.authority.issue(f"b{i}", f"/CN=b{i}", into=folder / f"b{i}.pem") for i in range(3)]
        self.settings = [self.own(pem) for pem in self.pem]
        self.cluster = Differing(self.settings, brokers=3, settings={"offsets.topic.replication.factor": "1"})
        self.cluster.start()
        admin = AdminClient({"bootstrap.servers": self.cluster.kafka_bootstrap})
        made = admin.create_topics(
            [NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})], operation_timeout=20
        )
        made["t"].result(timeout=30)

    def own(self, pem: Path, trusted: Path | None = None) -> dict[str, str]:
        return {
            "internal.ssl.keystore.location": str(pem),
            "internal.ssl.truststore.location": str(trusted or self.authority.file),
            "internal.ssl.server.name": NAME,
        }

    def write(self, timeout_s: float = 30) -> None:
        """One record to each partition, acknowledged by all three replicas."""
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.kafka_bootstrap,
                "acks": "all",
                "message.timeout.ms": timeout_s * 1000,
            }
        )
        failed: list[Any] = []
        for partition in range(3):
            producer.produce("t", b"x", partition=partition, on_delivery=lambda e, _: e and failed.append(e))
        assert producer.flush(timeout_s + 5) == 0
        assert failed == []

    def restart(self, broker_id: int) -> None:
        self.cluster.stop_broker(broker_id)
        self.cluster.restart(broker_id)

    def internal(self, broker_id: int) -> int:
        return int(self.cluster.brokers[broker_id].internal.rpartition(":")[2])

    def reloads(self, broker_id: int) -> int:
        """How often a broker has read replaced files; it looks when another broker connects."""
        with suppress(OSError):
            self.served(broker_id)
        return self.log(broker_id).count("TLS files reloaded")

    def log(self, broker_id: int) -> str:
        return Path(self.cluster.brokers[broker_id].child.log_path).read_text()

    def served(self, broker_id: int) -> str:
        """Common name of the certificate on the internal listener, as another broker sees it."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        context.load_cert_chain(self.pem[0])
        with (
            socket.create_connection(("127.0.0.1", self.internal(broker_id)), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as tls,
        ):
            found: Any = tls.getpeercert()
        return str(dict(part[0] for part in found["subject"])["commonName"])


def until(holds: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("internal-tls"))
    yield made
    made.cluster.stop()


def test_brokers_move_to_tls_renew_without_a_restart_and_refuse_a_foreign_ca(
    secured: Secured, tmp_path: Path
) -> None:
    secured.write()
    with pytest.raises(ssl.SSLError):
        secured.served(0)  # plaintext
    for broker_id in range(3):
        secured.settings[broker_id] |= {"internal.security.protocol": "SSL"}
        secured.restart(broker_id)
        secured.write()  # replicated by brokers with TLS and brokers without
        assert secured.served(broker_id) == f"b{broker_id}"

    # Replaced certificates, of a CA that did not exist when the brokers started.
    renewed = Authority(tmp_path / "next", "next-ca")
    trusted = secured.authority.file.read_text() + renewed.file.read_text()
    fresh = tmp_path / "trusted.new"
    fresh.write_text(trusted)
    fresh.replace(secured.authority.file)
    for broker_id in range(3):
        until(lambda broker_id=broker_id: secured.reloads(broker_id) >= 1, lambda: secured.log(0)[-2000:])
    for broker_id, pem in enumerate(secured.pem):
        renewed.issue(f"n{broker_id}", f"/CN=n{broker_id}", into=pem)
    until(lambda: [secured.served(each) for each in range(3)] == ["n0", "n1", "n2"])
    assert secured.cluster.dead == []

    # A certificate of a foreign CA is refused, and both logs say so.
    foreign = Authority(tmp_path / "foreign", "foreign-ca")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(secured.authority.file.read_text() + foreign.file.read_text())
    before, secured.settings[2] = (
        secured.settings[2],
        secured.settings[2] | secured.own(foreign.issue("stranger", "/CN=stranger"), trusted),
    )
    secured.restart(2)
    until(
        lambda: "does not accept this broker's certificate" in secured.log(2), lambda: secured.log(2)[-3000:]
    )
    refused = "Its certificate is not accepted: unable to get local issuer certificate"
    until(lambda: any(refused in secured.log(each) for each in (0, 1)), lambda: secured.log(0)[-3000:])
    admin = AdminClient({"bootstrap.servers": secured.cluster.brokers[0].kafka})
    partitions = admin.list_topics("t", timeout=20).topics["t"].partitions.values()
    assert all(2 not in partition.isrs for partition in partitions)

    secured.settings[2] = before
    secured.restart(2)
    secured.write()  # over new connections, with the renewed certificates
