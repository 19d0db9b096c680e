"""ListTransactions (66), versions 0-2: transactional ids that this broker coordinates. [S]

Versions: 1 filters by duration (KIP-994). Left out: the pattern of version 2, a regular expression of the client that
would run on the event loop; a request with one is refused.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe
from ottla_broker.txn.messages import ListedTransaction
from ottla_broker.txn.transaction import State
from ottla_core.errors import InvalidRequest, RequestError

READ_ONLY = True

_STATES = {state.title: state for state in State}


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _list(context, request.fields())


async def _list(context: Context, fields: dict[str, Any]) -> Reply:
    unknown = [name for name in fields["state_filters"] if name not in _STATES]
    try:
        if fields.get("transactional_id_pattern"):
            raise InvalidRequest("Patterns are not supported: list all transactions and filter them.")
        found = await context.services.transactions.list_transactions()
    except RequestError as error:
        return {"error_code": context.failed(error), "transaction_states": []}
    now_ms = context.services.transactions.now_ms()
    return {
        "error_code": 0,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.value.producer_id,
                "transaction_state": each.value.state.title,
            }
            for each in found
            if _matches(each, fields, now_ms)
        ],
    }


def _matches(listed: ListedTransaction, fields: dict[str, Any], now_ms: int) -> bool:
    txn = listed.value
    states, ids = fields["state_filters"], fields["producer_id_filters"]
    duration_ms = fields.get("duration_filter", -1)
    if duration_ms >= 0 and (txn.started_ms < 0 or now_ms - txn.started_ms < duration_ms):
        return False
    return (not states or txn.state.title in states) and (not ids or txn.producer_id in ids)
