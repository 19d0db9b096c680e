"""ListPartitionReassignments (46), version 0: which partitions are being moved. `kafka-topics --describe`
asks this. [S]

Null topics ask for everything that moves; partitions that stand still, or do not exist, are left out of the
answer. A move that waits for its turn is listed as if it had begun.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla_broker.acl import Operation
from ottla_broker.controller.reassignment import announced
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.metadata.image import TopicImage


def handle(context: Context, request: Request) -> Reply:
    context.services.access.check_cluster(Operation.DESCRIBE)
    image, asked = context.services.image, request.fields()["topics"]
    moving = []
    if asked is None:
        moving = [_topic(topic, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        for item in asked:
            topic = image.topics.get(item["name"])
            if topic is not None:
                moving.append(_topic(topic, item["partition_indexes"]))
    return {"topics": [topic for topic in moving if topic["partitions"]]} | error_fields(None)


def _topic(topic: TopicImage, indexes: Iterable[int]) -> dict[str, Any]:
    partitions = []
    for index in indexes:
        if not 0 <= index < len(topic.partitions):
            continue
        partition = announced(topic.partitions[index])
        if partition.adding or partition.removing:
            moved = {"adding_replicas": partition.adding, "removing_replicas": partition.removing}
            partitions.append({"partition_index": index, "replicas": partition.replicas} | moved)
    return {"name": topic.name, "partitions": partitions}
