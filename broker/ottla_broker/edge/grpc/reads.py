"""Limits the messages that one connection may send at the same time, whatever it calls. [S]

gRPC receives a whole message once it is requested, and for a unary call it requests it before the method runs.
So a connection could have as many of the longest messages on their way as it may have calls. Here the message of a
unary call is read when fewer than `reads_max` others of its connection are being read; until then the call holds one
HTTP/2 window. It waits only for its own connection: a peer that sends half a message delays only itself.

A stream has a read open for as long as it lives, so a connection has `reads_max` streams, and one more is refused.
Produce streams are counted elsewhere, those of all connections together (`turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from inspect import isasyncgen
from typing import Any

import grpc
from grpc import aio

_Method = Callable[[Any, Any], Any]


class _Connection:
    """Counts of one peer, kept as long as there is something to count."""

    __slots__ = ("calls", "reads", "streams")

    def __init__(self, reads_max: int) -> None:
        #: Calls that are read or wait for it.
        self.calls = 0
        self.streams = 0
        self.reads = asyncio.Semaphore(reads_max)


class Reads(aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    def __init__(self, reads_max: int, *, without: Container[str] = ()) -> None:
        """`without` are methods, by their full names, that are bounded in another way."""
        self._max = reads_max
        self._without = without
        #: By peer, which is one connection: an address and a port.
        self._connections: dict[str, _Connection] = {}
        self._served: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        method = handler_call_details.method
        served = self._served.get(method)
        if served is None:
            served = await continuation(handler_call_details)
            if served is None:
                return None  # there is no such method, and its message is not read
            if method not in self._without:
                served = self._bounded(served)
            self._served[method] = served
        return served

    def _bounded(self, handler: Any) -> Any:
        forms = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream), *forms)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._message(handler.unary_stream), *forms)
        return grpc.stream_unary_rpc_method_handler(self._message(handler.unary_unary), *forms)

    def _message(self, serve: _Method) -> _Method:
        """Called with one message: a stream of which only the first is read."""

        async def served(_requests: Any, context: Any) -> Any:
            async with self._connection(context) as connection, connection.reads:
                request = await context.read()
            if request is aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The call has no request.")
            return await serve(request, context)

        return served

    def _stream(self, serve: _Method) -> _Method:
        async def served(requests: Any, context: Any) -> None:
            async with self._connection(context) as connection:
                if connection.streams >= self._max:
                    sentence = f"One connection has at most {self._max} streams; open another connection."
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
                connection.streams += 1
                try:
                    answers = serve(requests, context)
                    if isasyncgen(answers):
                        async for answer in answers:
                            await context.write(answer)
                    else:
                        await answers
                finally:
                    connection.streams -= 1

        return served

    @asynccontextmanager
    async def _connection(self, context: Any) -> AsyncIterator[_Connection]:
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection(self._max)
        connection.calls += 1
        try:
            yield connection
        finally:
            connection.calls -= 1
            if not connection.calls:
                del self._connections[peer]
