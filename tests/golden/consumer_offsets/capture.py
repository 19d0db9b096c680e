"""How kafka-4.3.log was made: groups on an Apache Kafka, and the partition they left behind.

`python tests/golden/consumer_offsets/capture.py <target file>`; needs Java and Kafka's jars (see `ottla_bench`).
"""

from __future__ import annotations

import shutil
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_bench.kafka_server import KafkaServer

TOPIC = "golden"


def member(bootstrap: str, count: int, **settings: str) -> Consumer:
    """A consumer that has read `count` records and committed that."""
    common = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    consumer = Consumer({**common, **{name.replace("_", "."): value for name, value in settings.items()}})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + 30
    while count and time.monotonic() < deadline:
        count -= len(consumer.consume(1, timeout=1.0))
    consumer.commit(asynchronous=False)
    return consumer


def main(target: str) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with KafkaServer(overrides=settings) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():
            future.result(20)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(10):
            producer.produce(TOPIC, b"x", partition=number % 2)
        producer.flush(20)
        plain = member(kafka.bootstrap, 10, group_id="plain", client_id="one")
        plain.commit(offsets=[TopicPartition(TOPIC, 1, 3, "some metadata")], asynchronous=False)
        strategy = {"partition_assignment_strategy": "cooperative-sticky", "group_instance_id": "inst-1"}
        static = member(kafka.bootstrap, 3, group_id="static", client_id="two", **strategy)
        for consumer in (plain, static):
            consumer.close()
        for future in admin.delete_consumer_groups(["plain"]).values():
            future.result(20)
        time.sleep(1)
        (segment,) = (kafka.data_folder / "__consumer_offsets-0").glob("*.log")
        shutil.copy(segment, target)


if __name__ == "__main__":
    main(sys.argv[1])
