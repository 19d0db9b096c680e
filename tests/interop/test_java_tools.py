"""Kafka's own command-line tools, as shipped, against the broker.

Starting a JVM takes more than a second, so one test asks a tool several things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from interop.clients import CODECS, Sample, read_confluent, write_confluent
from interop.target import Target
from ottla_bench.kafka_jars import (
    KAFKA_BROKER_API_VERSIONS,
    KAFKA_CLUSTER,
    KAFKA_CONFIGS,
    KAFKA_DELETE_RECORDS,
    KAFKA_GET_OFFSETS,
    KAFKA_LOG_DIRS,
    KAFKA_PRODUCER_PERF_TEST,
    KAFKA_REASSIGN_PARTITIONS,
    KAFKA_TOPICS,
    OLD_KAFKA_VERSION,
    run_tool,
)

pytestmark = [pytest.mark.integration, pytest.mark.java]


def tool(target: Target, main_class: str, *arguments: str) -> str:
    done = run_tool(main_class, "--bootstrap-server", target.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stderr, done.stderr
    return done.stdout


def test_kafka_topics(target: Target, new_name: Callable[[], str]) -> None:
    name = new_name()
    chosen = ("--topic", name)
    create = (
        "--create",
        *chosen,
        "--partitions",
        "2",
        "--replication-factor",
        "1",
        "--config",
        "segment.ms=7200000",
    )
    assert f"Created topic {name}." in tool(target, KAFKA_TOPICS, *create)
    assert name in tool(target, KAFKA_TOPICS, "--list").splitlines()
    tool(target, KAFKA_TOPICS, "--alter", *chosen, "--partitions", "3")
    headline, *partitions = tool(target, KAFKA_TOPICS, "--describe", *chosen).splitlines()
    assert f"Topic: {name}" in headline
    assert "PartitionCount: 3" in headline
    assert "ReplicationFactor: 1" in headline
    assert "segment.ms=7200000" in headline
    assert re.search(r"TopicId: [\w-]{22}", headline)
    assert len(partitions) == 3
    for number, line in enumerate(partitions):
        found = re.search(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\d+)\tIsr: (\d+)", line)
        assert found, line
        assert int(found[1]) == number
        assert found[2] == found[3] == found[4]
    tool(target, KAFKA_TOPICS, "--delete", *chosen)
    assert name not in tool(target, KAFKA_TOPICS, "--list").splitlines()


def test_kafka_topics_says_what_is_wrong(target: Target, topic: str) -> None:
    again = run_tool(KAFKA_TOPICS, "--bootstrap-server", target.bootstrap, "--create", "--topic", topic)
    assert again.returncode != 0
    assert "TopicExistsException" in again.stderr
    assert f"Topic '{topic}'" in again.stdout, "the broker's sentence names the topic"


def test_perf_test_offsets_and_deletion(target: Target, topic: str, tmp_path: Path) -> None:
    """kafka-producer-perf-test writes, kafka-get-offsets counts, kafka-delete-records takes away."""
    count = 5_000
    size = ("--num-records", str(count), "--record-size", "200", "--throughput", "-1")
    properties = ("--command-property", "acks=all", "compression.type=lz4")
    report = tool(target, KAFKA_PRODUCER_PERF_TEST, "--topic", topic, *size, *properties)
    assert f"{count} records sent" in report
    headers = target.batches(topic)
    assert sum(header.count for header in headers) == count
    assert {header.compression for header in headers} == {CODECS["lz4"]}
    assert all(header.has_producer for header in headers), "Java producers are idempotent by default"

    offsets = ("--topic", topic, "--time")
    assert tool(target, KAFKA_GET_OFFSETS, *offsets, "latest") == f"{topic}:0:{count}\n"
    newest = tool(target, KAFKA_GET_OFFSETS, *offsets, "max-timestamp")
    newest_at = int(newest.strip().split(":")[2])
    top_ms = max(header.max_timestamp for header in headers)
    holder = next(header for header in headers if header.max_timestamp == top_ms)
    assert holder.base_offset <= newest_at <= holder.last_offset

    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 1234}], "version": 1}
    (order := tmp_path / "delete.json").write_text(json.dumps(wanted))
    deleted = tool(target, KAFKA_DELETE_RECORDS, "--offset-json-file", str(order))
    assert f"partition: {topic}-0\tlow_watermark: 1234" in deleted
    assert tool(target, KAFKA_GET_OFFSETS, *offsets, "earliest") == f"{topic}:0:1234\n"


def test_kafka_configs_of_a_topic(target: Target, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    change = "retention.ms=86400000,cleanup.policy=[compact,delete]"
    tool(target, KAFKA_CONFIGS, "--alter", *entity, "--add-config", change)
    shown = tool(target, KAFKA_CONFIGS, "--describe", *entity)
    assert "retention.ms=86400000 sensitive=false" in shown
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=86400000" in shown
    assert "cleanup.policy=compact,delete" in shown
    tool(target, KAFKA_CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    everything = tool(target, KAFKA_CONFIGS, "--describe", "--all", *entity)
    assert "retention.ms=604800000 sensitive=false synonyms={" in everything
    assert "cleanup.policy=compact,delete" in everything
    refused = run_tool(
        KAFKA_CONFIGS,
        "--bootstrap-server",
        target.bootstrap,
        "--alter",
        *entity,
        "--add-config",
        "segment.ms=never",
    )
    assert refused.returncode != 0
    assert "segment.ms" in refused.stdout + refused.stderr


def test_kafka_configs_of_brokers(target: Target, admin: AdminClient) -> None:
    (broker_id,) = admin.list_topics(timeout=10).brokers
    everybody = ("--entity-type", "brokers", "--entity-default")
    tool(target, KAFKA_CONFIGS, "--alter", *everybody, "--add-config", "log.retention.bytes=123456789")
    try:
        assert "log.retention.bytes=123456789" in tool(target, KAFKA_CONFIGS, "--describe", *everybody)
        one = ("--entity-type", "brokers", "--entity-name", str(broker_id), "--all")
        assert "log.retention.bytes=123456789" in tool(target, KAFKA_CONFIGS, "--describe", *one)
    finally:
        tool(target, KAFKA_CONFIGS, "--alter", *everybody, "--delete-config", "log.retention.bytes")


def test_settings_that_tools_set_without_effect_here(target: Target, admin: AdminClient) -> None:
    (broker_id,) = admin.list_topics(timeout=10).brokers
    one = ("--entity-type", "brokers", "--entity-name", str(broker_id))
    rate = "leader.replication.throttled.rate"
    tool(target, KAFKA_CONFIGS, "--alter", *one, "--add-config", f"{rate}=5000,log.cleaner.threads=2")
    shown = tool(target, KAFKA_CONFIGS, "--describe", *one)
    assert f"{rate}=5000" in shown and "log.cleaner.threads=2" in shown
    tool(target, KAFKA_CONFIGS, "--alter", *one, "--delete-config", f"{rate},log.cleaner.threads")
    everything = tool(target, KAFKA_CONFIGS, "--describe", "--all", *one)
    assert f"{rate}=5000" not in everything
    host, port = target.bootstrap.rsplit(":", 1)
    assert re.search(rf"^  advertised.listeners=\w+://{re.escape(host)}:{port} ", everything, re.MULTILINE)
    assert re.search(r"^  listeners=\w+://", everything, re.MULTILINE)


def test_kafka_reassign_partitions_verifies_what_is_so(
    target: Target, topic: str, admin: AdminClient, tmp_path: Path
) -> None:
    """It clears replication throttles on its way, whether somebody has set them or not."""
    (broker_id,) = admin.list_topics(timeout=10).brokers
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [broker_id]}]}
    (order := tmp_path / "plan.json").write_text(json.dumps(plan))
    said = tool(target, KAFKA_REASSIGN_PARTITIONS, "--verify", "--reassignment-json-file", str(order))
    assert f"Reassignment of partition {topic}-0 is completed." in said
    assert f"Clearing topic-level throttles on topic {topic}" in said


def test_the_cluster_and_its_apis(target: Target) -> None:
    named = run_tool(KAFKA_CLUSTER, "cluster-id", "--bootstrap-server", target.bootstrap)
    assert re.search(r"Cluster ID: \S+", named.stdout), named.stderr
    apis = tool(target, KAFKA_BROKER_API_VERSIONS)
    assert "Produce(0): 0 to 13 [usable: 13]" in apis
    for api in ("Fetch", "ListOffsets", "Metadata", "ApiVersions", "CreateTopics", "InitProducerId"):
        assert re.search(rf"\b{api}\(\d+\): .*\[usable: \d+\]", apis), api


def test_kafka_log_dirs(target: Target, topic: str) -> None:
    write_confluent(target, topic, [Sample(b"k", b"v" * 1000) for _ in range(50)])
    told = tool(target, KAFKA_LOG_DIRS, "--describe", "--topic-list", topic)
    described = json.loads(told.splitlines()[-1])
    (broker,) = described["brokers"]
    (log_dir,) = broker["logDirs"]
    assert log_dir["error"] is None
    partitions = {entry["partition"]: entry for entry in log_dir["partitions"]}
    assert partitions and all(name.startswith(f"{topic}-") for name in partitions)
    assert {(entry["offsetLag"], entry["isFuture"]) for entry in partitions.values()} == {(0, False)}
    on_disk = {
        name: sum(file.stat().st_size for file in target.segments(topic, int(name.rpartition("-")[2])))
        for name in partitions
    }
    assert {name: entry["size"] for name, entry in partitions.items()} == on_disk
    assert sum(on_disk.values()) > 50_000


def test_tools_of_an_old_kafka(target: Target, topic: str) -> None:
    """The same clients three years younger: older versions of most APIs, and other ways of asking."""
    samples = [Sample(b"%d" % n, b"value of %d" % n, (("n", b"%d" % n),)) for n in range(20)]
    server, old = ("--bootstrap-server", target.bootstrap), {"version": OLD_KAFKA_VERSION, "timeout_s": 30.0}
    lines = "".join(f"n:{n}\t{n}\tvalue of {n}\n" for n in range(20))
    parsing = ("--property", "parse.key=true", "--property", "parse.headers=true")
    written = run_tool(
        "kafka.tools.ConsoleProducer",
        *server,
        "--topic",
        topic,
        *parsing,
        "--compression-codec",
        "snappy",
        stdin=lines,
        **old,
    )
    assert written.returncode == 0, written.stderr
    assert {header.compression for header in target.batches(topic)} == {CODECS["snappy"]}
    assert read_confluent(target, topic, len(samples)) == samples

    place = ("--topic", topic, "--partition", "0", "--offset", "15", "--max-messages", "5")
    read = run_tool("kafka.tools.ConsoleConsumer", *server, *place, "--property", "print.key=true", **old)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == [f"{n}\tvalue of {n}" for n in range(15, 20)]

    described = run_tool("kafka.admin.TopicCommand", *server, "--describe", "--topic", topic, **old)
    assert described.returncode == 0, described.stderr
    assert "PartitionCount: 1" in described.stdout
    settings = (
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--alter",
        "--add-config",
        "retention.ms=54321",
    )
    altered = run_tool(KAFKA_CONFIGS, *server, *settings, **old)
    assert altered.returncode == 0, altered.stderr
    assert "retention.ms=54321" in tool(target, KAFKA_TOPICS, "--describe", "--topic", topic)
