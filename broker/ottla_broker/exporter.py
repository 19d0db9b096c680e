"""Metrics and health over HTTP: GET /metrics, /healthz, /readyz, and nothing else. [A]

For Prometheus, the kubelet and `ottla up`. One request per connection, a bounded head, a deadline on
everything; a client that breaks these rules loses its connection, without effect on others. It answers from the
broker's loop on purpose: a broker whose loop hangs must fail its liveness probe. A large page is made in slices, as
large requests are: a scrape holds the loop no longer than a client does.

* /healthz: 200 as long as the loop turns.
* /readyz: 200 when `not_ready()` has no reasons, else 503; the reasons are in the JSON body.
* /metrics: Prometheus text.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence

import structlog

from ottla_broker.exposition import CONTENT_TYPE
from ottla_broker.http_config import HttpConfig
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_core.ports.clock import Clock
from ottla_core.real.clock import RealClock

_log = structlog.get_logger("ottla.http")

#: After an accept that failed, for example because the process has no descriptor left.
_PAUSE_S = 0.5
_JSON = "application/json"
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class Exporter:
    def __init__(
        self,
        config: HttpConfig,
        pages: MetricsPages,
        not_ready: Callable[[], Sequence[str]],
        tls: Callable[[], ssl.SSLContext] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`tls` gives the context for the next handshake, if http.security.protocol is SSL."""
        self._tls = tls
        self._clock = clock or RealClock()
        self._config = config
        self._pages = pages
        self._not_ready = not_ready
        self._server: asyncio.Server | None = None
        #: One task per open connection, also while it is in its handshake; a dict, so that they end in order.
        self._serving: dict[asyncio.Task[None], None] = {}
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, host: str | None = None, port: int | None = None) -> int:
        """Listen; gives the port, which is a free one if 0 was asked for. OSError if it is taken."""
        host = self._config.listener.host if host is None else host
        port = self._config.listener.port if port is None else port
        if self._tls is not None:
            return self._start_tls(host, port, self._tls)
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=self._config.request_max_bytes
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _start_tls(self, host: str, port: int, context: Callable[[], ssl.SSLContext]) -> int:
        """Accepts by itself: an asyncio server shows connections only after their handshake, and bounds none before."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = listening = socket.create_server((host, port), family=family)
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept_tls(listening, context))
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and end what is open; scrapers try again anyway."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._serving)
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        if self._listening is not None:
            # A turn after its accept was cancelled: until then uvloop watches it.
            self._listening.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_full:
            writer.transport.abort()
        else:
            self._begin(self._serve(reader, writer))

    @property
    def _is_full(self) -> bool:
        return len(self._serving) >= self._config.connections_max

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving[task] = None
        task.add_done_callback(self._serving.pop)

    async def _accept_tls(self, listening: socket.socket, context: Callable[[], ssl.SSLContext]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as failed:
                _log.warning("cannot accept connections", reason=failed.strerror or str(failed))
                await self._clock.sleep(_PAUSE_S)
                continue
            if self._is_full:
                accepted.close()
            else:
                self._begin(self._serve_tls(accepted, context()))

    async def _serve_tls(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(self._config.request_max_bytes, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._config.timeout_ms / 1000,
            )
        except BaseException as ended:
            accepted.close()
            if isinstance(ended, OSError):
                return  # No handshake; there is no one to report to.
            raise
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        timeout_s = self._config.timeout_ms / 1000
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                answer = await self._answer(head)
            except TimeoutError:
                answer = _response(408, _JSON, _error("The request did not arrive in time."))
            except asyncio.LimitOverrunError:
                answer = _response(431, _JSON, _error("The request is too long."))
            async with asyncio.timeout(timeout_s):
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            # The peer disconnected or does not read: there is no one to report to.
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, path = _parse(head)
        if method not in ("GET", "HEAD"):
            wrong = "Only GET and HEAD are supported." if method else "The request is not valid HTTP."
            return _response(405 if method else 400, _JSON, _error(wrong))
        try:
            async with asyncio.timeout(self._config.timeout_ms / 1000):
                status, content_type, body = await self._content(path)
        except TimeoutError:
            status, content_type, body = (
                503,
                _JSON,
                _error("The broker is too busy to write its metrics in time."),
            )
        except Exception:
            # A probe that fails to count must not look like a dead broker to the kubelet.
            _log.exception("http request failed", path=path)
            status, content_type, body = 500, _JSON, _error("The request failed; see the broker's log.")
        return _response(status, content_type, body, with_body=method == "GET")

    async def _content(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE, await self._pages.page()
        if path == "/healthz":
            return 200, _JSON, b'{"alive":true}\n'
        if path == "/readyz":
            reasons = list(self._not_ready())
            body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
            return (503 if reasons else 200), _JSON, body.encode()
        return 404, _JSON, _error("Try /metrics, /healthz or /readyz.")


def _parse(head: bytes) -> tuple[str, str]:
    """(method, path without its query); empty method if it is not HTTP/1."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[0].isalpha():
        return "", ""
    return words[0].decode("ascii", "replace"), words[1].split(b"?", 1)[0].decode("ascii", "replace")


def _error(sentence: str) -> bytes:
    return json.dumps({"error": sentence}).encode() + b"\n"


def _response(status: int, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
