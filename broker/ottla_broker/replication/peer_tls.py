"""TLS between brokers: credentials of both ends, and the reason when an encrypted connection fails. [A]

The internal listener asks for `server_credentials` once; `GrpcPeers` asks for `channel_credentials` for each new
connection, and connects again when files were replaced. Both ends verify the other's certificate. The cluster secret
proves in addition which broker it is.

A broker that has certificates but serves plaintext can call brokers that serve TLS: each registers what it serves, so
a cluster moves from one to the other broker by broker.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, NamedTuple

import grpc
import structlog

from ottla_broker.internal_tls_config import InternalTlsConfig
from ottla_broker.tls_config import TlsConfig
from ottla_broker.tls_files import TlsFiles
from ottla_core.ports.clock import Clock

_log = structlog.get_logger("ottla.internal")

_TIMEOUT_S = 2.0
#: A broker that cannot be reached is called again and again; one diagnosis of it is enough for this long.
_SAY_EVERY_S = 10.0
#: HTTP/2's preface and empty settings: with TLS 1.3 the other end refuses a certificate only after the handshake.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class ChannelTls(NamedTuple):
    #: Changes when the files were replaced.
    version: int
    credentials: Any
    options: list[tuple[str, str]]


class PeerTls:
    def __init__(self, config: InternalTlsConfig, clock: Clock) -> None:
        """ConfigError if a file cannot be used."""
        self._config = config
        self._clock = clock
        self.files = TlsFiles(
            TlsConfig(config.certificate_file, config.key_file, config.ca_file, "required"), clock
        )
        self._made: ChannelTls | None = None
        self._said_at: dict[int, float] = {}

    def server_credentials(self) -> Any:
        """Of the internal listener; None if it serves plaintext."""
        return self.files.grpc_credentials() if self._config.security == "SSL" else None

    def channel_credentials(self) -> ChannelTls:
        """For a new connection to another broker."""
        version, (key, certificate), roots = self.files.pem()
        if self._made is None or self._made.version != version:
            made = grpc.ssl_channel_credentials(roots, key, certificate)
            name = self._config.server_name
            self._made = ChannelTls(version, made, [("grpc.ssl_target_name_override", name)] if name else [])
        return self._made

    async def explain(self, broker_id: int, host: str, port: int) -> None:
        """Log why a connection failed, if TLS is the reason: gRPC does not tell which side refuses what."""
        now = self._clock.monotonic()
        if now < self._said_at.get(broker_id, float("-inf")) + _SAY_EVERY_S:
            return
        self._said_at[broker_id] = now
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reason = await self._try(host, port)
        except TimeoutError:
            return
        if reason is not None:
            _log.error(
                "TLS with another broker failed", peer=broker_id, address=f"{host}:{port}", reason=reason
            )

    async def _try(self, host: str, port: int) -> str | None:
        """Connect once with the same certificates; None if TLS is not the reason."""
        try:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=self.files.client_context(), server_hostname=self._config.server_name or host
            )
        except ssl.SSLCertVerificationError as failed:
            return (
                f"Its certificate is not accepted: {failed.verify_message}. Check internal.ssl.truststore.location "
                "here, and the other broker's certificate and its names."
            )
        except ssl.SSLError as failed:
            return _of_alert(failed)
        except OSError:
            return None
        try:
            writer.write(_PREFACE)
            return None if await reader.read(64) else _NOT_ACCEPTED
        except ssl.SSLError as failed:
            return _of_alert(failed)
        except OSError:
            return _NOT_ACCEPTED
        finally:
            writer.close()


_NOT_ACCEPTED = (
    "It does not accept this broker's certificate: check internal.ssl.keystore.location here, and "
    "internal.ssl.truststore.location of the other broker."
)


def _of_alert(failed: ssl.SSLError) -> str:
    reason = (failed.reason or str(failed)).lower().replace("_", " ")
    if "alert" in reason:
        return f"{_NOT_ACCEPTED[:-1]} ({reason})."
    return f"It does not speak TLS ({reason}): check internal.security.protocol of the other broker."
