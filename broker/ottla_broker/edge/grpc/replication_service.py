"""gRPC service for broker-to-broker traffic: Follow streams, probes and requests. [A]

Served on the internal listener only, behind `authentication`. Follow frames go through as bytes; the two small calls
are protobuf.
"""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

import grpc

from ottla_broker.edge.grpc.authentication import caller_id
from ottla_broker.edge.grpc.bounds import bounded
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.refusal import Refusals
from ottla_broker.replication.grpc_peers import SERVICE, ServerLink
from ottla_core.errors import InvariantViolation, RequestError
from ottla_core.pb import replication_pb2 as pb
from ottla_core.ports.peers import FollowLink

REPLICATION_SERVICE = SERVICE


class Neighbour(Protocol):
    """What this broker is to the others."""

    @property
    def incarnation(self) -> UUID: ...

    async def serve(self, link: FollowLink, follower: int) -> None:
        """`follower` is the broker that has proved to have opened the stream."""

    async def answer(self, request: bytes, caller: int) -> bytes: ...


class ReplicationService:
    def __init__(
        self, neighbour: Neighbour, probe: GrpcProbe, refusals: Refusals, message_max_bytes: int
    ) -> None:
        self._neighbour = neighbour
        self._probe = probe
        self._refusals = refusals
        self._message_max_bytes = message_max_bytes

    async def follow(self, request_iterator: Any, context: Any) -> None:
        self._probe.stream_opened("Follow")
        try:
            await self._neighbour.serve(ServerLink(context), caller_id())
        except InvariantViolation as violation:
            self._refusals.of(violation, "a Follow stream")
            raise
        finally:
            self._probe.stream_closed("Follow")

    async def probe(self, request: Any, context: Any) -> pb.ProbeResponse:
        return pb.ProbeResponse(incarnation=self._neighbour.incarnation.bytes)

    async def ask(self, request: Any, context: Any) -> pb.AskResponse:
        if isinstance(request, RequestError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.message)
        try:
            return pb.AskResponse(answer=await self._neighbour.answer(request.question, caller_id()))
        except InvariantViolation as violation:
            self._refusals.of(violation, "a request of another broker")
            raise

    def handlers(self) -> dict[str, Any]:
        return {
            "Follow": grpc.stream_stream_rpc_method_handler(self.follow),
            "Probe": self._unary(self.probe, pb.ProbeRequest),
            "Ask": self._unary(self.ask, pb.AskRequest),
        }

    def _unary(self, method: Any, request: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=bounded(
                request.FromString, bytes_max=self._message_max_bytes, entries_max=16
            ),
            response_serializer=lambda message: message.SerializeToString(),
        )
