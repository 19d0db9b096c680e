"""bench, small, against a real broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.ottla_command import Ottla, folder_of
from ottla_cli.local_cluster import LocalCluster

pytestmark = pytest.mark.integration


def test_rates(ottla: Ottla) -> None:
    made = ottla("bench", "produce", "-n", "20000", "-s", "100", "-z", "lz4", "--acks", "1", "--json").json
    assert (made["records"], made["bytes"], made["compression"]) == (20_000, 2_000_000, "lz4")
    assert made["records_per_s"] == pytest.approx(20_000 / made["seconds"], rel=0.01)
    read = ottla("bench", "consume", "-n", "20000", "-p", "3", "--json").json
    assert (read["records"], read["bytes"], read["partitions"]) == (20_000, 2_000_000, 3)
    assert "ottla-bench" not in ottla("topics", "list").out


def test_a_waiting_consumer_is_woken_by_the_record_it_waits_for(ottla: Ottla) -> None:
    """A fetch once missed what was written between its look and its wait, and slept 500 ms one time in ten."""
    found = ottla("bench", "latency", "-n", "300", "--json").json
    assert found["records"] == 300 and found["acknowledged"]["p50_ms"] > 0
    assert found["end_to_end"]["p99_ms"] < 400


def test_an_existing_topic_is_used_and_kept(ottla: Ottla) -> None:
    topic = ottla.topic()
    assert "empty" in ottla("bench", "consume", "--topic", topic, code=1).err
    ottla("bench", "produce", "--topic", topic, "-n", "1000")
    assert "1,000" in ottla("bench", "consume", "--topic", topic).out
    assert ottla("offsets", "list", topic, "--json").json[0]["latest"] == 1000


def test_log_dump_beside_a_running_broker(ottla: Ottla, local_cluster: LocalCluster) -> None:
    topic = ottla.topic("--config", "segment.bytes=1048576")
    ottla("bench", "produce", "--topic", topic, "-n", "30000")
    folder = folder_of(local_cluster.brokers[0].log_dir, topic)
    done = subprocess.run(
        [sys.executable, "-m", "ottla_cli", "log", "dump", folder],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert len(rows) > 2 and {(row[0], row[-1]) for row in rows} == {(f"{topic}-0", "ok")}
    assert sum(int(row[6].replace(",", "")) for row in rows) == 30_000
