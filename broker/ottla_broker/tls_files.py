"""Certificate, key and trusted CAs of the TLS listeners, read again when their files change. [A]

The Kafka and gRPC listeners ask for the current ones at each handshake. Files that cannot be used are reported once
and the last good ones stay in use, because a half-written file must not close a listener. gRPC asks on its own threads.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import structlog

from ottla_broker.certificate_dates import earliest_expiry_s
from ottla_broker.exposed import Family, Sample
from ottla_broker.setting import ConfigError
from ottla_broker.tls_config import TlsConfig
from ottla_core.ports.clock import Clock

_log = structlog.get_logger("ottla.tls")

#: How often files are checked at most. A check costs three stat calls.
_CHECK_S = 1.0
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFiles:
    def __init__(self, config: TlsConfig, clock: Clock) -> None:
        """ConfigError if a file cannot be used."""
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_at = clock.monotonic()
        self._seen = self._signature()
        self.expiries: dict[str, float] = {}
        self._version = 0
        try:
            self._contexts, self._grpc = self._load()
        except (OSError, ssl.SSLError, ValueError) as failed:
            raise ConfigError(f"TLS cannot be set up: {_reason(failed)}.") from None

    def context(self) -> ssl.SSLContext:
        """For the next handshake of a Kafka listener with security protocol SSL."""
        self.refresh()
        return self._contexts[0]

    def context_for_logins(self) -> ssl.SSLContext:
        """The same with security protocol SASL_SSL: as in Kafka, clients log in and show no certificate."""
        self.refresh()
        return self._contexts[1]

    def grpc_credentials(self, *, logins: bool = False) -> Any:
        """Of a gRPC listener; it asks for the current files at each handshake. `logins`: as in `context_for_logins`."""

        def current() -> Any:
            self.refresh()
            return self._grpc

        needs_certificate = not logins and self._config.client_auth == "required"
        return grpc.dynamic_ssl_server_credentials(
            self._grpc, current, require_client_authentication=needs_certificate
        )

    def pem(self) -> tuple[int, tuple[bytes, bytes], bytes | None]:
        """A number that changes with the files, key and certificate, and the trusted CAs."""
        self.refresh()
        with self._lock:
            return self._version, self._pair, self._roots

    def client_context(self) -> ssl.SSLContext:
        """For a connection to a server that is in the same circle: it shows this certificate and trusts these CAs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._config.ca_file)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self._config.certificate_file or "", self._config.key_file, password="")
        return context

    def refresh(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now - self._checked_at < _CHECK_S:
                return
            self._checked_at = now
            signature = self._signature()
            if signature == self._seen:
                return
            self._seen = signature
            try:
                self._contexts, self._grpc = self._load()
            except (OSError, ssl.SSLError, ValueError) as failed:
                _log.error("TLS files not usable; the former ones stay in use", reason=_reason(failed))
            else:
                _log.info("TLS files reloaded", certificate=self._config.certificate_file)

    def _paths(self) -> list[str]:
        config = self._config
        return [path for path in (config.certificate_file, config.key_file, config.ca_file) if path]

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes with the content of the files, also if a symbolic link is replaced, as Kubernetes does."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths():
            try:
                stat = os.stat(path)
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _load(self) -> tuple[tuple[ssl.SSLContext, ssl.SSLContext], Any]:
        config = self._config
        certificate = config.certificate_file or ""
        context = _server_context(certificate, config.key_file)
        if config.ca_file is not None:
            context.load_verify_locations(config.ca_file)
        context.verify_mode = _VERIFY[config.client_auth]
        pairs = [(_read(config.key_file or certificate), _read(certificate))]
        roots = _read(config.ca_file) if config.ca_file is not None else None
        files = {certificate: pairs[0][1]} | ({config.ca_file: roots} if config.ca_file and roots else {})
        expiries = {path: earliest_expiry_s(content) for path, content in files.items()}
        self.expiries = {path: at_s for path, at_s in expiries.items() if at_s is not None}
        self._pair, self._roots = pairs[0], roots
        self._version += 1
        contexts = context, _server_context(certificate, config.key_file)
        return contexts, grpc.ssl_server_certificate_configuration(pairs, roots)


def certificate_families(files: Sequence[TlsFiles]) -> Iterator[Family]:
    """When certificates expire, for the metrics."""
    expiries: dict[str, float] = {}
    for each in files:
        each.refresh()
        expiries |= each.expiries
    yield Family(
        "ottla_certificate_expiry_timestamp_seconds", "gauge",
        "When the first certificate of a file of the TLS listeners expires, in seconds since 1970.",
        [Sample("", (("file", path),), at_s) for path, at_s in sorted(expiries.items())],
    )  # fmt: skip


def _server_context(certificate: str, key_file: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # An empty password: without one OpenSSL would ask for it on the terminal.
    context.load_cert_chain(certificate, key_file, password="")
    return context


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _reason(failed: Exception) -> str:
    if isinstance(failed, OSError) and not isinstance(failed, ssl.SSLError):
        return f"{failed.filename or 'a file'}: {failed.strerror or failed}"
    return str(failed)
