"""AlterReplicaLogDirs (34), versions 1-2: moves partitions of this broker to other log directories. Used by
`kafka-reassign-partitions` with `log_dirs`. [S]

Answered when the moves have begun; DescribeLogDirs shows the copies (`is_future_key`). A partition that this broker
does not have yet gets REPLICA_NOT_AVAILABLE, and is created in that directory when it comes. Version 2 is flexible.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.service.log_dirs import DirTarget
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields()["dirs"])


async def _alter(context: Context, dirs: list[dict[str, Any]]) -> Reply:
    targets = [
        DirTarget(TopicPartition(topic["name"], partition), each["path"])
        for each in dirs
        for topic in each["topics"]
        for partition in topic["partitions"]
    ]
    try:
        outcomes = await context.services.log_dirs.alter(targets)
    except RequestError as error:
        outcomes = [error] * len(targets)
    topics: dict[str, list[dict[str, Any]]] = {}
    for (tp, _), outcome in zip(targets, outcomes, strict=True):
        code = 0 if outcome is None else context.failed(outcome)
        topics.setdefault(tp.topic, []).append({"partition_index": tp.partition, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": found} for name, found in topics.items()]}
