"""The listener for other brokers: replication, probes and requests, protected by the cluster secret. [A]

A port of its own, so that clients cannot reach what trusts its caller, and limits of its own, so that clients cannot
take the connections that replication needs. No reflection and no health service: only brokers connect.
Made by the broker's composition root.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from ottla_broker.config import InternalEdgeConfig
from ottla_broker.edge.grpc.authentication import Authentication
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
#: Messages of one connection that are read at once; a broker's questions are small, and come one by one.
_READS_MAX = 8
#: HTTP/2 window of one stream: positions and requests. Bounds the memory of an unauthenticated call.
_STREAM_WINDOW_BYTES = 128 * 1024
#: A connection that does not begin to speak HTTP/2 within this time is closed.
_HANDSHAKE_MS = 5_000
#: A connection without a call is closed: brokers always have one open on theirs, or connect again in a millisecond.
_IDLE_MAX_MS = 60_000
#: A peer that vanished without a word is noticed after these two together.
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
#: Peers may ping this often; more is a strike, and the third strike closes the connection.
_PING_INTERVAL_MIN_MS = 5_000
#: One bit per algorithm; only "identity": a compressed message could be a bomb.
_IDENTITY_ONLY = 1


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
        on_violation: Callable[[InvariantViolation], None] | None = None,
    ) -> None:
        self._config = config
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
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE, f"Cannot listen on {address} for other brokers; is the port taken?"
            ) from error
        self._server = server
        return int(bound)

    async def serve(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


def _options(config: InternalEdgeConfig) -> list[tuple[str, int]]:
    return [
        # Without it a second broker binds the same port without a word, and calls go to either.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.message_max_bytes),
        ("grpc.max_send_message_length", -1),  # Bounded by the largest batch of a topic.
        ("grpc.max_concurrent_streams", config.streams_max),
        ("grpc.max_allowed_incoming_connections", config.connections_max),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.http2.bdp_probe", 0),  # It would raise the window below by itself.
        ("grpc.http2.lookahead_bytes", _STREAM_WINDOW_BYTES),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MIN_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MAX_MS),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
    ]
