"""DescribeProducers (61), version 0: producers of partitions that this broker leads, with open transactions. [S]"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

READ_ONLY = True


def handle(context: Context, request: Request) -> Reply:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _partition(context, TopicPartition(topic["name"], index))
                    for index in topic["partition_indexes"]
                ],
            }
            for topic in request.fields()["topics"]
        ]
    }


def _partition(context: Context, tp: TopicPartition) -> dict[str, Any]:
    try:
        found = context.services.records.producers(tp)
    except RequestError as error:
        context.failed(error)
        return {"partition_index": tp.partition, "active_producers": []} | error_fields(error)
    return {
        "partition_index": tp.partition,
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp_ms,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.txn_first_offset,
            }
            for each in found
        ],
    } | error_fields(None)
