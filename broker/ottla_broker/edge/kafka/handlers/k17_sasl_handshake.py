"""SaslHandshake (17), version 1: the client chooses the mechanism of its login. [S]

Left out: version 0, after which the messages of the login come without headers; clients since 2018 send version 1.
"""

from __future__ import annotations

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import IllegalSaslState, RequestError, UnsupportedSaslMechanism


def handle(context: Context, request: Request) -> Reply:
    fields, login = request.fields(), context.login
    try:
        if login is None:
            raise IllegalSaslState("This listener has no logins.")
        return {"error_code": 0, "mechanisms": list(login.handshake(fields["mechanism"]))}
    except RequestError as error:
        offered = login is not None and isinstance(error, UnsupportedSaslMechanism)
        return {
            "error_code": context.failed(error),
            "mechanisms": list(login.mechanisms) if login is not None and offered else [],
        }
