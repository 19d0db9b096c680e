"""Records how many replicas of a topic are in sync until standard input is closed. [A]

Runs in a pod; standard library and confluent-kafka only. The last line it prints is JSON: each change, with its time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from select import select

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    asked = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": asked.bootstrap})
    changes: list[tuple[float, int]] = []
    # Standard input says nothing: it can be read from when it is closed.
    while not select([sys.stdin], [], [], 0.05)[0]:
        try:
            found = admin.list_topics(asked.topic, timeout=2).topics[asked.topic].partitions.values()
        except KafkaException:
            continue
        fewest = min(len(each.isrs) for each in found)
        if not changes or changes[-1][1] != fewest:
            changes.append((time.time(), fewest))
    print(json.dumps({"fewest_in_sync": changes}), flush=True)


if __name__ == "__main__":
    main()
