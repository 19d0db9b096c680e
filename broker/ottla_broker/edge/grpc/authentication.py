"""Lets only brokers of the cluster call the internal listener: checks each call before its message is read. [A]

Every call that does not carry a valid token is answered with UNAUTHENTICATED; its method is never entered, and what it
sends is not read. A valid call gets this broker's proof first, and its method gets the caller.

Refusals are counted by reason and logged at most once in `_LOG_EVERY_S`, without the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import structlog
from grpc import aio

from ottla_broker.metrics import InternalProbe
from ottla_broker.replication.peer_auth import PROOF_KEY, Caller, NotAuthenticated, PeerAuth
from ottla_core.ports.clock import Clock

_log = structlog.get_logger("ottla.internal")

_LOG_EVERY_S = 10.0

_caller: ContextVar[int] = ContextVar("caller")


def caller_id() -> int:
    """The broker whose call is being served; only inside of one."""
    return _caller.get()


class Authentication(aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    def __init__(self, auth: PeerAuth, clock: Clock, probe: InternalProbe, *, any_incarnation: str) -> None:
        """`any_incarnation` is the one method that may be called for a former incarnation of this broker."""
        self._auth = auth
        self._clock = clock
        self._probe = probe
        self._any_incarnation = any_incarnation
        self._log_again_at = float("-inf")
        self._unlogged = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        method = handler_call_details.method
        try:
            caller = self._auth.verify(method, dict(handler_call_details.invocation_metadata))
        except NotAuthenticated as refused:
            self._on_refused(refused)
            return _aborting(grpc.StatusCode.UNAUTHENTICATED, str(refused))
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers with UNIMPLEMENTED.
        if not caller.means_us and method != self._any_incarnation:
            return _aborting(
                grpc.StatusCode.FAILED_PRECONDITION,
                "The call is meant for another incarnation of this broker.",
            )
        return _for_caller(handler, caller)

    def _on_refused(self, refused: NotAuthenticated) -> None:
        self._probe.refused.add(refused.reason)
        now = self._clock.monotonic()
        if now < self._log_again_at:
            self._unlogged += 1
            return
        _log.warning(
            "call to the internal listener refused",
            reason=refused.reason,
            detail=str(refused),
            not_logged_before=self._unlogged,
        )
        self._log_again_at, self._unlogged = now + _LOG_EVERY_S, 0


def _aborting(status: Any, sentence: str) -> Any:
    """A method that ends each call at once. As a stream, because gRPC reads nothing for it by itself."""

    async def abort(_requests: Any, context: Any) -> None:
        await context.abort(status, sentence)

    return grpc.stream_stream_rpc_method_handler(abort)


def _for_caller(handler: Any, caller: Caller) -> Any:
    """The same method, for one call of this caller."""
    if handler.request_streaming and handler.response_streaming:
        serve, make = handler.stream_stream, grpc.stream_stream_rpc_method_handler
    elif handler.request_streaming:
        serve, make = handler.stream_unary, grpc.stream_unary_rpc_method_handler
    else:
        serve, make = handler.unary_unary, grpc.unary_unary_rpc_method_handler

    async def served(request: Any, context: Any) -> Any:
        _caller.set(caller.id)
        await context.send_initial_metadata(((PROOF_KEY, caller.proof),))
        return await serve(request, context)

    return make(served, handler.request_deserializer, handler.response_serializer)
