"""OffsetDelete (47), version 0: delete committed offsets of topics that a group no longer subscribes to (KIP-496).
[S]"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import DeleteOffsetsReply
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields, image = request.fields(), context.services.image
    topics: list[dict[str, Any]] = fields["topics"]
    asked = [
        TopicPartition(topic["name"], each["partition_index"])
        for topic in topics
        for each in topic["partitions"]
    ]
    wanted = [tp for tp in asked if image.partition(tp) is not None]
    existing = frozenset(wanted)

    def shape(reply: DeleteOffsetsReply) -> Reply:
        errors = iter(reply.errors)
        answer = []
        for topic in topics:
            partitions = []
            for each in topic["partitions"]:
                missing: RequestError | None = UnknownTopicOrPartition()
                tp = TopicPartition(topic["name"], each["partition_index"])
                code = groups.code(context, next(errors) if tp in existing else missing)
                partitions.append({"partition_index": each["partition_index"], "error_code": code})
            answer.append({"name": topic["name"], "partitions": partitions})
        return {"error_code": 0, "topics": answer}

    return groups.answered(
        context,
        lambda: context.services.groups.delete_offsets(fields["group_id"], wanted),
        shape,
        lambda error: {"error_code": error.code},
    )
