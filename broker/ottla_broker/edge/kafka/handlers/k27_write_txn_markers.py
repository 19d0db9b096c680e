"""WriteTxnMarkers (27), versions 1-2: end a transaction in partitions that this broker leads. [S]

Kafka's coordinators use it between brokers; here it serves administrators who abort a hanging transaction
(`kafka-transactions abort`). Ottla's coordinators use the internal listener (`service/txn_markers.py`).

Versions: 2 adds the transaction version, which is not needed here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.ids import TopicPartition

#: Each marker waits until it is replicated, so a request with a thousand of them, one by one, would take half a minute.
_AT_ONCE = 32


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _write(context, request.fields()["markers"])


async def _write(context: Context, markers: list[dict[str, Any]]) -> Reply:
    answer: list[dict[str, Any]] = []
    for start in range(0, len(markers), _AT_ONCE):
        some = markers[start : start + _AT_ONCE]
        answer += await asyncio.gather(*(_one(context, each) for each in some))
    return {"markers": answer}


async def _one(context: Context, fields: dict[str, Any]) -> dict[str, Any]:
    topics: list[dict[str, Any]] = fields["topics"]
    marker = TransactionMarker(
        ProducerIdentity(fields["producer_id"], fields["producer_epoch"]),
        fields["coordinator_epoch"],
        fields["transaction_result"],
    )
    wanted = [
        TopicPartition(topic["name"], index) for topic in topics for index in topic["partition_indexes"]
    ]
    outcomes = iter(await context.services.transactions.write_markers(marker, wanted))
    answer = []
    for topic in topics:
        partitions = []
        for index in topic["partition_indexes"]:
            error = next(outcomes)
            code = 0 if error is None else context.failed(error)
            partitions.append({"partition_index": index, "error_code": code})
        answer.append({"name": topic["name"], "partitions": partitions})
    return {"producer_id": fields["producer_id"], "topics": answer}
