"""Drains that are interrupted at random moments: brokers, the controller and etcd are killed while partitions move.

Two kills in `make test`, `make drain-chaos KILLS=20` for many. Each drain goes from one broker to the one that is
empty, under a steady acks=all writer; no write may fail, and nothing acknowledged may be lost.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest

from cluster.steady_writer import SteadyWriter, read_all
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.errors import RequestError
from ottla_client.move_throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from ottla_client.record import TopicPartition
from ottla_client.sync import Admin, Producer

KILLS = int(os.environ.get("OTTLA_DRAIN_KILLS", "2"))
SEED = int(os.environ.get("OTTLA_DRAIN_SEED", "1"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + 60 * KILLS)]

T = TypeVar("T")
TOPIC = "drained"
PARTITIONS = 4
BROKERS = [0, 1, 2, 3]
#: So slow that a drain takes two seconds or three, and kills come in the middle.
RATE = 3_000_000
WITHIN_S = 90.0


def patiently(ask: Callable[[], T]) -> T:
    """The answer, as soon as somebody can give it."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return ask()
        except (RequestError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Drains:
    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin
        self.chance = random.Random(SEED)
        self.drains = 0
        self.killed: list[str] = []

    def replicas(self) -> list[tuple[int, ...]]:
        (topic,) = patiently(lambda: self.admin.describe_topics([TOPIC]))
        return [partition.replicas for partition in topic.partitions]

    def is_moving(self) -> bool:
        return bool(patiently(self.admin.list_partition_reassignments))

    def begin(self) -> None:
        """Move everything from a broker to the one that has nothing."""
        now = self.replicas()
        (empty,) = set(BROKERS) - {broker for replicas in now for broker in replicas}
        drained = self.chance.choice([broker for broker in BROKERS if broker != empty])
        targets = {
            TopicPartition(TOPIC, n): [empty if broker == drained else broker for broker in replicas]
            for n, replicas in enumerate(now)
        }

        def ask() -> None:
            for outcome in self.admin.alter_partition_reassignments(targets):
                if outcome.error is not None:
                    raise outcome.error

        patiently(ask)
        self.drains += 1

    def kill(self, kind: str) -> None:
        if kind == "etcd":
            assert self.cluster.etcd is not None
            os.kill(self.cluster.etcd.child.pid, signal.SIGKILL)
            self.cluster.restart_etcd()
        else:
            broker = self.chance.choice(BROKERS)
            if kind == "controller":
                broker = patiently(self.admin.describe_cluster).controller_id
            if broker not in BROKERS:
                return  # Nobody is controller at the moment.
            self.cluster.kill(broker)
            self.cluster.restart(broker)
        self.killed.append(kind)

    def run(self) -> None:
        kinds = ["etcd", "controller", "broker"]
        while len(self.killed) < KILLS:
            self.begin()
            time.sleep(self.chance.uniform(0.0, 2.0))
            self.kill(kinds[len(self.killed) % 3] if len(self.killed) < 3 else self.chance.choice(kinds))
            deadline = time.monotonic() + WITHIN_S
            while self.is_moving():
                assert time.monotonic() < deadline, f"after {self.killed}: {self.replicas()}"
                time.sleep(0.1)


def test_drains_that_are_interrupted_by_kills_complete_and_lose_nothing() -> None:
    with LocalCluster(brokers=len(BROKERS)) as cluster, Admin(cluster.grpc_bootstrap) as admin:
        spread = {n: [[0, 1, 2], [1, 2, 0], [2, 0, 1]][n % 3] for n in range(PARTITIONS)}
        admin.create_topics(
            [NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, replica_assignments=spread)]
        )
        with Producer(cluster.grpc_bootstrap) as producer:
            producer.send_many(TOPIC, [random.randbytes(20_000) for _ in range(300)])
        for broker in BROKERS:
            admin.alter_configs(dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(RATE)), broker=broker)
        admin.alter_configs({LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "*"}, topic=TOPIC)
        admin.alter_configs({"num.concurrent.partition.movements.per.broker": "2"}, all_brokers=True)
        drains = Drains(cluster, admin)
        with SteadyWriter(cluster.kafka_bootstrap, TOPIC) as writer:
            drains.run()
            count = len(writer.acknowledged)
            deadline = time.monotonic() + WITHIN_S
            while len(writer.acknowledged) < count + 20:
                assert time.monotonic() < deadline, "writes do not go on"
                time.sleep(0.05)
        gap_s = max(later - former for former, later in pairwise(writer.times))
        print(
            f"\n{drains.drains} drains, killed: {drains.killed}; {len(writer.acknowledged)} records acknowledged, "
            f"longest gap {gap_s:.2f} s"
        )
        assert writer.failed == []
        found = read_all(cluster.kafka_bootstrap, TOPIC, PARTITIONS)
        assert set(writer.acknowledged) <= set(found), "an acknowledged record is lost"
        assert all(len(replicas) == 3 for replicas in drains.replicas())
