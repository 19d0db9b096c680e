"""Transactions of stock clients: commit, abort, fencing, offsets in a transaction, and what administrators see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from interop.clients import kafka
from interop.target import Target
from ottla_bench.kafka_jars import (
    KAFKA_CONSOLE_CONSUMER,
    KAFKA_PRODUCER_PERF_TEST,
    KAFKA_TRANSACTIONS,
    run_tool,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WAIT_S = 60.0


def producer_of(target: Target, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
        }
    )
    made.init_transactions(WAIT_S)
    return made


def consumer_of(target: Target, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def values(target: Target, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Everything that a reader sees up to the end that its isolation level allows."""
    consumer, found = consumer_of(target, f"reads-{topic}", isolation), []
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value())
            elif message is not None:
                return found
    finally:
        consumer.close()
    raise AssertionError("the end of the partition was not reached")


def eventually(check: Callable[[], bool], what: str) -> None:
    """Markers are written after the commit is answered."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def test_committed_records_are_read_and_aborted_ones_are_not(target: Target, topic: str) -> None:
    producer = producer_of(target, topic)
    for name, end in (("a", producer.commit_transaction), ("b", producer.abort_transaction)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{name}{number}".encode())
        producer.flush(WAIT_S)
        end(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"c0")
    producer.commit_transaction(WAIT_S)
    eventually(lambda: values(target, topic) == [b"a0", b"a1", b"a2", b"c0"], "committed records only")
    assert len(values(target, topic, "read_uncommitted")) == 7


def test_an_open_transaction_holds_readers_back(target: Target, topic: str) -> None:
    first, second = producer_of(target, topic + "-1"), producer_of(target, topic + "-2")
    first.begin_transaction()
    first.produce(topic, b"open")
    first.flush(WAIT_S)
    second.begin_transaction()
    second.produce(topic, b"later")
    second.commit_transaction(WAIT_S)
    assert values(target, topic) == []
    first.commit_transaction(WAIT_S)
    eventually(lambda: values(target, topic) == [b"open", b"later"], "both transactions")


def test_a_new_producer_fences_the_one_before(target: Target, topic: str) -> None:
    old = producer_of(target, topic)
    old.begin_transaction()
    old.produce(topic, b"old")
    old.flush(WAIT_S)
    new = producer_of(target, topic)
    new.begin_transaction()
    new.produce(topic, b"new")
    new.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    eventually(lambda: values(target, topic) == [b"new"], "the new producer's record only")


def test_a_transaction_that_takes_too_long_is_aborted(target: Target, topic: str) -> None:
    slow = producer_of(target, topic, timeout_ms=1000)
    slow.begin_transaction()
    slow.produce(topic, b"slow")
    slow.flush(WAIT_S)
    other = producer_of(target, topic + "-other")
    other.begin_transaction()
    other.produce(topic, b"quick")
    other.commit_transaction(WAIT_S)
    eventually(lambda: values(target, topic) == [b"quick"], "the slow transaction is aborted")
    with pytest.raises(KafkaException):
        slow.commit_transaction(WAIT_S)


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_belong_to_the_transaction(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str], commits: bool
) -> None:
    source, sink = make_topic(new_name()), make_topic(new_name())
    plain = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(5):
        plain.produce(source, b"%d" % number)
    plain.flush(WAIT_S)
    consumer = consumer_of(target, f"group-{source}")
    consumer.subscribe([source])
    producer = producer_of(target, sink)
    producer.begin_transaction()
    deadline, seen = time.monotonic() + WAIT_S, 0
    while seen < 5:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            producer.produce(sink, message.value())
            seen += 1
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
    )
    (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)
    (committed,) = consumer.committed([TopicPartition(source, 0)], timeout=WAIT_S)
    consumer.close()
    assert committed.offset == (5 if commits else -1001)
    eventually(lambda: len(values(target, sink)) == (5 if commits else 0), "records with their offsets")


async def test_aiokafka(target: Target, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"dropped")
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send_and_wait(topic, b"last")
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=target.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async with asyncio.timeout(WAIT_S):
            assert [(await consumer.getone()).value for _ in range(2)] == [b"kept", b"last"]
    finally:
        await consumer.stop()


def test_kafka_python(target: Target, topic: str, new_name: Callable[[], str]) -> None:
    """With offsets of a group in the transaction."""
    group = new_name()
    producer = kafka.KafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for value, offset, commits in ((b"kept", 3, True), (b"dropped", 4, False), (b"last", 5, True)):
            producer.begin_transaction()
            producer.send(topic, value).get(WAIT_S)
            committed = {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(committed, group)
            (producer.commit_transaction if commits else producer.abort_transaction)()
    finally:
        producer.close(timeout=WAIT_S)
    assert values(target, topic) == [b"kept", b"last"]
    consumer = consumer_of(target, group)
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_S)
    consumer.close()
    assert found.offset == 5


@pytest.mark.java
def test_java_producer_and_console_consumer(target: Target, topic: str) -> None:
    """A Java client of this version uses transactions v2, with an epoch per transaction."""
    done = run_tool(
        KAFKA_PRODUCER_PERF_TEST,
        "--bootstrap-server",
        target.bootstrap,
        *("--topic", topic, "--num-records", "200", "--record-size", "10", "--throughput", "200"),
        *("--transactional-id", topic, "--transaction-duration-ms", "100"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read = run_tool(
        KAFKA_CONSOLE_CONSUMER,
        "--bootstrap-server",
        target.bootstrap,
        *("--topic", topic, "--from-beginning", "--max-messages", "200", "--timeout-ms", "30000"),
        *("--isolation-level", "read_committed"),
    )
    assert "Processed a total of 200 messages" in read.stdout + read.stderr
    epochs = {header.producer_epoch for header in target.batches(topic) if header.is_control}
    assert len(epochs) > 1, "each transaction ends an epoch"


@pytest.mark.java
def test_kafka_transactions_finds_and_aborts(target: Target, topic: str) -> None:
    hanging = producer_of(target, topic)
    hanging.begin_transaction()
    hanging.produce(topic, b"hangs")
    hanging.flush(WAIT_S)

    def tool(*arguments: str) -> str:
        done = run_tool(KAFKA_TRANSACTIONS, "--bootstrap-server", target.bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = next(line for line in tool("list").splitlines() if topic in line).split()
    assert listed[-1] == "Ongoing"
    assert topic in tool("list", "--transactional-id-pattern", f"{topic[:-1]}.")
    assert topic not in tool("list", "--transactional-id-pattern", topic[:-1])
    assert "Ongoing" in tool("describe", "--transactional-id", topic)
    at = ("--topic", topic, "--partition", "0")
    assert listed[2] in tool("describe-producers", *at)
    # Open, but known to its coordinator: not hanging. The default is 15 minutes.
    assert topic not in tool("find-hanging", *at, "--max-transaction-timeout", "0")
    tool("abort", *at, "--start-offset", "0")
    assert values(target, topic) == []
    (abort_marker,) = [header for header in target.batches(topic) if header.is_control]
    assert abort_marker.base_offset == 1
