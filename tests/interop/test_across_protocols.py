"""Written over one protocol, read over the other: the same records, and on disk and on both wires the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from interop.clients import CODECS, READERS, TIMEOUT_S, WRITERS, Sample, binary_samples, text_samples
from interop.native import fetch_batches, produce_batches
from interop.target import Target
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import PREFIX_BYTES, header_at

pytestmark = pytest.mark.integration

#: The clients that carry any byte; the console tools have their own tests.
LIBRARIES = ("confluent", "aiokafka", "kafka-python")
SAMPLES = binary_samples() + text_samples("native")


@pytest.fixture(autouse=True)
def _only_ottla(target: Target) -> None:
    if not target.is_ottla:
        pytest.skip("Apache Kafka does not speak the native protocol")


def write_native(target: Target, topic: str, samples: Sequence[Sample], codec: str) -> None:
    from ottla_client import Producer

    async def write() -> None:
        async with Producer(
            target.grpc or "", compression=codec, linger_ms=200, batch_size=500_000
        ) as producer:
            sent = [
                await producer.send(topic, s.value, key=s.key, headers=s.headers, partition=0)
                for s in samples
            ]
            await asyncio.gather(*sent)

    asyncio.run(asyncio.wait_for(write(), TIMEOUT_S))


def read_native(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    from ottla_client import Consumer

    async def read() -> list[Sample]:
        found: list[Sample] = []
        partition = TopicPartition(topic, 0)
        async with Consumer(target.grpc or "") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, start)
            while len(found) < count:
                for record in await consumer.poll(timeout_ms=1000):
                    assert record.offset == start + len(found)
                    found.append(Sample(record.key, record.value, tuple(record.headers)))
        return found[:count]

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", LIBRARIES)
def test_kafka_writes_the_native_protocol_reads(target: Target, topic: str, writer: str, codec: str) -> None:
    WRITERS[writer](target, topic, SAMPLES, codec)
    headers = target.batches(topic)
    assert {header.compression for header in headers} == {CODECS[codec]}
    on_the_wire = b"".join(fetch_batches(target, topic, len(SAMPLES)))
    assert on_the_wire == b"".join(segment.read_bytes() for segment in target.segments(topic))
    assert read_native(target, topic, len(SAMPLES)) == SAMPLES
    assert read_native(target, topic, 10, start=7) == SAMPLES[7:17]


@pytest.mark.parametrize("codec", CODECS)
def test_the_native_protocol_writes_kafka_reads(target: Target, topic: str, codec: str) -> None:
    write_native(target, topic, SAMPLES, codec)
    headers = target.batches(topic)
    assert {header.compression for header in headers} == {CODECS[codec]}
    assert sum(header.count for header in headers) == len(SAMPLES)
    for reader in LIBRARIES:
        assert READERS[reader](target, topic, len(SAMPLES)) == SAMPLES, reader


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_crosses_both_protocols_unchanged(
    target: Target, codec: str, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> None:
    """A stock client's batches, fetched over gRPC and written back over gRPC, are the same batches for Kafka."""
    first, second = make_topic(new_name()), make_topic(new_name())
    WRITERS["confluent"](target, first, SAMPLES, codec)
    fetched = fetch_batches(target, first, len(SAMPLES))
    for batch in fetched:
        assert produce_batches(target, second, batch) == header_at(batch).base_offset
    again = fetch_batches(target, second, len(SAMPLES))
    assert [batch[PREFIX_BYTES:] for batch in again] == [batch[PREFIX_BYTES:] for batch in fetched]
    assert {header.compression for header in target.batches(second)} == {CODECS[codec]}
    assert READERS["aiokafka"](target, second, len(SAMPLES)) == SAMPLES
