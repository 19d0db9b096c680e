"""Kills the archive job's driver, executors, Python workers and the broker, and checks the Parquet files.

`make spark-chaos` runs it for minutes, `test_spark_archive.py` for a few kills. As in `spark_chaos`, a kill counts only
if it has hit a running task.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer
from ottla_e2e.pods.check_archive import committed
from spark.killable_job import START_S, SparkJob
from spark.spark_chaos import kill_broker

_PARTITIONS = 2
_VALUE = b"x" * 1000
#: Rows that the job has not read yet when something is killed.
_AHEAD = 12_000


class Archive:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._bootstrap = cluster.grpc_bootstrap
        self.topic = f"archive-{os.urandom(4).hex()}"
        self.parquet = folder / "archive"
        with Admin(self._bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, _PARTITIONS)])
        self.sent = 0
        arguments = ["--bootstrap", self._bootstrap, "--topic", self.topic, "--parquet", str(self.parquet)]
        self.job = SparkJob("spark.archiving_job", arguments, folder)

    def send(self, count: int) -> None:
        with Producer(self._bootstrap) as producer:
            for n in range(self.sent, self.sent + count):
                producer.send(self.topic, b"%d %s" % (n, _VALUE), partition=n % _PARTITIONS)
        self.sent += count

    def rows(self) -> int:
        """In committed files."""
        return sum(pyarrow.parquet.ParquetFile(path).metadata.num_rows for path in self._files())

    def _files(self) -> list[str]:
        return committed(self.parquet) if (self.parquet / "_spark_metadata").exists() else []

    def stay_ahead(self) -> None:
        missing = self.rows() + _AHEAD - self.sent
        if missing > 0:
            self.send(missing)

    def wait_for(self, rows: int, timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while (there := self.rows()) < rows:
            self.job.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"{there} of {rows} rows:\n{self.job.log.read_text()[-4000:]}")
            time.sleep(0.2)

    def check(self) -> None:
        """Each record that was sent is in the committed files once."""
        numbers: Counter[int] = Counter()
        for path in self._files():
            values = pyarrow.parquet.ParquetFile(path).read(["value"])["value"].to_pylist()
            numbers.update(int(value.partition(b" ")[0]) for value in values)
        twice = sorted(n for n, times in numbers.items() if times > 1)
        lost = sorted(set(range(self.sent)) - set(numbers))
        assert not twice and not lost, f"{len(twice)} rows twice ({twice[:5]}), {len(lost)} lost ({lost[:5]})"
        assert numbers.total() == self.sent


def campaign(
    cluster: LocalCluster, folder: Path, wanted: dict[str, int], chance: random.Random
) -> Counter[str]:
    """Kills in a random order until so many of each have hit a running task; returns what was hit."""
    hit: Counter[str] = Counter()
    began = time.monotonic()
    archive = Archive(cluster, folder)
    job = archive.job
    order = [what for what, times in wanted.items() for _ in range(times)]
    chance.shuffle(order)
    try:
        job.start()
        archive.send(_AHEAD)
        archive.wait_for(1)
        while order:
            what = order[0]
            archive.stay_ahead()
            seen = archive.rows()
            time.sleep(chance.uniform(0.0, 0.5))
            if what == "broker":
                was_hit = kill_broker(cluster, job, 0, chance.uniform(0.0, 2.0))
            else:
                was_hit = job.kill_one(what, chance)
            if what == "driver":
                job.start()
            if was_hit:
                hit[what] += 1
                order.pop(0)
            print(
                f"{time.monotonic() - began:6.1f} s: killed a {what}, {'hit' if was_hit else 'missed'}, "
                f"{seen:,} of {archive.sent:,} rows",
                flush=True,
            )
            archive.wait_for(min(seen + 1, archive.sent))
        archive.wait_for(archive.sent, 2 * START_S)
        archive.check()
        print(
            f"{archive.sent:,} rows, each once in Parquet; hit: {dict(hit)}; {time.monotonic() - began:.0f} s"
        )
    finally:
        job.kill()
    return hit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    brokers = max(1, given.kills // 5)
    drivers = max(1, given.kills // 4)
    executors = max(1, given.kills // 4)
    workers = max(1, given.kills - drivers - brokers - executors)
    wanted = {"driver": drivers, "broker": brokers, "executor": executors, "worker": workers}
    with tempfile.TemporaryDirectory() as folder, LocalCluster() as cluster:
        campaign(cluster, Path(folder), wanted, random.Random(given.seed))


if __name__ == "__main__":
    main()
