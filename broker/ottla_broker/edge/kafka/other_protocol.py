"""Names the protocol of a client that does not speak Kafka's, from its first four bytes. [P]

Read as the length of a Kafka request they are hundreds of megabytes, which says nothing to a person who has mixed
up two ports or forgotten a setting.
"""

from __future__ import annotations

_TLS_HANDSHAKE = b"\x16\x03"
_HTTP2_PREFACE = b"PRI "
_HTTP1_METHODS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC")


def protocol_of(first: bytes) -> str | None:
    """A part of a sentence; None for bytes that could be anything."""
    if first.startswith(_TLS_HANDSHAKE):
        return (
            "a TLS handshake on a listener without TLS; its client must use PLAINTEXT here, or another port"
        )
    if first == _HTTP2_PREFACE:
        return "HTTP/2; gRPC clients (the ottla command, ottla_client) use the port of grpc.listener"
    if first in _HTTP1_METHODS:
        return "an HTTP request; metrics and health are on the port of http.listener"
    return None
