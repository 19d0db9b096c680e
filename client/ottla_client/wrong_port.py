"""Diagnoses a failed connection: nothing listens at the address, or it speaks another protocol. [A]

Called once, after a first connection has failed, to turn "UNAVAILABLE: Socket closed" into a helpful
sentence. `ottla up` has fixed distances between the ports of a broker, so the right port can be guessed from
the wrong one.
"""

from __future__ import annotations

import asyncio
import struct

from ottla_client.security import PLAINTEXT, Security

_PROBE_TIMEOUT_S = 1.0
#: Shorter than a probe: a warning of an unreachable broker should come within two seconds.
_CONNECT_TIMEOUT_S = 0.8
#: Kafka's ApiVersions, version 0: length, api key 18, version 0, correlation id, no client id.
_CORRELATION = 0x6F74746C
_KAFKA_QUESTION = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
_HTTP_QUESTION = b"GET /healthz HTTP/1.0\r\n\r\n"
_KAFKA_TO_GRPC = 100
_HTTP_TO_GRPC = -100


async def unreachable(address: str) -> str | None:
    """A sentence if no connection can be opened, else None."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        return _unreachable(address, error)
    writer.close()
    return None


def _unreachable(address: str, error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"Nothing listens at {address}. Is the broker running? (`ottla up` starts a local one.)"
    why = str(error) or "no answer in time"  # a TimeoutError has no text
    return f"{address} cannot be reached ({why}). Check the host name and the network."


async def explain(address: str, fallback: str, security: Security = PLAINTEXT) -> str:
    """A sentence about the address."""
    host, _, port_text = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port_text.isdigit():
        return f"{address!r} is not an address; write host:port, for example 127.0.0.1:9192."
    port = int(port_text)
    try:
        if security.has_tls:
            from ottla_client.tls_trouble import tls_trouble

            return await tls_trouble(address, security, fallback)
        answer = await _ask(host, port, _KAFKA_QUESTION)
    except OSError as error:
        return _unreachable(address, error)
    if answer[4:8] == struct.pack(">i", _CORRELATION):
        return (
            f"{address} speaks the Kafka protocol, but Ottla's own client speaks gRPC: "
            f"try {host}:{port + _KAFKA_TO_GRPC}, where brokers listen for gRPC by default."
        )
    try:
        answer = await _ask(host, port, _HTTP_QUESTION)
    except OSError:
        answer = b""
    if answer.startswith(b"HTTP/"):
        return (
            f"{address} speaks HTTP (metrics and health); gRPC is by default at "
            f"{host}:{port + _HTTP_TO_GRPC}."
        )
    from ottla_client.tls_trouble import speaks_tls

    if await speaks_tls(host, port):
        wanted = "SASL_SSL" if security.has_login else "SSL or SASL_SSL"
        return f"{address} speaks TLS: set security.protocol={wanted}."
    return (
        f"{address} does not answer as an Ottla broker ({fallback.rstrip('.')}). "
        "Check the address and the broker's health."
    )


async def _ask(host: str, port: int, question: bytes) -> bytes:
    async with asyncio.timeout(_PROBE_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(question)
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return await reader.read(64)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.close()
