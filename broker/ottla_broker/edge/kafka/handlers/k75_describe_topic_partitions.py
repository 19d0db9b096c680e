"""DescribeTopicPartitions (75), version 0: partitions of topics, page by page, with their ELR (KIP-966). [S]

Topics come in the order of their names. When the page is full, the answer's cursor names the partition that
comes next; the client sends it back to go on. No topics at all means all topics that the
caller may describe. Kafka's Java Admin uses this since 4.0.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.controller.names import no_such_topic
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_core.errors import InvalidRequest, LeaderNotAvailable

#: Kafka's `max.request.partition.size.limit`: no page is longer, whatever the client asks for.
_PARTITIONS_MAX = 2000


def handle(context: Context, request: Request) -> Reply:
    fields, image = request.fields(), context.services.image
    cursor = fields["cursor"]
    first_topic, first_partition = (
        ("", 0) if cursor is None else (cursor["topic_name"], cursor["partition_index"])
    )
    if first_partition < 0:
        raise InvalidRequest(f"The cursor's partition must not be negative, but is {first_partition}.")
    left = max(min(fields["response_partition_limit"], _PARTITIONS_MAX), 1)
    topics: list[dict[str, Any]] = []
    access = context.services.access
    for name in _names(context, fields["topics"], first_topic):
        if left == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        if not access.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            refusal = access.refusal(Operation.DESCRIBE, ResourceType.TOPIC, name)
            topics.append({"name": name, "error_code": context.failed(refusal)})
            continue
        start = first_partition if name == first_topic else 0
        topic = image.topics.get(name)
        if topic is None:
            missing = no_such_topic(name)
            topics.append({"name": name, "error_code": context.failed(missing)})
            continue
        shown = _topic(context, topic, start, left)
        topics.append(shown)
        left -= len(shown["partitions"])
        after = start + len(shown["partitions"])
        if after < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": after}}
    return {"topics": topics, "next_cursor": None}


def _names(context: Context, asked: list[dict[str, Any]], first: str) -> list[str]:
    """The topics to show, from the cursor's on; that one too if the client left it out of its list."""
    names = {item["name"] for item in asked}
    if not names:
        allows = context.services.access.allows
        found = context.services.image.topics
        names = {name for name in found if allows(Operation.DESCRIBE, ResourceType.TOPIC, name)}
    if asked and first:
        names.add(first)
    return sorted(name for name in names if name >= first)


def _topic(context: Context, topic: TopicImage, start: int, count_max: int) -> dict[str, Any]:
    image = context.services.image
    chosen = topic.partitions[start : start + count_max]
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(image, start + at, partition) for at, partition in enumerate(chosen)],
        "topic_authorized_operations": context.services.access.operations(ResourceType.TOPIC, topic.name),
    }


def _partition(image: ClusterImage, index: int, partition: PartitionImage) -> dict[str, Any]:
    has_leader = partition.leader in image.brokers
    return {
        "error_code": 0 if has_leader else LeaderNotAvailable.code,
        "partition_index": index,
        "leader_id": partition.leader if has_leader else -1,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": (),
        "offline_replicas": [broker for broker in partition.replicas if broker not in image.brokers],
    }
