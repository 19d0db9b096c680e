"""Sessions and enriched events are those that a count by hand finds; charts show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import enrich, generate, sessions
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Producer
from pyspark_ottla.chart import bars

PLAN = generate.Plan(events=600, users=30, late=0.1, duplicates=0.1, lateness_s=60, span_s=1200)
GAP = timedelta(minutes=5)


def test_bars_are_in_proportion() -> None:
    assert bars("Pages", {"/": 1000, "/cart": 500, "/help": 0}).splitlines() == [
        "Pages",
        f"  /     1,000 {'█' * 50}",
        f"  /cart   500 {'█' * 25}",
        "  /help     0",
    ]
    assert bars("None", {}) == "None"
    assert bars("Many", {str(n): n for n in range(45)}).splitlines()[-1] == "  and 5 more"


def once() -> list[dict[str, Any]]:
    """The generated events of users, without copies."""
    found = {event["event_id"]: event for event in generate.events(PLAN) if event["user"] is not None}
    return list(found.values())


def time_of(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])


def sessions_by_hand() -> list[tuple[str, datetime, datetime, int]]:
    found: list[tuple[str, datetime, datetime, int]] = []
    by_user: dict[str, list[datetime]] = {}
    for event in once():
        by_user.setdefault(event["user"], []).append(time_of(event))
    for user, times in by_user.items():
        times.sort()
        first = 0
        for n in range(1, len(times) + 1):
            if n == len(times) or times[n] - times[n - 1] >= GAP:
                found.append((user, times[first], times[n - 1] + GAP, n - first))
                first = n
    return sorted(found)


def values(spark: SparkSession, bootstrap: str, topic: str) -> list[dict[str, Any]]:
    options = {"bootstrap.servers": bootstrap, "subscribe": topic, "kafka.isolation.level": "read_committed"}
    rows = spark.read.format("ottla").options(**options).load().select("key", "value").collect()
    found = [json.loads(row.value) for row in rows]
    assert [bytes(row.key).decode() for row in rows] == [value["user"] for value in found]
    return found


@pytest.mark.integration
def test_sessions_end_where_a_user_pauses(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    bootstrap = local_cluster.grpc_bootstrap
    job = sessions.Job(bootstrap, make_topic(2), make_topic(1), str(tmp_path / "checkpoint"))
    generate.send(bootstrap, job.events, PLAN)
    query = sessions.start(spark, job)
    assert query.awaitTermination(120)
    assert sessions.metrics(query)["rows"] == sum(1 for _ in generate.events(PLAN))
    expected = sessions_by_hand()
    found = [
        (
            row["user"],
            datetime.fromisoformat(row["session_start"]),
            datetime.fromisoformat(row["session_end"]),
            row["events"],
        )
        for row in values(spark, bootstrap, job.results)
    ]
    assert sorted(found) == expected
    drawn = sessions.by_size(sessions.results(spark, job))
    assert sum(drawn.values()) == len(expected)
    assert drawn["1"] == sum(events == 1 for *_, events in expected)


@pytest.mark.integration
def test_events_get_the_columns_of_a_table_and_pairs_of_another_topic(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    bootstrap, events = local_cluster.grpc_bootstrap, make_topic(1)
    users = tmp_path / "users.csv"
    users.write_text("user,country\n" + "".join(f"user-{n},{'AT' if n % 2 else 'CZ'}\n" for n in range(10)))
    generate.send(bootstrap, events, PLAN)
    job = enrich.Job(
        bootstrap,
        events,
        make_topic(1),
        str(tmp_path / "static"),
        "user",
        table=str(users),
        table_format="csv",
    )
    query = enrich.start(spark, job)
    assert query.awaitTermination(120)
    made = [event for event in generate.events(PLAN) if event["user"] is not None]
    countries = {f"user-{n}": "AT" if n % 2 else "CZ" for n in range(10)}
    drawn = enrich.by_value(spark, job, "country")
    for name in ("AT", "CZ"):
        assert drawn[name] == sum(countries.get(event["user"]) == name for event in made)
    assert drawn["(none)"] == sum(event["user"] not in countries for event in generate.events(PLAN))

    orders, schema = make_topic(1), "user string, order string, time timestamp"
    placed = [(f"user-{n}", time_of(once()[n * 100])) for n in range(4)]
    with Producer(bootstrap) as producer:
        for number, (user, at) in enumerate(placed):
            value = {"user": user, "order": str(number), "time": at.isoformat()}
            producer.send(orders, json.dumps(value).encode())
    pairs = enrich.Job(
        bootstrap,
        events,
        make_topic(1),
        str(tmp_path / "streams"),
        "user",
        other=orders,
        other_schema=schema,
        within="1 minute",
    )
    assert enrich.start(spark, pairs).awaitTermination(120)
    near = [
        (event["event_id"], str(number))
        for event in made
        for number, (user, at) in enumerate(placed)
        if event["user"] == user and abs(time_of(event) - at) <= timedelta(minutes=1)
    ]
    assert near
    found = [(row["event_id"], row["order"]) for row in values(spark, bootstrap, pairs.results)]
    assert sorted(found) == sorted(near)
