"""Chapter 1: write a million records, read them through both protocols, show the rates. [A]

Every record is checked: the number of records read, and a checksum over all of them that does not depend on the
order between partitions.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from zlib import crc32

from rich.console import Console
from rich.progress import Progress

from ottla_cli.bars import progress
from ottla_cli.connecting import run
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import LocalCluster
from ottla_cli.quantities import show_count, show_duration, show_size
from ottla_cli.screen import table

TOPIC = "postcards"
PARTITIONS = 6
REPLICAS = 3
VALUE_BYTES = 100
_STRIDE = 5_000
_QUIET_S = 20.0
_TEXT = b"Dear Ottla, the weather here is fine and the log is long. Yours, Franz. " * 2


@dataclass(frozen=True, slots=True)
class Leg:
    """Result of one write or read of all records."""

    name: str
    records: int
    size_bytes: int
    seconds: float
    checksum: int


def postcard(number: int) -> bytes:
    return b"%012d " % number + _TEXT[: VALUE_BYTES - 13]


def show(console: Console, cluster: LocalCluster, records: int) -> None:
    with progress(on=console, shown=True) as bar:
        legs = run(_native(cluster.grpc_bootstrap, records, bar))
        legs.append(_kafka(cluster.kafka_bootstrap, records, bar))
    _show(console, legs, _folder_bytes(cluster.data_dir))
    check(legs)
    console.print("[green]✓[/] Every postcard came back both ways; checksums agree.")


# --- gRPC, with Ottla's own client ---


async def _native(bootstrap: str, records: int, bar: Progress) -> list[Leg]:
    from ottla_client import Admin, NewTopic

    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])
    return [await _write(bootstrap, records, bar), await _read(bootstrap, records, bar)]


async def _write(bootstrap: str, records: int, bar: Progress) -> Leg:
    from ottla_client import Producer

    task = bar.add_task("write (gRPC)", total=records)
    checksum = size = 0
    async with Producer(bootstrap) as producer:
        began = time.perf_counter()
        for first in range(0, records, _STRIDE):
            values = [postcard(number) for number in range(first, min(first + _STRIDE, records))]
            deliveries = await producer.send_many(TOPIC, values)
            checksum += sum(map(crc32, values))
            size += sum(map(len, values))
            bar.advance(task, len(values))
        await producer.flush()
        seconds = time.perf_counter() - began
        deliveries[-1].result()
    return Leg("write through gRPC, acks=all", records, size, seconds, checksum)


async def _read(bootstrap: str, records: int, bar: Progress) -> Leg:
    from ottla_client import Consumer, TopicPartition

    task = bar.add_task("read (gRPC)", total=records)
    count = checksum = size = 0
    consumer = Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=_STRIDE)
    async with consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        began = time.perf_counter()
        while count < records:
            found = await consumer.poll(timeout_ms=_QUIET_S * 1000)
            if not found:
                raise Failure(f"Only {count} of {records} records came back through gRPC.")
            values = [record.value for record in found]
            count += len(values)
            checksum += sum(map(crc32, values))
            size += sum(map(len, values))
            bar.advance(task, len(values))
        seconds = time.perf_counter() - began
    return Leg("read through gRPC", count, size, seconds, checksum)


# --- the Kafka protocol, with a stock client ---


def _kafka(bootstrap: str, records: int, bar: Progress) -> Leg:
    try:
        from confluent_kafka import Consumer, TopicPartition
    except ImportError:
        raise Failure(
            "Reading through Kafka's protocol needs a stock client, librdkafka's: pip install confluent-kafka."
        ) from None
    task = bar.add_task("read (Kafka)", total=records)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "postcards",  # librdkafka wants one; partitions are assigned by hand
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        count = checksum = size = 0
        began = time.perf_counter()
        while count < records:
            messages = consumer.consume(_STRIDE, timeout=_QUIET_S)
            if not messages:
                raise Failure(f"Only {count} of {records} records came back through the Kafka protocol.")
            for message in messages:
                if message.error():
                    raise Failure(f"The Kafka client reports: {message.error()}.")
            values = [message.value() for message in messages]
            count += len(values)
            checksum += sum(map(crc32, values))
            size += sum(map(len, values))
            bar.advance(task, len(values))
        seconds = time.perf_counter() - began
    finally:
        consumer.close()
    return Leg("read through Kafka's protocol", count, size, seconds, checksum)


# --- the end ---


def _folder_bytes(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        if os.path.basename(folder).startswith(TOPIC):
            total += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    return total


def _show(console: Console, legs: list[Leg], size_bytes: int) -> None:
    console.print()
    console.print(
        table(
            ("", "records#", "time#", "records/s#", "MB/s#", "checksum#"),
            (
                (
                    leg.name,
                    show_count(leg.records),
                    show_duration(leg.seconds),
                    show_count(leg.records / leg.seconds),
                    f"{leg.size_bytes / leg.seconds / 1e6:.1f}",
                    f"{leg.checksum:x}",
                )
                for leg in legs
            ),
        )
    )
    console.print(
        f"[dim]{PARTITIONS} partitions with {REPLICAS} copies each, {show_size(size_bytes)} on disk.[/dim]"
    )


def check(legs: list[Leg]) -> None:
    written = legs[0]
    for leg in legs[1:]:
        if (leg.records, leg.checksum) != (written.records, written.checksum):
            raise Failure(
                f"{leg.name}: {leg.records} records were read, but they differ from what was written."
            )
