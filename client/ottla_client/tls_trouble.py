"""Diagnoses a TLS connection that failed: one sentence that says which side does not accept what. [A]

Called once, after a first connection has failed, because gRPC tells no more than "Ssl handshake failed".
"""

from __future__ import annotations

import asyncio
import ssl

from ottla_client.security import Security

_TIMEOUT_S = 2.0
#: HTTP/2's preface and empty settings: a server that refuses our certificate answers with an alert after it.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


async def tls_trouble(address: str, security: Security, fallback: str) -> str:
    """A sentence. OSError if the address cannot be reached at all."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = _context(security)
    except (OSError, ssl.SSLError) as failed:
        return f"The files of the ssl.* options cannot be used: {failed}."
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
            try:
                writer.write(_PREFACE)
                if not await reader.read(64):
                    return _of_closed(address, security)
            except ConnectionError:
                return _of_closed(address, security)
            finally:
                writer.close()
    except ssl.SSLCertVerificationError as failed:
        return (
            f"The certificate of the broker at {address} is not accepted: {failed.verify_message}. "
            "Check ssl.ca.location, the broker's certificate and its host names."
        )
    except ssl.SSLError as failed:
        return _of_alert(address, security, failed)
    except TimeoutError:
        return f"{address} does not answer in a TLS handshake; check the address and security.protocol."
    except (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError):
        return f"{address} closed the connection during the TLS handshake; check security.protocol."
    return f"{address} does not answer as an Ottla broker ({fallback.rstrip('.')})."


def _of_closed(address: str, security: Security) -> str:
    """Closed after the handshake: with TLS 1.3 the server checks the client's certificate only then."""
    if security.ssl_certificate_location is None:
        return (
            f"The broker at {address} closed the connection after the TLS handshake; if it requires a client "
            "certificate, set ssl.certificate.location and ssl.key.location."
        )
    return f"The broker at {address} does not accept the client's certificate; its log has the reason."


def _of_alert(address: str, security: Security, failed: ssl.SSLError) -> str:
    reason = (failed.reason or str(failed)).upper()
    if "CERTIFICATE_REQUIRED" in reason or (
        "HANDSHAKE_FAILURE" in reason and not security.ssl_certificate_location
    ):
        return (
            f"The broker at {address} requires a client certificate: set "
            "ssl.certificate.location and ssl.key.location."
        )
    if "ALERT" in reason:
        return (
            f"The broker at {address} does not accept the client's certificate "
            f"({reason.lower().replace('_', ' ')}); its log has the reason."
        )
    other = "SASL_PLAINTEXT" if security.has_login else "PLAINTEXT"
    return f"{address} does not speak TLS: set security.protocol={other}, or use the address of a listener with TLS."


async def speaks_tls(host: str, port: int) -> bool:
    """Whether the server answers a TLS handshake, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as failed:
        return "ALERT" in (failed.reason or "").upper()
    except OSError:
        return False
    writer.close()
    return True


def _context(security: Security) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ssl_ca_location)
    context.set_alpn_protocols(["h2"])
    if security.ssl_certificate_location is not None:
        # An empty password: without one OpenSSL would ask for it on the terminal.
        context.load_cert_chain(security.ssl_certificate_location, security.ssl_key_location, password="")
    return context
