"""Lets only users with the right password or token call a gRPC listener with logins: before a message is read. [A]

User and password come with each call, in the header of HTTP's Basic scheme, or a token in that of its Bearer scheme.
What was right is remembered (`authn/logins.py`), so that only the first call costs a PBKDF2 or a signature. Health
checks need no login: they say only whether the broker serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE

from ottla_broker.authn.bearer import Asked, is_bearer, parse_bearer
from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.logins import Logins, TooManyLogins
from ottla_broker.authn.plain import parse_basic
from ottla_broker.edge.grpc.callers import address_of, authorization_of

_BASIC, _BEARER = "BASIC", "BEARER"


class LoginFirst(aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    def __init__(self, logins: Logins, listener: str) -> None:
        """Must come before `Reads`, whose handlers are called before any message is read."""
        self._logins = logins
        self._listener = listener
        self._guarded: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        method = handler_call_details.method
        found = self._guarded.get(method)
        if found is None:
            found = await continuation(handler_call_details)
            if found is None:
                return None  # gRPC answers with UNIMPLEMENTED.
            if not method.startswith(f"/{HEALTH_SERVICE}/"):
                found = self._after_login(found)
            self._guarded[method] = found
        return found

    def _after_login(self, handler: Any) -> Any:
        if handler.response_streaming:
            serve, make = handler.stream_stream, grpc.stream_stream_rpc_method_handler
        else:
            serve, make = handler.stream_unary, grpc.stream_unary_rpc_method_handler

        async def served(requests: Any, context: Any) -> Any:
            await self._check(context)
            return await serve(requests, context)

        return make(served, handler.request_deserializer, handler.response_serializer)

    async def _check(self, context: Any) -> None:
        """Returns if the call has a right password, else ends it."""
        header = authorization_of(context)
        if not header:
            sentence = (
                f"Listener {self._listener} needs a login: set sasl.username and sasl.password, or a token."
            )
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence)
        peer, listener = context.peer(), self._listener
        address = address_of(peer)
        mechanism = _BEARER if is_bearer(header) else _BASIC
        try:
            if mechanism == _BEARER:
                token = parse_bearer(header)
                if self._logins.is_remembered_token(token):
                    return
                user, _ = await self._logins.check_token(Asked(token))
            else:
                given = parse_basic(header)
                if self._logins.is_remembered(given):
                    return
                await self._logins.check(given, address)
                user = given.user
        except LoginFailed as failure:
            await self._logins.failed(
                failure, mechanism=mechanism, listener=listener, peer=peer, address=address
            )
            sentence = f"The login failed: {failure.client_reason or 'unknown user or wrong password'}."
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence)
        except TooManyLogins as busy:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(busy))
        self._logins.succeeded(user, mechanism=mechanism, listener=listener, address=address)
