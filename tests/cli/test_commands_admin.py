"""topics, offsets, configs, cluster against a real broker: what they do, what they say, how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.ottla_command import Ottla
from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster

pytestmark = pytest.mark.integration


def test_the_life_of_a_topic(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "2", "--config", "retention.ms=60000")
    listed = {row["name"]: row for row in ottla("topics", "list", "--json").json}
    assert (listed[topic]["partitions"], listed[topic]["replication_factor"]) == (2, 1)

    (described,) = ottla("topics", "describe", topic, "--json").json
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert {(p["leader"], p["earliest"], p["latest"]) for p in described["partitions"]} == {(0, 0, 0)}
    assert described["configs"] == [{"name": "retention.ms", "value": "60000", "source": "topic"}]

    ottla("topics", "alter", topic, "--delete-config", "retention.ms", "--config", "segment.bytes=1048576")
    (described,) = ottla("topics", "describe", topic, "--json").json
    assert [entry["name"] for entry in described["configs"]] == ["segment.bytes"]

    assert ottla("topics", "grow", topic, "--by", "3", "--json").json["partitions"] == 5
    ottla("topics", "alter", topic, "--partitions", "6")
    assert len(ottla("topics", "describe", topic, "--json").json[0]["partitions"]) == 6

    assert ottla("topics", "delete", topic, "--yes", "--json").json == {"deleted": [topic]}
    assert topic not in ottla("topics", "list", "--json").out


def test_tables_are_for_people_and_whole_when_piped(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "3")
    out = ottla("topics", "list", f"{topic[:8]}*").out
    assert [line.split() for line in out.splitlines() if topic in line] == [[topic, "3", "1"]]
    described = ottla("topics", "describe", topic).out
    assert "earliest" in described and topic in described
    assert not any(line.endswith(" ") for line in described.splitlines())


def test_a_dry_run_changes_nothing(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla("topics", "grow", topic, "--partitions", "4", "--dry-run")
    ottla("topics", "alter", topic, "--config", "retention.ms=1", "--dry-run")
    ottla("topics", "create", f"{topic}-b", "--dry-run")
    (described,) = ottla("topics", "describe", topic, "--json").json
    assert len(described["partitions"]) == 1 and described["configs"] == []
    assert f"{topic}-b" not in ottla("topics", "list").out


def test_refusals_are_one_sentence_and_code_1(ottla: Ottla) -> None:
    topic = ottla.topic()
    for arguments, said in (
        (("topics", "create", topic), "TOPIC_ALREADY_EXISTS"),
        (("topics", "create", "no spaces"), "INVALID_TOPIC"),
        (("topics", "create", f"{topic}-x", "-r", "3"), "INVALID_REPLICATION_FACTOR"),
        (("topics", "create", f"{topic}-x", "-c", "retention.ms=soon"), "retention.ms"),
        (("topics", "describe", topic[:-1]), f"Did you mean '{topic}'?"),
        (("topics", "grow", topic, "--partitions", "1"), "INVALID_PARTITIONS"),
        (("offsets", "list", topic, "--partition", "4"), "has no partition 4; it has only 0"),
        (("configs", "describe", "--broker", "77"), "There is no broker 77"),
        (("configs", "set", "--topic", topic, "retention.mss=1"), "Did you mean retention.ms?"),
        (("configs", "set", "--group", "g", "consumer.session.timeout.ms=1"), "the brokers take 6000"),
    ):
        err = ottla(*arguments, code=1).err
        assert err.startswith("ottla: ") and said in err and err.count("\n") == 1, err
    ottla("topics", "create", topic, "--if-not-exists")
    ottla("topics", "delete", f"{topic}-x", "--if-exists")


def test_misuse_is_code_2(ottla: Ottla) -> None:
    for arguments in (
        ("topics", "create", "t", "--config", "novalue"),
        ("topics", "create", "t", "--partitions", "0"),
        ("topics", "alter", "t"),
        ("topics", "grow", "t"),
        ("topics", "frob"),
        ("offsets", "list", "t", "--at", "5"),
        ("offsets", "delete-records", "t", "--before", "5"),
        ("configs", "describe"),
    ):
        assert ottla(*arguments, code=2).err


def test_a_wrong_address_says_what_to_do(local_cluster: LocalCluster, ottla: Ottla) -> None:
    ottla.bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
    err = ottla("topics", "list", code=1).err
    assert ottla.bootstrap in err and "ottla up" in err
    ottla.bootstrap = local_cluster.kafka_bootstrap
    err = ottla("cluster", "info", code=1).err
    assert "Kafka protocol" in err and "gRPC" in err
    ottla.bootstrap = "nowhere"
    assert "host:port" in ottla("topics", "list", code=2).err


def test_offsets_by_time_and_deleting(ottla: Ottla) -> None:
    topic = ottla.topic("--partitions", "2")
    given = [{"value": str(n), "partition": n % 2, "timestamp": 1_700_000_000_000 + n} for n in range(10)]
    ottla.produce(topic, "--format", "json", given="\n".join(json.dumps(row) for row in given).encode())
    rows = ottla("offsets", "list", topic, "--at", "1700000000004", "--json").json
    assert [(r["earliest"], r["latest"], r["max_timestamp"] % 100, r["offset_at"]) for r in rows] == [
        (0, 5, 8, 2),
        (0, 5, 9, 2),
    ]
    late = ottla("offsets", "list", topic, "--at", "2030-01-01", "--json").json
    assert [row["offset_at"] for row in late] == [None, None]

    said = ottla("offsets", "delete-records", "--yes", topic, "--before", "3", "--partition", "1").out
    assert said == f"{topic} partition 1 now begins at offset 3.\n"
    err = ottla("offsets", "delete-records", "--yes", topic, "--before", "9", "--partition", "1", code=1).err
    assert "OFFSET_OUT_OF_RANGE" in err
    ottla("offsets", "delete-records", "--yes", topic, "--before", "4", "--all")
    rows = ottla("offsets", "list", topic, "--json").json
    assert [row["earliest"] for row in rows] == [4, 4]


def test_configs_name_their_source(ottla: Ottla) -> None:
    topic = ottla.topic()
    ottla("configs", "set", "--topic", topic, "retention.ms=60000", "cleanup.policy=compact")
    ottla("configs", "set", "--topic", topic, "cleanup.policy=delete", "--append")
    changed = ottla("configs", "describe", "--topic", topic, "--changed", "--json").json
    assert {entry["name"]: (entry["value"], entry["source"]) for entry in changed} == {
        "cleanup.policy": ("compact,delete", "topic"),
        "retention.ms": ("60000", "topic"),
    }
    ottla("configs", "unset", "--topic", topic, "retention.ms", "cleanup.policy")
    assert "default" in ottla("configs", "describe", "--topic", topic, "--changed").err
    said = ottla("configs", "set", "--group", "readers", "consumer.assignor=range").out
    assert said == "Group readers: consumer.assignor = range.\n"
    (own,) = ottla("configs", "describe", "--group", "readers", "--changed", "--json").json
    assert (own["name"], own["value"], own["source"]) == ("consumer.assignor", "range", "group")
    ottla("configs", "unset", "--group", "readers", "consumer.assignor")
    assert {e["value"] for e in ottla("configs", "describe", "--group", "readers", "--json").json} == {None}
    found = {e["name"]: e for e in ottla("configs", "describe", "--broker", "0", "partitions", "--json").json}
    assert found["num.partitions"]["source"] in ("default", "static-broker")
    assert all("partitions" in name for name in found)


def test_the_cluster(local_cluster: LocalCluster, ottla: Ottla) -> None:
    found = ottla("cluster", "info", "--json").json
    assert found["controller_id"] == 0 and found["cluster_id"]
    assert [(b["grpc"], b["kafka"]) for b in found["brokers"]] == [
        (local_cluster.grpc_bootstrap, local_cluster.kafka_bootstrap)
    ]
    assert "controller" in ottla("cluster").out


def test_mistakes_are_named_before_a_question_is_asked(ottla: Ottla, tmp_path: Path) -> None:
    topic = ottla.topic("--partitions", "1")
    assert (
        "There is no broker 99; the cluster has " in ottla("topics", "move", topic, "--to", "99", code=1).err
    )
    assert "1,234,567" in ottla("quotas", "set", "--client-id", topic, "producer_byte_rate=1234567").out
    ottla("quotas", "delete", "--client-id", topic, "--yes")
    (tmp_path / "password").write_text("secret-of-a-test")
    ottla("users", "create", topic, "--password-file", str(tmp_path / "password"))
    assert "--yes confirms it" in ottla("users", "delete", topic, code=2).err
    ottla("users", "delete", topic, "--yes")
    assert "There is no user" in ottla("users", "delete", topic, code=1).err
