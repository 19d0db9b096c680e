"""Kills brokers, coordinators and workers at random while workers consume, transform and produce exactly once.

`make eos-chaos SECONDS=60` runs it for long, `test_eos_chaos.py` for seconds. Two workers (`eos_worker`) copy a topic
of three partitions on three brokers, each partition to the one of the same number. At the end every partition of the
output, read with `read_committed`, must be equal to its input, record by record: nothing lost, doubled or reordered.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ottla_broker.coordination.partitioner import coordinator_partition
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.errors import ClientError, RequestError
from ottla_client.sync import Admin, Consumer, Producer

PARTITIONS = 3
WORKERS = 2
_TESTS = Path(__file__).parents[1]
#: How often each happens. Paused: for longer than its session and its transaction may last.
WEIGHTS = {
    "worker": 4,
    "broker": 2,
    "coordinator of a transaction": 2,
    "coordinator of the group": 2,
    "pause": 1,
}
_PAUSE_S = 9.0
#: After the last kill: the session of a member, the timeout of a transaction, and the backlog.
_SETTLE_S = 90.0
_PER_S = 100


class Worker:
    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.log = folder / f"{name}.log"
        self._arguments = [*arguments, "--name", name]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cluster.eos_worker", *self._arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
            )

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        self.send(number)
        assert self._process is not None
        self._process.wait(30)

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"A worker ended by itself:\n{self.log.read_text()[-4000:]}")


class Chaos:
    def __init__(self, cluster: LocalCluster, seed: int, folder: Path, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._say = say
        name = f"eos-{os.urandom(3).hex()}"
        self.source, self.target, self.group = f"{name}-in", f"{name}-out", name
        with Admin(cluster.grpc_bootstrap) as admin:
            safe = {"min.insync.replicas": "2"}
            made = [NewTopic(each, PARTITIONS, 3, configs=safe) for each in (self.source, self.target)]
            admin.create_topics(made)
            quick = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "500"}
            admin.alter_configs(quick, group=self.group)
        arguments = ["--bootstrap", cluster.grpc_bootstrap, "--source", self.source, "--target", self.target]
        arguments += ["--group", self.group]
        self.workers = [Worker(f"{name}-{number}", arguments, folder) for number in range(WORKERS)]
        self._names = [f"{name}-{number}" for number in range(WORKERS)]
        self.done: list[str] = []

    # ------------------------------------------------------------------ load

    @contextmanager
    def writing(self) -> Iterator[None]:
        stop = threading.Event()

        def write() -> None:
            with Producer(self._cluster.grpc_bootstrap) as producer:
                number = 0
                while not stop.wait(1 / _PER_S):
                    producer.send(self.source, b"%d" % number, partition=number % PARTITIONS)
                    number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            self._until_copying()
            yield
        finally:
            stop.set()
            writer.join()

    def _until_copying(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        with Admin(self._cluster.grpc_bootstrap) as admin:
            first = {TopicPartition(self.target, 0): "latest"}
            while not any(found.offset for found in admin.list_offsets(first).values()):
                assert time.monotonic() < deadline, self.workers[0].log.read_text()[-3000:]
                time.sleep(0.1)

    # ------------------------------------------------------------------ faults

    def strike(self, what: str) -> None:
        self._say(what)
        self.done.append(what)
        if what in ("worker", "pause"):
            worker = self._chance.choice(self.workers)
            worker.check()
            if what == "worker":
                worker.end()
                time.sleep(self._chance.random())
                worker.start()
                return
            worker.send(signal.SIGSTOP)
            time.sleep(_PAUSE_S)
            worker.send(signal.SIGCONT)
            return
        victim = self._victim(what)
        self._cluster.kill(victim)
        time.sleep(self._chance.random() * 2)
        self._cluster.restart(victim)
        self.until_whole()

    def _victim(self, what: str) -> int:
        any_one = self._chance.choice(list(self._cluster.pids))
        topic, name = "__transaction_state", self._chance.choice(self._names)
        if what == "coordinator of the group":
            topic, name = "__consumer_offsets", self.group
        if what == "broker":
            return any_one
        with Admin(self._cluster.grpc_bootstrap) as admin:
            leaders = [each.leader for each in admin.describe_topics([topic])[0].partitions]
        leader = leaders[coordinator_partition(name, len(leaders))]
        return leader if leader in self._cluster.pids else any_one

    def until_whole(self) -> None:
        """All replicas are in sync, so that another broker may be killed."""
        deadline = time.monotonic() + 60.0
        with Admin(self._cluster.grpc_bootstrap) as admin:
            while True:
                try:
                    topics = admin.describe_topics()
                    if all(len(p.isr) == len(p.replicas) for t in topics for p in t.partitions):
                        return
                except (ClientError, RequestError):
                    pass
                assert time.monotonic() < deadline, "replicas are not in sync after a minute"
                time.sleep(0.1)

    def random_strikes(self, seconds: float, weights: Mapping[str, int] = WEIGHTS) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.strike(self._chance.choices(list(weights), list(weights.values()))[0])
            time.sleep(self._chance.random())

    # ------------------------------------------------------------------ verdict

    def verify(self) -> int:
        """Wait until the output has everything, and compare; returns the number of records."""
        given = self._read(self.source, None)
        counts = [len(given[partition]) for partition in range(PARTITIONS)]
        found = self._read(self.target, counts)
        for worker in self.workers:
            worker.check()
            worker.end(signal.SIGTERM)
        found = self._read(self.target, None)  # Also what came too late.
        for partition in range(PARTITIONS):
            assert found[partition] == given[partition], (
                f"partition {partition}: {_difference(given[partition], found[partition])}"
            )
        return sum(counts)

    def _read(self, topic: str, counts: list[int] | None) -> dict[int, list[int]]:
        """The committed values of each partition: all up to its end, or at least so many."""
        values: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        deadline = time.monotonic() + _SETTLE_S
        settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        with Consumer(self._cluster.grpc_bootstrap, **settings) as consumer:
            consumer.assign(tps)
            ends = consumer.end_offsets(tps)
            while time.monotonic() < deadline:
                for record in consumer.poll(200):
                    values[record.partition].append(int(record.value))
                if counts is None:
                    if all(consumer.position(tp) >= ends[tp] for tp in tps):
                        return values
                elif all(len(values[n]) >= counts[n] for n in range(PARTITIONS)):
                    return values
                else:
                    for worker in self.workers:
                        worker.check()
        logs = "\n".join(worker.log.read_text()[-3000:] for worker in self.workers)
        had = {n: len(found) for n, found in values.items()}
        raise AssertionError(f"{topic} has {had} of {counts or ends} records after {_SETTLE_S:g} s.\n{logs}")

    def stop(self) -> None:
        for worker in self.workers:
            worker.end()


def _difference(given: list[int], found: list[int]) -> str:
    lost, extra = sorted(set(given) - set(found)), len(found) - len(set(found))
    first = next((i for i, pair in enumerate(zip(given, found, strict=False)) if pair[0] != pair[1]), None)
    return f"{len(lost)} lost ({lost[:10]}), {extra} more than once, first difference at {first}"


@contextmanager
def chaos(cluster: LocalCluster, seed: int, folder: Path, say: Callable[[str], None]) -> Iterator[Chaos]:
    made = Chaos(cluster, seed, folder, say)
    try:
        yield made
    finally:
        made.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Exactly once under random kills")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default=",".join(WEIGHTS), help="some of the faults, by comma")
    options = parser.parse_args()
    weights = {what: WEIGHTS[what] for what in options.only.split(",")}
    seed = random.randrange(10**6) if options.seed is None else options.seed
    began = time.monotonic()

    def say(sentence: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {sentence}", flush=True)

    print(f"seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="eos-chaos-"))
    data = str(folder / "cluster")
    with LocalCluster(data, brokers=3) as cluster, chaos(cluster, seed, folder, say) as run:
        with run.writing():
            run.random_strikes(options.seconds, weights)
        say("verifying")
        count = run.verify()
        say(f"{count} records, each exactly once and in order, after {len(run.done)} faults. Logs: {folder}")


if __name__ == "__main__":
    main()
