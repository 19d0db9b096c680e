"""InitProducerId (22), versions 0-6: a new producer id for an idempotent producer. [S]

Versions: 2 is flexible; 3 lets a producer name the id it had (KIP-360): without transactions it gets a new
one all the same, as in Kafka; 6 asks about two-phase commit. Left out: transactional ids, which the service
refuses until transactions exist.
"""

from __future__ import annotations

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    return _init(context, fields["transactional_id"], fields["transaction_timeout"])


async def _init(context: Context, transactional_id: str | None, timeout_ms: int) -> Reply:
    try:
        identity = await context.services.records.init_producer_id(transactional_id, timeout_ms)
    except RequestError as error:
        return {"error_code": context.failed(error), "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
