"""A member of a consumer group that reads and commits until standard input is closed. [A]

Runs in a pod; standard library and confluent-kafka only. The last line it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from select import select

from confluent_kafka import Consumer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--name", required=True, help="client.id")
    asked = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": asked.bootstrap,
            "group.id": asked.group,
            "client.id": asked.name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
        }
    )
    consumer.subscribe([asked.topic])
    read = 0
    # Standard input says nothing: it can be read from when it is closed.
    while not select([sys.stdin], [], [], 0)[0]:
        read += sum(1 for message in consumer.consume(1000, timeout=0.2) if not message.error())
    consumer.close()
    print(json.dumps({"read": read}), flush=True)


if __name__ == "__main__":
    main()
