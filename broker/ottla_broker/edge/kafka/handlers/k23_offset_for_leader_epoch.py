"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended. [S]

A reader that remembers the epoch of its last record notices by it that a log was truncated.

Answers the greatest epoch not above the asked one and its end offset (KIP-279); both are -1 if there is none.

Versions: 3 adds the replica id, which is ignored; 4 is flexible. Kafka has removed versions 0 and 1, and
from here.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition


def handle(context: Context, request: Request) -> Reply:
    topics = [
        {
            "topic": topic["topic"],
            "partitions": [_partition(context, topic["topic"], wanted) for wanted in topic["partitions"]],
        }
        for topic in request.fields()["topics"]
    ]
    return {"topics": topics}


def _partition(context: Context, topic: str, wanted: dict[str, Any]) -> dict[str, Any]:
    tp = TopicPartition(topic, wanted["partition"])
    try:
        end = context.services.records.epoch_end(tp, wanted["leader_epoch"], wanted["current_leader_epoch"])
    except RequestError as error:
        code = context.failed(error)
        return {"partition": tp.partition, "error_code": code, "leader_epoch": -1, "end_offset": -1}
    return {"partition": tp.partition, "leader_epoch": end.leader_epoch, "end_offset": end.end_offset}
