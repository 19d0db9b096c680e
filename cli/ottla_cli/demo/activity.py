"""Chapter 3: write events of a shop to a topic, run a Spark streaming job over them, read its result topic. [A]

The jobs are those of `spark/jobs`, run as a user would run them: `generate.py` with Python, `activity.py` with
spark-submit on this machine. Their output goes to a file that is shown on a failure. Without Java 17 the
chapter is skipped, with a message.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ottla_cli.child import Child
from ottla_cli.connecting import run
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import LocalCluster
from ottla_cli.quantities import show_count, show_duration
from ottla_cli.screen import table
from ottla_client import Admin, Consumer, NewTopic, TopicPartition

EVENTS = "page-views"
RESULTS = "page-counts"
REPLICAS = 3
#: The events span this many minutes, one window each.
_MINUTES = 4
_JOBS = Path(__file__).resolve().parents[3] / "spark" / "jobs"
_JAVA_MIN = 17
#: On an idle machine Spark needs half a minute; after this time it is stuck.
_JOB_TIMEOUT_S = 600.0
_READ_TIMEOUT_S = 30.0

#: Events by page and window.
Counts = Mapping[tuple[str, str], int]


def show(console: Console, cluster: LocalCluster, events: int) -> None:
    missing = why_not()
    if missing:
        console.print(f"[bold yellow]Skipped:[/] {missing}")
        return
    run(_create_topics(cluster.grpc_bootstrap))
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder:
        job = _Job(console, cluster.grpc_bootstrap, folder)
        job.run("generate.py", [sys.executable, str(_JOBS / "generate.py"), *job.generate(events)])
        job.run("activity.py", [_program("spark-submit"), *job.spark_options(), *job.activity()])
    counts = run(_results(cluster.grpc_bootstrap))
    check(counts, events)
    windows = sorted({window for _, window in counts})
    pages = sorted(
        {page for page, _ in counts}, key=lambda page: -sum(counts.get((page, w), 0) for w in windows)
    )
    console.print()
    console.print(
        table(
            ("page", *(f"{window}#" for window in windows), "all#"),
            (
                (
                    page,
                    *(show_count(counts.get((page, w), 0)) for w in windows),
                    show_count(_of_page(counts, page)),
                )
                for page in pages
            ),
        )
    )
    console.print(
        f"[green]✓[/] {show_count(events)} events, some late and some twice: each is counted once, in its minute."
    )


def check(counts: Counts, events: int) -> None:
    counted = sum(counts.values())
    if counted != events:
        raise Failure(f"The Spark job counted {counted} events; there were {events}.")


def why_not() -> str | None:
    """Why Spark cannot run on this machine; None if it can."""
    if not _JOBS.is_dir():
        return "the Spark jobs are part of the source tree; run `make demo` there."
    found = java_version()
    if found is None:
        return f"Spark needs Java {_JAVA_MIN} or newer, which is not installed; apt install openjdk-17-jre-headless."
    if found < _JAVA_MIN:
        return f"Spark needs Java {_JAVA_MIN} or newer; this is Java {found}. Set JAVA_HOME to a newer one."
    return None


def java_version() -> int | None:
    """The feature release of the Java that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else "java"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(version[1]) if version else None


def _program(name: str) -> str:
    found = shutil.which(name, path=os.path.dirname(sys.executable))
    if found is None:
        raise Failure(f"{name} is missing: pip install 'ottla[spark]'.")
    return found


class _Job:
    """Runs programs one after the other, with their output in `folder`."""

    def __init__(self, console: Console, bootstrap: str, folder: str) -> None:
        self._console = console
        self._bootstrap = bootstrap
        self._folder = folder

    def generate(self, events: int) -> list[str]:
        return [
            "--bootstrap-servers", self._bootstrap, "--topic", EVENTS,
            "--events", str(events), "--span-s", str(60 * _MINUTES),
        ]  # fmt: skip

    def activity(self) -> list[str]:
        return [
            str(_JOBS / "activity.py"), "--bootstrap-servers", self._bootstrap, "--available-now",
            "--events", EVENTS, "--results", RESULTS,
            "--parquet", f"{self._folder}/parquet", "--checkpoint", f"{self._folder}/checkpoint",
        ]  # fmt: skip

    def spark_options(self) -> list[str]:
        settings = {
            "spark.local.dir": self._folder,
            "spark.sql.warehouse.dir": f"{self._folder}/warehouse",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
        }
        # The JVM lives for seconds; full JIT compilation would take a third of its time.
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={self._folder}"
        confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return ["--master", "local[2]", "--driver-memory", "1g", "--driver-java-options", java, *confs]

    def run(self, name: str, command: Sequence[str]) -> None:
        program = os.path.basename(command[0])
        shown = f"{program} {'--master local[2] … ' if program == 'spark-submit' else ''}spark/jobs/{name} …"
        child = Child(name, os.path.join(self._folder, f"{name}.log"))
        began = time.monotonic()
        # Spark workers use this Python with its installed packages.
        settings = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        env = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | settings
        child.start(command, watches_stdin=False, env=env)
        try:
            with self._console.status(shown) as status:
                while (code := child.exit_code) is None:
                    took_s = time.monotonic() - began
                    if took_s > _JOB_TIMEOUT_S:
                        raise Failure(f"{name} did not end within {_JOB_TIMEOUT_S:.0f} s.")
                    status.update(f"{shown} [dim]{took_s:.0f} s[/]")
                    time.sleep(0.1)
        finally:
            child.stop(10.0)
        if code != 0:
            raise Failure(
                "\n".join((f"{name} ended with code {code}. The end of its output:", *child.log_lines()))
            )
        self._console.print(f"[dim]$[/] {shown} [dim]{show_duration(time.monotonic() - began)}[/]")


async def _create_topics(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(EVENTS, 2, REPLICAS), NewTopic(RESULTS, 1, REPLICAS)])


async def _results(bootstrap: str) -> Counts:
    """The counts that the job wrote; for each window the last write counts."""
    counts: dict[tuple[str, str], int] = {}
    partition = TopicPartition(RESULTS, 0)
    async with Consumer(bootstrap, value_deserializer="json", auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while await consumer.position(partition) < end and time.monotonic() < deadline:
            for record in await consumer.poll(timeout_ms=1000):
                row = record.value
                counts[row["page"], row["window_start"][11:16]] = row["events"]
    return counts


def _of_page(counts: Counts, page: str) -> int:
    return sum(events for (name, _), events in counts.items() if name == page)
