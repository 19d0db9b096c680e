"""Closing a client takes bounded time, whatever its tasks, brokers and the user's own callbacks do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from client.fake_services import FakeCluster
from ottla_client import Producer, background, consumer, loop_thread, sync
from ottla_client.background import Background
from ottla_client.errors import ClientClosed
from ottla_client.loop_thread import LoopThread


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as made:
        made.add_topic("t", 1)
        yield made


async def test_a_task_that_does_not_go_is_named_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_CLOSE_TIMEOUT_S", 0.05)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks = Background()
    task = tasks.spawn(stubborn(), "a stubborn task")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await tasks.close()
    assert "a stubborn task did not end" in caplog.text
    release.set()
    await task


async def test_a_producer_that_is_never_answered_closes_and_says_what_became_of_its_records(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.hold = asyncio.Event()
    producer = Producer(cluster.address)
    await producer.start()
    producer.stop_timeout_s = 0.2
    delivery = await producer.send("t", b"x")
    async with asyncio.timeout(10):
        await producer.stop()
    with pytest.raises(ClientClosed, match="closed before the record was acknowledged"):
        delivery.result()
    assert "not all records were acknowledged" in caplog.text
    cluster.hold.set()


async def test_a_group_that_cannot_be_left_is_left_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer, "_LEAVE_TIMEOUT_S", 0.1)
    made = consumer.Consumer(cluster.address, group_id="g")
    await made.start()

    async def never() -> None:
        await asyncio.Event().wait()

    assert made._group is not None
    monkeypatch.setattr(made._group, "close", never)
    async with asyncio.timeout(10):
        await made.stop()
    assert "was not left in time" in caplog.text


def test_a_blocked_loop_is_left_behind_and_closes_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_thread, "_CLOSE_TIMEOUT_S", 0.1)
    release = threading.Event()
    thread = LoopThread("blocked")
    thread.loop.call_soon_threadsafe(release.wait)
    began = time.monotonic()
    thread.close()
    assert time.monotonic() - began < 5
    assert "blocked did not end and is left running" in caplog.text
    release.set()
    thread._thread.join(10)
    assert thread.loop.is_closed(), "nobody else would do it, and the interpreter would complain"


async def test_records_that_wait_for_a_topic_that_never_comes_do_not_hold_up_the_close(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.auto_create = False
    heard: list[Exception | None] = []

    def work() -> float:
        producer = sync.Producer(
            cluster.address, max_block_ms=60_000, delivery_timeout_ms=200, request_timeout_ms=300
        )
        with producer:
            for _ in range(3):
                producer.send("nowhere", b"x", on_delivery=lambda _where, error: heard.append(error))
            began = time.monotonic()
        return time.monotonic() - began

    async with asyncio.timeout(30):
        assert await asyncio.to_thread(work) < 20
    assert [type(error) for error in heard] == [ClientClosed] * 3


def test_what_was_never_started_says_so() -> None:
    for made in (sync.Producer(), sync.Consumer(), sync.Admin()):
        made.stop()
    with pytest.raises(ClientClosed, match=r"use `with Consumer\(...\)`"):
        sync.Consumer().poll()
    with pytest.raises(ClientClosed, match=r"use `with Admin\(...\)`"):
        sync.Admin().list_topics()
    with pytest.raises(ClientClosed, match=r"use `with Producer\(...\)`"):
        sync.Producer().send("t", b"x")
