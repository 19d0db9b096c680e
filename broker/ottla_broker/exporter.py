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
import os
import resource
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeAlias

import structlog

from ottla_broker.exposed import Family, Sample
from ottla_broker.exposition import CONTENT_TYPE, text_steps
from ottla_broker.http_config import HttpConfig
from ottla_broker.metrics import Metrics
from ottla_broker.steps import Steps

_log = structlog.get_logger("ottla.http")

_JSON = "application/json"
#: Of metrics that need the disk or other brokers; Prometheus gives up after 10 s by default.
_COLLECT_S = 2.0
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

#: Runs the slices of a page, each when it is its turn.
RunSteps: TypeAlias = Callable[[Steps[bytes]], Awaitable[bytes]]


class Exporter:
    def __init__(
        self,
        config: HttpConfig,
        metrics: Metrics,
        not_ready: Callable[[], Sequence[str]],
        run: RunSteps,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` gives the context for the next handshake, if http.security.protocol is SSL."""
        self._tls = tls
        self._run = run
        self._config = config
        self._metrics = metrics
        self._not_ready = not_ready
        self._server: asyncio.Server | None = None
        self._collecting: asyncio.Task[None] | None = None
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
        if self._collecting is not None:
            tasks.append(self._collecting)
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
                if _parse(head)[1] == "/metrics":
                    await self._collect()
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

    async def _collect(self) -> None:
        """Have the metrics collected that need the disk or other brokers. One collection serves all scrapers."""
        if self._collecting is None:
            self._collecting = asyncio.get_running_loop().create_task(self._collect_all())
            self._collecting.add_done_callback(self._on_collected)
        with suppress(TimeoutError):
            async with asyncio.timeout(_COLLECT_S):
                await asyncio.shield(self._collecting)

    async def _collect_all(self) -> None:
        async with asyncio.timeout(self._config.timeout_ms / 1000):
            for collect in self._metrics.collectors:
                try:
                    await collect()
                except Exception:
                    # Stale values are better than none, and other metrics are not affected.
                    _log.exception("metrics not collected")

    def _on_collected(self, task: asyncio.Task[None]) -> None:
        self._collecting = None
        if not task.cancelled() and isinstance(task.exception(), TimeoutError):
            _log.warning("metrics not collected in time")

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
            families = chain(self._metrics.exposed(), process_families())
            return 200, CONTENT_TYPE, await self._run(text_steps(families))
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


def process_families() -> list[Family]:
    """CPU, memory and descriptors under the names that every Prometheus dashboard knows."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    rows = [
        ("process_cpu_seconds_total", "counter", "CPU time of the process.", usage.ru_utime + usage.ru_stime)
    ]
    with suppress(OSError, ValueError, IndexError):  # no /proc outside Linux: fewer metrics, no error
        with open("/proc/self/statm", "rb") as statm:
            pages = statm.read().split()
        page = os.sysconf("SC_PAGE_SIZE")
        rows.append(("process_virtual_memory_bytes", "gauge", "Virtual memory.", int(pages[0]) * page))
        rows.append(("process_resident_memory_bytes", "gauge", "Resident memory.", int(pages[1]) * page))
        rows.append(("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))))
        rows.append(("process_start_time_seconds", "gauge", "Start of the process since 1970.", _started_s()))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    rows.append(("process_max_fds", "gauge", "Limit of open file descriptors.", limit))
    return [Family(name, kind, doc, [Sample("", (), value)]) for name, kind, doc, value in rows]


def _started_s() -> float:
    """When the kernel started this process: boot time plus ticks since boot (proc(5))."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as stat:
        boot = [int(line.split()[1]) for line in stat if line.startswith(b"btime ")]
    return boot[0] + ticks / os.sysconf("SC_CLK_TCK")
