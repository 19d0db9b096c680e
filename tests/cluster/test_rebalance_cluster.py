"""Four real brokers: `ottla cluster rebalance` fills an empty broker and drains it, while a client writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cluster.steady_writer import SteadyWriter, read_all
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
PARTITIONS = 8


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=4) as made, Admin(made.grpc_bootstrap) as admin:
        placed = {n: [n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(PARTITIONS)}
        admin.create_topics([NewTopic("t", replica_assignments=placed)])
        with Producer(made.grpc_bootstrap) as producer:
            for number in range(400):
                producer.send("t", value=bytes(100_000), partition=number % PARTITIONS)
        yield made


@pytest.fixture
def local(running: LocalCluster) -> LocalCluster:
    """Broker 3 is empty and not cordoned."""
    if _held(running)[3]:
        _run(running, "--drain", "3", "--yes")
    with Admin(running.grpc_bootstrap) as admin:
        admin.uncordon_broker(3)
    return running


def _command(local: LocalCluster, *arguments: str) -> list[str]:
    rebalance = ["cluster", "rebalance", "--bootstrap", local.grpc_bootstrap]
    return [sys.executable, "-m", "ottla_cli", *rebalance, *arguments]


def _run(local: LocalCluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        _command(local, *arguments), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done
    return done


def _held(local: LocalCluster) -> list[int]:
    with Admin(local.grpc_bootstrap) as admin:
        (topic,) = admin.describe_topics(["t"])
        assert all(len(each.replicas) == 3 for each in topic.partitions)
        return [sum(b in each.replicas for each in topic.partitions) for b in range(4)]


def test_an_empty_broker_gets_its_share_and_is_drained_again_under_writes(local: LocalCluster) -> None:
    plan = json.loads(_run(local, "--dry-run", "--json").stdout)
    assert plan["bytes_to_copy"] > 6 * 4_000_000
    assert _held(local) == [8, 8, 8, 0], "a dry run moves nothing"
    assert "without a terminal, --yes confirms it" in _run(local, code=2).stderr
    with Admin(local.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic("w", 3, 3)])
    with SteadyWriter(local.kafka_bootstrap, "w") as writer:
        shown = _run(local, "--yes")
        assert "Moved" in shown.stderr
        assert _held(local)[3] in (5, 6, 7), "a quarter, beside the other topic"
        assert "Nothing to move" in _run(local, "--yes").stdout
        _run(local, "--drain", "3", "--yes")
        assert _held(local) == [8, 8, 8, 0]
        time.sleep(0.5)
    assert writer.failed == []
    found = read_all(local.kafka_bootstrap, "w", 3)
    assert sorted(found) == sorted(writer.acknowledged), "nothing is missing, nothing is there twice"
    with Admin(local.grpc_bootstrap) as admin:
        assert [each.id for each in admin.describe_brokers().brokers if each.cordoned] == [3]


def test_a_drain_that_the_rest_cannot_hold_changes_nothing(local: LocalCluster) -> None:
    before = _held(local)
    refused = _run(local, "--drain", "2", "--drain", "3", "--yes", code=1)
    assert "needs 3 brokers for its replicas" in refused.stderr and "Nothing was changed" in refused.stderr
    assert _held(local) == before
    assert "There is no broker 9" in _run(local, "--drain", "9", code=2).stderr


def test_an_interrupted_rebalance_is_continued_by_the_next(local: LocalCluster) -> None:
    with Admin(local.grpc_bootstrap) as admin:
        running = subprocess.Popen(
            _command(local, "--yes", "--throttle", "4MB"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while running.poll() is None and not admin.list_partition_reassignments():
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    # It may have been faster than the signal.
    assert running.returncode == 0 or "go on by themselves" in said, said
    off = [sys.executable, "-m", "ottla_cli", "cluster", "throttle", "off", "-b", local.grpc_bootstrap]
    subprocess.run(off, timeout=60, check=True, stdout=subprocess.DEVNULL)
    _run(local, "--yes")
    assert "Nothing to move" in _run(local, "--dry-run").stdout
    assert _held(local)[3] in (5, 6, 7)
    assert "No partition is moving" in _run(local, "--cancel", "--yes").stdout
