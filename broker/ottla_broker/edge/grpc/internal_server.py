"""The listener for other brokers: replication, probes and requests, protected by the cluster secret. [A]

A port of its own, so that clients cannot reach what trusts its caller, and limits of its own, so that clients cannot
take the connections that replication needs. No reflection and no health service: only brokers connect.
Made by the broker's composition root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from ottla_broker.config import InternalEdgeConfig
from ottla_broker.edge.grpc.authentication import Authentication
from ottla_broker.edge.grpc.listening import bind_port, options
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.reads import Reads
from ottla_broker.edge.grpc.refusal import Refusals
from ottla_broker.edge.grpc.replication_service import REPLICATION_SERVICE, Neighbour, ReplicationService
from ottla_broker.metrics import InternalProbe
from ottla_broker.replication.peer_auth import PeerAuth
from ottla_core.errors import InvariantViolation
from ottla_core.ports.clock import Clock

#: A token has 81 bytes, and gRPC adds some headers.
_METADATA_BYTES_MAX = 4 * 1024
#: Messages of one connection that are read at once; a broker's requests are small, and come one by one.
_READS_MAX = 8
#: HTTP/2 window of one stream: positions and requests. Bounds the memory of an unauthenticated call.
_STREAM_WINDOW_BYTES = 128 * 1024
#: A connection that does not begin to speak HTTP/2 within this time is closed.
_HANDSHAKE_MS = 5_000
#: A connection without a call is closed, so that strangers do not fill internal.connections.max. Brokers always have a
#: call open on theirs, or connect again in a millisecond.
_IDLE_MAX_MS = 5_000


class InternalEdge:
    def __init__(
        self,
        neighbour: Neighbour,
        auth: PeerAuth,
        config: InternalEdgeConfig,
        clock: Clock,
        probe: InternalProbe,
        calls: GrpcProbe,
        *,
        credentials: Any = None,
        on_violation: Callable[[InvariantViolation], None] | None = None,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._service = ReplicationService(neighbour, calls, Refusals(on_violation), config.message_max_bytes)
        self._auth = Authentication(auth, clock, probe, any_incarnation=f"/{REPLICATION_SERVICE}/Probe")
        self._server: Any = None

    async def bind(self, host: str, port: int) -> int:
        """Bind the port without serving; return the port, a free one for 0. OSError if it is taken."""
        # Authenticate first: before that nothing is read, and nothing counted.
        server = aio.server(interceptors=(self._auth, Reads(_READS_MAX)), options=_options(self._config))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(REPLICATION_SERVICE, self._service.handlers()),)
        )
        bound = bind_port(server, host, port, "other brokers", self._credentials)
        self._server = server
        return bound

    async def serve(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


def _options(config: InternalEdgeConfig) -> list[tuple[str, int]]:
    return options(
        message_max_bytes=config.message_max_bytes,
        streams_max=config.streams_max,
        connections_max=config.connections_max,
        metadata_max_bytes=_METADATA_BYTES_MAX,
        stream_window_bytes=_STREAM_WINDOW_BYTES,
        idle_max_ms=_IDLE_MAX_MS,
        handshake_max_ms=_HANDSHAKE_MS,
    )
