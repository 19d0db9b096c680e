"""Three real brokers: transactions over partitions of different leaders, also when one of them is killed.

Markers and verification requests go between brokers here. Bounds on time are far above what an idle machine shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ottla_broker.coordination.partitioner import coordinator_partition
from ottla_cli.local_cluster import LocalCluster
from ottla_client.admin import NewTopic
from ottla_client.sync import Admin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WITHIN_S = 60.0
STATE_TOPIC = "__transaction_state"
#: One per broker, each led by another one.
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
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


def make_topic(admin: Admin, name: str) -> str:
    ids = sorted(broker.id for broker in admin.describe_brokers(sizes=False).brokers)
    spread = {n: [*ids[n:], *ids[:n]] for n in range(PARTITIONS)}
    admin.create_topics([NewTopic(name, configs={"min.insync.replicas": "2"}, replica_assignments=spread)])
    return name


def leaders_of(admin: Admin, topic: str) -> list[int]:
    return [partition.leader for partition in admin.describe_topics([topic])[0].partitions]


def coordinator_of(admin: Admin, transactional_id: str) -> int:
    leaders = leaders_of(admin, STATE_TOPIC)
    return leaders[coordinator_partition(transactional_id, len(leaders))]


def until_whole(admin: Admin) -> None:
    """All replicas are in sync: another broker may be killed."""

    def is_whole() -> bool:
        return all(len(p.isr) == len(p.replicas) for t in admin.describe_topics() for p in t.partitions)

    until(is_whole, "all replicas are in sync")


def producer_of(cluster: LocalCluster, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 0,
        }
    )
    made.init_transactions(WITHIN_S)
    return made


def write(producer: Producer, topic: str, *names: str) -> set[bytes]:
    """One record with each name to each partition."""
    values = {f"{name}-{partition}".encode(): partition for name in names for partition in range(PARTITIONS)}
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for value, partition in values.items():
        producer.produce(topic, value, partition=partition, on_delivery=note)
    assert producer.flush(WITHIN_S) == 0
    assert failed == []
    return set(values)


def retried(end: Callable[[float], None]) -> None:
    """Commit or abort, again as long as the client says that this may help."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            end(WITHIN_S / 2)
            return
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise


def read(cluster: LocalCluster, topic: str) -> list[bytes]:
    """What a `read_committed` reader sees, up to the last stable offset of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "group.id": f"reads-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + WITHIN_S
    try:
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, "the ends of the partitions were not reached"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return found


def until_read(cluster: LocalCluster, topic: str, expected: set[bytes]) -> None:
    """Markers are written after the end of the transaction is answered."""
    deadline = time.monotonic() + WITHIN_S
    while (found := sorted(read(cluster, topic))) != sorted(expected):
        assert set(found) <= expected, "a record is visible that was not committed"
        assert len(found) == len(set(found)), "a record was written twice"
        assert time.monotonic() < deadline, f"committed, but not read: {expected - set(found)}"
        time.sleep(0.1)


def test_transactions_span_brokers(cluster: LocalCluster, admin: Admin) -> None:
    topic = make_topic(admin, "spans")
    assert len(set(leaders_of(admin, topic))) == PARTITIONS
    committed: set[bytes] = set()
    for number in range(3):  # Several ids: their coordinators are different brokers, too.
        producer = producer_of(cluster, f"spans-{number}")
        producer.begin_transaction()
        committed |= write(producer, topic, f"kept{number}", f"also{number}")
        producer.commit_transaction(WITHIN_S)
        producer.begin_transaction()
        write(producer, topic, f"dropped{number}")
        producer.abort_transaction(WITHIN_S)
        producer.begin_transaction()
        committed |= write(producer, topic, f"last{number}")
        producer.commit_transaction(WITHIN_S)
    until_read(cluster, topic, committed)


@pytest.mark.parametrize("whom", ["coordinator", "leader"])
def test_a_transaction_survives_a_killed_broker(cluster: LocalCluster, admin: Admin, whom: str) -> None:
    topic = make_topic(admin, f"survives-{whom}")
    committing, aborting = producer_of(cluster, f"{topic}-commits"), producer_of(cluster, f"{topic}-aborts")
    until_whole(admin)
    coordinator = coordinator_of(admin, f"{topic}-commits")
    victim = coordinator if whom == "coordinator" else next(b for b in cluster.brokers if b != coordinator)
    for producer in (committing, aborting):
        producer.begin_transaction()
    committed = write(committing, topic, "before")
    write(aborting, topic, "dropped")
    assert read(cluster, topic) == []
    cluster.kill(victim)
    try:
        committed |= write(committing, topic, "after")
        retried(committing.commit_transaction)
        retried(aborting.abort_transaction)
        until_read(cluster, topic, committed)
        committing.begin_transaction()
        committed |= write(committing, topic, "next")
        retried(committing.commit_transaction)
    finally:
        cluster.restart(victim)
    until_whole(admin)
    until_read(cluster, topic, committed)


def test_a_killed_coordinator_leaves_no_transaction_open(cluster: LocalCluster, admin: Admin) -> None:
    """The next coordinator knows the timeout of a transaction whose producer is gone, and aborts it."""
    topic = make_topic(admin, "leaves")
    left = producer_of(cluster, topic, timeout_ms=4000)
    until_whole(admin)
    left.begin_transaction()
    write(left, topic, "left")
    victim = coordinator_of(admin, topic)
    cluster.kill(victim)
    try:
        other = producer_of(cluster, f"{topic}-other")
        other.begin_transaction()
        committed = write(other, topic, "kept")
        retried(other.commit_transaction)
        until_read(cluster, topic, committed)
    finally:
        cluster.restart(victim)
    until_whole(admin)
    until_read(cluster, topic, committed)
