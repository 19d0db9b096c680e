"""Drains that are interrupted at random moments: brokers, the controller and etcd are killed while partitions move.

Two kills in `make test`, `make drain-chaos KILLS=20` for many. Each drain is what an operator does: `ottla cluster
drain`, stop the broker, unregister it, and start it again as an empty one. A kill counts only if partitions were moving
at that moment. A steady acks=all writer runs all the time; no write may fail, and nothing acknowledged may be lost.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest

from cluster.steady_writer import SteadyWriter, read_all
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.errors import ClientError, RequestError
from ottla_client.move_throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from ottla_client.sync import Admin, Producer

KILLS = int(os.environ.get("OTTLA_DRAIN_KILLS", "2"))
SEED = int(os.environ.get("OTTLA_DRAIN_SEED", "1"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(180 + 60 * KILLS)]

T = TypeVar("T")
TOPIC = "drained"
PARTITIONS = 4
BROKERS = [0, 1, 2, 3]
#: In turn first, then at random. "broker": one that takes part in a move and is not the controller.
KINDS = ["broker", "etcd", "controller"]
#: So slow that a drain takes two seconds or three, and kills come in the middle.
RATE = 3_000_000
WITHIN_S = 90.0
#: Between two acknowledgements. A killed leader costs well below a second on an idle machine, a killed controller and
#: leader in one process a second more; tests share theirs.
GAP_S = 10.0


def patiently(ask: Callable[[], T]) -> T:
    """The answer, as soon as a broker can give it."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return ask()
        except (RequestError, ClientError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Drains:
    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        self.cluster = cluster
        self.admin = admin
        self.chance = random.Random(SEED)
        self.drained: list[int] = []
        #: Kinds of the kills that hit a move, and the number of all kills that were due.
        self.hits: list[str] = []
        self.missed = 0

    def replicas(self) -> list[set[int]]:
        (topic,) = patiently(lambda: self.admin.describe_topics([TOPIC]))
        return [set(partition.replicas) for partition in topic.partitions]

    def run(self) -> None:
        while len(self.hits) < KILLS:
            assert self.missed <= 10 + 2 * KILLS, "drains are too fast to be interrupted"
            self._drain(self.chance.choice(sorted(set.union(*self.replicas()))))

    def _drain(self, broker: int) -> None:
        drain = [sys.executable, "-m", "ottla_cli", "cluster", "drain", str(broker), "--yes"]
        command = subprocess.Popen(
            [*drain, "-b", self.cluster.grpc_bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self._interrupt(command)
            said, _ = command.communicate(timeout=WITHIN_S)
        finally:
            command.kill()
        assert command.returncode == 0, f"after {self.hits}: {said}"
        assert self.replicas() == [set(BROKERS) - {broker}] * PARTITIONS, f"after {self.hits}: {said}"
        self.drained.append(broker)
        self._replace(broker)

    def _interrupt(self, command: subprocess.Popen[str]) -> None:
        """Kill something at a random moment of the drain."""
        while not patiently(self.admin.list_partition_reassignments):
            if command.poll() is not None:
                self.missed += 1
                return
            time.sleep(0.01)
        time.sleep(self.chance.uniform(0.0, 1.5))
        kind = KINDS[len(self.hits)] if len(self.hits) < len(KINDS) else self.chance.choice(KINDS)
        moving = patiently(self.admin.list_partition_reassignments)
        if not moving:
            self.missed += 1
        elif self._kill(kind, {broker for each in moving for broker in each.replicas}):
            self.hits.append(kind)

    def _kill(self, kind: str, concerned: set[int]) -> bool:
        if kind == "etcd":
            assert self.cluster.etcd is not None
            os.kill(self.cluster.etcd.child.pid, signal.SIGKILL)
            self.cluster.restart_etcd()
            return True
        controller = patiently(self.admin.describe_cluster).controller_id
        victims = [controller] if kind == "controller" else sorted(concerned - {controller})
        if not victims or victims[0] not in BROKERS:
            return False  # No broker is controller at the moment.
        victim = self.chance.choice(victims)
        self.cluster.kill(victim)
        self.cluster.restart(victim)
        return True

    def _replace(self, broker: int) -> None:
        """Stop the empty broker, remove it from the cluster, and start it again as a new member."""
        loads = {
            each.id: each for each in patiently(lambda: self.admin.describe_brokers(sizes=False)).brokers
        }
        assert loads[broker].cordoned and loads[broker].replicas == 0, loads[broker]
        self.cluster.stop_broker(broker)
        patiently(lambda: self.admin.unregister_broker(broker))
        self.cluster.restart(broker)


def test_drains_that_are_interrupted_by_kills_complete_and_lose_nothing() -> None:
    with LocalCluster(brokers=len(BROKERS)) as cluster, Admin(cluster.grpc_bootstrap) as admin:
        spread = {n: [[0, 1, 2], [1, 2, 0], [2, 0, 1]][n % 3] for n in range(PARTITIONS)}
        admin.create_topics(
            [NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, replica_assignments=spread)]
        )
        with Producer(cluster.grpc_bootstrap) as producer:
            producer.send_many(TOPIC, [random.randbytes(20_000) for _ in range(300)])
        # For all brokers: the settings of one broker end when it is unregistered.
        admin.alter_configs(dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(RATE)), all_brokers=True)
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
            f"\nseed {SEED}: {len(drains.drained)} drains, kills that hit a move: {dict(Counter(drains.hits))}, "
            f"missed: {drains.missed}; {len(writer.acknowledged)} records acknowledged, longest gap {gap_s:.2f} s"
        )
        assert writer.failed == []
        assert gap_s < GAP_S
        found = read_all(cluster.kafka_bootstrap, TOPIC, PARTITIONS)
        assert set(writer.acknowledged) <= set(found), "an acknowledged record is lost"
        assert drains.replicas() == [set(BROKERS) - {drains.drained[-1]}] * PARTITIONS
