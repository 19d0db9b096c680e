"""DescribeProducers (61), version 0: producers of partitions that this broker leads, with open transactions. [S]"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.log.producers import ProducerDescription
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

READ_ONLY = True


def handle(context: Context, request: Request) -> Reply:
    def topic(each: dict[str, Any]) -> dict[str, Any]:
        name = each["name"]
        partitions = Lazy(
            lambda index: _partition(context, TopicPartition(name, index)), each["partition_indexes"], cost=8
        )
        return {"name": name, "partitions": partitions}

    return {"topics": Lazy(topic, request.fields()["topics"])}


def _partition(context: Context, tp: TopicPartition) -> dict[str, Any]:
    try:
        found = context.services.records.producers(tp)
    except RequestError as error:
        context.failed(error)
        return {"partition_index": tp.partition, "active_producers": []} | error_fields(error)
    return {
        "partition_index": tp.partition,
        "active_producers": Lazy(_producer, found),
    } | error_fields(None)


def _producer(each: ProducerDescription) -> dict[str, Any]:
    return {
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_sequence": each.last_sequence,
        "last_timestamp": each.last_timestamp_ms,
        "coordinator_epoch": each.coordinator_epoch,
        "current_txn_start_offset": each.txn_first_offset,
    }
