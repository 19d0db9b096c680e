"""A real broker under floods of one client: others are answered, groups join, memory follows the budget."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from hostile.flooding_client import TOPIC, fetch
from ottla_cli.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 300
FLOOD_S = 8.0
#: Without bounded turns each of these waits until the flood ends. A loaded machine with two cores stays far below.
LATENCY_S_MAX = 2.5
JOIN_S_MAX = 6.0
MIB = 1 << 20
BUDGET = 32 * MIB
READERS = 100
#: Twice the budget is the most that answers may have; the rest is the sockets' own and the allocator's.
GROWTH_MAX = 2 * BUDGET + 64 * MIB


def _broker_pid(cluster: LocalCluster) -> int:
    return cluster.pids[0]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    settings = {"queued.max.request.bytes": str(BUDGET), "group.initial.rebalance.delay.ms": "0"}
    settings["socket.request.max.bytes"] = str(BUDGET)
    with LocalCluster(settings=settings) as made:
        admin = AdminClient({"bootstrap.servers": made.kafka_bootstrap})
        topics = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic("quiet", 3, 1)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        del admin
        yield made


@contextmanager
def _flood(cluster: LocalCluster, kind: str) -> Iterator[None]:
    tests = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "hostile.flooding_client", cluster.kafka_bootstrap, kind]
    flood = subprocess.Popen(
        [*command, str(FLOOD_S), str(PARTITIONS)],
        env={**os.environ, "PYTHONPATH": str(tests)},
        stdout=subprocess.PIPE,
    )
    try:
        assert flood.stdout is not None and flood.stdout.readline()
        time.sleep(0.5)
        yield
        assert flood.poll() is None, "the flood was over before the measurement"
    finally:
        flood.kill()
        flood.communicate()


def _write_latency_s(cluster: LocalCluster, count: int) -> float:
    """The longest of some writes, each begun when the one before is acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "linger.ms": 0, "acks": "all"})
    longest = 0.0
    for number in range(count):
        begun = time.monotonic()
        producer.produce("quiet", b"x", partition=number % 3)
        assert producer.flush(30) == 0
        longest = max(longest, time.monotonic() - begun)
    return longest


def _join_s(cluster: LocalCluster, group: str, members: int) -> float:
    """Until all members together have all partitions."""
    assigned: dict[int, int] = {}
    begun = time.monotonic()
    consumers = []
    for member in range(members):
        consumer = Consumer({"bootstrap.servers": cluster.kafka_bootstrap, "group.id": group})
        consumer.subscribe(
            ["quiet"], on_assign=lambda _, parts, m=member: assigned.__setitem__(m, len(parts))
        )
        consumers.append(consumer)
    while not (len(assigned) == members and sum(assigned.values()) == 3):
        assert time.monotonic() - begun < 60, "the group does not join"
        for consumer in consumers:
            consumer.poll(0.02)
    took = time.monotonic() - begun
    for consumer in consumers:
        consumer.close()
    return took


@pytest.mark.parametrize("kind", ["metadata", "list_offsets", "fetch"])
def test_others_are_served_while_one_client_floods(cluster: LocalCluster, kind: str) -> None:
    quiet = _join_s(cluster, "before", 3)
    with _flood(cluster, kind):
        latency = _write_latency_s(cluster, 50)
        joined = _join_s(cluster, "during", 3)
    assert latency < LATENCY_S_MAX
    assert joined < max(JOIN_S_MAX, 3 * quiet)


def _fill(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "linger.ms": 5})
    for _ in range(20):
        producer.produce(TOPIC, os.urandom(900_000), partition=0)
    assert producer.flush(60) == 0


def test_readers_that_take_nothing_cost_no_more_than_the_budget(cluster: LocalCluster) -> None:
    _fill(cluster)
    process = psutil.Process(_broker_pid(cluster))
    before = process.memory_info().rss
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    host, _, port = cluster.kafka_bootstrap.rpartition(":")
    frames = fetch(1, max_bytes=9_000_000) * 60
    with ExitStack() as readers:
        for _ in range(READERS):
            reader = readers.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            reader.connect((host, int(port)))
            reader.sendall(frames)
        latency = _write_latency_s(cluster, 30)
        time.sleep(1)
    ended.set()
    watcher.join()
    assert latency < LATENCY_S_MAX
    assert peak - before < GROWTH_MAX
    until = time.monotonic() + 20
    while process.memory_info().rss - before > BUDGET and time.monotonic() < until:
        time.sleep(0.5)
    assert process.memory_info().rss - before < BUDGET, "freed memory goes back to the operating system"
