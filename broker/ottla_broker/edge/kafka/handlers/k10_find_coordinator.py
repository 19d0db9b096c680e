"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transactional id. [S]

The first group that asks makes the broker create `__consumer_offsets`, the first transactional id
`__transaction_state`; the answer waits for that.

Versions: 1 adds the key type and an error message; 4 asks for several keys at once (KIP-699); 6 knows share groups
(KIP-932), which are not served: INVALID_REQUEST, as from a Kafka where they are off.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.metadata.image import BrokerImage
from ottla_broker.requests import Maybe
from ottla_core.errors import CoordinatorNotAvailable, InvalidRequest, RequestError

OVERLAPS = True

_BATCHED_FROM = 4
_GROUP = 0
_TRANSACTION = 1
_NOBODY = {"node_id": -1, "host": "", "port": -1}


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    key_type = fields.get("key_type", _GROUP)
    if request.version < _BATCHED_FROM:
        return _find(context, fields["key"], key_type)
    found = [_find(context, key, key_type) for key in fields["coordinator_keys"]]
    if any(isinstance(each, Awaitable) for each in found):
        return _all(found)
    return {"coordinators": found}


async def _all(found: list[Maybe[Reply]]) -> Reply:
    return {"coordinators": [await each if isinstance(each, Awaitable) else each for each in found]}


def _find(context: Context, key: str, key_type: int) -> Maybe[Reply]:
    return groups.answered(
        context,
        lambda: _ask(context, key, key_type),
        lambda broker: {"key": key} | _coordinator(context, broker),
        lambda error: {"key": key} | error_fields(error) | _NOBODY,
    )


def _ask(context: Context, key: str, key_type: int) -> Maybe[BrokerImage]:
    if key_type == _TRANSACTION:
        return context.services.transactions.find_coordinator(key)
    if key_type != _GROUP:
        raise InvalidRequest(f"There are no coordinators of type {key_type}.")
    return context.services.groups.find_coordinator(key)


def _coordinator(context: Context, broker: BrokerImage) -> dict[str, Any]:
    endpoint = broker.endpoint("kafka", context.listener)
    if endpoint is None:
        error: RequestError = CoordinatorNotAvailable("The coordinator has no Kafka listener.")
        return error_fields(error) | _NOBODY
    return error_fields(None) | {"node_id": broker.id, "host": endpoint.host, "port": endpoint.port}
