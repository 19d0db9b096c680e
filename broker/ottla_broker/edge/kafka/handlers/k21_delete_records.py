"""DeleteRecords (21), versions 0-2: move the start of partitions up; -1 means up to the high watermark. [S]

Partitions are done one after the other: almost always each is done at once. The protocol has no place for a
sentence here, only for codes.

Versions: 2 is the flexible form; nothing else changed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_NO_WATERMARK = -1


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _delete(context, request.fields())


async def _delete(context: Context, fields: dict[str, Any]) -> Reply:
    timeout_s = admin.timeout_s(fields["timeout"])
    topics = []
    for topic in fields["topics"]:
        partitions = [
            await _partition(
                context, TopicPartition(topic["name"], item["partition_index"]), item["offset"], timeout_s
            )
            for item in topic["partitions"]
        ]
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


async def _partition(context: Context, tp: TopicPartition, offset: int, timeout_s: float) -> dict[str, Any]:
    try:
        outcome = context.services.records.delete_records(tp, offset, timeout_s)
        low_watermark = await outcome if isawaitable(outcome) else outcome
    except RequestError as error:
        return {
            "partition_index": tp.partition,
            "low_watermark": _NO_WATERMARK,
            "error_code": context.failed(error),
        }
    return {"partition_index": tp.partition, "low_watermark": low_watermark, "error_code": 0}
