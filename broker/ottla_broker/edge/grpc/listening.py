"""What both gRPC listeners do alike: bind a port, and bound what one connection may cost. [A]"""

from __future__ import annotations

import errno
from typing import Any

#: A peer that disappeared is noticed after these two together.
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
#: Peers may ping this often; more is a strike, and the third strike closes the connection.
_PING_INTERVAL_MIN_MS = 5_000
#: One bit per algorithm; only "identity". Producers compress records once, and a compressed message could be a bomb.
_IDENTITY_ONLY = 1


def bind_port(server: Any, host: str, port: int, purpose: str, credentials: Any = None) -> int:
    """Bind the port without serving; return the port, a free one for 0. OSError if it is taken."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is not None:
            return int(server.add_secure_port(address, credentials))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise OSError(
            errno.EADDRINUSE, f"Cannot listen on {address} for {purpose}; is the port taken?"
        ) from error


def options(
    *,
    message_max_bytes: int,
    streams_max: int,
    connections_max: int,
    metadata_max_bytes: int,
    stream_window_bytes: int,
    idle_max_ms: int,
    handshake_max_ms: int,
) -> list[tuple[str, int]]:
    return [
        # Without it a second broker silently binds the same port, and calls go to either.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", message_max_bytes),
        ("grpc.max_send_message_length", -1),  # Responses are bounded where they are made.
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_metadata_size", metadata_max_bytes),
        ("grpc.http2.bdp_probe", 0),  # It would raise the window below to many megabytes, for every stream.
        ("grpc.http2.lookahead_bytes", stream_window_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MIN_MS),
        ("grpc.max_connection_idle_ms", idle_max_ms),
        ("grpc.server_handshake_timeout_ms", handshake_max_ms),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
    ]
