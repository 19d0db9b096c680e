"""Sentences about TLS connections that fail, from real handshakes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from certificates import Authority
from ottla_client import tls_trouble as module
from ottla_client.security import Security
from ottla_client.tls_trouble import speaks_tls, tls_trouble


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def server(
    certificate: Path | None, clients_of: Authority | None = None, greeting: bytes = b""
) -> AsyncIterator[int]:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    if context is not None and clients_of is not None:
        context.load_verify_locations(clients_of.file)
        context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        try:
            await reader.read(1 << 16)
            await asyncio.sleep(0.1)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield int(made.sockets[0].getsockname()[1])
    finally:
        made.close()
        await asyncio.sleep(0.2)


async def said(port: int, security: Security) -> str:
    return await tls_trouble(f"localhost:{port}", security, "Ssl handshake failed")


async def test_certificates_of_the_broker(authority: Authority, tmp_path: Path) -> None:
    trusting = Security("SSL", ssl_ca_location=str(authority.file))
    async with server(authority.issue("old", "/CN=old", days=-1)) as port:
        assert "certificate has expired" in await said(port, trusting)
    async with server(authority.issue("fine", "/CN=fine")) as port:
        stranger = Authority(tmp_path / "other", "other-ca")
        told = await said(port, Security("SSL", ssl_ca_location=str(stranger.file)))
        assert "is not accepted: " in told and "Check ssl.ca.location" in told
        assert await speaks_tls("127.0.0.1", port)


async def test_certificates_of_the_client(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "other-ca").issue("mallory", "/CN=mallory")
    trusting = {"ssl_ca_location": str(authority.file)}
    async with server(authority.issue("strict", "/CN=strict"), clients_of=authority) as port:
        assert "set ssl.certificate.location" in await said(port, Security("SSL", **trusting))
        wrong = Security(
            "SSL", ssl_certificate_location=str(stranger), ssl_key_location=str(stranger), **trusting
        )
        assert "does not accept the client's certificate" in await said(port, wrong)


async def test_servers_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    login = Security("SASL_SSL", sasl_username="a", sasl_password="b")
    async with server(None, greeting=b"\0\0\0\4\0\0\0\0\0") as port:
        assert "does not speak TLS: set security.protocol=SASL_PLAINTEXT" in await said(port, login)
        assert not await speaks_tls("127.0.0.1", port)
    async with server(None) as port:
        assert "closed the connection during the TLS handshake" in await said(port, Security("SSL"))
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)
    async with server(None) as port:
        assert "does not answer in a TLS handshake" in await said(port, Security("SSL"))
    with pytest.raises(OSError):  # the caller says that nothing listens there
        await said(1, Security("SSL"))
