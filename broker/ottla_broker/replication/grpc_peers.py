"""The other brokers over gRPC: Follow streams, probes and questions. [A]

Implements the `Peers` port. Each Follow stream has a connection of its own, made for it and ended with it: a leader
that was refused is tried again when we say so and not when a channel's back-off does, and a stream full of batches
stands in nobody's way. Questions and probes share one connection per broker.

Follow frames are passed through as bytes: no serializer, no copy of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import grpc
from grpc import aio

from ottla_core.pb import replication_pb2 as pb
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe

SERVICE = "ottla.v1.Replication"
_FOLLOW = f"/{SERVICE}/Follow"
_PROBE = f"/{SERVICE}/Probe"
_ASK = f"/{SERVICE}/Ask"

#: Where a broker listens for gRPC, as the image says; None if it is not there.
Locate = Callable[[int], tuple[str, int] | None]

#: HTTP/2 look-ahead of a Follow stream: what may lie in memory before it is read. Larger ones did not raise the rate.
_LOOKAHEAD_BYTES = 2 * 1024 * 1024
_FRAME_BYTES_MAX = 1024 * 1024
#: A peer that vanished without a word is noticed after these two together; beats notice it sooner.
_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_COMMON_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # Else two channels to one address share a connection.
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
_FOLLOW_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.max_receive_message_length", -1),  # A frame is bounded by the topic's largest batch.
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # It would raise the look-ahead by itself.
    ("grpc.http2.max_frame_size", _FRAME_BYTES_MAX),
]
_ASK_OPTIONS = [
    *_COMMON_OPTIONS,
    # Brokers come back within a second, and somebody waits.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class _ClientLink:
    """The follower's end of a stream."""

    def __init__(self, channel: Any, call: Any) -> None:
        self._channel = channel
        self._call = call

    async def send(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _unavailable(error) from None

    async def receive(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _unavailable(error) from None
        return None if frame is aio.EOF else frame

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


class ServerLink:
    """The leader's end of a stream, around the context of the call."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def send(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except aio.BaseError as error:
            raise PeerUnavailable(f"the stream broke: {error}") from None

    async def receive(self) -> bytes | None:
        try:
            frame = await self._context.read()
        except aio.BaseError as error:
            raise PeerUnavailable(f"the stream broke: {error}") from None
        return None if frame is aio.EOF else frame

    async def close(self) -> None:
        """The call ends when its handler returns."""


class GrpcPeers:
    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        #: For questions: address and channel by broker.
        self._channels: dict[int, tuple[str, Any]] = {}

    async def follow(self, broker_id: int) -> FollowLink:
        channel = aio.insecure_channel(self._target(broker_id), options=_FOLLOW_OPTIONS)
        call = channel.stream_stream(_FOLLOW)()
        link = _ClientLink(channel, call)
        try:
            # Without it a refused connection shows only at the first read.
            await call.wait_for_connection()
        except aio.AioRpcError as error:
            await channel.close()
            raise _unavailable(error) from None
        except BaseException:
            await channel.close()
            raise
        return link

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        """A plain connection first: only that tells "nobody listens" from all other kinds of silence."""
        where = self._locate(broker_id)
        if where is None:
            return Probe(Presence.SILENT)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                _, writer = await asyncio.open_connection(*where)
                writer.close()
                reply = await self._channel(broker_id).unary_unary(_PROBE)(b"")
            return Probe(Presence.HERE, UUID(bytes=pb.ProbeResponse.FromString(reply).incarnation))
        except ConnectionRefusedError:
            return Probe(Presence.REFUSED)
        except (OSError, TimeoutError, aio.AioRpcError, ValueError):
            return Probe(Presence.SILENT)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        question = pb.AskRequest(question=request).SerializeToString()
        try:
            reply = await self._channel(broker_id).unary_unary(_ASK)(question, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise _unavailable(error) from None
        answer: bytes = pb.AskResponse.FromString(reply).answer
        return answer

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    # ------------------------------------------------------------------ where

    def _target(self, broker_id: int) -> str:
        where = self._locate(broker_id)
        if where is None:
            raise PeerUnavailable(f"broker {broker_id} is not registered")
        host, port = where
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _channel(self, broker_id: int) -> Any:
        target = self._target(broker_id)
        known = self._channels.get(broker_id)
        if known is None or known[0] != target:
            # One to an old address ends with what is still asked there.
            known = (target, aio.insecure_channel(target, options=_ASK_OPTIONS))
            self._channels[broker_id] = known
        return known[1]


def _unavailable(error: Exception) -> PeerUnavailable:
    if isinstance(error, aio.AioRpcError):
        code = error.code()
        name = code.name if isinstance(code, grpc.StatusCode) else str(code)
        return PeerUnavailable(f"{name}: {error.details()}")
    return PeerUnavailable(f"the stream has ended: {error}")
