"""Archive and replay: every record once, and as it was."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs import archive, compact, replay
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Producer
from pyspark_ottla.archived import archived
from spark.archive_chaos import campaign

DAY_MS = 86_400_000
BASE_MS = 20_000 * DAY_MS


def test_times_need_a_zone() -> None:
    assert archive.millis("1970-01-02T00:00:00Z") == DAY_MS
    with pytest.raises(ValueError, match="has no time zone"):
        archive.millis("1970-01-02T00:00:00")


def test_only_finished_days_are_compacted_by_default() -> None:
    assert compact.yesterday(datetime.fromisoformat("2026-03-01T00:30:00+01:00")) == "2026-02-27"


class Offsets:
    """The offsets of an archive, as far as `replay.parts` asks for them."""

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets

    def selectExpr(self, *_: str) -> Offsets:
        return self

    def first(self) -> dict[str, int]:
        return {"first": min(self._offsets), "last": max(self._offsets)}


def test_a_replay_that_is_continued_has_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [3, 9, 12, 19, 25]

    def rows(_: object, job: replay.Job) -> Offsets:
        return Offsets([each for each in kept if each >= job.first_offset])

    monkeypatch.setattr(replay, "rows", rows)
    spark: Any = None
    job = replay.Job("", "", "", "", max_offsets=10)
    assert list(replay.parts(spark, job)) == [(0, 10), (10, 20), (20, 26)]
    assert list(replay.parts(spark, replace(job, first_offset=10))) == [(10, 20), (20, 26)]
    assert list(replay.parts(spark, replace(job, first_offset=5))) == [(5, 10), (10, 20), (20, 26)]


def send(cluster: LocalCluster, topic: str, numbers: range) -> None:
    with Producer(cluster.grpc_bootstrap) as producer:
        for n in numbers:
            headers = [("n", b"%d" % n)] if n % 3 == 0 else []
            producer.send(
                topic, b"%d" % n, b"k%d" % (n % 7), headers=headers, timestamp_ms=BASE_MS + n * DAY_MS // 100
            )


def content(spark: SparkSession, cluster: LocalCluster, topic: str) -> dict[int, list[Any]]:
    """What each partition holds, by offset."""
    options = {"bootstrap.servers": cluster.grpc_bootstrap, "subscribe": topic, "includeHeaders": "true"}
    rows = spark.read.format("ottla").options(**options).load().orderBy("partition", "offset").collect()
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append((row.key, row.value, row.headers, row.timestamp))
    return found


@pytest.mark.integration
def test_an_archive_has_each_record_once_and_replays_it_as_it_was(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, again = make_topic(3), make_topic(3)
    job = archive.Job(
        local_cluster.grpc_bootstrap,
        topic,
        str(tmp_path / "archive"),
        str(tmp_path / "checkpoint"),
        max_offsets=120,
    )
    for numbers in (range(150), range(150, 200)):  # the second run continues after the first
        send(local_cluster, topic, numbers)
        query = archive.start(spark, job)
        assert query.awaitTermination(120)
        assert archive.metrics(query)["rows"] == len(numbers)
    rows = spark.read.parquet(job.parquet).selectExpr("int(string(value)) n", "string(date) date").collect()
    assert sorted(row.n for row in rows) == list(range(200))
    assert {row.date for row in rows} == {"2024-10-04", "2024-10-05"}

    assert archive.by_day(spark, job) == {f"{topic} 2024-10-04": 100, f"{topic} 2024-10-05": 100}

    days = compact.Job(job.parquet, str(tmp_path / "days"), last_date="2024-10-04")
    for _ in range(2):  # a day that is compacted again replaces itself
        assert compact.run(spark, days) == {"days": 1, "rows": 100}
    (day,) = Path(days.into).glob("topic=*/date=2024-10-04")
    (file,) = day.glob("*.parquet")
    places = pq.ParquetFile(file).read(["partition", "offset"]).to_pylist()
    assert len(places) == 100
    assert places == sorted(places, key=lambda row: (row["partition"], row["offset"]))

    replayed = replay.Job(local_cluster.grpc_bootstrap, job.parquet, topic, again, max_offsets=50)
    assert replay.run(spark, replayed) == {"rows": 200, "parts": 2}
    assert replay.by_day(spark, replayed) == {"2024-10-04": 100, "2024-10-05": 100}
    assert content(spark, local_cluster, again) == content(spark, local_cluster, topic)
    # As if the driver had been killed after the last commit, before it logged the part.
    replay.run(spark, replace(replayed, first_offset=50))
    assert content(spark, local_cluster, again) == content(spark, local_cluster, topic)


@pytest.mark.integration
def test_rows_of_an_aborted_transaction_are_not_archived(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    with Producer(local_cluster.grpc_bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"committed")
        producer.begin()
        producer.send(topic, b"aborted").result()
        producer.abort()
    for level, found in (
        ("read_committed", ["committed"]),
        ("read_uncommitted", ["committed", "aborted"]),
    ):
        job = archive.Job(
            local_cluster.grpc_bootstrap,
            topic,
            str(tmp_path / level),
            str(tmp_path / f"{level}-checkpoint"),
            isolation_level=level,
        )
        assert archive.start(spark, job).awaitTermination(120)
        rows = spark.read.parquet(job.parquet).selectExpr("string(value) as value").collect()
        assert sorted(row.value for row in rows) == sorted(found)


@pytest.mark.integration
def test_the_name_of_an_archived_topic_may_look_like_a_number(spark: SparkSession, tmp_path: Path) -> None:
    names = ("007", "7", "1e3")
    rows = spark.createDataFrame(
        [(n, name, "2024-10-04") for n, name in enumerate(names)], "n int, topic string, date string"
    )
    rows.write.partitionBy("topic", "date").parquet(str(tmp_path / "archive"))
    found = archived(spark, str(tmp_path / "archive"), topic="007", last_date="2024-10-04").collect()
    assert [(row.n, row.topic, str(row.date)) for row in found] == [(0, "007", "2024-10-04")]
    job = compact.Job(str(tmp_path / "archive"), str(tmp_path / "days"), last_date="2024-10-04")
    plain = compact.rows(spark, job).select("topic").collect()
    assert sorted(row.topic for row in plain) == sorted(names)


@pytest.mark.integration
def test_a_span_of_time_is_archived(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    send(local_cluster, topic, range(200))
    job = archive.Job(
        local_cluster.grpc_bootstrap,
        topic,
        str(tmp_path / "archive"),
        str(tmp_path / "checkpoint"),
        since="2024-10-04T12:00:00Z",
        until="2024-10-05T00:00:00Z",
    )
    assert archive.start(spark, job).awaitTermination(120)
    rows = spark.read.parquet(job.parquet).selectExpr("int(string(value)) n").collect()
    assert sorted(row.n for row in rows) == list(range(50, 100))


@pytest.mark.integration
@pytest.mark.skipif("OTTLA_SPARK_CHAOS" not in os.environ, reason="starts JVMs: set OTTLA_SPARK_CHAOS=1")
def test_an_archive_has_each_record_once_after_kills(local_cluster: LocalCluster, tmp_path: Path) -> None:
    wanted = {"driver": 1, "executor": 1, "worker": 1, "broker": 1}
    assert campaign(local_cluster, tmp_path, wanted, random.Random(1)) == wanted
