"""A real broker tells an open transaction in the log of an older version from one that is prepared."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Producer
from sim.batches import Rec, make_batch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OLD, PREPARED = TopicPartition("old", 0), TopicPartition("prepared", 0)
#: Longer than a producer of this test has its transaction open before it prepares it, also on a busy machine.
TIMEOUT_MS = 5000
SETTINGS = {
    "transaction.max.timeout.ms": str(TIMEOUT_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, settings=SETTINGS) as made:
        yield made


def metric(cluster: LocalCluster, name: str) -> float:
    (broker,) = cluster.brokers.values()
    page = urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10).read().decode()
    (line,) = [text for text in page.splitlines() if text.startswith(name + " ")]
    return float(line.rpartition(" ")[2])


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def add_by_hand(cluster: LocalCluster, tp: TopicPartition, batch: bytes) -> None:
    """As an older version has written it, while the broker is down."""
    ((broker_id, broker),) = cluster.brokers.items()
    cluster.kill(broker_id)
    (segment,) = Path(broker.log_dir).rglob(f"{tp.topic}-{tp.partition}/*.log")
    with segment.open("ab") as file:
        file.write(batch)
    cluster.restart(broker_id)


def test_only_a_transaction_without_a_coordinator_is_aborted(cluster: LocalCluster) -> None:
    with Admin(cluster.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic(OLD.topic, 1, 1), NewTopic(PREPARED.topic, 1, 1)])
        with Producer(cluster.grpc_bootstrap) as producer:
            producer.send_and_wait(OLD.topic, b"plain", partition=0)
        with Producer(
            cluster.grpc_bootstrap, transactional_id="tx", transaction_timeout_ms=TIMEOUT_MS
        ) as producer:
            producer.begin()
            producer.send_and_wait(PREPARED.topic, b"one", partition=0)
            assert producer.prepare() is not None
        long_ago = int(time.time() * 1000) - 3_600_000
        batch = make_batch(
            [Rec(None, b"hangs", long_ago)],
            producer_id=987_654,
            epoch=3,
            sequence=0,
            transactional=True,
            base_offset=1,
            leader_epoch=0,
        )
        add_by_hand(cluster, OLD, batch)
        until(
            lambda: metric(cluster, "ottla_log_hanging_transactions_aborted_total") == 1,
            "the transaction without a coordinator is aborted",
        )
        found = {each.producer_id: each for each in admin.describe_producers([OLD])[OLD]}
        assert found[987_654].transaction_first_offset is None
        time.sleep(TIMEOUT_MS / 1000)
        ((mine,),) = admin.describe_producers([PREPARED]).values()
        assert mine.transaction_first_offset == 0, "a prepared transaction is not aborted"
        assert admin.find_hanging_transactions([OLD, PREPARED], min_duration_ms=0) == []
        assert metric(cluster, "ottla_log_hanging_transactions_aborted_total") == 1
        assert metric(cluster, "ottla_log_hanging_transactions") == 0
