"""kill -9 at random points while stock clients write: every acknowledged record is there afterwards.

A killed process loses nothing that reached the page cache, so this holds whatever the fsync policy; power loss
is the simulated disk's part (tests/broker/log/test_power_loss.py). 20 rounds here, 200 by `make kill-test`.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster
from ottla_core.records.batch import complete_batches, verify

ROUNDS = int(os.environ.get("OTTLA_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("OTTLA_KILL_SEED", str(random.randrange(1 << 30))))
#: Topic settings under test; segments of 1 MiB, so that kills also hit rolls.
POLICIES = {
    "kill-default": {},
    "kill-flush-1": {"flush.messages": "1"},
    "kill-flush-ms": {"flush.ms": "20"},
    "kill-before-ack": {"flush.before.ack": "true"},
}
PARTITIONS = 2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


@dataclass
class Written:
    """What the broker has acknowledged: value by (topic, partition, offset)."""

    acknowledged: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    next_value: int = 0

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        at = (message.topic(), message.partition(), message.offset())
        assert at not in self.acknowledged, f"offset {at} was acknowledged twice"
        self.acknowledged[at] = message.value()


def test_no_acknowledged_record_is_lost(make_cluster: Callable[..., LocalCluster]) -> None:
    chance = random.Random(SEED)
    cluster = make_cluster()
    _create_topics(cluster)
    written = Written()
    producer = _producer(cluster)
    for number in range(ROUNDS):
        _write_for(producer, written, seconds=chance.uniform(0.02, 0.6), chance=chance)
        cluster.kill(0)
        # Whatever was queued is sent again by the client once the broker is back.
        cluster.restart(0)
        _write_for(producer, written, seconds=0.05, chance=chance)
        if number % 5 == 4 or number == ROUNDS - 1:
            assert producer.flush(30) == 0
            _check_readable(cluster, written, f"seed {SEED}, round {number}")
    assert written.failed == [], f"seed {SEED}"
    assert len(written.acknowledged) > ROUNDS * 20, "too little was written for the kills to mean anything"
    assert cluster.stop_broker(0) == 0
    _check_files(Path(cluster.brokers[0].log_dir), written)


def _create_topics(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap})
    wanted = [
        NewTopic(name, PARTITIONS, 1, config={"segment.bytes": str(1 << 20), **config})
        for name, config in POLICIES.items()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(10)


def _producer(cluster: LocalCluster) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 60000,
            "log_level": 0,
        }
    )


def _write_for(producer: Producer, written: Written, *, seconds: float, chance: random.Random) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for topic in POLICIES:
            value = b"%d:" % written.next_value + bytes(chance.randrange(20, 2000))
            written.next_value += 1
            producer.produce(topic, value, on_delivery=written.on_delivery)
        producer.poll(0.001)


def _check_readable(cluster: LocalCluster, written: Written, when: str) -> None:
    read = _read_all(cluster)
    missing = [at for at, value in written.acknowledged.items() if read.get(at) != value]
    assert missing == [], (
        f"{when}: {len(missing)} acknowledged records are lost or changed, e.g. {missing[:3]}"
    )
    values = list(read.values())
    assert len(set(values)) == len(values), f"{when}: an idempotent producer's record is there twice"


def _read_all(cluster: LocalCluster) -> dict[tuple[str, int, int], bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    wanted = [TopicPartition(topic, p, OFFSET_BEGINNING) for topic in POLICIES for p in range(PARTITIONS)]
    consumer.assign(wanted)
    read: dict[tuple[str, int, int], bytes] = {}
    at_end: set[tuple[str, int]] = set()
    deadline = time.monotonic() + 60
    while len(at_end) < len(wanted):
        assert time.monotonic() < deadline, f"only {len(at_end)} of {len(wanted)} partitions could be read"
        for message in consumer.consume(1000, 0.5):
            error = message.error()
            if error is None:
                read[message.topic(), message.partition(), message.offset()] = message.value()
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add((message.topic(), message.partition()))
    consumer.close()
    return read


def _check_files(log_dir: Path, written: Written) -> None:
    """Every batch on disk is whole and right, offsets rise, and index entries point at what they say."""
    segments = sorted(log_dir.glob("kill-*/*.log"))
    assert len(segments) >= len(POLICIES) * PARTITIONS
    for segment in segments:
        data = segment.read_bytes()
        last_at: dict[int, int] = {}
        end, next_offset = 0, int(segment.stem)
        for position, header in complete_batches(data):
            assert verify(data, position, header), f"{segment}: bad CRC at {position}"
            assert header.base_offset >= next_offset, f"{segment}: offsets go back at {position}"
            next_offset, end = header.next_offset, position + header.size
            last_at[position] = header.last_offset
        assert end == len(data), f"{segment}: {len(data) - end} bytes of half a batch at the end"
        index = segment.with_suffix(".index").read_bytes()
        for relative, position in struct.iter_unpack(">ii", index):
            assert last_at.get(position) == int(segment.stem) + relative, f"{segment}: index entry {relative}"
