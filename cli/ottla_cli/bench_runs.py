"""The measured runs behind `ottla bench` and the demo. [A]

Each returns a dict of plain numbers. Rates cover the whole run, from the first record to the last
acknowledgement or the last record read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.progress import Progress, TaskID

from ottla_cli.bars import progress
from ottla_cli.connecting import admin, usage
from ottla_cli.failure import Failure
from ottla_cli.profiles import security
from ottla_client import Consumer, Delivery, Producer, TopicPartition

#: Records per call; the clock and the progress bar are updated in between.
_STRIDE = 10_000
_QUIET_S = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    records: int
    value_bytes: int
    compression: str
    acks: str
    linger_ms: float
    batch_bytes: int


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of sorted values, by nearest rank."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    ordered = sorted(seconds)
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
    found = {name: round(percentile(ordered, share) * 1000, 4) for name, share in shares.items()}
    return {**found, "max_ms": round(ordered[-1] * 1000, 4) if ordered else 0.0}


def value_of(size_bytes: int) -> bytes:
    """Text that compresses about as well as typical records do."""
    words = b"".join(b"%x," % ((number * 2654435761) & 0xFFFF) for number in range(size_bytes // 3 + 1))
    return words[:size_bytes]


def producer_for(bootstrap: str, load: Load) -> Producer:
    return usage(
        Producer,
        bootstrap,
        security=security(),
        compression=load.compression,
        acks=load.acks,
        linger_ms=load.linger_ms,
        batch_size=load.batch_bytes,
        max_request_size=max(1024 * 1024, load.value_bytes + 4096, load.batch_bytes + 4096),
    )


async def measure_produce(
    bootstrap: str, topic: str, load: Load, *, title: str = "producing"
) -> dict[str, Any]:
    value = value_of(load.value_bytes)
    watched: deque[Delivery] = deque()
    async with producer_for(bootstrap, load) as producer:
        await producer.partitions_for(topic)
        with progress(transient=True) as bar:
            task = bar.add_task(title, total=load.records)
            began = time.perf_counter()
            left = load.records
            while left:
                stride = min(_STRIDE, left)
                deliveries = await producer.send_many(topic, [value] * stride)
                # Watch one delivery per stride, so that a failure ends the run early.
                watched.append(deliveries[0])
                while watched and watched[0].done():
                    watched.popleft().result()
                left -= stride
                bar.advance(task, stride)
            await producer.flush()
            seconds = time.perf_counter() - began
        deliveries[-1].result()
    return {**_rates(load.records, load.records * load.value_bytes, seconds), "acks": load.acks,
            "compression": load.compression, "value_bytes": load.value_bytes}  # fmt: skip


def _rates(records: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(seconds, 4),
        "records_per_s": round(records / seconds, 1),
        "bytes_per_s": round(size_bytes / seconds, 1),
    }


async def measure_consume(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    async with admin(bootstrap) as client:
        (found,) = await client.describe_topics([topic])
        parts = [TopicPartition(topic, each.partition) for each in found.partitions]
        first = await client.list_offsets(dict.fromkeys(parts, "earliest"))
        last = await client.list_offsets(dict.fromkeys(parts, "latest"))
    there = sum(last[tp].offset - first[tp].offset for tp in parts)
    if not there:
        raise Failure(f"Topic {topic} is empty; without --topic, the run fills a topic first.")
    wanted = min(records, there)
    consumer = fast_consumer(bootstrap)
    async with consumer:
        consumer.assign(parts)
        with progress(transient=True) as bar:
            task = bar.add_task("consuming", total=wanted)
            began = time.perf_counter()
            count, size = await _read(consumer, wanted, bar, task)
            seconds = time.perf_counter() - began
    return {**_rates(count, size, seconds), "partitions": len(parts)}


def fast_consumer(bootstrap: str) -> Consumer:
    return usage(
        Consumer,
        bootstrap,
        security=security(),
        auto_offset_reset="earliest",
        max_poll_records=_STRIDE,
        max_partition_fetch_bytes=4 * 1024 * 1024,
    )


async def _read(consumer: Consumer, wanted: int, bar: Progress, task: TaskID) -> tuple[int, int]:
    count = size = 0
    while count < wanted:
        records = await consumer.poll(timeout_ms=_QUIET_S * 1000, max_records=min(_STRIDE, wanted - count))
        if not records:
            raise Failure(f"No record arrived for {_QUIET_S:.0f} s; {count} of {wanted} were read.")
        count += len(records)
        size += sum(len(record.value or b"") for record in records)
        bar.advance(task, len(records))
    return count, size


async def measure_latency(bootstrap: str, topic: str, load: Load) -> dict[str, Any]:
    value = value_of(load.value_bytes)
    acknowledged: list[float] = []
    end_to_end: list[float] = []
    async with producer_for(bootstrap, load) as producer, fast_consumer(bootstrap) as consumer:
        parts = [TopicPartition(topic, number) for number in await producer.partitions_for(topic)]
        # Warm up: the first records open streams and fill caches.
        for _ in range(20):
            await producer.send_and_wait(topic, value, partition=0)
        consumer.assign(parts[:1])
        await consumer.seek_to_end()
        with progress(transient=True) as bar:
            task = bar.add_task("acknowledged", total=load.records)
            for _ in range(load.records):
                began = time.perf_counter()
                await producer.send_and_wait(topic, value, partition=0)
                acknowledged.append(time.perf_counter() - began)
                bar.advance(task)
            await consumer.seek_to_end()
            task = bar.add_task("end to end", total=load.records)
            for _ in range(load.records):
                began = time.perf_counter()
                await producer.send_and_wait(topic, value, partition=0)
                if not await consumer.poll(timeout_ms=_QUIET_S * 1000):
                    raise Failure(f"A record did not reach the consumer within {_QUIET_S:.0f} s.")
                end_to_end.append(time.perf_counter() - began)
                bar.advance(task)
    return {
        "records": load.records,
        "value_bytes": load.value_bytes,
        "acks": load.acks,
        "acknowledged": quantiles(acknowledged),
        "end_to_end": quantiles(end_to_end),
    }
