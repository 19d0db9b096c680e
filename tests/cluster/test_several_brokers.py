"""Three real broker processes: killed, paused, stopped and started under a steady acks=all writer.

Bounds on time are far above what an idle machine shows (docs/performance.md has the figures): these tests share
theirs with others. What must hold without a bound is that nothing acknowledged is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from cluster.steady_writer import SteadyWriter, read_all
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTITIONS = 6
#: broker.session.timeout.ms, as it is by default.
LEASE_S = 6.0


class Trio:
    """A cluster of three, and what one asks of it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
        self._made = 0
        self.disturbed_at = float("-inf")

    def until_calm(self) -> None:
        """Past the lease in which at most half of the brokers are declared dead at once (S4 in suspicion.py)."""
        time.sleep(max(0.0, self.disturbed_at + LEASE_S + 0.5 - time.monotonic()))

    def topic(self, factor: int = 3) -> str:
        self._made += 1
        name = f"t{self._made}"
        config = {"min.insync.replicas": "2"} if factor == 3 else {}
        new = NewTopic(name, PARTITIONS, factor, config=config)
        for made in self.admin.create_topics([new], request_timeout=20).values():
            made.result(20)
        return name

    def look(self) -> ClusterMetadata:
        return self.admin.list_topics(timeout=20)

    def leaders(self, topic: str) -> list[int]:
        partitions = self.look().topics[topic].partitions
        return [partitions[i].leader for i in range(len(partitions))]

    def until(self, holds: Callable[[ClusterMetadata], bool], within_s: float = 30) -> float:
        """How long it took."""
        began = time.monotonic()
        while not self._sees(holds):
            assert time.monotonic() - began < within_s, "it did not happen in time"
            time.sleep(0.01)
        return time.monotonic() - began

    def _sees(self, holds: Callable[[ClusterMetadata], bool]) -> bool:
        """False also without an answer: librdkafka may have asked the broker that is killed, or that starts."""
        try:
            return holds(self.admin.list_topics(timeout=1))
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                raise
            return False

    def until_led_by_others(self, topic: str, than: int, within_s: float) -> float:
        return self.until(
            lambda seen: all(p.leader not in (-1, than) for p in seen.topics[topic].partitions.values()),
            within_s,
        )

    def until_whole(self, within_s: float = 40) -> None:
        """All here, all in sync."""
        self.until(
            lambda seen: (
                len(seen.brokers) == 3
                and all(
                    p.leader >= 0 and len(p.isrs) == len(p.replicas)
                    for t in seen.topics.values()
                    for p in t.partitions.values()
                )
            ),
            within_s,
        )


@pytest.fixture(scope="module")
def running() -> Iterator[Trio]:
    with LocalCluster(brokers=3) as cluster:
        yield Trio(cluster)


@pytest.fixture
def trio(running: Trio) -> Iterator[Trio]:
    running.until_calm()
    yield running
    for broker in running.cluster.brokers.values():
        if not broker.child.running:
            running.cluster.restart(broker.id)
    running.until_whole()
    running.disturbed_at = time.monotonic()


def check(writer: SteadyWriter, trio: Trio, topic: str) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and nothing failed."""
    found = read_all(trio.cluster.kafka_bootstrap, topic, PARTITIONS)
    assert len(found) == len(set(found)), "a record was written twice"
    assert set(writer.acknowledged) <= set(found), "an acknowledged record is lost"
    assert writer.failed == []


@pytest.mark.parametrize("whom", ["leader", "controller"])
def test_a_killed_broker_is_replaced_and_nothing_is_lost(trio: Trio, whom: str) -> None:
    topic = trio.topic()
    victim = trio.look().controller_id if whom == "controller" else trio.leaders(topic)[0]
    with SteadyWriter(trio.cluster.kafka_bootstrap, topic) as writer:
        time.sleep(0.5)
        trio.cluster.kill(victim)
        killed = time.monotonic()
        took_s = trio.until_led_by_others(topic, victim, 10)
        time.sleep(1)
        trio.cluster.restart(victim)
        trio.until_whole()
        time.sleep(0.3)
    assert took_s < 3 and writer.longest_gap_s(killed) < 6
    if whom == "controller":
        assert trio.look().controller_id != victim
    check(writer, trio, topic)


def test_a_paused_leader_is_replaced_when_its_lease_ends(trio: Trio) -> None:
    topic = trio.topic()
    victim = trio.leaders(topic)[0]
    pid = trio.cluster.pids[victim]
    others = ",".join(b.kafka for b in trio.cluster.brokers.values() if b.id != victim)
    looking = Trio(trio.cluster)
    looking.admin = AdminClient({"bootstrap.servers": others, "log_level": 0})
    with SteadyWriter(trio.cluster.kafka_bootstrap, topic) as writer:
        time.sleep(0.3)
        os.kill(pid, signal.SIGSTOP)
        try:
            took_s = looking.until_led_by_others(topic, victim, 20)
        finally:
            os.kill(pid, signal.SIGCONT)
        trio.until_whole()
        time.sleep(0.3)
    assert took_s < 12
    check(writer, trio, topic)


def test_a_rolling_restart_fails_no_write(trio: Trio) -> None:
    topic = trio.topic()
    with SteadyWriter(trio.cluster.kafka_bootstrap, topic) as writer:
        for broker_id in range(3):
            assert trio.cluster.stop_broker(broker_id) == 0
            seen = trio.look()
            assert all(p.leader not in (-1, broker_id) for p in seen.topics[topic].partitions.values())
            trio.cluster.restart(broker_id)
            trio.until_whole()
    check(writer, trio, topic)


def test_a_topic_of_one_copy_waits_for_its_broker(trio: Trio) -> None:
    topic = trio.topic(factor=1)
    victim = trio.leaders(topic)[0]
    trio.cluster.kill(victim)
    trio.until(lambda seen: -1 in (p.leader for p in seen.topics[topic].partitions.values()), 15)
    trio.cluster.restart(victim)
    trio.until_whole()


def test_a_cluster_that_was_stopped_comes_back_with_everything(trio: Trio) -> None:
    topic = trio.topic()
    with SteadyWriter(trio.cluster.kafka_bootstrap, topic) as writer:
        time.sleep(0.5)
    for broker_id in range(3):
        trio.cluster.kill(broker_id)
    # Each alone would wait for the others, so all are started before any is waited for.
    for broker_id, broker in trio.cluster.brokers.items():
        broker.spawn(trio.cluster._command, trio.cluster._broker_settings(broker_id))
    for broker in trio.cluster.brokers.values():
        broker.wait_ready(time.monotonic() + 60, lambda: False)
    trio.until_whole()
    check(writer, trio, topic)
