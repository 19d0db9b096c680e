"""The same writing and reading with each stock client, so that tests can put any writer before any reader."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiokafka
from confluent_kafka import Consumer, Producer, TopicPartition

from interop.target import Target
from ottla_bench.kafka_jars import KAFKA_CONSOLE_CONSUMER, KAFKA_CONSOLE_PRODUCER, run_tool

with warnings.catch_warnings():
    # kafka-python 3.0 loads its schemas in a way that Python has deprecated; that is its affair.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

#: What the low three bits of a batch's attributes say.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TIMEOUT_S = 30.0
#: Long enough that all samples of one writer share a batch: a batch of one small record may not be worth
#: compressing, and then clients quietly send it plain.
LINGER_MS = 500


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def text_samples(writer: str) -> list[Sample]:
    """What even line-based tools can carry: no tabs, no line ends; nulls, empties and umlauts included."""
    odd = [
        Sample(f"{writer}-key".encode(), b"value", (("colour", b"blue"),)),
        Sample(b"gone", None, (("colour", b"none"),)),
        Sample("schlüssel".encode(), "größe".encode(), (("a", b"1"), ("a", b"2"), ("b", "ü".encode()))),
        Sample(b"large", b"0123456789" * 5_000, (("size", b"50000"),)),
    ]
    return odd + [
        Sample(b"%d" % n, b"record %d of many that look alike" % n, (("n", b"%d" % n),)) for n in range(100)
    ]


def binary_samples() -> list[Sample]:
    """What only a real client can carry."""
    every_byte = bytes(range(256))
    return [
        Sample(None, b"no key"),
        Sample(b"gone", None),
        Sample(b"", b""),
        Sample(every_byte, every_byte * 40, (("bytes", every_byte), ("empty", b""))),
        Sample(b"a\tb\nc\x00", b"\xff\xfe\x00\n\r\t" * 500),
    ]


# librdkafka's current version, through confluent-kafka


def write_confluent(
    target: Target, topic: str, samples: Sequence[Sample], codec: str = "none", **extra: object
) -> None:
    failed: list[object] = []
    config = {"bootstrap.servers": target.bootstrap, "compression.type": codec, "linger.ms": LINGER_MS}
    producer = Producer({**config, "acks": "all", **extra})
    # Else records wait for the topic to be known, and are then handed over one by one while `flush` forbids to linger.
    producer.list_topics(topic, timeout=TIMEOUT_S)
    for sample in samples:
        producer.produce(
            topic,
            value=sample.value,
            key=sample.key,
            headers=list(sample.headers),
            partition=0,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def read_confluent(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    found: list[Sample] = []
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), timeout=1.0):
                assert message.error() is None, message.error()
                assert message.offset() == start + len(found)
                found.append(Sample(message.key(), message.value(), tuple(message.headers() or ())))
    finally:
        consumer.close()
    return found


# librdkafka as Debian ships it, through kcat


def kcat(target: Target, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["kcat", "-b", target.bootstrap, "-q", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def write_kcat(target: Target, topic: str, samples: Sequence[Sample], codec: str = "none") -> None:
    """kcat gives all records of a call the same headers: one call per run of equal headers."""
    runs: list[list[Sample]] = []
    for sample in samples:
        if not runs or runs[-1][0].headers != sample.headers:
            runs.append([])
        runs[-1].append(sample)
    for run in runs:
        headers = [part for name, value in run[0].headers for part in ("-H", f"{name}={value.decode()}")]
        lines = b"".join(b"%b\t%b\n" % (s.key or b"", s.value or b"") for s in run)
        extra = ["-z", codec, "-Z", "-K", "\t", "-X", f"linger.ms={LINGER_MS}", "-p", "0", *headers]
        kcat(target, "-P", "-t", topic, *extra, stdin=lines)


def read_kcat(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    place = ["-t", topic, "-p", "0", "-o", str(start), "-c", str(count)]
    output = kcat(target, "-C", *place, "-J", "-X", "check.crcs=true")
    found = []
    for line in output.decode().splitlines():
        record = json.loads(line)
        names_and_values = record.get("headers") or []
        pairs = zip(names_and_values[::2], names_and_values[1::2], strict=True)
        headers = tuple((name, value.encode()) for name, value in pairs)
        found.append(Sample(_encoded(record["key"]), _encoded(record["payload"]), headers))
    return found


# aiokafka


def write_aiokafka(
    target: Target, topic: str, samples: Sequence[Sample], codec: str = "none", **extra: object
) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=target.bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=LINGER_MS,
            max_batch_size=1_000_000,
            **{"acks": "all", **extra},
        )
        async with producer:
            sent = [
                await producer.send(topic, s.value, s.key, partition=0, headers=list(s.headers))
                for s in samples
            ]
            await asyncio.gather(*sent)

    asyncio.run(asyncio.wait_for(write(), TIMEOUT_S))


def read_aiokafka(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    async def read() -> list[Sample]:
        found: list[Sample] = []
        partition = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=target.bootstrap, group_id=None) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, start)
            while len(found) < count:
                for message in (await consumer.getmany(partition, timeout_ms=1000)).get(partition, []):
                    assert message.offset == start + len(found)
                    found.append(Sample(message.key, message.value, tuple(message.headers)))
        return found[:count]

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


# kafka-python


def write_kafka_python(
    target: Target, topic: str, samples: Sequence[Sample], codec: str = "none", **extra: object
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=target.bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=LINGER_MS,
        batch_size=1_000_000,
        **{"acks": "all", **extra},
    )
    try:
        sent = [producer.send(topic, s.value, s.key, list(s.headers), partition=0) for s in samples]
        producer.flush(TIMEOUT_S)
        for one in sent:
            one.get(TIMEOUT_S)
    finally:
        producer.close(timeout=TIMEOUT_S)


def read_kafka_python(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=target.bootstrap, group_id=None, enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    found: list[Sample] = []
    try:
        consumer.assign([partition])
        consumer.seek(partition, start)
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.poll(timeout_ms=1000).get(partition, []):
                assert message.offset == start + len(found)
                found.append(Sample(message.key, message.value, tuple(message.headers)))
    finally:
        consumer.close()
    return found[:count]


# Kafka's own console tools


def write_console(target: Target, topic: str, samples: Sequence[Sample], codec: str = "none") -> None:
    lines = []
    for sample in samples:
        headers = ",".join(f"{name}:{value.decode()}" for name, value in sample.headers)
        lines.append("\t".join([headers, _shown(sample.key), _shown(sample.value)]) + "\n")
    options = ["--bootstrap-server", target.bootstrap, "--topic", topic, "--compression-codec", codec]
    for name in ("parse.key=true", "parse.headers=true", f"null.marker={_NULL}"):
        options += ["--reader-property", name]
    for name in (f"linger.ms={LINGER_MS}", "batch.size=1000000"):
        options += ["--command-property", name]
    done = run_tool(KAFKA_CONSOLE_PRODUCER, *options, stdin="".join(lines), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr


def read_console(target: Target, topic: str, count: int, start: int = 0) -> list[Sample]:
    options = ["--bootstrap-server", target.bootstrap, "--topic", topic, "--partition", "0"]
    options += ["--offset", str(start), "--max-messages", str(count), "--timeout-ms", "20000"]
    for name in ("print.key=true", "print.headers=true", f"null.literal={_NULL}"):
        options += ["--formatter-property", name]
    done = run_tool(KAFKA_CONSOLE_CONSUMER, *options, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr
    found = []
    for line in done.stdout.splitlines():
        headers, key, value = line.split("\t")
        named = [header.split(":") for header in headers.split(",")] if headers != "NO_HEADERS" else []
        found.append(Sample(_hidden(key), _hidden(value), tuple((n, v.encode()) for n, v in named)))
    return found


_NULL = "NULL"


def _shown(value: bytes | None) -> str:
    return _NULL if value is None else value.decode()


def _hidden(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


Writer = Callable[[Target, str, Sequence[Sample], str], None]
Reader = Callable[[Target, str, int], list[Sample]]

WRITERS: dict[str, Writer] = {
    "confluent": write_confluent,
    "kcat": write_kcat,
    "aiokafka": write_aiokafka,
    "kafka-python": write_kafka_python,
    "console": write_console,
}
READERS: dict[str, Reader] = {
    "confluent": read_confluent,
    "kcat": read_kcat,
    "aiokafka": read_aiokafka,
    "kafka-python": read_kafka_python,
    "console": read_console,
}
