"""What attacks look at: the brokers' logs, metrics and memory, and whether an ordinary client is still served."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster

#: What an ordinary client may wait for while others misbehave.
PATIENCE_S = 20.0
#: Lines that only a bug of ours writes.
_BUGS = ("Traceback (most recent call last)", "internal error", "failed unexpectedly", "RecursionError")


class Victim:
    """A local cluster under attack. `close_look` at the end of every test."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.pids = cluster.pids
        self.admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
        self._read = {broker_id: self._log(broker_id).stat().st_size for broker_id in self.pids}

    def create(self, topic: str, partitions: int, replicas: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, replicas, config=settings)
        for made in self.admin.create_topics([new], request_timeout=60).values():
            made.result(60)

    def port(self, broker_id: int = 0) -> int:
        return int(self.cluster.brokers[broker_id].kafka.rpartition(":")[2])

    def leaders(self, topic: str) -> dict[int, int]:
        seen = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return {number: partition.leader for number, partition in seen.items()}

    def in_sync(self, topic: str) -> dict[int, list[int]]:
        seen = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return {number: sorted(partition.isrs) for number, partition in seen.items()}

    def until(self, holds: Callable[[], bool], what: str, within_s: float = 40.0) -> float:
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < within_s, f"{what}: not within {within_s:.0f} s"
            time.sleep(0.1)
        return time.monotonic() - began

    def metric(self, name: str, broker_id: int = 0) -> float:
        """The sum over its labels; 0 if there is none."""
        page = urllib.request.urlopen(f"http://{self.cluster.brokers[broker_id].http}/metrics", timeout=30)
        lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if _is_sample(line, name))

    def memory(self, broker_id: int = 0) -> int:
        return int(psutil.Process(self.pids[broker_id]).memory_info().rss)

    def new_log_lines(self, broker_id: int) -> list[str]:
        """What the broker logged since the last time."""
        with self._log(broker_id).open("rb") as file:
            file.seek(self._read[broker_id])
            data = file.read()
        self._read[broker_id] += len(data)
        return data.decode(errors="replace").splitlines()

    def close_look(self) -> None:
        """The same processes, no bug in their logs, and an ordinary client is served."""
        assert self.cluster.dead == [], "a process of the cluster ended"
        assert self.cluster.pids == self.pids
        for number in self.pids:
            lines = self.new_log_lines(number)
            for at, line in enumerate(lines):
                assert not any(bug in line for bug in _BUGS), "\n".join(lines[at : at + 40])
        write(self.cluster.kafka_bootstrap, "ordinary", 3)

    def _log(self, broker_id: int) -> Path:
        return Path(self.cluster.brokers[broker_id].child.log_path)


def _is_sample(line: str, name: str) -> bool:
    return line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " ")


def write(bootstrap: str, topic: str, records: int, value: bytes = b"still here") -> None:
    """As an ordinary client does; each one is acknowledged within PATIENCE_S."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": int(PATIENCE_S * 1000), "log_level": 0}
    )
    outcomes: list[object] = []
    for _ in range(records):
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S + 5)
    assert outcomes == [None] * records, outcomes[:3]


class MemoryWatch:
    """The most memory that a process had while the block lasted, and what was left when somebody asked."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self.before = self.most = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.most = max(self.most, self._process.memory_info().rss)

    @property
    def grown(self) -> int:
        return self.most - self.before

    def left(self) -> int:
        """Above where it began, now."""
        return int(self._process.memory_info().rss) - self.before
