"""DescribeTransactions (65), version 0: transactional ids that this broker coordinates, in detail. [S]"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError

READ_ONLY = True

#: Beside an error, as Kafka has it.
_NOTHING: dict[str, Any] = {"transaction_start_time": 0, "topics": []}


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _describe(context, request.fields()["transactional_ids"])


async def _describe(context: Context, wanted: list[str]) -> Reply:
    return {"transaction_states": await asyncio.gather(*(_one(context, each) for each in wanted))}


async def _one(context: Context, transactional_id: str) -> dict[str, Any]:
    try:
        txn = (await context.services.transactions.describe(transactional_id)).value
    except RequestError as error:
        return _NOTHING | {"error_code": context.failed(error), "transactional_id": transactional_id}
    return {
        "error_code": 0,
        "transactional_id": transactional_id,
        "transaction_state": txn.state.title,
        "transaction_timeout": txn.timeout_ms,
        "transaction_start_time": txn.started_ms,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": [tp.partition for tp in run]}
            for topic, run in groupby(sorted(txn.partitions), lambda tp: tp.topic)
        ],
    }
