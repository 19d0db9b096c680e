"""ListTransactions (66), versions 0-2: transactional ids that this broker coordinates. [S]

Versions: 1 filters by duration (KIP-994). Left out: the pattern of version 2, a regular expression of the client that
would run on the event loop; a request with one is refused.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.requests import Maybe
from ottla_broker.steps import begun
from ottla_broker.txn.listing import ListingFilter
from ottla_broker.txn.messages import ListedTransaction
from ottla_core.errors import InvalidRequest, RequestError

READ_ONLY = True


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_list(context, request))


def _list(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    wanted = ListingFilter(
        fields["state_filters"], fields["producer_id_filters"], fields.get("duration_filter", -1)
    )
    try:
        if fields.get("transactional_id_pattern"):
            raise InvalidRequest("Patterns are not supported: list all transactions and filter them.")
        found = yield from context.services.transactions.list_transactions(wanted)
    except RequestError as error:
        return {"error_code": context.failed(error), "transaction_states": []}
    return {
        "error_code": 0,
        "unknown_state_filters": wanted.unknown_states,
        "transaction_states": Lazy(_listed, found),
    }


def _listed(each: ListedTransaction) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "producer_id": each.value.producer_id,
        "transaction_state": each.value.state.title,
    }
