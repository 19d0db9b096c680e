"""gRPC client for other brokers: Follow streams, probes and requests. [A]

Implements the `Peers` port. Each Follow stream has its own connection, which lives as long as the stream: the follower
decides when to reconnect, not the channel's back-off, and a stream full of batches
delays nothing else. Requests and probes share one connection per broker.

Every call goes to the internal listener of the other broker and is signed (`peer_auth`); no response is
used before the other end has proved its identity.

Follow frames are passed through as bytes: no serializer, no copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from ottla_broker.replication.peer_auth import (
    PROOF_KEY,
    TOKEN_KEY,
    NotAuthenticated,
    PeerAuth,
    SignedCall,
)
from ottla_core.pb import replication_pb2 as pb
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe

if TYPE_CHECKING:
    from ottla_broker.replication.peer_tls import PeerTls

SERVICE = "ottla.v1.Replication"
_FOLLOW = f"/{SERVICE}/Follow"
_PROBE = f"/{SERVICE}/Probe"
_ASK = f"/{SERVICE}/Ask"


class PeerAddress(NamedTuple):
    """The internal listener of a broker, and the incarnation that is expected there."""

    host: str
    port: int
    incarnation: UUID
    has_tls: bool = False


#: Address of a broker's internal listener, from the image; None if it is offline.
Locate = Callable[[int], PeerAddress | None]

#: A leader answers a Follow call at once, before it reads from it; a paused one does not.
_FOLLOW_ANSWER_S = 5.0

#: The status of a refused call comes right behind its empty headers.
_STATUS_S = 1.0

#: HTTP/2 window of a Follow stream: bytes in memory before they are read. Larger ones did not raise the rate.
_LOOKAHEAD_BYTES = 2 * 1024 * 1024
_FRAME_BYTES_MAX = 1024 * 1024
#: A peer that vanished silently is noticed after the sum of these two; heartbeats notice it sooner.
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
    ("grpc.http2.bdp_probe", 0),  # It would enlarge the window automatically.
    ("grpc.http2.max_frame_size", _FRAME_BYTES_MAX),
]
_ASK_OPTIONS = [
    *_COMMON_OPTIONS,
    # Brokers come back within a second, and callers wait.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A replaced pod has another IP under the same name; gRPC would look that up again after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
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
    def __init__(self, locate: Locate, auth: PeerAuth, tls: PeerTls | None = None) -> None:
        self._locate = locate
        self._auth = auth
        self._tls = tls
        #: For requests: the target with the version of the certificates, and its channel, by broker.
        self._channels: dict[int, tuple[PeerAddress, int, Any]] = {}
        #: At most one per call, each within two seconds, and nearly all end at once.
        self._explaining: set[asyncio.Task[None]] = set()

    async def follow(self, broker_id: int) -> FollowLink:
        where = self._find(broker_id)
        signed = self._auth.sign(_FOLLOW, broker_id, where.incarnation)
        channel = self._connect(broker_id, where, _FOLLOW_OPTIONS)
        call = channel.stream_stream(_FOLLOW)(metadata=_metadata(signed))
        try:
            # Without it a refused connection shows only at the first read.
            await call.wait_for_connection()
            async with asyncio.timeout(_FOLLOW_ANSWER_S):
                found = _check(signed, await call.initial_metadata())
            if found is None:
                raise PeerUnavailable(await _why_no_proof(call, broker_id))
        except (aio.AioRpcError, NotAuthenticated) as error:
            await channel.close()
            self._explain(broker_id, where, error)
            raise _unavailable(error) from None
        except TimeoutError:
            await channel.close()
            raise PeerUnavailable(f"no answer within {_FOLLOW_ANSWER_S:g} s") from None
        except BaseException:
            await channel.close()
            raise
        return _ClientLink(channel, call)

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        """Open a plain TCP connection first: only that distinguishes a refused connection from silence.

        A process that answers but does not prove that it is the broker counts as silent: then its lease decides.
        """
        where = self._locate(broker_id)
        if where is None:
            return Probe(Presence.SILENT)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                _, writer = await asyncio.open_connection(where.host, where.port)
                writer.close()
                _, incarnation = await self._call(broker_id, where, _PROBE, b"", None)
            return Probe(Presence.HERE, incarnation)
        except ConnectionRefusedError:
            return Probe(Presence.REFUSED)
        except (OSError, TimeoutError, PeerUnavailable):
            return Probe(Presence.SILENT)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        question = pb.AskRequest(question=request).SerializeToString()
        reply, _ = await self._call(broker_id, self._find(broker_id), _ASK, question, timeout_s)
        try:
            answer: bytes = pb.AskResponse.FromString(reply).answer
        except DecodeError:
            raise PeerUnavailable(f"broker {broker_id} sent an invalid response") from None
        return answer

    async def _call(
        self, broker_id: int, where: PeerAddress, method: str, request: bytes, timeout_s: float | None
    ) -> tuple[bytes, UUID]:
        """The response, and the authenticated incarnation that sent it. PeerUnavailable otherwise."""
        signed = self._auth.sign(method, broker_id, where.incarnation)
        channel = self._channel(broker_id, where)
        call = channel.unary_unary(method)(request, timeout=timeout_s, metadata=_metadata(signed))
        try:
            reply: bytes = await call
            found = _check(signed, await call.initial_metadata())
        except (aio.AioRpcError, NotAuthenticated) as error:
            self._explain(broker_id, where, error)
            raise _unavailable(error) from None
        if found is None:
            raise PeerUnavailable(f"broker {broker_id} sent a response without a proof")
        return reply, found

    async def close(self) -> None:
        for task in list(self._explaining):
            task.cancel()
        channels, self._channels = self._channels, {}
        for _, _, channel in channels.values():
            await channel.close()

    # ------------------------------------------------------------------ where

    def _find(self, broker_id: int) -> PeerAddress:
        where = self._locate(broker_id)
        if where is None:
            raise PeerUnavailable(f"broker {broker_id} is not registered")
        return where

    def _channel(self, broker_id: int, where: PeerAddress) -> Any:
        """One for each incarnation: a new one may have another IP behind the same name."""
        known = self._channels.get(broker_id)
        version = self._tls.channel_credentials().version if self._tls is not None else 0
        if known is None or known[:2] != (where, version):
            # A channel to an earlier incarnation, or with a replaced certificate, ends with its last request.
            known = (where, version, self._connect(broker_id, where, _ASK_OPTIONS))
            self._channels[broker_id] = known
        return known[2]

    def _connect(self, broker_id: int, where: PeerAddress, options: Sequence[tuple[str, int]]) -> Any:
        """A new channel, with TLS if the other broker has registered that it serves it."""
        if not where.has_tls:
            return aio.insecure_channel(_target(where), options=options)
        if self._tls is None:
            raise PeerUnavailable(
                f"broker {broker_id} requires TLS from other brokers, and this one has no certificate: set "
                "internal.ssl.keystore.location and internal.ssl.truststore.location"
            )
        tls = self._tls.channel_credentials()
        return aio.secure_channel(_target(where), tls.credentials, options=[*options, *tls.options])

    def _explain(self, broker_id: int, where: PeerAddress, error: Exception) -> None:
        """In the background: a failed call is news for the failure detector, which must not wait."""
        is_broken = isinstance(error, aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
        if not is_broken or not where.has_tls or self._tls is None:
            return
        work = self._tls.explain(broker_id, where.host, where.port)
        task = asyncio.get_running_loop().create_task(work)
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)


def _target(where: PeerAddress) -> str:
    return f"[{where.host}]:{where.port}" if ":" in where.host else f"{where.host}:{where.port}"


def _metadata(signed: SignedCall) -> tuple[tuple[str, bytes], ...]:
    return ((TOKEN_KEY, signed.token),)


def _check(signed: SignedCall, metadata: Any) -> UUID | None:
    """The incarnation that answered; None if the response has no proof. NotAuthenticated if the proof is wrong."""
    proof = next((value for key, value in metadata or () if key == PROOF_KEY), None)
    return None if proof is None else signed.check(proof)


async def _why_no_proof(call: Any, broker_id: int) -> str:
    """The status of a call that was refused; an impostor may keep the call open instead."""
    try:
        async with asyncio.timeout(_STATUS_S):
            return f"{_name(await call.code())}: {await call.details()}"
    except TimeoutError:
        return f"broker {broker_id} sent a response without a proof"


def _unavailable(error: Exception) -> PeerUnavailable:
    if isinstance(error, aio.AioRpcError):
        return PeerUnavailable(f"{_name(error.code())}: {error.details()}")
    if isinstance(error, NotAuthenticated):
        return PeerUnavailable(f"the responder is not the broker that was called: {error}")
    return PeerUnavailable(f"the stream has ended: {error}")


def _name(code: Any) -> str:
    return code.name if isinstance(code, grpc.StatusCode) else str(code)
