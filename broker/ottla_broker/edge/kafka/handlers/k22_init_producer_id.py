"""InitProducerId (22), versions 0-6: an identity for an idempotent or transactional producer. [S]

With a transactional id this broker must be its coordinator; the new epoch fences all earlier producers of the id.

Versions: 2 is flexible; 3 lets a producer name the id it had (KIP-360): without transactions it gets a new one all the
same, as in Kafka; 4 and 5 only change which errors may be returned; 6 asks about two-phase commit (KIP-939), which is
refused.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.errors import InvalidRequest, RequestError


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _init(context, request.fields())


async def _init(context: Context, fields: dict[str, Any]) -> Reply:
    try:
        identity = await _identity(context, fields)
    except RequestError as error:
        return {"error_code": context.failed(error), "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}


async def _identity(context: Context, fields: dict[str, Any]) -> ProducerIdentity:
    transactional_id: str | None = fields["transactional_id"]
    if transactional_id is None:
        return await context.services.records.init_producer_id()
    if fields.get("enable2_pc") or fields.get("keep_prepared_txn"):
        raise InvalidRequest("Two-phase commit (KIP-939) is not supported.")
    had = ProducerIdentity(fields.get("producer_id", -1), fields.get("producer_epoch", -1))
    return await context.services.transactions.init_producer(
        transactional_id, fields["transaction_timeout"], None if had.producer_id < 0 else had
    )
