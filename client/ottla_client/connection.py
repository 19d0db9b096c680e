"""Channels to brokers, one per address, and calls over them. [S]

The only module that knows gRPC: the modules above see requests, responses and the errors of `errors.py`. The
channel reconnects by itself; its backoff is set here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from ottla_client.errors import CannotConnect, ClientError, NotServed
from ottla_client.security import PLAINTEXT, Security
from ottla_core.errors import RequestError, RequestTimedOut, SaslAuthenticationFailed, error_from_code
from ottla_core.pb import (
    acls_pb2_grpc,
    broker_pb2_grpc,
    groups_pb2_grpc,
    quotas_pb2_grpc,
    transactions_pb2_grpc,
)
from ottla_core.pb import broker_pb2 as pb

#: A fetch returns the requested size, or one larger batch; no batch is larger than this.
RECEIVE_MAX_BYTES = 128 * 1024 * 1024
#: A larger flow-control window raises memory use, not the rate.
_WINDOW_BYTES = 1024 * 1024
_ERROR_TRAILER = "ottla-error-bin"
#: Header with the client id, which brokers show in metrics and logs and use for quotas.
_CLIENT_ID_KEY = "ottla-client-id"
#: Brokers cut longer ones.
_CLIENT_ID_CHARS_MAX = 256

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", RECEIVE_MAX_BYTES),
    ("grpc.max_send_message_length", -1),  # bounded by max_request_size, and by the broker
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    # A separate connection per client: a slow consumer must not block a producer in the same process.
    ("grpc.use_local_subchannel_pool", 1),
    # No retries by gRPC: only the client knows which requests may be sent twice.
    ("grpc.enable_retries", 0),
    # With gRPC's default backoff of 1 to 120 s, clients would reconnect long after their broker is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite its name: the timeout of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # A restarted broker may have another IP address; gRPC would resolve its name again only after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class _WithHeaders:
    """The part of a channel that stubs use, with headers on each call; gRPC's own way needs TLS and interceptors."""

    def __init__(self, channel: Any, headers: Callable[[], tuple[tuple[str, str], ...]]) -> None:
        self._channel = channel
        self._headers = headers

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        return self._headed(self._channel.unary_unary(*arguments, **named))

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return self._headed(self._channel.stream_stream(*arguments, **named))

    def _headed(self, call: Any) -> Any:
        return lambda *arguments, **named: call(*arguments, metadata=self._headers(), **named)


class Broker:
    """One broker's address, its channel and its services."""

    def __init__(self, address: str, security: Security = PLAINTEXT, client_id: str = "") -> None:
        """CannotConnect if a file of the security options cannot be used any more."""
        self.address = address
        try:
            credentials = _credentials(security)
        except ValueError as wrong:
            raise CannotConnect(str(wrong)) from None
        if credentials is None:
            self.channel = aio.insecure_channel(address, options=_OPTIONS)
        else:
            self.channel = aio.secure_channel(address, credentials, options=_OPTIONS)
        channel: Any = self.channel
        named = ((_CLIENT_ID_KEY, client_id),) if client_id else ()
        if security.takes_token:
            from ottla_client.token_source import source_of  # HTTP costs 20 ms to load.

            source = source_of(security)
            channel = _WithHeaders(self.channel, lambda: (*security.headers(source.token()), *named))
        elif security.has_login or named:
            headers = (*security.headers(), *named)
            channel = _WithHeaders(self.channel, lambda: headers)
        self.log: Any = broker_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        self.admin: Any = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        self.groups: Any = groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]
        self.acls: Any = acls_pb2_grpc.AclsStub(channel)  # type: ignore[no-untyped-call]
        self.quotas: Any = quotas_pb2_grpc.QuotasStub(channel)  # type: ignore[no-untyped-call]
        self.transactions: Any = transactions_pb2_grpc.TransactionsStub(channel)  # type: ignore[no-untyped-call]

    def method(self, name: str) -> Any:
        """The unary method of this name, from any of the services."""
        stubs = (self.admin, self.log, self.groups, self.transactions, self.acls, self.quotas)
        return next(getattr(stub, name) for stub in stubs if hasattr(stub, name))


class Connections:
    """All channels of one client, by address."""

    def __init__(self, security: Security = PLAINTEXT, client_id: str = "") -> None:
        """ValueError if a file of the security options cannot be used, or if a header cannot carry the client id."""
        _credentials(security)
        self.security = security
        self._client_id = _checked_client_id(client_id)
        self._brokers: dict[str, Broker] = {}

    async def log_in(self) -> None:
        """Wait for the first token on a thread: the call that needs it would hold the event loop for seconds."""
        if self.security.takes_token:
            from ottla_client.token_source import source_of

            await asyncio.to_thread(source_of(self.security).token)

    def broker(self, address: str) -> Broker:
        found = self._brokers.get(address)
        if found is None:
            found = self._brokers[address] = Broker(address, self.security, self._client_id)
        return found

    async def keep_only(self, addresses: Sequence[str]) -> None:
        """Close channels to removed brokers, so that a long-lived client does not leak them."""
        for address in [known for known in self._brokers if known not in addresses]:
            await self._brokers.pop(address).channel.close()

    async def close(self) -> None:
        await self.keep_only(())


def _checked_client_id(client_id: str) -> str:
    if client_id.isascii() and client_id.isprintable() and len(client_id) <= _CLIENT_ID_CHARS_MAX:
        return client_id
    raise ValueError(
        f"client_id={client_id!r}: use at most {_CLIENT_ID_CHARS_MAX} printable ASCII characters."
    )


def _credentials(security: Security) -> Any:
    """Of a channel; None for plaintext. ValueError if a file cannot be used."""
    if not security.has_tls:
        return None
    return grpc.ssl_channel_credentials(
        _read("ssl.ca.location", security.ssl_ca_location),
        _read("ssl.key.location", security.ssl_key_location),
        _read("ssl.certificate.location", security.ssl_certificate_location),
    )


def _read(option: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as failed:
        raise ValueError(f"{option}={path} cannot be read: {failed.strerror or failed}.") from None
    if b"-----BEGIN " not in content:
        raise ValueError(f"{option}={path} is not a PEM file.")
    return content


def addresses_of(bootstrap: str | Sequence[str]) -> list[str]:
    """Addresses from `"a:1,b:2"` or a sequence of such texts; ValueError if one is not valid."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for part in parts if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r} is not an address; write host:port, for example 127.0.0.1:9192.")
    if not addresses:
        raise ValueError("Give at least one broker address, for example 127.0.0.1:9192.")
    return addresses


def address_of(info: pb.BrokerInfo) -> str:
    return f"[{info.host}]:{info.port}" if ":" in info.host else f"{info.host}:{info.port}"


def translated(error: Any, address: str) -> RequestError | ClientError:
    """The client's error for a failed gRPC call."""
    for key, value in error.trailing_metadata() or ():
        if key == _ERROR_TRAILER:
            return exception_of(pb.Error.FromString(value))
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOut(f"{address} did not answer in time.")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return CannotConnect(f"{address}: {details}")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return SaslAuthenticationFailed(f"{address}: {details}")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return NotServed(
            f"{address} speaks gRPC, but is not an Ottla broker or is an older version ({details})."
        )
    return RequestError(f"{address} refused the call: {details}")


def exception_of(error: pb.Error) -> RequestError:
    """The exception for an error message from a broker."""
    return error_from_code(error.code, error.message)
