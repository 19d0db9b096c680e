"""The activity pipeline counts what the generator made; the generator makes what it says."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import activity, generate
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Producer

JOBS = Path(activity.__file__).parent
JOBS_WITH_HELP = sorted(each.name for each in JOBS.glob("*.py"))


def time_s(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def test_the_same_seed_gives_the_same_events() -> None:
    plan = generate.Plan(events=500)
    assert list(generate.events(plan)) == list(generate.events(plan))
    assert list(generate.events(plan)) != list(generate.events(generate.Plan(events=500, seed=2)))


def test_events_are_skewed_late_and_doubled_as_asked() -> None:
    plan = generate.Plan(events=10_000, late=0.1, duplicates=0.05, lateness_s=30, too_late=0.01)
    made = list(generate.events(plan))
    ids = Counter(event["event_id"] for event in made)
    assert len(ids) == 10_001
    assert 400 < sum(count - 1 for count in ids.values()) < 600
    newest, behind = 0.0, []
    for event in made[:-1]:
        newest = max(newest, time_s(event))
        behind.append(newest - time_s(event))
    assert 1300 < sum(1 for seconds in behind if seconds > 0.1) < 1800
    assert 60 < sum(1 for seconds in behind if seconds > 30.1) < 140
    users = Counter(event["user"] for event in made).most_common()
    assert users[0][1] > 20 * users[len(users) // 2][1]
    assert made[-1]["page"] is None
    assert time_s(made[-1]) > newest


def in_topic(spark: SparkSession, job: activity.Job) -> dict[tuple[str, str], int]:
    """Events by window and page; each once."""
    options = {
        "bootstrap.servers": job.bootstrap,
        "subscribe": job.results,
        "kafka.isolation.level": "read_committed",
    }
    shape = "window_start timestamp, page string, events long"
    rows = (
        spark.read.format("ottla").options(**options).load()
        .selectExpr(f"from_json(string(value), '{shape}') as row")
        .selectExpr("date_format(row.window_start, 'HH:mm')", "row.page", "row.events")
        .collect()
    )  # fmt: skip
    assert len({row[:2] for row in rows}) == len(rows), "one count for each window and page"
    return {(window, page): events for window, page, events in rows}


@pytest.mark.integration
def test_windows_are_counted_once_and_without_copies(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    plan = generate.Plan(events=3000, late=0.1, duplicates=0.1, lateness_s=60, span_s=240)
    events, counts = make_topic(2), make_topic(1)
    generate.send(local_cluster.grpc_bootstrap, events, plan)
    job = activity.Job(
        local_cluster.grpc_bootstrap,
        events,
        counts,
        str(tmp_path / "parquet"),
        str(tmp_path / "checkpoint"),
        max_offsets=2000,
    )
    for run in range(3):  # the second run finds nothing new
        query = activity.start(spark, job)
        assert query.awaitTermination(120)
        if run == 0:
            assert activity.metrics(query)["rows"] == len(list(generate.events(plan)))
        if run == 1:
            # As if the driver had been killed after its last write and before Spark's log of finished batches.
            commits = tmp_path / "checkpoint" / "commits"
            last = max(int(path.name) for path in commits.glob("[0-9]*"))
            assert (tmp_path / "parquet" / f"batch={last}").exists(), "the batch has written rows"
            (commits / str(last)).unlink()
            (commits / f".{last}.crc").unlink()
    seen: dict[str, tuple[str, str]] = {}
    for event in generate.events(plan):
        if event["page"] is not None:
            seen[event["event_id"]] = (event["time"][11:16], event["page"])
    expected = Counter(seen.values())
    assert in_topic(spark, job) == expected
    pages: Counter[str] = Counter()
    for (_, page), count in expected.items():
        pages[page] += count
    assert activity.by_page(spark, job) == pages
    rows = spark.read.parquet(job.parquet).selectExpr(
        "date_format(window_start, 'HH:mm') w", "page", "events"
    )
    assert sorted(map(tuple, rows.collect())) == sorted((*key, count) for key, count in expected.items())


@pytest.mark.integration
def test_events_that_cannot_be_parsed_go_to_the_dead_letters(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, letters = make_topic(1), make_topic(1)
    bad = [b"no json", b'{"page": "/"}', b'{"time": "soon"}']
    good = b'{"event_id": "1", "user": "u", "page": "/", "time": "2026-01-01T00:00:00Z"}'
    with Producer(local_cluster.grpc_bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            for value in (good, *bad):
                producer.send(topic, value, key=b"k")
        producer.begin()
        producer.send(topic, b"aborted").result()
        producer.abort()
    job = activity.Job(
        local_cluster.grpc_bootstrap, topic, "", "", str(tmp_path / "checkpoint"), dead_letters=letters
    )
    assert activity.start_dead_letters(spark, job).awaitTermination(120)
    options = {"bootstrap.servers": job.bootstrap, "subscribe": letters, "includeHeaders": "true"}
    rows = spark.read.format("ottla").options(**options).load().orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(b"k", value) for value in bad]
    assert [bytes(row.headers[2].value) for row in rows] == [b"1", b"2", b"3"]
    assert [header.key for header in rows[0].headers] == [
        "source.topic",
        "source.partition",
        "source.offset",
    ]


class EndedQuery:
    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def awaitTermination(self) -> None:
        if self.error is not None:
            raise self.error


def test_a_query_that_failed_before_the_wait_fails_the_job() -> None:
    queries: list[Any] = [EndedQuery(), EndedQuery(ValueError("dead letters failed"))]
    streams: Any = None  # not asked, as no query is active
    with pytest.raises(ValueError, match="dead letters failed"):
        activity.await_all(streams, queries)
    activity.await_all(streams, queries[:1])


@pytest.mark.parametrize("name", JOBS_WITH_HELP)
def test_help_is_there(name: str) -> None:
    made = subprocess.run(
        [sys.executable, str(JOBS / name), "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert ("--into" if name == "compact.py" else "--bootstrap-servers") in made.stdout
