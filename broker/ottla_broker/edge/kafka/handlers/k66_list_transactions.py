"""ListTransactions (66), versions 0-2: transactional ids that this broker coordinates. [S]

Versions: 1 filters by duration (KIP-994), 2 by a regular expression (KIP-1152), in RE2's syntax as far as
`linear_regex` has it.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.linear_regex import ANY_TEXT, LinearRegex
from ottla_broker.requests import Maybe
from ottla_broker.steps import begun
from ottla_broker.txn.listing import ListingFilter
from ottla_broker.txn.messages import ListedTransaction
from ottla_core.errors import InvalidRegularExpression, RequestError

READ_ONLY = True


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_list(context, request))


def _list(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    try:
        wanted = ListingFilter(
            fields["state_filters"],
            fields["producer_id_filters"],
            fields.get("duration_filter", -1),
            _compiled(fields.get("transactional_id_pattern")),
        )
        found = yield from context.services.transactions.list_transactions(wanted)
    except RequestError as error:
        return {"error_code": context.failed(error), "transaction_states": []}
    return {
        "error_code": 0,
        "unknown_state_filters": wanted.unknown_states,
        "transaction_states": Lazy(_listed, found),
    }


def _compiled(pattern: str | None) -> LinearRegex | None:
    try:
        return LinearRegex(pattern, ANY_TEXT) if pattern else None
    except ValueError as error:
        raise InvalidRegularExpression(f"Invalid regular expression: {error}.") from None


def _listed(each: ListedTransaction) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "producer_id": each.value.producer_id,
        "transaction_state": each.value.state.title,
    }
