"""Metrics and health over HTTP, and the clients that do not play by the rules."""

from __future__ import annotations

import asyncio
import json
import platform
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from certificates import Authority
from ottla_broker.config import BrokerConfig
from ottla_broker.event_loop import in_turns
from ottla_broker.exporter import Exporter
from ottla_broker.http_config import HttpConfig
from ottla_broker.metrics import Metrics
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_broker.setting import Listener
from ottla_broker.tls_files import TlsFiles
from ottla_core import compiled
from ottla_core.real.clock import RealClock
from ottla_core.version import version_of


def pages(metrics: Metrics) -> MetricsPages:
    return MetricsPages(metrics, in_turns, timeout_s=0.3)


class World:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.reasons: list[str] = []
        self.port = 0

    async def send(self, data: bytes, *, eof: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if eof:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        return answer

    async def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        answer = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(first.split()[1]), headers, body


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    config = HttpConfig(
        listener=Listener("http", "127.0.0.1", 0), timeout_ms=300, connections_max=4, request_max_bytes=2048
    )
    exporter = Exporter(config, pages(made.metrics), lambda: made.reasons)
    made.port = await exporter.start()
    yield made
    await exporter.stop()


async def test_a_metric_says_whether_compiled_modules_run(world: World) -> None:
    _, _, body = await world.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    (build,) = families["ottla_build_info"].samples
    assert build.value == 1
    assert build.labels == {
        "version": version_of(),
        "python": platform.python_version(),
        "code": "compiled" if compiled.is_in_use() else "pure",
    }


async def test_metrics_are_prometheus_text_with_the_process_in_it(world: World) -> None:
    world.metrics.kafka.bytes_in = 42
    status, headers, body = await world.get("/metrics?x=1")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["content-length"]) == len(body)
    values = {s.name: s.value for f in text_string_to_metric_families(body.decode()) for s in f.samples}
    assert values["ottla_kafka_received_bytes_total"] == 42
    assert values["process_resident_memory_bytes"] > 1_000_000
    assert values["process_open_fds"] > 3


async def test_ready_says_why_not(world: World) -> None:
    assert await world.get("/healthz") == (200, *(await world.get("/healthz"))[1:])
    assert (await world.get("/readyz"))[0] == 200
    world.reasons = ["etcd has not answered for 7 s", "2 of 9 partitions are loading"]
    status, _, body = await world.get("/readyz")
    assert status == 503
    assert json.loads(body) == {"ready": False, "reasons": world.reasons}
    assert (await world.get("/healthz"))[0] == 200


async def test_head_has_no_body_and_other_things_are_refused(world: World) -> None:
    status, headers, body = await world.get("/healthz", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-length"] != "0"
    assert (await world.get("/healthz", "POST"))[0] == 405
    assert (await world.get("/nothing"))[0] == 404


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x10 not http\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics SPDY/3\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 5000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nA: unfinished", b"408"),
    ],
)
async def test_a_bad_request_is_answered_and_closed(world: World, data: bytes, status: bytes) -> None:
    assert (await world.send(data)).split(b" ")[1] == status


async def test_a_peer_that_leaves_early_is_forgotten(world: World) -> None:
    assert await world.send(b"GET /met", eof=True) == b""
    assert (await world.get("/healthz"))[0] == 200


async def test_silent_connections_cannot_keep_others_out_for_long(world: World) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(4)]
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError, IndexError)):
        await world.get("/healthz")  # the fifth: refused at once
    for reader, _ in silent:
        assert b" 408 " in await asyncio.wait_for(reader.read(), 10)
    assert (await world.get("/healthz"))[0] == 200
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()


async def test_a_failing_count_is_a_500_and_no_more(world: World) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    world.metrics.before_scrape(fail)
    assert (await world.get("/metrics"))[0] == 500
    assert (await world.get("/healthz"))[0] == 200


async def test_a_taken_port_is_an_error(world: World) -> None:
    config = HttpConfig(listener=Listener("http", "127.0.0.1", world.port))
    with pytest.raises(OSError, match="address already in use"):
        await Exporter(config, pages(Metrics()), list).start()


async def test_https_serves_a_replaced_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pem = authority.issue("one", "/CN=one", into=tmp_path / "broker.pem")
    files = TlsFiles(BrokerConfig.of({"ssl.keystore.location": str(pem)}).tls, RealClock())
    config = HttpConfig(Listener("http", "127.0.0.1", 0), security="SSL")
    exporter = Exporter(config, pages(Metrics()), list, files.context_for_logins)
    port = await exporter.start()

    async def ask(host: str) -> tuple[bytes, str]:
        context = ssl.create_default_context(cafile=str(authority.file))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        found = await asyncio.wait_for(reader.read(), 10)
        subject = writer.get_extra_info("peercert")["subject"]
        writer.close()
        return found.split(b"\r\n")[0], str(subject[0][0][1])

    try:
        assert await ask("localhost") == (b"HTTP/1.1 200 OK", "one")
        authority.issue("two", "/CN=two", into=pem)
        deadline = asyncio.get_running_loop().time() + 10
        while (await ask("127.0.0.1"))[1] != "two":  # an address: such clients name no server
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200" not in await asyncio.wait_for(reader.read(), 10), "nothing in plaintext"
        writer.close()
    finally:
        await exporter.stop()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_half_open_handshakes_are_counted_and_end(loop: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pem = authority.issue("one", "/CN=one", into=tmp_path / "broker.pem")
    files = TlsFiles(BrokerConfig.of({"ssl.keystore.location": str(pem)}).tls, RealClock())
    config = HttpConfig(Listener("http", "127.0.0.1", 0), security="SSL", timeout_ms=1_000, connections_max=4)

    async def closed(writer: asyncio.StreamWriter) -> None:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def run() -> None:
        exporter = Exporter(config, pages(Metrics()), list, files.context_for_logins)
        port = await exporter.start()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        silent[0][1].write(b"\x16\x03\x01")
        reader, fifth = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 0.5) == b"", "refused at once"
        for half_open, _ in silent:
            with suppress(ConnectionError):
                await asyncio.wait_for(half_open.read(), 5)
        context = ssl.create_default_context(cafile=str(authority.file))
        for _ in range(20):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.read(), 10)
            await closed(writer)
        for _, each in (*silent, (reader, fifth)):
            await closed(each)
        await exporter.stop()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
