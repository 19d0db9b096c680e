"""UnregisterBroker (64), version 0: remove an offline broker without replicas from the cluster's record. [S]

Kafka removes an online broker too, which then has to be restarted to register again; here it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import RequestError

#: The request has no timeout of its own.
_TIMEOUT_S = 30.0


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _unregister(context, request.fields()["broker_id"])


async def _unregister(context: Context, broker: int) -> Reply:
    try:
        await context.services.cluster.unregister(broker, timeout_s=_TIMEOUT_S)
    except RequestError as error:
        return admin.outcome(context, error)
    return error_fields(None)
