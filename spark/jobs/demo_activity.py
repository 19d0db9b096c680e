"""Generator and pipeline in one go, on this machine: events in, a table of counts out. [A]

    python spark/jobs/demo_activity.py                     # starts a broker of its own
    python spark/jobs/demo_activity.py --bootstrap-servers 127.0.0.1:9192

`make demo` runs the same pipeline with spark-submit, on three brokers. Needs Java 17 or later for Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from jobs import activity, generate
from ottla_client.admin import NewTopic
from ottla_client.sync import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Count(NamedTuple):
    window: str
    page: str
    events: int
    users: int


def run(bootstrap: str, *, events: int = 50_000, say: Callable[[str], None] = print) -> list[Count]:
    """Counts by window and page, as the pipeline wrote them to its result topic. Makes two topics, and leaves them."""
    name = f"activity-{uuid4().hex[:6]}"
    replicas = 3
    with Admin(bootstrap) as admin:
        replicas = min(replicas, len(admin.describe_cluster().brokers))
        admin.create_topics(
            [NewTopic(f"{name}-events", 4, replicas), NewTopic(f"{name}-counts", 1, replicas)]
        )
    plan = generate.Plan(events=events, span_s=180)
    began = time.monotonic()
    sent = generate.send(bootstrap, f"{name}-events", plan)
    say(f"{sent:,} events written to {name}-events in {time.monotonic() - began:.1f} s; Spark starts.")
    with tempfile.TemporaryDirectory(prefix="ottla-activity-") as folder:
        began = time.monotonic()
        spark = session(folder)
        try:
            job = activity.Job(
                bootstrap, f"{name}-events", f"{name}-counts", f"{folder}/parquet", f"{folder}/checkpoint"
            )
            query = activity.start(spark, job)
            query.awaitTermination()
            rows = spark.read.parquet(job.parquet).count()
            counts = results(spark, job)
        finally:
            spark.stop()
    say(
        f"{len(counts)} windows counted in {time.monotonic() - began:.1f} s, {rows} rows of Parquet; "
        f"{sum(each.events for each in counts):,} events without copies."
    )
    return counts


def session(folder: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("ottla activity demo")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A JVM that lives for seconds: compiling for the long run would take a third of its time.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", folder)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def results(spark: SparkSession, job: activity.Job) -> list[Count]:
    reading = spark.read.format("ottla").options(
        **{"bootstrap.servers": job.bootstrap, "subscribe": job.results}
    )
    shape = "window_start timestamp, window_end timestamp, page string, events long, users long"
    rows = (
        reading.load()
        .selectExpr(f"from_json(string(value), '{shape}') as row")
        .selectExpr("date_format(row.window_start, 'HH:mm') as window", "row.page", "row.events", "row.users")
        .distinct()  # written at least once
        .orderBy("window", "page")
        .collect()
    )
    return [Count(*row) for row in rows]


def table(counts: list[Count]) -> str:
    """Pages down, windows across."""
    windows = sorted({each.window for each in counts})
    cells = {(each.page, each.window): each.events for each in counts}
    pages = sorted(
        {each.page for each in counts}, key=lambda page: -sum(cells.get((page, w), 0) for w in windows)
    )
    lines = [f"{'page':<12}" + "".join(f"{window:>10}" for window in windows)]
    lines += [f"{page:<12}" + "".join(f"{cells.get((page, w), 0):>10,}" for w in windows) for page in pages]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Events in, a table of counts per page and minute out.")
    parser.add_argument(
        "--bootstrap-servers", help="gRPC addresses; without, a broker is started and stopped again"
    )
    parser.add_argument("--events", type=int, default=50_000, help="how many (default: %(default)s)")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap_servers
        if bootstrap is None:
            from ottla_cli.local_cluster import LocalCluster

            bootstrap = stack.enter_context(LocalCluster()).grpc_bootstrap
        print(table(run(bootstrap, events=given.events)))


if __name__ == "__main__":
    main()
