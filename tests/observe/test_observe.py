"""Metrics that are collected on demand: lag arithmetic, interpolated timestamps, and slow collectors."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla_broker.event_loop import in_turns
from ottla_broker.exporter import Exporter
from ottla_broker.exposed import Family, Sample
from ottla_broker.http_config import HttpConfig
from ottla_broker.log.times import interpolated
from ottla_broker.metrics import Metrics
from ottla_broker.service.group_lag import Behind, Lag
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_broker.setting import Listener
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader

TP = TopicPartition("t", 0)


def batch(base: int, last_delta: int, first_ms: int, max_ms: int, attributes: int = 0) -> BatchHeader:
    return BatchHeader(
        base, 100, 0, 2, 0, attributes, last_delta, first_ms, max_ms, -1, -1, -1, last_delta + 1
    )


def test_lag_is_zero_at_the_end_and_unknown_without_a_leader() -> None:
    assert Lag("g", TP, 5, Behind(5, None)).seconds(1000) == 0
    assert Lag("g", TP, 7, Behind(5, None)).records == 0, "a truncated log is not a negative lag"
    assert Lag("g", TP, 5, None).records is None and Lag("g", TP, 5, None).seconds(0) is None
    assert Lag("g", TP, 3, Behind(5, 400)).seconds(1400) == 1.0
    assert Lag("g", TP, 3, Behind(5, None)).seconds(1400) is None
    assert Lag("g", TP, 3, Behind(5, None, 5)).seconds(1400) == 0, "the records were deleted"
    assert Lag("g", TP, -1, Behind(0, None)).seconds(1400) == 0, "an empty partition without a commit"


def test_a_timestamp_inside_a_batch_is_interpolated() -> None:
    assert interpolated(batch(100, 10, 1000, 2000), 100) == 1000
    assert interpolated(batch(100, 10, 1000, 2000), 105) == 1500
    assert interpolated(batch(100, 10, 1000, 2000), 90) == 1000, "compaction removed the record"
    assert interpolated(batch(100, 10, 1000, 2000, LOG_APPEND_TIME_FLAG), 100) == 2000
    assert interpolated(batch(100, 0, 1500, 1500), 100) == 1500
    assert interpolated(batch(100, 3, -1, NO_TIMESTAMP), 100) is None


async def test_a_slow_or_failing_collector_does_not_hold_back_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla_broker.service.metrics_pages._COLLECT_S", 0.2)
    metrics, calls = Metrics(), 0

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(30)

    async def broken() -> None:
        raise RuntimeError("broken on purpose")

    metrics.source(lambda: [Family("ottla_x", "gauge", "X.", [Sample("", (), 1)])], broken)
    metrics.source(list, slow)
    config = HttpConfig(listener=Listener("http", "127.0.0.1", 0), timeout_ms=3000)
    exporter = Exporter(config, MetricsPages(metrics, in_turns, timeout_s=3), list)
    port = await exporter.start()

    async def scrape() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        page = await reader.read()
        writer.close()
        await writer.wait_closed()
        return page

    began = time.monotonic()
    pages = await asyncio.gather(scrape(), scrape())
    assert time.monotonic() - began < 1.5
    assert all(b"ottla_x 1" in page for page in pages) and calls == 1, "one collection for both"
    await exporter.stop()
