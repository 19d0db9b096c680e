"""Four real brokers: one is drained under a steady acks=all writer, while others are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.steady_writer import SteadyWriter, read_all
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.record import TopicPartition
from ottla_client.sync import Admin, Producer
from ottla_core.errors import InvalidReplicaAssignment, InvalidRequest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTITIONS = 4
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=4) as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.grpc_bootstrap) as client:
        yield client


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {WITHIN_S:g} s"
        time.sleep(0.1)


def replicas_of(admin: Admin, topic: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in admin.describe_topics([topic])[0].partitions]


def folders_of(cluster: LocalCluster, broker: int, topic: str) -> list[Path]:
    """Live folders of the topic on a broker's disk; deleted ones are renamed first."""
    found = Path(cluster.data_dir).glob(f"*{broker}/**/{topic}-*")
    return [each for each in found if each.is_dir() and "delete" not in each.name]


def test_a_broker_is_drained_under_writes_while_others_die(cluster: LocalCluster, admin: Admin) -> None:
    ids = sorted(broker.id for broker in admin.describe_brokers().brokers)
    drained, *others = ids
    new = ids[-1]
    first = ids[:3]
    spread = {n: [*first[n % 3 :], *first[: n % 3]] for n in range(PARTITIONS)}
    admin.create_topics([NewTopic("moved", configs={"min.insync.replicas": "2"}, replica_assignments=spread)])
    with Producer(cluster.grpc_bootstrap) as producer:
        producer.send_many("moved", [bytes(20_000)] * 200)  # something to copy
    before = {load.id: load for load in admin.describe_brokers().brokers}
    assert (before[drained].replicas, before[new].replicas) == (PARTITIONS, 0)
    assert before[drained].bytes > 1_000_000
    assert len(folders_of(cluster, drained, "moved")) == PARTITIONS
    admin.cordon_broker(drained)
    targets = {
        TopicPartition("moved", n): [new if b == drained else b for b in brokers]
        for n, brokers in spread.items()
    }
    with SteadyWriter(cluster.kafka_bootstrap, "moved") as writer:
        until(lambda: len(writer.acknowledged) > 50, "the writer is under way")
        assert [each.error for each in admin.alter_partition_reassignments(targets)] == [None] * PARTITIONS
        # The new broker dies while it copies, and the controller while it directs.
        cluster.kill(new)
        controller = admin.describe_cluster().controller_id
        cluster.restart(new)
        if controller not in (new, drained):
            cluster.kill(controller)
            cluster.restart(controller)
        until(lambda: not admin.list_partition_reassignments(), "the moves are complete")
        count = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > count + 50, "writes go on")
    assert writer.failed == []
    found = read_all(cluster.kafka_bootstrap, "moved", PARTITIONS)
    assert set(writer.acknowledged) <= set(found), "an acknowledged record is lost"
    assert sorted(map(set, replicas_of(admin, "moved"))) == [set(others)] * PARTITIONS
    until(lambda: folders_of(cluster, drained, "moved") == [], "the drained broker deletes its files")
    after = {load.id: load for load in admin.describe_brokers().brokers}
    assert (after[drained].replicas, after[drained].leaders, after[drained].cordoned) == (0, 0, True)
    assert after[new].replicas >= PARTITIONS and after[new].bytes > 1_000_000

    with pytest.raises(InvalidReplicaAssignment, match="cordoned"):
        admin.create_topics([NewTopic("refused", replica_assignments={0: [drained]})])
    with pytest.raises(InvalidRequest, match="online"):
        admin.unregister_broker(drained)
    cluster.stop_broker(drained)
    until(lambda: not _is_online(admin, drained), "the broker is offline")
    admin.unregister_broker(drained)
    assert drained not in {load.id for load in admin.describe_brokers(sizes=False).brokers}
    cluster.restart(drained)  # as a new member
    until(lambda: _is_online(admin, drained), "it is back")
    assert not next(b for b in admin.describe_brokers().brokers if b.id == drained).cordoned


def _is_online(admin: Admin, broker: int) -> bool:
    return any(load.id == broker and load.online for load in admin.describe_brokers(sizes=False).brokers)
