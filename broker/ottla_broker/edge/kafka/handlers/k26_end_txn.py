"""EndTxn (26), versions 0-5: commit or abort a transaction. [S]

Answered when the decision is committed in `__transaction_state`; markers follow. The producer's next transaction may
have to wait for them (CONCURRENT_TRANSACTIONS).

Versions: 3 is flexible; 4 only changes which errors may be returned; 5 answers the epoch to continue with (KIP-890).
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.errors import RequestError

_V2_FROM = 5


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _end(context, request.fields(), v2=request.version >= _V2_FROM)


async def _end(context: Context, fields: dict[str, Any], *, v2: bool) -> Reply:
    producer = ProducerIdentity(fields["producer_id"], fields["producer_epoch"])
    try:
        after = await context.services.transactions.end(
            fields["transactional_id"], producer, commits=fields["committed"], v2=v2
        )
    except RequestError as error:
        return {"error_code": context.failed(error), "producer_id": -1, "producer_epoch": -1}
    return {"error_code": 0, "producer_id": after.producer_id, "producer_epoch": after.producer_epoch}
