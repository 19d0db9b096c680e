"""AddPartitionsToTxn (24), versions 0-5: partitions that a transaction is about to write to. [S]

Versions: 3 is flexible; 4 is for brokers, with several transactions and `verify_only` (KIP-890); 5 is used by leaders
whose client has transactions v2. Ottla's brokers use their own call for that (`service/transactions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.errors import OperationNotAttempted, RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition

_BATCHED_FROM = 4
_V2_FROM = 5
_OLD = "v3_and_below_"


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    if request.version < _BATCHED_FROM:
        return _one(context, {key.removeprefix(_OLD): value for key, value in fields.items()})
    return _several(context, fields["transactions"], v2=request.version >= _V2_FROM)


async def _one(context: Context, fields: dict[str, Any]) -> Reply:
    return {"results_by_topic_v3_and_below": await _add(context, fields, v2=False)}


async def _several(context: Context, transactions: list[dict[str, Any]], *, v2: bool) -> Reply:
    context.services.access.check_cluster(Operation.CLUSTER_ACTION)
    results = await asyncio.gather(*(_add(context, each, v2=v2) for each in transactions))
    return {
        "error_code": 0,
        "results_by_transaction": [
            {"transactional_id": each["transactional_id"], "topic_results": result}
            for each, result in zip(transactions, results, strict=True)
        ],
    }


async def _add(context: Context, fields: dict[str, Any], *, v2: bool) -> list[dict[str, Any]]:
    topics: list[dict[str, Any]] = fields["topics"]
    wanted = [TopicPartition(topic["name"], index) for topic in topics for index in topic["partitions"]]
    image = context.services.image
    # A topic that the caller may not write to is refused below, whether it exists or not.
    writes = context.services.access.allows
    missing = {
        tp
        for tp in wanted
        if image.partition(tp) is None and writes(Operation.WRITE, ResourceType.TOPIC, tp.topic)
    }
    errors: Sequence[RequestError | None]
    if missing:
        # As in Kafka: one unknown partition, and none is added.
        errors = [UnknownTopicOrPartition() if tp in missing else OperationNotAttempted() for tp in wanted]
    else:
        try:
            errors = await context.services.transactions.partitions_here(
                fields["transactional_id"],
                ProducerIdentity(fields["producer_id"], fields["producer_epoch"]),
                wanted,
                adds=not fields.get("verify_only", False),
                v2=v2,
            )
        except RequestError as error:
            errors = [error] * len(wanted)
    outcomes = iter(errors)
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": _code(context, next(outcomes))}
                for index in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def _code(context: Context, error: RequestError | None) -> int:
    return 0 if error is None else context.failed(error)
