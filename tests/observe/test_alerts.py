"""Alerts that real trouble provokes: in a real Prometheus, with three brokers, and with their end.

Disks, damage and certificates are in `test_disk_alerts.py`; promtool plays trouble to all rules in
`test_monitoring_files.py`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from monitoring.alerts import rules
from observe.prometheus_process import Prometheus
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Producer

pytestmark = pytest.mark.integration

PATIENCE_S = 45.0


class World(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("alerts")
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(rules(0.005, window="8s", lag_s=3)))
    settings = {"broker.session.timeout.ms": "6000"}
    with LocalCluster(str(folder / "data"), brokers=3, settings=settings) as cluster:
        targets = [broker.http for broker in cluster.brokers.values()]
        with Prometheus(folder, targets, rules=[file]) as prometheus:
            yield World(cluster, prometheus)


def test_alerts_fire_and_end(world: World) -> None:
    """One story, because a cluster in trouble has to recover before the next one."""
    cluster = world.cluster
    with Admin(cluster.grpc_bootstrap) as admin, Producer(cluster.grpc_bootstrap) as producer:
        admin.create_topics([NewTopic("orders", 3, 3, {"min.insync.replicas": "3"})])
        admin.create_topics([NewTopic("single", 3, 1)])
        admin.create_topics([NewTopic("risky", 1, replica_assignments={0: [2, 1]})])
        producer.send_and_wait("orders", b"old", partition=0)
        producer.send_and_wait("risky", b"safe", partition=0)
        world.prometheus.until(
            lambda: world.prometheus.query("count(ottla_broker_info) == 3"), "three are scraped"
        )
        assert not world.prometheus.firing()

        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
        world.prometheus.until_firing("OttlaConsumerLag")
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 1})
        world.prometheus.until_over("OttlaConsumerLag")

        cluster.kill(1)
        down = (
            "OttlaBrokerDown", "OttlaBrokerNotScraped", "OttlaPartitionsOffline", "OttlaPartitionsUnderMinIsr",
            "OttlaPartitionsUnderReplicated",
        )  # fmt: skip
        world.prometheus.until_firing(*down)
        # Broker 1 lacks this record: if it leads, the record is lost.
        producer.send_and_wait("risky", b"lost", partition=0)
        cluster.kill(2)
        cluster.restart(1)
        world.prometheus.until(lambda: _elect(admin), "an unclean election", PATIENCE_S)
        world.prometheus.until_firing("OttlaUncleanElection")
        cluster.restart(2)
        world.prometheus.until_over(*down)

    assert cluster.etcd is not None
    os.kill(cluster.etcd.child.pid, signal.SIGSTOP)
    try:
        world.prometheus.until_firing("OttlaNoController", "OttlaEtcdUnreachable")
    finally:
        os.kill(cluster.etcd.child.pid, signal.SIGCONT)
    world.prometheus.until_over("OttlaNoController", "OttlaEtcdUnreachable", "OttlaUncleanElection", *down)
    with _OftenPaused(cluster.brokers[0].pid):
        world.prometheus.until_firing("OttlaEventLoopBlocked")
    world.prometheus.until_over("OttlaEventLoopBlocked")


def _elect(admin: Admin) -> bool:
    outcomes = admin.elect_leaders([TopicPartition("risky", 0)], unclean=True)
    return all(each.error is None for each in outcomes)


class _OftenPaused:
    """Stops a process for 0.6 s, lets it run for 0.6 s, and so on: a loop that something blocks."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._done.wait(0.6):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(0.6)
            os.kill(self._pid, signal.SIGCONT)
