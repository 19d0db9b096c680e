"""Reads a whole topic and compares it with the numbers that write.py saw acknowledged. [A]

Runs in a pod; standard library and confluent-kafka only. The last line it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


def read(bootstrap: str, topic: str, timeout_s: float) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    ends = {each: end_of(consumer, TopicPartition(topic, each)) for each in partitions}
    left = {each: end for each, end in ends.items() if end > 0}
    consumer.assign([TopicPartition(topic, each, 0) for each in left])
    found, deadline = [], time.monotonic() + timeout_s
    while left:
        if time.monotonic() > deadline:
            raise SystemExit(f"not read to the end in {timeout_s:.0f} s: {left}")
        for message in consumer.consume(5000, timeout=1.0):
            if message.error():
                continue
            found.append(message.value().decode())
            if message.offset() + 1 >= ends[message.partition()]:
                left.pop(message.partition(), None)
    consumer.close()
    return found


def end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Where a partition ends. librdkafka leaves it to its caller to ask again when a leader has moved."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=30)[1])
        except KafkaException as failed:
            moved = failed.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not moved or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--log", required=True)
    asked = parser.parse_args()
    with open(asked.log) as file:
        acked = set(file.read().split())
    found = read(asked.bootstrap, asked.topic, 90)
    print(
        json.dumps(
            {
                "acked": len(acked),
                "read": len(found),
                "missing": sorted(acked - set(found))[:10],
                "repeated": len(found) - len(set(found)),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
