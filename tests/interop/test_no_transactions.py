"""Until there are transactions, a transactional producer fails at once, with an error that its user sees.

The retriable error of an earlier version made clients hang for 30 to 140 s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaError, KafkaException, Producer

from interop.clients import kafka
from interop.target import Target
from ottla_bench.kafka_jars import KAFKA_PRODUCER_PERF_TEST, run_tool

pytestmark = pytest.mark.integration

#: From the call to its error. Clients retry for 30 s or longer where they retry.
LIMIT_S = 5.0
TRANSACTIONAL_ID = "payments"


@pytest.fixture(autouse=True)
def ottla_only(target: Target) -> None:
    if not target.is_ottla:
        pytest.skip("Apache Kafka has transactions")


@contextmanager
def at_once(limit_s: float = LIMIT_S) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < limit_s


def test_confluent_kafka(target: Target) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": TRANSACTIONAL_ID})
    with at_once(), pytest.raises(KafkaException) as refused:
        producer.init_transactions(30)
    error = refused.value.args[0]
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error.fatal()
    assert "does not support transactions" in error.str()


async def test_aiokafka(target: Target) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=TRANSACTIONAL_ID)
    try:
        with at_once(), pytest.raises(TransactionalIdAuthorizationFailed):
            async with asyncio.timeout(30):
                await producer.start()
                async with producer.transaction():
                    pass
    finally:
        await producer.stop()


def test_kafka_python(target: Target) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=TRANSACTIONAL_ID)
    try:
        with at_once(), pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
            producer.init_transactions()
    finally:
        producer.close(timeout=5)


@pytest.mark.java
def test_java(target: Target, topic: str) -> None:
    """Of a tool's whole run, the JVM's start and end included."""
    with at_once(3 * LIMIT_S):
        done = run_tool(
            KAFKA_PRODUCER_PERF_TEST,
            "--bootstrap-server",
            target.bootstrap,
            *("--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1"),
            *("--transactional-id", TRANSACTIONAL_ID),
        )
    assert done.returncode != 0
    assert "TransactionalIdAuthorizationException" in done.stdout + done.stderr
