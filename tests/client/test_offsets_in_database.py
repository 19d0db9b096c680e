"""`examples/offsets_in_database.py`: workers are killed at random, and each amount counts once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "offsets_in_database.py"
RECORDS = 400


def worker(cluster: LocalCluster, topic: str, database: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(EXAMPLE), topic, str(database), "--bootstrap", cluster.grpc_bootstrap]
    return subprocess.Popen(command)


def stored(database: Path) -> tuple[dict[str, int], int]:
    """Balances, and the sum of all offsets: the number of records applied."""
    with sqlite3.connect(database, timeout=30) as db:
        try:
            balances = {str(account): int(amount) for account, amount in db.execute("SELECT * FROM balances")}
            (applied,) = db.execute("SELECT COALESCE(SUM(next_offset), 0) FROM offsets").fetchone()
        except sqlite3.OperationalError:
            return {}, 0  # The worker has not created the tables yet.
    return balances, int(applied)


def until(database: Path, applied: int) -> None:
    deadline = time.monotonic() + 60
    while stored(database)[1] < applied:
        assert time.monotonic() < deadline, stored(database)
        time.sleep(0.02)


def test_each_amount_counts_once(local_cluster: LocalCluster, tmp_path: Path) -> None:
    topic, database = f"payments-{uuid4().hex[:8]}", tmp_path / "balances.db"
    with Admin(local_cluster.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 3)])
        # A killed member should not keep its partitions for long.
        admin.alter_configs(
            {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "200"},
            group=f"balances-of-{topic}",
        )
    chance = random.Random(topic)
    amounts = [(f"account-{chance.randrange(7)}", chance.randrange(1, 1000)) for _ in range(RECORDS)]
    expected: dict[str, int] = {}
    running = worker(local_cluster, topic, database)
    try:
        with Producer(local_cluster.grpc_bootstrap, key_serializer="str", value_serializer="int") as producer:
            for number, (account, amount) in enumerate(amounts):
                expected[account] = expected.get(account, 0) + amount
                producer.send(topic, amount, account)
                if number == RECORDS // 2:
                    producer.flush()
                    until(database, 1)
                    running.kill()
                    running.wait()
                    running = worker(local_cluster, topic, database)
        until(database, RECORDS)
    finally:
        running.kill()
        running.wait()
    assert stored(database) == (expected, RECORDS)
