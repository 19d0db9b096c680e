"""One client library that writes or reads records, in a process of its own; prints rate and CPU time as JSON. [A]

`python -m ottla_bench.client_load LIBRARY ADDRESS TOPIC RECORDS`. The measured time starts after the connection and
the first records, so that imports, connecting and metadata are not counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

_VALUE = b"v" * 100
_WARM = 2_000
_POLL = 500
#: Records are acknowledged by the leader and, on one broker, by nobody else.
_ACKS = "all"


class Watch:
    """Wall and CPU time of this process, with all its threads, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self, records: int) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"records": records, "wall_s": wall, "cpu_s": cpu}


# ---------------------------------------------------------------------- produce


async def ottla_send(address: str, topic: str, records: int) -> dict[str, float]:
    from ottla_client import Producer

    async with Producer(address, acks=_ACKS) as producer:
        for _ in range(_WARM):
            await producer.send(topic, _VALUE)
        await producer.flush()
        watch = Watch()
        for _ in range(records):
            await producer.send(topic, _VALUE)
        await producer.flush()
        return watch.spent(records)


def ottla_blocking_send(address: str, topic: str, records: int) -> dict[str, float]:
    from ottla_client.sync import Producer

    with Producer(address, acks=_ACKS) as producer:
        for _ in range(_WARM):
            producer.send(topic, _VALUE)
        producer.flush()
        watch = Watch()
        for _ in range(records):
            producer.send(topic, _VALUE)
        producer.flush()
        return watch.spent(records)


async def aiokafka_send(address: str, topic: str, records: int) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=address, acks=_ACKS, enable_idempotence=True, linger_ms=5, max_batch_size=262_144
    )
    await producer.start()
    try:
        for _ in range(_WARM):
            await producer.send(topic, _VALUE)
        await producer.flush()
        watch = Watch()
        for _ in range(records):
            await producer.send(topic, _VALUE)
        await producer.flush()
        return watch.spent(records)
    finally:
        await producer.stop()


def confluent_send(address: str, topic: str, records: int) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": _ACKS, "enable.idempotence": True})

    def send(count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, _VALUE)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush(60)

    send(_WARM)
    watch = Watch()
    send(records)
    return watch.spent(records)


# ---------------------------------------------------------------------- consume


async def ottla_poll(address: str, topic: str, records: int) -> dict[str, float]:
    from ottla_client import Consumer, TopicPartition

    async with Consumer(address, auto_offset_reset="earliest", max_poll_records=_POLL) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        while seen < _WARM:
            seen += len(await consumer.poll(1000))
        watch, before = Watch(), seen
        while seen < records:
            for _record in await consumer.poll(1000):
                seen += 1
                if seen >= records:
                    break
        return watch.spent(seen - before)


async def ottla_async_for(address: str, topic: str, records: int) -> dict[str, float]:
    from ottla_client import Consumer, TopicPartition

    async with Consumer(address, auto_offset_reset="earliest", max_poll_records=_POLL) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        async for _record in consumer:
            seen += 1
            if seen >= _WARM:
                break
        watch = Watch()
        async for _record in consumer:
            seen += 1
            if seen >= records:
                break
        return watch.spent(seen - _WARM)


def ottla_blocking_for(address: str, topic: str, records: int) -> dict[str, float]:
    from ottla_client import TopicPartition
    from ottla_client.sync import Consumer

    with Consumer(address, auto_offset_reset="earliest", max_poll_records=_POLL) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        for _record in consumer:
            seen += 1
            if seen >= _WARM:
                break
        watch = Watch()
        for _record in consumer:
            seen += 1
            if seen >= records:
                break
        return watch.spent(seen - _WARM)


async def aiokafka_getmany(address: str, topic: str, records: int) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        while seen < _WARM:
            for found in (await consumer.getmany(timeout_ms=1000, max_records=_POLL)).values():
                seen += len(found)
        watch, before = Watch(), seen
        while seen < records:
            for found in (await consumer.getmany(timeout_ms=1000, max_records=_POLL)).values():
                for _record in found:
                    seen += 1
                    if seen >= records:
                        break
        return watch.spent(seen - before)
    finally:
        await consumer.stop()


async def aiokafka_async_for(address: str, topic: str, records: int) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        async for _record in consumer:
            seen += 1
            if seen >= _WARM:
                break
        watch = Watch()
        async for _record in consumer:
            seen += 1
            if seen >= records:
                break
        return watch.spent(seen - _WARM)
    finally:
        await consumer.stop()


def confluent_consume(address: str, topic: str, records: int) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench-client", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        seen = 0
        while seen < _WARM:
            seen += len(consumer.consume(_POLL, 1.0))
        watch, before = Watch(), seen
        while seen < records:
            for record in consumer.consume(_POLL, 1.0):
                record.value()
                seen += 1
        return watch.spent(seen - before)
    finally:
        consumer.close()


LIBRARIES: dict[str, Callable[[str, str, int], Any]] = {
    each.__name__: each
    for each in (
        ottla_send,
        ottla_blocking_send,
        aiokafka_send,
        confluent_send,
        ottla_poll,
        ottla_async_for,
        ottla_blocking_for,
        aiokafka_getmany,
        aiokafka_async_for,
        confluent_consume,
    )
}


def main() -> None:
    library, address, topic, records = sys.argv[1:5]
    work = LIBRARIES[library](address, topic, int(records))
    print(json.dumps(asyncio.run(work) if isinstance(work, Coroutine) else work))


if __name__ == "__main__":
    main()
