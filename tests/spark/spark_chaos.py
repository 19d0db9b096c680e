"""Kills a Spark job that copies a topic, at random, and checks that every input is in the output once.

`make spark-chaos KILLS=20` runs it for minutes, on three brokers; `test_spark_exactly_once.py` for two kills. It kills
the driver, an executor's JVM with its Python processes, one Python worker, or a broker. A kill counts only if it hit a
running task (`killable_job`); that of a broker, if a task was running.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from pyspark_ottla.settle import Step
from spark.killable_job import START_S, SparkJob

_PARTITIONS = 2
#: Rows that the job has not copied yet when something is killed.
_AHEAD = 200
#: How often each is killed.
_WEIGHTS = {"driver": 6, "executor": 8, "worker": 4, "broker": 2}


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
def copying(
    cluster: LocalCluster, folder: Path, replicas: int = 1, more: Sequence[str] = ()
) -> Iterator[tuple[Copy, SparkJob]]:
    with Admin(cluster.grpc_bootstrap) as admin:
        copy = Copy(cluster.grpc_bootstrap, admin, replicas)
    arguments = ["--bootstrap", copy.bootstrap, "--source", copy.source, "--target", copy.target, *more]
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
    more: Sequence[str] = (),
    ahead: int = _AHEAD,
) -> Counter[str]:
    """Kills the driver at these steps of a commit, then at random until so many kills have hit a running task;
    returns what was hit."""
    hit: Counter[str] = Counter()
    missed = 0
    began = time.monotonic()
    with copying(cluster, folder, max(1, min(brokers, 3)), more) as (copy, job):
        copy.send(ahead)
        for step in steps:
            stopped = folder / f"stopped-{step.name}"
            job.start(STOP_AT=step.name, STOPPED=str(stopped))
            wait_for_file(stopped, job)
            job.kill()
            hit[f"driver at {step.name}"] += 1
            print(f"{time.monotonic() - began:6.1f} s: killed the driver at {step.name}", flush=True)
            copy.send(20)
        job.start()
        copy.wait_for(1, job)
        order = _order(weights, kills, chance)
        while order:
            what = order[0]
            seen = sum(copy.visible().values())
            if copy.sent - seen < ahead:
                copy.send(ahead)
            time.sleep(chance.uniform(0.0, 2.0))
            if what == "broker":
                was_hit = kill_broker(cluster, job, chance.randrange(brokers), chance.uniform(0.0, 3.0))
            else:
                was_hit = job.kill_one(what, chance)
            if what == "driver":
                job.start()
            if was_hit:
                hit[what] += 1
                order.pop(0)
            else:
                missed += 1
            print(
                f"{time.monotonic() - began:6.1f} s: killed a {what}, {'hit' if was_hit else 'missed'}, "
                f"{seen:,} of {copy.sent:,} visible",
                flush=True,
            )
            if what == "driver":
                copy.wait_for(min(seen + 1, copy.sent), job)  # the job runs again
        copy.wait_for(copy.sent, job, 2 * START_S)
        time.sleep(2)  # rows that are written twice would come now
        copy.check()
        every = sum(copy.visible("read_uncommitted").values())
        print(
            f"{copy.sent:,} rows sent, each visible once; {every - copy.sent:,} rows of attempts that were aborted; "
            f"hit: {dict(hit)}; {missed} kills hit no task; {time.monotonic() - began:.0f} s"
        )
    return hit


def _order(weights: Mapping[str, int], kills: int, chance: random.Random) -> list[str]:
    """What to hit, each kind by its weight, in a random order."""
    total = sum(weights.values())
    order = [what for what, weight in weights.items() for _ in range(weight * kills // total)]
    order += chance.choices(list(weights), list(weights.values()), k=kills - len(order))
    chance.shuffle(order)
    return order


def kill_broker(cluster: LocalCluster, job: SparkJob, broker: int, away_s: float) -> bool:
    """True if a task was running."""
    was_running = bool(job.running_tasks())
    cluster.kill(broker)
    time.sleep(away_s)
    cluster.restart(broker)
    return was_running


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--steps", action="store_true", help="first kill the driver at each step of a commit")
    parser.add_argument(
        "--foreach-batch", action="store_true", help="the job writes with foreachBatch and sinkId"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder, LocalCluster(brokers=given.brokers) as cluster:
        steps = list(Step) if given.steps else []
        more = ["--foreach-batch"] if given.foreach_batch else []
        campaign(
            cluster, Path(folder), given.kills, random.Random(given.seed), given.brokers, steps, more=more
        )


if __name__ == "__main__":
    main()
