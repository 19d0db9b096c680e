"""The blocking faces: the same client from plain threads, no loop of the caller's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from client.fake_services import FakeCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.errors import CannotConnect, ClientClosed, SerializationFailed, UnknownTopicOrPartition
from ottla_client.loop_thread import LoopThread
from ottla_client.sync import Admin, Consumer, Producer

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A fake cluster in a thread with a loop of its own, as a broker process would be."""
    thread = LoopThread("fake-cluster")

    async def start() -> FakeCluster:
        made = FakeCluster()
        await made.__aenter__()
        made.add_topic("t", 2)
        return made

    try:
        made = thread.run(start(), 30)
        yield made
        thread.run(made.__aexit__(), 30)
    finally:
        thread.close()


def test_send_poll_and_administer(cluster: FakeCluster) -> None:
    with Admin(cluster.address) as admin:
        admin.create_topics([NewTopic("fresh", 2)])
        assert admin.list_topics() == ["fresh", "t"]
        admin.alter_configs({"retention.ms": "9"}, topic="fresh")
        assert admin.describe_configs(topic="fresh")[0].value == "9"
        assert admin.describe_cluster().cluster_id == "fake-cluster"
    with Producer(cluster.address, value_serializer="str") as producer:
        deliveries = [producer.send("t", f"v{n}", partition=0) for n in range(100)]
        assert deliveries[-1].result(timeout_s=10).offset == 99
        assert all(delivery.done() for delivery in deliveries)
        assert producer.send_and_wait("t", "last", partition=0).offset == 100
    with Consumer(cluster.address, auto_offset_reset="earliest", value_deserializer="str") as consumer:
        consumer.assign([T0])
        assert consumer.end_offsets([T0]) == {T0: 101}
        seen = []
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 101:
                break
        assert seen == [*(f"v{n}" for n in range(100)), "last"]
        consumer.seek(T0, 50)
        assert [r.offset for r in consumer.poll(1000, max_records=2)] == [50, 51]
        assert consumer.position(T0) == 52
    with Admin(cluster.address) as admin:
        assert admin.list_offsets({T0: "latest"})[T0].offset == 101
        assert admin.delete_records({T0: 5}) == {T0: 5}
        admin.delete_topics(["fresh"])
        with pytest.raises(UnknownTopicOrPartition):
            admin.describe_topics(["fresh"])


def test_many_threads_share_a_producer(cluster: FakeCluster) -> None:
    with Producer(cluster.address) as producer:

        def work(name: int) -> None:
            for number in range(500):
                producer.send("t", b"%d-%04d" % (name, number), partition=0)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    values = [value for value in cluster.values(T0) if value is not None]
    assert len(values) == 2000
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d-" % name)]
        assert own == sorted(own) and len(own) == 500, "each thread's records keep their order"


def test_failures_reach_the_one_who_asks(cluster: FakeCluster) -> None:
    heard: list[Exception | None] = []
    with Producer(cluster.address) as producer:
        delivery = producer.send("t", "no bytes", on_delivery=lambda _metadata, error: heard.append(error))
        with pytest.raises(SerializationFailed):
            delivery.result(10)
        assert producer.send("t", b"fine", partition=0).result(10).offset == 0
    assert isinstance(heard[0], SerializationFailed)
    with pytest.raises(ClientClosed):
        producer.send("t", b"late")
    with pytest.raises(CannotConnect), Producer("127.0.0.1:1"):
        pass


def test_a_callback_that_fails_holds_up_nothing(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def on_delivery(*_: object) -> None:
        raise KeyError("mine")

    with Producer(cluster.address) as producer:
        with pytest.raises(SerializationFailed):
            producer.send("t", "no bytes", on_delivery=on_delivery).result(10)
        assert producer.send("t", b"fine", partition=0).result(10).offset == 0
        producer.flush()
    assert "on_delivery failed" in caplog.text


def test_a_result_that_does_not_come_times_out(cluster: FakeCluster) -> None:
    cluster.hold = asyncio.Event()
    with Producer(cluster.address) as producer:
        delivery = producer.send("t", b"x")
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            delivery.result(0.2)
        assert time.monotonic() - begun < 5
        cluster.hold = None
        assert not delivery.done()
        # The first answer is held for good; a new question is not.
        loop = producer._thread.loop
        loop.call_soon_threadsafe(next(iter(producer._inner._sender._streams)).break_off)
        assert delivery.result(10).offset == 0
    assert cluster.values(TopicPartition("t", delivery.result().partition)) == [b"x"]


def test_records_that_cannot_go_wait_together_and_not_one_after_the_other(cluster: FakeCluster) -> None:
    cluster.auto_create = False
    with Producer(cluster.address, max_block_ms=400, request_timeout_ms=2000) as producer:
        began = time.monotonic()
        lost = [producer.send("missing", b"%d" % number) for number in range(20)]
        good = producer.send("t", b"here", partition=0)
        producer.flush()
        assert time.monotonic() - began < 4
        assert good.result(timeout_s=5).offset == 0
        for delivery in lost:
            with pytest.raises(UnknownTopicOrPartition):
                delivery.result(timeout_s=5)
