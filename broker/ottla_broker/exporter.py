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
import ssl
from collections.abc import Callable, Sequence

import structlog

from ottla_broker.exposition import CONTENT_TYPE
from ottla_broker.http_config import HttpConfig
from ottla_broker.service.metrics_pages import MetricsPages

_log = structlog.get_logger("ottla.http")

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
    ) -> None:
        """`tls` gives the context for the next handshake, if http.security.protocol is SSL."""
        self._tls = tls
        self._config = config
        self._pages = pages
        self._not_ready = not_ready
        self._server: asyncio.Server | None = None
        #: Open connections and the task that serves each; a dict, so that they are closed in order.
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def start(self, host: str | None = None, port: int | None = None) -> int:
        """Listen; gives the port, which is a free one if 0 was asked for. OSError if it is taken."""
        self._server = await asyncio.start_server(
            self._accept,
            self._config.listener.host if host is None else host,
            self._config.listener.port if port is None else port,
            limit=self._config.request_max_bytes,
            ssl=None if self._tls is None else _renewing(self._tls),
            ssl_handshake_timeout=None if self._tls is None else self._config.timeout_ms / 1000,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and end what is open; scrapers try again anyway."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._serving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._config.connections_max:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving[writer] = task
        task.add_done_callback(lambda _: self._serving.pop(writer, None))

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


def _renewing(current: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A server keeps its context; this one uses the current files at each handshake."""

    def choose(
        connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = current()

    made = current()
    made.sni_callback = choose
    return made


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
