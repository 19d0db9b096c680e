"""Kills a Spark job that copies a topic, at random, and checks that every input is in the output once.

`make spark-chaos KILLS=20` runs it for minutes; `test_spark_exactly_once.py` for two kills. It kills with SIGKILL: the
whole driver with its tasks (local mode has no others), one Python worker (a task, or the driver's commit), or a broker.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from pyspark_ottla.settle import Step

_PARTITIONS = 2
#: How often each is killed.
_WEIGHTS = {"driver": 4, "worker": 5, "broker": 1}
_TESTS = Path(__file__).parents[1]
#: A JVM and its query start within this, on a busy machine.
START_S = 240.0


class SparkJob:
    """The process of a job with its JVM and Python workers."""

    def __init__(self, module: str, arguments: Sequence[str], folder: Path) -> None:
        self.log = folder / "job.log"
        own = ["--checkpoint", str(folder / "checkpoint"), "--folder", str(folder)]
        self._command = [sys.executable, "-m", module, *arguments, *own]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, **environment},
                start_new_session=True,
            )

    def _all(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Driver, JVM and workers, at once."""
        if self._process is None:
            return
        for each in self._all():
            _kill(each)
        self._process.kill()
        self._process.wait()
        self._process = None

    def kill_worker(self, chance: random.Random, *, of_tasks: bool = False) -> bool:
        """One of the Python processes that Spark has started, or of those that run tasks."""
        workers = [each for each in self._all() if "python" in _name(each)]
        if of_tasks:
            workers = [each for each in workers if _runs_tasks(each)]
        if not workers:
            return False
        _kill(chance.choice(workers))
        return True

    def check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"The job ended by itself:\n{self.log.read_text()[-4000:]}")


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _runs_tasks(process: psutil.Process) -> bool:
    """Whether it was forked by the daemon of the tasks, which has the same command line."""
    try:
        parent = process.parent()
        return parent is not None and all("pyspark.worker" in each.cmdline() for each in (process, parent))
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


class Copy:
    """Two topics, and what is visible in the second."""

    def __init__(self, bootstrap: str, admin: Admin, replicas: int = 1) -> None:
        self.bootstrap = bootstrap
        name = f"copy-{os.urandom(4).hex()}"
        self.source, self.target = f"{name}-in", f"{name}-out"
        made = [NewTopic(each, _PARTITIONS, replicas) for each in (self.source, self.target)]
        admin.create_topics(made)
        self.sent = 0

    def send(self, count: int) -> None:
        with Producer(self.bootstrap) as producer:
            for n in range(self.sent, self.sent + count):
                producer.send(self.source, b"%d" % n, partition=n % _PARTITIONS)
        self.sent += count

    def visible(self, isolation: str = "read_committed") -> Counter[int]:
        found: Counter[int] = Counter()
        partitions = [TopicPartition(self.target, n) for n in range(_PARTITIONS)]
        with Consumer(self.bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            deadline = time.monotonic() + 30
            while any(consumer.position(tp) < ends[tp] for tp in partitions):
                assert time.monotonic() < deadline, "the output cannot be read to its end"
                for record in consumer.poll(timeout_ms=200):
                    found[int(record.value)] += 1
        return found

    def wait_for(self, count: int, job: SparkJob, timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while sum(self.visible().values()) < count:
            job.check()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{sum(self.visible().values())} of {count} rows are visible:\n{job.log.read_text()[-4000:]}"
                )
            time.sleep(0.3)

    def check(self) -> None:
        found = self.visible()
        twice = sorted(n for n, times in found.items() if times > 1)
        lost = sorted(set(range(self.sent)) - set(found))
        assert not twice and not lost, f"{len(twice)} rows twice ({twice[:5]}), {len(lost)} lost ({lost[:5]})"
        assert sum(found.values()) == self.sent


def wait_for_file(path: Path, job: SparkJob) -> None:
    deadline = time.monotonic() + START_S
    while not path.exists():
        job.check()
        assert time.monotonic() < deadline, f"The driver did not get there:\n{job.log.read_text()[-4000:]}"
        time.sleep(0.1)


@contextmanager
def copying(cluster: LocalCluster, folder: Path, replicas: int = 1) -> Iterator[tuple[Copy, SparkJob]]:
    with Admin(cluster.grpc_bootstrap) as admin:
        copy = Copy(cluster.grpc_bootstrap, admin, replicas)
    arguments = ["--bootstrap", copy.bootstrap, "--source", copy.source, "--target", copy.target]
    job = SparkJob("spark.copying_job", arguments, folder)
    try:
        yield copy, job
    finally:
        job.kill()


def campaign(
    cluster: LocalCluster,
    folder: Path,
    kills: int,
    chance: random.Random,
    brokers: int,
    steps: Sequence[Step] = (),
    weights: Mapping[str, int] = _WEIGHTS,
) -> Counter[str]:
    """Kills the driver at these steps of a commit, then at random moments; returns what was killed."""
    killed: Counter[str] = Counter()
    began = time.monotonic()
    with copying(cluster, folder, max(1, min(brokers, 3))) as (copy, job):
        copy.send(100)
        for step in steps:
            stopped = folder / f"stopped-{step.name}"
            job.start(STOP_AT=step.name, STOPPED=str(stopped))
            wait_for_file(stopped, job)
            job.kill()
            killed[f"driver at {step.name}"] += 1
            print(f"{time.monotonic() - began:6.1f} s: killed the driver at {step.name}", flush=True)
            copy.send(20)
        job.start()
        copy.wait_for(1, job)
        goal = kills + len(steps)
        while sum(killed.values()) < goal:
            copy.send(chance.randrange(100, 300))
            time.sleep(chance.uniform(0.1, 4.0))
            what = chance.choices(list(weights), list(weights.values()))[0]
            if what == "driver":
                job.kill()
                job.start()
            elif what == "worker" and not job.kill_worker(chance):
                continue
            elif what == "broker":
                broker = chance.randrange(brokers)
                cluster.kill(broker)
                time.sleep(chance.uniform(0.0, 3.0))
                cluster.restart(broker)
            killed[what] += 1
            seen = sum(copy.visible().values())
            print(
                f"{time.monotonic() - began:6.1f} s: killed a {what}, {seen:,} of {copy.sent:,} visible",
                flush=True,
            )
            if what == "driver":
                copy.wait_for(min(seen + 1, copy.sent), job)  # the job runs again
        copy.wait_for(copy.sent, job, 2 * START_S)
        time.sleep(2)
        copy.check()
        every = sum(copy.visible("read_uncommitted").values())
        print(
            f"{copy.sent:,} rows sent, each visible once; {every - copy.sent:,} rows of attempts that were aborted; "
            f"killed: {dict(killed)}; {time.monotonic() - began:.0f} s"
        )
    return killed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--steps", action="store_true", help="first kill the driver at each step of a commit")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder, LocalCluster(brokers=given.brokers) as cluster:
        steps = list(Step) if given.steps else []
        campaign(cluster, Path(folder), given.kills, random.Random(given.seed), given.brokers, steps)


if __name__ == "__main__":
    main()
