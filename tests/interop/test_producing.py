"""What producers of each stock client rely on: acknowledgements, idempotence, limits, new topics."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from interop.clients import (
    TIMEOUT_S,
    Sample,
    kcat,
    read_confluent,
    write_aiokafka,
    write_confluent,
    write_kafka_python,
)
from interop.target import Target

pytestmark = pytest.mark.integration

SAMPLES = [Sample(b"key %d" % n, b"value %d" % n) for n in range(50)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize(
    "write",
    [write_confluent, write_aiokafka, write_kafka_python],
    ids=["confluent", "aiokafka", "kafka-python"],
)
def test_every_kind_of_acknowledgement(
    target: Target, topic: str, write: Callable[..., None], acks: int | str
) -> None:
    write(target, topic, SAMPLES, acks=acks, **_without_idempotence(write, acks))
    assert read_confluent(target, topic, len(SAMPLES)) == SAMPLES


def _without_idempotence(write: Callable[..., None], acks: int | str) -> dict[str, bool]:
    """kafka-python's producer is idempotent unless told otherwise, and that needs acks=all."""
    return {"enable_idempotence": False} if write is write_kafka_python and acks != "all" else {}


@pytest.mark.parametrize(
    ("write", "setting"),
    [
        (write_confluent, "enable.idempotence"),
        (write_aiokafka, "enable_idempotence"),
        (write_kafka_python, "enable_idempotence"),
    ],
    ids=["confluent", "aiokafka", "kafka-python"],
)
def test_idempotent_producers_number_their_batches(
    target: Target, topic: str, write: Callable[..., None], setting: str
) -> None:
    write(target, topic, SAMPLES, **{setting: True})
    write(target, topic, SAMPLES, **{setting: True})
    next_sequence: dict[int, int] = {}
    for header in target.batches(topic):
        assert header.has_producer
        assert header.base_sequence == next_sequence.get(header.producer_id, 0)
        next_sequence[header.producer_id] = header.base_sequence + header.count
    assert sorted(next_sequence.values()) == [len(SAMPLES), len(SAMPLES)], "two producers have two ids"
    assert read_confluent(target, topic, 2 * len(SAMPLES)) == SAMPLES * 2


def test_kcat_with_idempotence(target: Target, topic: str) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(1000))
    kcat(target, "-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "batch.size=2000", stdin=lines)
    headers = target.batches(topic)
    assert len(headers) > 3
    assert len({header.producer_id for header in headers}) == 1
    assert kcat(target, "-C", "-t", topic, "-o", "beginning", "-e") == lines


def test_a_batch_beyond_the_topics_limit_is_refused(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(new_name(), max_message_bytes="10000")
    outcomes: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        outcomes.append(error)

    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
    producer.produce(topic, b"x" * 20_000, partition=0, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    producer.produce(topic, b"x" * 5_000, partition=0, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    refused, accepted = outcomes
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert accepted is None
    assert sum(header.count for header in target.batches(topic)) == 1


def test_a_topic_appears_when_it_is_written_to(target: Target, new_name: Callable[[], str]) -> None:
    topic = new_name()
    write_confluent(target, topic, SAMPLES[:5])
    assert read_confluent(target, topic, 5) == SAMPLES[:5]


def test_a_consumer_does_not_make_topics(target: Target, new_name: Callable[[], str]) -> None:
    command = ["kcat", "-b", target.bootstrap, "-C", "-t", new_name(), "-p", "0", "-e"]
    command += ["-X", "allow.auto.create.topics=false", "-X", "topic.metadata.propagation.max.ms=500"]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert b"Unknown topic or partition" in done.stderr or b"Unknown topic" in done.stderr


def test_kcat_lists_the_cluster(target: Target, topic: str) -> None:
    listing = kcat(target, "-L", "-t", topic).decode()
    assert f"at {target.bootstrap}" in listing
    assert f'topic "{topic}" with 1 partitions' in listing
