"""Four real brokers: one is drained under a steady acks=all writer, while others are killed; the same with `ottla`
and with Kafka's own tools."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.ottla_command import Ottla
from cluster.steady_writer import SteadyWriter, read_all
from ottla_bench.kafka_jars import (
    KAFKA_LEADER_ELECTION,
    KAFKA_LOG_DIRS,
    KAFKA_METADATA_QUORUM,
    KAFKA_REASSIGN_PARTITIONS,
    run_tool,
)
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.move_throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from ottla_client.record import TopicPartition
from ottla_client.sync import Admin, Producer
from ottla_core.errors import InvalidReplicaAssignment, InvalidRequest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTITIONS = 4
WITHIN_S = 90.0


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """One for each test, because a drained broker must not have topics of another test."""
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


def test_the_command_line_moves_partitions(
    cluster: LocalCluster, admin: Admin, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
    ottla("topics", "create", "by-hand", "-a", "0=0,1", "-a", "1=1,0")
    ottla("topics", "grow", "by-hand", "--by", "1", "-a", "2=2,3")
    assert replicas_of(admin, "by-hand") == [(0, 1), (1, 0), (2, 3)]
    ottla("topics", "move", "by-hand", "-a", "0=3,2", "--yes", "--throttle", "50MB")
    assert replicas_of(admin, "by-hand")[0] == (3, 2)
    assert [
        each for each in admin.describe_configs(topic="by-hand") if "throttled" in each.name and each.value
    ] == []
    assert (
        "is not a size" in ottla("topics", "move", "by-hand", "--to", "0", "--throttle", "fast", code=2).err
    )
    assert "no partition would ever move" in ottla("cluster", "drain", "2", "--throttle", "0", code=2).err
    moved = ottla("topics", "replicas", "by-hand", "3", "--yes", "--json").json
    assert moved["complete"] and len(moved["moves"]) == 3
    assert [len(replicas) for replicas in replicas_of(admin, "by-hand")] == [3] * 3
    assert "--yes confirms" in ottla("topics", "move", "by-hand", "--to", "0", code=2).err
    assert "no partition" in ottla("topics", "move", "by-hand", "-a", "9=1", code=1).err

    planned = ottla("cluster", "drain", "2", "--dry-run", "--json").json
    assert not planned["begun"] and all(2 not in each["after"] for each in planned["moves"])
    assert "empty and cordoned" in ottla("cluster", "drain", "2", "--yes").out
    info = {each["id"]: each for each in ottla("cluster", "info", "--json").json["brokers"]}
    assert (info[2]["replicas"], info[2]["cordoned"]) == (0, True)
    assert "cordoned" in ottla("cluster").out
    assert "has no replicas" in ottla("cluster", "drain", "2", "--yes").out
    assert "online" in ottla("cluster", "unregister", "2", "--yes", code=1).err
    ottla("cluster", "uncordon", "2")
    assert "elected" in ottla("cluster", "elect", "by-hand").out
    assert all(p.leader == p.replicas[0] for p in admin.describe_topics(["by-hand"])[0].partitions)
    assert ottla("cluster", "moves", "--json").json == []
    assert "No partition" in ottla("cluster", "moves", "--cancel", "--yes").out


RATE = 3_000_000


def test_a_throttled_move_keeps_its_rate_and_delays_no_writer(
    cluster: LocalCluster, admin: Admin, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    admin.create_topics(
        [
            NewTopic("slow", replica_assignments={0: [0]}),
            NewTopic("steady", replica_assignments={0: [0, 1]}),
            NewTopic("later", replica_assignments={0: [0]}),
        ]
    )
    admin.alter_configs({"num.concurrent.partition.movements.per.broker": "1"}, all_brokers=True)
    with Producer(cluster.grpc_bootstrap) as producer:
        producer.send_many("slow", [random.randbytes(20_000) for _ in range(600)])
    for broker in (0, 1):
        admin.alter_configs(dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(RATE)), broker=broker)
    admin.alter_configs({LEADER_REPLICAS: "0:0", FOLLOWER_REPLICAS: "0:1"}, topic="slow")
    with SteadyWriter(cluster.kafka_bootstrap, "steady") as writer:
        until(lambda: len(writer.acknowledged) > 20, "the writer is under way")
        began = time.monotonic()
        admin.alter_partition_reassignments({TopicPartition("slow", 0): [1]})
        until(lambda: not admin.list_partition_reassignments()[0].waiting, "the first has begun")
        admin.alter_partition_reassignments({TopicPartition("later", 0): [1]})
        (waits,) = admin.list_partition_reassignments(["later"])
        assert (waits.waiting, waits.target, waits.adding) == (True, (1,), (1,))
        assert waits.obstacle == "queued"
        assert replicas_of(admin, "later") == [(0,)], "nothing has changed yet"
        until(lambda: not admin.list_partition_reassignments(), "the move is complete")
        took_s = time.monotonic() - began
    assert writer.failed == []
    assert 0.75 < 600 * 20_000 / RATE / took_s < 1.25, took_s
    ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
    assert "4 brokers copy" in ottla("cluster", "throttle", "50MB").out
    assert "1 topic had throttled replicas" in ottla("cluster", "throttle", "off").out
    assert "0 topics had" in ottla("cluster", "throttle", "off").out


@pytest.mark.java
def test_kafkas_tools_move_partitions(cluster: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    def tool(main_class: str, *arguments: str) -> str:
        done = run_tool(main_class, "--bootstrap-server", cluster.kafka_bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def reassign(*arguments: str) -> str:
        return tool(KAFKA_REASSIGN_PARTITIONS, *arguments)

    admin.create_topics([NewTopic("by-kafka", replica_assignments={0: [0, 1], 1: [1, 0]})])
    (topics := tmp_path / "topics.json").write_text('{"topics":[{"topic":"by-kafka"}],"version":1}')
    said = reassign("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3")
    proposed = json.loads(said.split("Proposed partition reassignment configuration")[1])
    assert {r for each in proposed["partitions"] for r in each["replicas"]} == {2, 3}
    (plan := tmp_path / "plan.json").write_text(json.dumps(proposed))
    execute = ("--execute", "--reassignment-json-file", str(plan), "--throttle", "1000000")
    assert "throttle limit was set to 1000000 B/s" in reassign(*execute)
    settings = {each.name: each.value for each in admin.describe_configs(topic="by-kafka")}
    assert settings["follower.replication.throttled.replicas"]
    until(lambda: not admin.list_partition_reassignments(), "the moves are complete")
    assert "is completed" in reassign("--verify", "--reassignment-json-file", str(plan))
    settings = {each.name: each.value for each in admin.describe_configs(topic="by-kafka")}
    assert settings["follower.replication.throttled.replicas"] == ""
    assert {frozenset(replicas) for replicas in replicas_of(admin, "by-kafka")} == {frozenset({2, 3})}
    cancelled = reassign("--cancel", "--reassignment-json-file", str(plan))
    assert "None of the specified partition reassignments are active" in cancelled

    elected = tool(KAFKA_LEADER_ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    assert "Error completing" not in elected
    described = tool(KAFKA_LOG_DIRS, "--describe", "--topic-list", "by-kafka").splitlines()[-1]
    held = {
        broker["broker"]: sum(len(each["partitions"]) for each in broker["logDirs"])
        for broker in json.loads(described)["brokers"]
    }
    assert (held[2], held[3]) == (2, 2)
    controller = admin.describe_cluster().controller_id
    quorum = run_tool(
        KAFKA_METADATA_QUORUM, "--bootstrap-server", cluster.kafka_bootstrap, "describe", "--status"
    )
    assert quorum.returncode == 0, quorum.stdout + quorum.stderr
    assert f"LeaderId:               {controller}" in quorum.stdout
    rows = run_tool(
        KAFKA_METADATA_QUORUM, "--bootstrap-server", cluster.kafka_bootstrap, "describe", "--replication"
    )
    assert rows.returncode == 0, rows.stdout + rows.stderr
    (row,) = [line.split() for line in rows.stdout.splitlines() if "Leader" in line and "NodeId" not in line]
    assert row[0] == str(controller), rows.stdout


@pytest.mark.java
def test_kafkas_tool_cancels_a_move_that_is_under_way(
    cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    admin.create_topics([NewTopic("undone", replica_assignments={0: [0, 1]})])
    with Producer(cluster.grpc_bootstrap) as producer:
        producer.send_many("undone", [random.randbytes(20_000) for _ in range(200)])
    partitions = [{"topic": "undone", "partition": 0, "replicas": [2, 3]}]
    (plan := tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": partitions}))

    def reassign(*arguments: str) -> str:
        given = ("--bootstrap-server", cluster.kafka_bootstrap, "--reassignment-json-file", str(plan))
        done = run_tool(KAFKA_REASSIGN_PARTITIONS, *given, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    reassign("--execute", "--throttle", "50000")  # 80 s for all of it
    (move,) = admin.list_partition_reassignments(["undone"])
    assert (move.adding, move.removing) == ((2, 3), (0, 1))
    assert "Successfully cancelled" in reassign("--cancel")
    until(lambda: not admin.list_partition_reassignments(), "the move is undone")
    assert replicas_of(admin, "undone") == [(0, 1)]
    settings = {each.name: each.value for each in admin.describe_configs(topic="undone")}
    assert settings["follower.replication.throttled.replicas"] == ""
    until(lambda: folders_of(cluster, 2, "undone") == [], "the copy is deleted")


@pytest.mark.java
def test_an_unclean_leader_is_elected_on_demand(
    cluster: LocalCluster, admin: Admin, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The only in-sync replica is gone: the other one leads when Kafka's tool, or ours, says so, and not before."""
    both = {0: [2, 3], 1: [2, 3]}
    admin.create_topics([NewTopic("left", configs={"min.insync.replicas": "1"}, replica_assignments=both)])

    def states() -> list[tuple[int, tuple[int, ...]]]:
        (topic,) = admin.describe_topics(["left"])
        return [(each.leader, tuple(each.isr)) for each in topic.partitions]

    cluster.stop_broker(3)
    until(lambda: states() == [(2, (2,))] * 2, "only broker 2 is in sync")
    with Producer(cluster.grpc_bootstrap) as producer:
        producer.send_many("left", [b"only on broker 2"] * 10)
    cluster.kill(2)
    try:
        until(lambda: states() == [(-1, (2,))] * 2, "there is no leader")
        cluster.restart(3)
        until(lambda: _is_online(admin, 3), "broker 3 is back")
        assert states() == [(-1, (2,))] * 2
        unclean = ("--election-type", "unclean", "--topic", "left", "--partition", "0")
        done = run_tool(KAFKA_LEADER_ELECTION, "--bootstrap-server", cluster.kafka_bootstrap, *unclean)
        assert done.returncode == 0 and "Successfully completed" in done.stdout, done.stdout + done.stderr
        until(lambda: states() == [(3, (3,)), (-1, (2,))], "partition 0 is led by broker 3")
        ottla = Ottla(cluster.grpc_bootstrap, capsysbinary)
        assert "1 leader elected" in ottla("cluster", "elect", "left:1", "--unclean", "--yes").out
        until(lambda: states() == [(3, (3,))] * 2, "partition 1, too")
    finally:
        cluster.restart(2)
    until(lambda: {frozenset(isr) for _, isr in states()} == {frozenset({2, 3})}, "both are in sync")
