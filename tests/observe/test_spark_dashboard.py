"""The queries of the Spark dashboard, asked from a Prometheus that scrapes a real Spark driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from observe.monitoring_files import boards, queries, substituted
from observe.prometheus_process import Prometheus

pytestmark = [pytest.mark.integration, pytest.mark.java]


def test_every_query_of_the_spark_dashboard_returns_data(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("spark_driver.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        address = driver.stdout.readline().strip()
        assert address, "the driver did not start"
        jobs = [
            {"job_name": name, "metrics_path": path, "static_configs": [{"targets": [address]}]}
            for name, path in (
                ("driver", "/metrics/prometheus"),
                ("executors", "/metrics/executors/prometheus"),
            )
        ]
        wanted = {
            (title, number): substituted(query, {})
            for number, (title, query) in enumerate(queries(boards()["ottla-spark"]))
        }
        try:
            with Prometheus(tmp_path, [], jobs=jobs) as prometheus:

                def silent() -> dict[tuple[str, int], str]:
                    return {where: query for where, query in wanted.items() if not prometheus.query(query)}

                try:
                    prometheus.until(lambda: not silent(), "every query has data", timeout_s=60)
                except AssertionError:
                    assert silent() == {}
                found = prometheus.query(
                    next(query for (title, _), query in wanted.items() if title == "Records read")
                )
                assert [labels["query"] for labels, _ in found] == ["counted"], "named as the query"
        finally:
            driver.kill()  # with nothing to save; its JVM ends with its standard input
    assert len(wanted) >= 5
