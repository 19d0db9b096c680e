"""SaslAuthenticate (36), versions 0-2: one message of the login that SaslHandshake began. [S]

Versions: 1 answers how long the login lasts (KIP-368); 2 is the flexible form.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import IllegalSaslState, RequestError


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _authenticate(context, bytes(request.fields()["auth_bytes"]))


async def _authenticate(context: Context, token: bytes) -> Reply:
    try:
        if context.login is None:
            raise IllegalSaslState("This listener has no logins.")
        answer = await context.login.authenticate(token)
    except RequestError as error:
        context.failed(error, "sasl_authenticate")
        return error_fields(error) | {"auth_bytes": b"", "session_lifetime": 0}
    return error_fields(None) | {"auth_bytes": answer.token, "session_lifetime": answer.lifetime_ms}
