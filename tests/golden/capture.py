"""Let stock producers write the golden batches: `python tests/golden/capture.py [client ...]`.

Each client sends `sample.RECORDS` to a fake broker, once per compression; the batch it sends becomes
`batches/<client>-<codec>.bin`, untouched. Rerun it when a client's format changes, and look at the difference.

`java` needs Java 17 and, in KAFKA_JARS, a folder with kafka-clients and its dependencies (the `libs` folder of any
Apache Kafka 4 will do).
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from golden.fake_broker import FakeBroker  # noqa: E402
from golden.sample import CLIENTS, CODECS, RECORDS, records_by  # noqa: E402

TOPIC = "golden"
BATCH_BYTES = 1_000_000


def librdkafka(address: str, codec: str) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 2000,
            "batch.size": BATCH_BYTES,
            "enable.idempotence": False,
        }
    )
    for record in RECORDS:
        producer.produce(
            TOPIC,
            record.value,
            record.key,
            partition=0,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
    if producer.flush(30):
        raise SystemExit("librdkafka did not deliver.")


def java(address: str, codec: str) -> None:
    jars = os.environ.get("KAFKA_JARS")
    if not jars:
        raise SystemExit("java: set KAFKA_JARS to a folder with kafka-clients and its dependencies.")

    def field(data: bytes | None) -> str:
        return "-" if data is None else "." + base64.b64encode(data).decode()

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for record in RECORDS:
            fields = [str(record.timestamp_ms), field(record.key), field(record.value)]
            for name, value in record.headers:
                fields += [field(name.encode()), field(value)]
            file.write(" ".join(fields) + "\n")
        file.flush()
        command = ["java", "-cp", f"{jars}/*", str(HERE / "Capture.java"), address, codec, file.name]
        subprocess.run(command, check=True, timeout=120)


def aiokafka(address: str, codec: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            linger_ms=2000,
            max_batch_size=BATCH_BYTES,
        )
        await producer.start()
        try:
            for record in RECORDS:
                await producer.send(
                    TOPIC,
                    record.value,
                    record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
            await producer.flush()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), 60))


def kafka_python(address: str, codec: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        linger_ms=2000,
        batch_size=BATCH_BYTES,
        enable_idempotence=False,
    )
    try:
        for record in records_by("kafka-python"):
            producer.send(
                TOPIC,
                record.value,
                record.key,
                partition=0,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
        producer.flush(60)
    finally:
        producer.close(10)


PRODUCE = {"librdkafka": librdkafka, "java": java, "aiokafka": aiokafka, "kafka-python": kafka_python}


def main(clients: list[str]) -> None:
    (HERE / "batches").mkdir(exist_ok=True)
    for client in clients or CLIENTS:
        for codec in CODECS:
            broker = FakeBroker()
            try:
                PRODUCE[client](broker.address, codec)
            finally:
                broker.close()
            if len(broker.batches) != 1:
                raise SystemExit(f"{client} {codec}: {len(broker.batches)} batches instead of one.")
            path = HERE / "batches" / f"{client}-{codec}.bin"
            path.write_bytes(broker.batches[0])
            print(f"{path.name}: {len(broker.batches[0])} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
