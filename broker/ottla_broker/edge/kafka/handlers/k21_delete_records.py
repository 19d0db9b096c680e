"""DeleteRecords (21), versions 0-2: move the start of partitions up; -1 means up to the high watermark. [S]

Answered when all in-sync replicas of each partition have deleted the records. All partitions are started before the
first is awaited, so that they share the request's timeout. The protocol has no place for a sentence here, only for
codes.

Versions: 2 is the flexible form; nothing else changed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.deleting import each_deleted
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_NO_WATERMARK = -1


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _delete(context, request.fields())


async def _delete(context: Context, fields: dict[str, Any]) -> Reply:
    timeout_s = admin.timeout_s(fields["timeout"])
    delete = context.services.records.delete_records
    wanted = [
        (TopicPartition(topic["name"], item["partition_index"]), item["offset"])
        for topic in fields["topics"]
        for item in topic["partitions"]
    ]
    outcomes = iter(await each_deleted(delete, wanted, timeout_s))
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _answer(context, item["partition_index"], next(outcomes)) for item in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
    }


def _answer(context: Context, partition: int, outcome: int | RequestError) -> dict[str, Any]:
    if isinstance(outcome, RequestError):
        return {
            "partition_index": partition,
            "low_watermark": _NO_WATERMARK,
            "error_code": context.failed(outcome),
        }
    return {"partition_index": partition, "low_watermark": outcome, "error_code": 0}
