"""Three real brokers; a byte of a leader's segment changes in the page cache while consumers read from it.

A normal write to the file changes the page cache, and nothing tells the broker: as a bit that flips in memory.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TOPIC = "t"
RECORDS = 200
ALL = [0, 1, 2]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, settings={"log.scrub.interval.ms": "3000"}) as made:
        yield made


def state(admin: AdminClient) -> tuple[int, list[int]]:
    found = admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions[0]
    return found.leader, sorted(found.isrs)


def until_in_sync(admin: AdminClient, within_s: float = 60) -> int:
    """Gives the leader, once all replicas are in sync."""
    ends = time.monotonic() + within_s
    while (found := state(admin))[1] != ALL or found[0] < 0:
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found[0]


def metric(cluster: LocalCluster, broker: int, name: str) -> float:
    page = urllib.request.urlopen(f"http://{cluster.brokers[broker].http}/metrics", timeout=10)
    (line,) = [text for text in page.read().decode().splitlines() if text.startswith(name + " ")]
    return float(line.rpartition(" ")[2])


def segments(cluster: LocalCluster, broker: int) -> list[Path]:
    return sorted(Path(cluster.brokers[broker].log_dir).rglob(f"{TOPIC}-0/*.log"))


def flip(cluster: LocalCluster, broker: int, spot: bytes) -> None:
    """Change one byte of what lies at `spot` in the broker's first segment."""
    with segments(cluster, broker)[0].open("r+b") as file:
        position = file.read().index(spot)
        file.seek(position)
        file.write(bytes((spot[0] ^ 0x40,)))


def read_all(cluster: LocalCluster, count: int, within_s: float) -> list[bytes]:
    """As a consumer that checks CRCs (the Java client does by default) and goes on after errors."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": "g",
            "check.crcs": True,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    ends = time.monotonic() + within_s
    try:
        while len(values) < count and time.monotonic() < ends:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def create_topic(cluster: LocalCluster, **config: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0})
    settings = {"min.insync.replicas": "2"} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    for made in admin.create_topics([NewTopic(TOPIC, 1, 3, config=settings)], request_timeout=20).values():
        made.result(20)
    return admin


def write(cluster: LocalCluster, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(TOPIC, value)
        producer.flush()  # A batch for each.


def until_alike(cluster: LocalCluster, within_s: float = 60) -> None:
    """The copies of all brokers have the same bytes."""
    ends = time.monotonic() + within_s
    while len({tuple(s.read_bytes() for s in segments(cluster, broker)) for broker in ALL}) > 1:
        assert time.monotonic() < ends, "the damaged copy was not made again"
        time.sleep(0.1)


def test_a_flipped_byte_is_noticed_counted_and_repaired(cluster: LocalCluster) -> None:
    admin = create_topic(cluster)
    wanted = [b"value of %06d" % number for number in range(RECORDS)]
    write(cluster, wanted)
    leader = until_in_sync(admin)
    assert metric(cluster, leader, "ottla_log_corruptions_total") == 0

    flip(cluster, leader, wanted[RECORDS // 2])
    began = time.monotonic()
    values = read_all(cluster, RECORDS, within_s=60)
    print(f"read all after {time.monotonic() - began:.1f} s")
    assert values == wanted, f"{len(values)} of {RECORDS} were read"
    assert metric(cluster, leader, "ottla_log_corruptions_total") > 0
    assert metric(cluster, leader, "ottla_log_rereads_checked_total") > 0
    until_in_sync(admin)
    until_alike(cluster)
    print(f"repaired after {time.monotonic() - began:.1f} s")


def test_the_scrubber_finds_damage_of_a_follower_that_nobody_reads(cluster: LocalCluster) -> None:
    admin = create_topic(cluster, segment_bytes=str(1 << 20))
    wanted = [b"value of %06d" % number + b"." * 20_000 for number in range(100)]
    write(cluster, wanted)
    follower = next(broker for broker in ALL if broker != until_in_sync(admin))
    assert len(segments(cluster, follower)) > 1
    flip(cluster, follower, wanted[10][:15])
    began = time.monotonic()
    while not metric(cluster, follower, "ottla_log_scrub_damaged_total"):
        assert time.monotonic() - began < 30, "the scrubber did not find it"
        time.sleep(0.1)
    assert metric(cluster, follower, "ottla_log_corruptions_total") > 0
    until_alike(cluster)
    until_in_sync(admin)
    print(f"repaired after {time.monotonic() - began:.1f} s")
    assert read_all(cluster, len(wanted), within_s=30) == wanted
