"""A script without asyncio: creates a topic, writes records, and reads them back.

python examples/blocking_script.py 127.0.0.1:9192
"""

from __future__ import annotations

import sys

from ottla_client import NewTopic, TopicAlreadyExists, TopicPartition
from ottla_client.sync import Admin, Consumer, Producer

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9192"
topic = sys.argv[2] if len(sys.argv) > 2 else "temperatures"

with Admin(address) as admin:
    try:
        admin.create_topics([NewTopic(topic, num_partitions=2, configs={"retention.ms": "86400000"})])
    except TopicAlreadyExists:
        pass

with Producer(address, key_serializer="str", value_serializer="json") as producer:
    # Records with the same key keep their order, because they go to the same partition.
    sent = [producer.send(topic, {"celsius": 20 + n % 5}, key=f"room-{n % 3}") for n in range(30)]
    print("last offset:", sent[-1].result(timeout_s=30).offset)

with Consumer(address, key_deserializer="str", value_deserializer="json") as consumer:
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
    ends = consumer.end_offsets(partitions)
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    warmest: dict[str, int] = {}
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for record in consumer.poll(timeout_ms=1000):
            warmest[record.key] = max(record.value["celsius"], warmest.get(record.key, 0))

for room, celsius in sorted(warmest.items()):
    print(f"{room}: {celsius} °C")
