"""Writes and reads over TLS as a User, from the files of its Secret; prints what happened as JSON. [A]"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

FOLDER = Path("/user")


def main() -> None:
    bootstrap, topic, other = sys.argv[1:]
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(FOLDER / "ca.crt"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": (FOLDER / "username").read_text(),
        "sasl.password": (FOLDER / "password").read_text(),
    }
    errors: dict[str, str] = {}
    producer = Producer(settings | {"message.timeout.ms": 30_000, "acks": "all"})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    producer.produce(
        other, b"x", on_delivery=lambda error, _: errors.update({other: error.name() if error else ""})
    )
    left = producer.flush(40)
    consumer = Consumer(settings | {"group.id": "clerks", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read, deadline = 0, time.monotonic() + 40
    while read < 100 and time.monotonic() < deadline:
        read += sum(1 for message in consumer.consume(100, timeout=1) if not message.error())
    consumer.close()
    print(json.dumps({"left": left, "read": read, "refused": errors.get(other)}), flush=True)


if __name__ == "__main__":
    main()
