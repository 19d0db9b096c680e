"""Two real brokers with two log directories each: partitions move between them under writes, through a kill, with
`ottla` and with Kafka's own tools."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.ottla_command import Ottla
from cluster.steady_writer import SteadyWriter, read_all
from cluster.two_folder_broker import folders_of
from ottla_bench.kafka_jars import KAFKA_LOG_DIRS, KAFKA_REASSIGN_PARTITIONS, run_tool
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.record import TopicPartition
from ottla_client.sync import Admin, Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    program = str(Path(__file__).with_name("two_folder_broker.py"))
    with LocalCluster(brokers=2, broker_command=(sys.executable, "-P", program)) as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.grpc_bootstrap) as client:
        yield client


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {WITHIN_S:g} s"
        time.sleep(0.05)


def places(admin: Admin, topic: str, broker: int) -> dict[int, list[tuple[str, bool]]]:
    """By partition: the broker's directories with a copy of it, and whether the copy is on its way."""
    found: dict[int, list[tuple[str, bool]]] = {}
    for each in admin.describe_log_dirs([topic]):
        for replica in each.replicas:
            if each.broker == broker and replica.tp.topic == topic:
                found.setdefault(replica.tp.partition, []).append((each.path, replica.is_future))
    return {partition: sorted(where, key=lambda w: w[1]) for partition, where in found.items()}


def test_a_partition_moves_under_writes_and_through_a_kill(
    cluster: LocalCluster, admin: Admin, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    admin.create_topics(
        [NewTopic("moved", replica_assignments={0: [0, 1]}, configs={"min.insync.replicas": "1"})]
    )
    with Producer(cluster.grpc_bootstrap) as producer:
        producer.send_many("moved", [random.randbytes(20_000) for _ in range(300)])
    ((here, _),) = places(admin, "moved", 0)[0]
    (there,) = set(folders_of(cluster.brokers[0].log_dir)) - {here}
    tp = TopicPartition("moved", 0)
    ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
    with SteadyWriter(cluster.kafka_bootstrap, "moved") as writer:
        until(lambda: len(writer.acknowledged) > 20, "the writer is under way")
        admin.alter_configs({RATE: "1000000"}, broker=0)
        (begun,) = admin.alter_replica_log_dirs({(0, tp): there})
        assert begun.error is None
        assert places(admin, "moved", 0)[0] == [(here, False), (there, True)]
        until(lambda: any(Path(there).glob("moved-0.*-future/*.log")), "it copies")
        cluster.kill(0)
        cluster.restart(0)
        until(lambda: (there, True) in places(admin, "moved", 0).get(0, ()), "the move begins again")
        admin.alter_configs({RATE: None}, broker=0)
        until(lambda: places(admin, "moved", 0)[0] == [(there, False)], "the partition has moved")
        count = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > count + 20, "writes go on")
        back = ottla("cluster", "move-dir", "moved:0", "--broker", "0", "--to", here, "--yes").out
        assert f"are in {here}" in back
    assert writer.failed == []
    assert set(writer.acknowledged) <= set(read_all(cluster.kafka_bootstrap, "moved", 1))
    until(lambda: not any(Path(there).glob("moved-0*[0-9]")), "its former folder is gone")

    rows = ottla("cluster", "dirs", "moved", "--json").json
    assert [r["path"] for r in rows if r["broker"] == 0 and r["replicas"]] == [here]
    assert (
        "no log directory"
        in ottla("cluster", "move-dir", "moved", "--broker", "0", "--to", "/nowhere", "--yes", code=1).err
    )
    assert (
        "no replica"
        in ottla("cluster", "move-dir", "moved", "--broker", "7", "--to", here, "--yes", code=1).err
    )


@pytest.mark.java
def test_kafkas_tools_move_between_directories(cluster: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    def tool(main_class: str, *arguments: str) -> str:
        done = run_tool(main_class, "--bootstrap-server", cluster.kafka_bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    admin.create_topics([NewTopic("by-kafka", replica_assignments={0: [0]})])
    ((here, _),) = places(admin, "by-kafka", 0)[0]
    (there,) = set(folders_of(cluster.brokers[0].log_dir)) - {here}
    second = folders_of(cluster.brokers[1].log_dir)[1]
    # A replica moves to another directory, and a new one is created in the directory that was asked for.
    wanted = {"topic": "by-kafka", "partition": 0, "replicas": [0, 1], "log_dirs": [there, second]}
    (plan := tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    execute = ("--execute", "--replica-alter-log-dirs-throttle", "50000000")
    said = tool(KAFKA_REASSIGN_PARTITIONS, *execute, "--reassignment-json-file", str(plan))
    assert "Successfully started" in said
    until(lambda: places(admin, "by-kafka", 0) == {0: [(there, False)]}, "it has moved")
    until(lambda: places(admin, "by-kafka", 1) == {0: [(second, False)]}, "it was created there")
    until(lambda: not admin.list_partition_reassignments(), "the move is complete")
    said = tool(KAFKA_REASSIGN_PARTITIONS, "--verify", "--reassignment-json-file", str(plan))
    assert "completed successfully" in said and "still in progress" not in said
    described = tool(KAFKA_LOG_DIRS, "--describe", "--topic-list", "by-kafka").splitlines()[-1]
    held = {
        (broker["broker"], each["logDir"])
        for broker in json.loads(described)["brokers"]
        for each in broker["logDirs"]
        if each["partitions"]
    }
    assert held == {(0, there), (1, second)}
