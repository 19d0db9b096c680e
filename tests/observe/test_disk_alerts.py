"""Alerts of disks, damage and certificates, provoked on one broker: a volume fills up and fails, a byte changes, a
certificate is about to expire.

One log directory of the broker is a volume of 24 MB that only its process sees: a tmpfs in a mount namespace, which
needs no rights on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from certificates import Authority
from monitoring.alerts import rules
from observe.prometheus_process import Prometheus
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.errors import DeliveryTimedOut
from ottla_client.sync import Admin, Producer
from ottla_core.errors import RequestError

pytestmark = pytest.mark.integration

MOUNT = 'mount -t tmpfs -o size=24m none "$0" && exec "$@"'
CHUNK = bytes(500_000)


class World(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus
    authority: Authority
    certificate: Path
    small: Path
    large: Path

    def partition_in(self, folder: Path, topic: str) -> TopicPartition:
        with Admin(self.cluster.grpc_bootstrap) as admin:
            (found,) = (
                replica.tp
                for each in admin.describe_log_dirs([topic])
                for replica in each.replicas
                if each.path == str(folder)
            )
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("disks")
    small, large = folder / "small", folder / "large"
    small.mkdir()
    authority = Authority(folder / "ca", days=60)
    certificate = authority.issue("broker", "/CN=broker", days=50, into=folder / "broker.pem")
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(rules(0.005, window="8s", trend="10s", settled="4s")))
    cluster = LocalCluster(
        str(folder / "data"),
        broker_command=[
            *("unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(small)),
            *(sys.executable, "-P", "-m", "ottla_broker"),
        ],
        settings={
            "log.dirs": f"{small},{large}",
            "log.scrub.interval.ms": "1000",
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.location": str(certificate),
            "ssl.truststore.location": str(authority.file),
        },
    )
    with cluster, Prometheus(folder, [cluster.brokers[0].http], rules=[file]) as prometheus:
        with Admin(cluster.grpc_bootstrap) as admin:
            # The one with fewer replicas gets the next: one partition of each topic is on the small volume.
            admin.create_topics(
                [NewTopic("fills", 2, 1), NewTopic("rots", 2, 1, {"segment.bytes": "1048576"})]
            )
        prometheus.until(lambda: prometheus.query("ottla_log_dir_total_bytes"), "the broker is scraped")
        yield World(cluster, prometheus, authority, certificate, small, large)


def test_alerts_of_a_certificate_a_damaged_byte_and_a_full_volume(world: World) -> None:
    """In this order: the volume stays broken, and its alert stays firing."""
    _a_certificate_expires_soon(world)
    _a_byte_changes_on_the_disk(world)
    _a_volume_fills_up_and_fails(world)


def _a_certificate_expires_soon(world: World) -> None:
    # Of the others, OttlaDiskFullSoon may fire: the large directory is on the machine's disk, where all tests write.
    assert "OttlaCertificateExpiry" not in world.prometheus.firing()
    world.authority.issue("broker", "/CN=broker", days=2, into=world.certificate)
    world.prometheus.until_firing("OttlaCertificateExpiry")
    world.authority.issue("broker", "/CN=broker", days=50, into=world.certificate)
    world.prometheus.until_over("OttlaCertificateExpiry")


def _a_byte_changes_on_the_disk(world: World) -> None:
    topic, partition = world.partition_in(world.large, "rots")
    with Producer(world.cluster.grpc_bootstrap) as producer:
        for _ in range(4):
            producer.send_and_wait(topic, CHUNK, partition=partition)
    assert "OttlaCorruption" not in world.prometheus.firing()
    first = min((world.large / f"{topic}-{partition}").glob("*.log"))
    with first.open("r+b") as file:
        file.seek(300_000)
        file.write(b"x")
    world.prometheus.until_firing("OttlaCorruption")
    world.prometheus.until_over("OttlaCorruption")


def _a_volume_fills_up_and_fails(world: World) -> None:
    topic, partition = world.partition_in(world.small, "fills")
    prometheus = world.prometheus
    assert "OttlaLogDirOffline" not in prometheus.firing()
    with Producer(world.cluster.grpc_bootstrap, delivery_timeout_ms=5000) as producer:

        def write_until(done: Callable[[], bool], pause_s: float) -> None:
            ends = time.monotonic() + 60
            while not done():
                assert time.monotonic() < ends, prometheus.firing()
                producer.send_and_wait(topic, CHUNK, partition=partition)
                time.sleep(pause_s)

        write_until(lambda: _free(world) < 0.4, 0.3)
        # Slower than scrapes: what they show of the last percents must not be old.
        write_until(lambda: _free(world) < 0.05, 1.2)
        prometheus.until_firing("OttlaDiskFullSoon", "OttlaDiskAlmostFull")
        with pytest.raises((RequestError, DeliveryTimedOut)):
            write_until(lambda: False, 0.0)
    prometheus.until_firing("OttlaLogDirOffline")
    assert world.cluster.brokers[0].child.exit_code is None, "the other directory serves"


def _free(world: World) -> float:
    own = f'{{dir="{world.small}"}}'
    ((_, share),) = world.prometheus.query(f"ottla_log_dir_free_bytes{own} / ottla_log_dir_total_bytes{own}")
    return share
