"""Kafka Connect and MirrorMaker 2, as shipped: a file through a topic into a file, a topic into another cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from interop.conftest import create_topic
from interop.java_application import WITHIN_S, JavaApplication, properties
from interop.target import Target
from ottla_bench.kafka_jars import CONNECT_STANDALONE, MIRROR_MAKER
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(300)]

#: Of the plugins on the class path, all have manifests.
QUICK = {"plugin.discovery": "service_load"}
RECORDS = 200


def test_a_file_through_a_topic_into_a_file(
    target: Target, new_name: Callable[[], str], tmp_path: Path
) -> None:
    """A standalone worker with the file source and the file sink: the sink is a classic group named connect-sink-…."""
    topic, source, sink = new_name(), tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {number}\n" for number in range(RECORDS)))
    strings = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "bootstrap.servers": target.bootstrap,
        "key.converter": strings,
        "value.converter": strings,
        "offset.storage.file.filename": tmp_path / "offsets",
        "offset.flush.interval.ms": 200,
        "listeners": "http://127.0.0.1:0",
        **QUICK,
    }
    reads = {"name": f"source-{topic}", "connector.class": "FileStreamSource", "file": source, "topic": topic}
    writes = {"name": f"sink-{topic}", "connector.class": "FileStreamSink", "file": sink, "topics": topic}
    arguments = [
        properties(tmp_path, name, settings)
        for name, settings in (("worker", worker), ("source", reads), ("sink", writes))
    ]
    with JavaApplication(tmp_path, CONNECT_STANDALONE, *arguments) as connect:
        connect.until(lambda: sink.exists() and sink.read_text() == source.read_text(), "the copied file")
        with open(source, "a") as more:
            more.write("one more\n")
        connect.until(lambda: sink.read_text().endswith("one more\n"), "a line that came later")
    assert sink.read_text() == source.read_text()
    with closing(
        Consumer({"bootstrap.servers": target.bootstrap, "group.id": f"connect-sink-{topic}"})
    ) as group:
        (committed,) = group.committed([TopicPartition(topic, 0)], timeout=WITHIN_S)
    assert committed.offset == RECORDS + 1, "the sink commits when it stops"


def test_a_topic_into_another_cluster(
    target: Target, local_cluster: LocalCluster, new_name: Callable[[], str], tmp_path: Path
) -> None:
    """MirrorMaker as a process of its own: records with keys, headers and times, and the offsets of a group."""
    topic, group = new_name(), new_name()
    here, there = (
        {"bootstrap.servers": local_cluster.kafka_bootstrap},
        {"bootstrap.servers": target.bootstrap},
    )
    create_topic(AdminClient(here), topic, 2)
    producer = Producer(here)
    for number in range(RECORDS):
        value = str(number).encode()
        producer.produce(
            topic, value, b"key " + value, number % 2, timestamp=1000 + number, headers={"n": value}
        )
    assert producer.flush(WITHIN_S) == 0
    mirrored = f"here.{topic}"
    ends = [TopicPartition(name, number, RECORDS // 2) for name in (topic, mirrored) for number in range(2)]
    with closing(Consumer({**here, "group.id": group})) as reader:
        reader.commit(offsets=ends[:2], asynchronous=False)
    internal = ("replication", "checkpoints.topic.replication", "offset-syncs.topic.replication")
    storage = ("offset.storage", "status.storage", "config.storage", "heartbeats.topic")
    settings = {
        "clusters": "here,there",
        **{f"here.{name}": value for name, value in here.items()},
        **{f"there.{name}": value for name, value in there.items()},
        "here->there.enabled": "true",
        "here->there.topics": topic,
        "here->there.groups": group,
        "here->there.sync.group.offsets.enabled": "true",
        "here->there.sync.group.offsets.interval.seconds": 1,
        "here->there.emit.checkpoints.interval.seconds": 1,
        # Offsets of the last records are synchronized with the flushes of the worker.
        "there.offset.flush.interval.ms": 500,
        "emit.heartbeats.enabled": "false",
        **{f"{name}.factor": 1 for name in internal},
        **{f"{name}.replication.factor": 1 for name in storage},
        **QUICK,
    }
    with (
        JavaApplication(tmp_path, MIRROR_MAKER, properties(tmp_path, "mirror", settings)) as mirror,
        closing(Consumer({**there, "group.id": group, "enable.auto.commit": False})) as reader,
    ):
        mirror.until(lambda: mirrored in reader.list_topics(timeout=WITHIN_S).topics, "the mirrored topic")
        reader.assign([TopicPartition(mirrored, number, 0) for number in range(2)])
        seen = []

        def read_all() -> bool:
            seen.extend(each for each in reader.consume(RECORDS, 0.1) if each.error() is None)
            return len(seen) >= RECORDS

        mirror.until(read_all, "all records")
        mirror.until(
            lambda: (
                [each.offset for each in reader.committed(ends[2:], timeout=WITHIN_S)] == [RECORDS // 2] * 2
            ),
            "the offsets of the group",
        )
    for number, record in enumerate(sorted(seen, key=lambda each: int(each.value() or b""))):
        value = str(number).encode()
        assert (record.value(), record.key(), record.headers()) == (value, b"key " + value, [("n", value)])
        assert (record.partition(), record.offset()) == (number % 2, number // 2)
        assert record.timestamp()[1] == 1000 + number
    assert len(seen) == RECORDS
