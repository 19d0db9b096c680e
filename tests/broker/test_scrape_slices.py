"""A scrape of many series is made in slices, so that it does not hold the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from ottla_broker.event_loop import in_turns, next_turn
from ottla_broker.exporter import Exporter
from ottla_broker.exposed import Family, Sample
from ottla_broker.exposition import LINES_PER_STEP, text_steps, write_text
from ottla_broker.http_config import HttpConfig
from ottla_broker.metrics import Metrics
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.metrics_pages import MetricsPages
from ottla_broker.setting import Listener
from ottla_broker.visits import stepped

TOPICS = 3000


def many_topics() -> Metrics:
    metrics = Metrics(topics_max=TOPICS)
    for number in range(TOPICS):
        metrics.topics.of(f"topic-{number}").bytes_in = number
    return metrics


def test_the_slices_make_the_same_text() -> None:
    metrics = many_topics()
    steps, slices = text_steps(metrics.exposed()), 0
    try:
        while True:
            next(steps)
            slices += 1
    except StopIteration as last:
        page: bytes = last.value
    text = page.decode()
    assert text == write_text(metrics.families())
    assert text.count("\n") > 7 * TOPICS
    assert slices >= text.count("\n") // LINES_PER_STEP


def test_no_slice_makes_more_samples_than_it_writes() -> None:
    made = 0

    def samples() -> Iterator[Sample]:
        nonlocal made
        for number in range(10 * LINES_PER_STEP):
            made += 1
            yield Sample("", (("n", str(number)),), 1)

    before = 0
    for _ in text_steps([Family("a_total", "counter", "One.", samples())]):
        assert made - before <= LINES_PER_STEP
        before = made
    assert made == 10 * LINES_PER_STEP


def test_families_of_many_topics_are_made_while_they_are_written() -> None:
    families = {each.name: each for each in many_topics().families()}
    assert isinstance(families["ottla_topic_received_bytes_total"].samples, Iterator)


async def test_the_loop_turns_while_a_page_is_written() -> None:
    metrics, loop = many_topics(), asyncio.get_running_loop()
    scheduler = Scheduler(loop.time, next_turn, metrics.loop.turn_seconds.observe)
    config = HttpConfig(listener=Listener("http", "127.0.0.1", 0), timeout_ms=30_000)
    turns = 0

    async def counting() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    for run in (partial(stepped, scheduler), in_turns):
        exporter = Exporter(config, MetricsPages(metrics, run, timeout_s=30), list)
        port = await exporter.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        counter = asyncio.create_task(counting())
        body = await reader.read()
        while not reader.at_eof():
            body += await reader.read()
        counter.cancel()
        writer.close()
        await exporter.stop()
        assert body.count(b"\n") > 7 * TOPICS
        assert turns > 4, "a page of 21,000 lines takes many turns of 2 ms, also on a fast machine"
        turns = 0
