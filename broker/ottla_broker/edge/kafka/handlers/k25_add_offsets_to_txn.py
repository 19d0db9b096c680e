"""AddOffsetsToTxn (25), versions 0-4: a transaction is about to commit offsets of a group. [S]

Versions: 3 is flexible; 4 only changes which errors may be returned. Clients with transactions v2 do not send it.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _add(context, request.fields())


async def _add(context: Context, fields: dict[str, Any]) -> Reply:
    producer = ProducerIdentity(fields["producer_id"], fields["producer_epoch"])
    try:
        await context.services.transactions.add_offsets(
            fields["transactional_id"], producer, fields["group_id"]
        )
    except RequestError as error:
        return {"error_code": context.failed(error)}
    return {"error_code": 0}
