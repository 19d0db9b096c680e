"""AlterUserScramCredentials (51), version 0: set and delete credentials; one result per user. [S]"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.service.users import Deletion, Upsertion
from ottla_core.errors import RequestError

#: The request has no timeout of its own.
_TIMEOUT_S = 30.0


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields())


async def _alter(context: Context, fields: dict[str, Any]) -> Reply:
    upsertions = [
        Upsertion(each["name"], each["mechanism"], each["iterations"], each["salt"], each["salted_password"])
        for each in fields["upsertions"]
    ]
    deletions = [Deletion(each["name"], each["mechanism"]) for each in fields["deletions"]]
    try:
        results = await context.services.users.alter(upsertions, deletions, timeout_s=_TIMEOUT_S)
    except RequestError as error:
        # The response has no field for an error of the whole request: each user gets it, as from Kafka.
        users = dict.fromkeys([each.user for each in upsertions] + [each.user for each in deletions])
        return {"results": [{"user": user, **admin.outcome(context, error)} for user in users]}
    return {"results": [{"user": each.user, **admin.outcome(context, each.error)} for each in results]}
