"""Producer, consumer and admin against a real gRPC edge over services in memory."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator

import pytest

from client.fake_services import FakeCluster
from ottla_client import (
    Admin,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    NewTopic,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from ottla_client.errors import (
    BufferExhausted,
    CannotConnect,
    ClientClosed,
    NoOffset,
    SerializationFailed,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_client.partitioner import partition_for_key
from ottla_core.errors import InvalidConfig, InvalidPartitions, MessageTooLarge
from ottla_core.records.batch import header_at
from ottla_core.records.compression import Compression

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as made:
        made.add_topic("t", 2)
        yield made


async def read(
    cluster: FakeCluster, *partitions: TopicPartition, count: int, **settings: object
) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    settings = {"auto_offset_reset": "earliest", **settings}
    async with Consumer(cluster.address, **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign(partitions)
        async with asyncio.timeout(10):
            while len(found) < count:
                found.extend(await consumer.poll(1000))
    return found


# ---------------------------------------------------------------------- producing


async def test_what_is_sent_is_read_with_key_headers_and_time(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer:
        delivery = await producer.send(
            "t", b"value", b"key", headers=[("h", b"1"), ("n", None)], partition=1, timestamp_ms=1234
        )
        assert await delivery == RecordMetadata("t", 1, 0, 1234)
        assert delivery.done() and delivery.exception() is None
    (record,) = await read(cluster, T1, count=1)
    assert record[:6] == ("t", 1, 0, 1234, b"key", b"value")
    assert list(record.headers) == [("h", b"1"), ("n", None)]


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_compression_and_ack(cluster: FakeCluster, acks: str | int, compression: str) -> None:
    async with Producer(cluster.address, acks=acks, compression=compression, batch_size=2000) as producer:
        for number in range(100):
            await producer.send("t", b"%04d" % number * 20, partition=0)
    records = await read(cluster, T0, count=100)
    assert [r.value for r in records] == [b"%04d" % number * 20 for number in range(100)]
    stored = cluster.partitions[T0].batches
    assert {header.compression for header, _ in stored} == {Compression.named(compression)}
    assert len(stored) > 2
    assert {header.has_producer for header, _ in stored} == {acks == "all"}


async def test_keys_go_where_java_puts_them_and_sticky_fills_batches(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, key_serializer="str", value_serializer="json") as producer:
        for number in range(20):
            sent = await producer.send_and_wait("t", {"n": number}, key=f"key-{number}")
            assert sent.partition == partition_for_key(b"key-%d" % number, 2)
        deliveries = await producer.send_many("t", [{"n": n} for n in range(50)])
        await producer.flush()
    assert len({delivery.result().partition for delivery in deliveries}) == 1
    records = await read(cluster, T0, T1, count=70, key_deserializer="str", value_deserializer="json")
    assert sum(1 for r in records if r.key is None) == 50 and all("n" in r.value for r in records)


async def test_without_keys_a_slow_trickle_spreads_over_all_partitions(cluster: FakeCluster) -> None:
    cluster.add_topic("wide", 4)
    async with Producer(cluster.address) as producer:
        placed = [(await producer.send_and_wait("wide", b"x")).partition for _ in range(24)]
    assert set(placed) == {0, 1, 2, 3}
    assert all(one != next_one for one, next_one in itertools.pairwise(placed))


async def test_callbacks_and_interceptors_see_every_record(cluster: FakeCluster) -> None:
    class Auditor(ProducerInterceptor):
        def __init__(self) -> None:
            self.acknowledged: list[RecordMetadata | None] = []

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            if record.value == b"trip":
                raise RuntimeError("an interceptor's bug must not lose a record")
            return ProducerRecord(record.topic, b"<" + record.value + b">", partition=0)

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            self.acknowledged.append(metadata)

    class Upper(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record._replace(value=record.value.upper()) for record in records]

    auditor, called = Auditor(), list[tuple[RecordMetadata | None, Exception | None]]()
    async with Producer(cluster.address, interceptors=[auditor]) as producer:
        await producer.send("t", b"a", on_delivery=lambda metadata, error: called.append((metadata, error)))
        await producer.send("t", b"trip", partition=0)
    assert [(m and m.offset, e) for m, e in called] == [(0, None)]
    assert [m and m.offset for m in auditor.acknowledged] == [0, 1]
    assert [r.value for r in await read(cluster, T0, count=2, interceptors=[Upper()])] == [b"<A>", b"TRIP"]


async def test_an_interceptor_may_drop_a_record(cluster: FakeCluster) -> None:
    class Choosy(ProducerInterceptor):
        def __init__(self) -> None:
            self.seen: list[bytes] = []
            self.acknowledged = 0

        def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
            self.seen.append(record.value)
            return None if record.value == b"drop" else record

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            self.acknowledged += 1

    first, later, called = Choosy(), Choosy(), list[tuple[RecordMetadata | None, Exception | None]]()
    dropped = RecordMetadata("t", -1, -1, 7)
    async with Producer(cluster.address, interceptors=[first, later]) as producer:
        await producer.send("t", b"a", partition=0)
        sent = await producer.send(
            "t", b"drop", timestamp_ms=7, on_delivery=lambda *outcome: called.append(outcome)
        )
        assert sent.done() and sent.exception() is None and await sent == dropped == sent.result()
        assert await producer.send_and_wait("t", b"drop", timestamp_ms=7) == dropped
        assert producer.send_nowait("t", b"drop", timestamp_ms=7).result() == dropped
        many = await producer.send_many("t", [b"b", b"drop", b"c"], partition=0)
        assert [(await each).offset for each in many] == [1, -1, 2]
    assert called == [(dropped, None)]
    assert (len(first.seen), later.seen) == (7, [b"a", b"b", b"c"])
    assert first.acknowledged == later.acknowledged == 3
    assert [r.value for r in await read(cluster, T0, count=3)] == [b"a", b"b", b"c"]


async def test_deliveries_can_be_gathered_and_flush_waits_for_all(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, linger_ms=10_000) as producer:
        deliveries = [await producer.send("t", b"%d" % n, partition=n % 2) for n in range(10)]
        assert not any(delivery.done() for delivery in deliveries)
        await producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        assert [m.offset for m in await asyncio.gather(*deliveries)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_send_and_wait_does_not_linger(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, linger_ms=60_000) as producer:
        async with asyncio.timeout(5):
            await producer.send_and_wait("t", b"now")


async def test_an_unknown_topic_is_created_or_refused_as_the_broker_is_set(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, max_block_ms=300, retry_backoff_ms=10) as producer:
        assert (await producer.send_and_wait("made", b"x")).offset == 0
        cluster.auto_create = False
        with pytest.raises(UnknownTopicOrPartition, match="missing"):
            await producer.send("missing", b"x")
        with pytest.raises(UnknownTopicOrPartition, match="0 to 1, not 7"):
            await producer.send("t", b"x", partition=7)


async def test_what_cannot_be_sent_says_why(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, max_request_size=10_000) as producer:
        with pytest.raises(SerializationFailed, match="expected bytes, got str"):
            await producer.send("t", "text")
        with pytest.raises(MessageTooLarge, match="max_request_size=10000"):
            await producer.send("t", b"x" * 20_000)
        await producer.send_and_wait("t", b"still works")
    with pytest.raises(ClientClosed):
        await producer.send("t", b"x")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": 2}, "acks=2"),
        ({"acks": 1, "enable_idempotence": True}, "needs acks='all'"),
        ({"max_in_flight": 9, "enable_idempotence": True}, "max_in_flight"),
        ({"compression": "brotli"}, "brotli"),
        ({"partitioner": "nearest"}, "nearest"),
        ({"bootstrap_servers": "localhost"}, "host:port"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_sentence(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        Producer(**settings)  # type: ignore[arg-type]


async def test_a_full_buffer_waits_for_acknowledgements_and_then_goes_on(cluster: FakeCluster) -> None:
    cluster.hold = asyncio.Event()
    async with Producer(
        cluster.address, buffer_memory=20_000, batch_size=2_000, linger_ms=50, max_block_ms=200
    ) as producer:
        for _ in range(19):
            await producer.send("t", b"x" * 1000, partition=0)
        with pytest.raises(BufferExhausted, match="max_block_ms"):
            await producer.send("t", b"x" * 1000, partition=0)
        with pytest.raises(BufferExhausted):
            producer.send_nowait("t", b"x" * 1000, partition=0)
        asyncio.get_running_loop().call_later(0.05, cluster.hold.set)
        await producer.send("t", b"last", partition=0)
    assert cluster.values(T0)[-1] == b"last" and len(cluster.values(T0)) == 20


# ---------------------------------------------------------------------- consuming


async def test_positions_seeks_and_offsets(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, batch_size=300) as producer:
        for number in range(30):
            await producer.send("t", b"%d" % number, partition=0, timestamp_ms=1000 + number)
    async with Consumer(cluster.address) as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == 30, "latest is the default"
        assert await consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert await consumer.end_offsets([T0, T1]) == {T0: 30, T1: 0}
        consumer.seek(T0, 7)
        assert [r.offset for r in await consumer.poll(1000, max_records=3)] == [7, 8, 9]
        assert await consumer.position(T0) == 10
        await consumer.seek_to_beginning()
        assert (await consumer.getone()).offset == 0
        await consumer.seek_to_end(T0)
        assert await consumer.poll(20) == []
        found = await consumer.offsets_for_times({T0: 1015, T1: 5})
        assert found[T1] is None
        assert (at := found[T0]) is not None and at.timestamp_ms >= 1015
        assert consumer.highwater(T0) == 30


async def test_new_records_end_the_long_poll(cluster: FakeCluster) -> None:
    async with (
        Consumer(cluster.address, fetch_max_wait_ms=30_000) as consumer,
        Producer(cluster.address) as producer,
    ):
        consumer.assign([T0, T1])
        await consumer.position(T0)
        await consumer.position(T1)
        polling = asyncio.ensure_future(consumer.poll(10_000))
        await asyncio.sleep(0.1)
        await producer.send_and_wait("t", b"news", partition=1)
        assert [r.value for r in await polling] == [b"news"]


async def test_a_seek_need_not_wait_for_its_own_long_poll(cluster: FakeCluster) -> None:
    """A further fetch on the stream ends the waiting of the one before it."""
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"old", partition=0)
    async with Consumer(cluster.address, fetch_max_wait_ms=30_000) as consumer:
        consumer.assign([T0, T1])
        await consumer.seek_to_end()
        assert await consumer.poll(50) == []
        consumer.seek(T0, 0)
        async with asyncio.timeout(3):
            assert [r.value for r in await consumer.poll(10_000)] == [b"old"]


async def test_pause_holds_one_partition_and_not_the_other(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer:
        for partition in (0, 1):
            await producer.send("t", b"p%d" % partition, partition=partition)
    async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0, T1])
        consumer.pause(T0)
        assert consumer.paused() == [T0]
        assert [r.value for r in await consumer.poll(2000)] == [b"p1"]
        assert await consumer.poll(50) == []
        consumer.resume(T0)
        assert [r.value for r in await consumer.poll(2000)] == [b"p0"]


async def test_iterating_follows_a_seek(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer:
        await producer.send_many("t", [b"%d" % n for n in range(10)], partition=0)
    seen: list[int] = []
    async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer, asyncio.timeout(10):
        consumer.assign([T0])
        async for record in consumer:
            seen.append(record.offset)
            if len(seen) == 3:
                consumer.seek(T0, 8)
            if record.offset == 9:
                break
    assert seen == [0, 1, 2, 8, 9]


async def test_deleted_records_reset_the_position_as_told(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, batch_size=100) as producer:
        for number in range(10):
            await producer.send_and_wait("t", b"%d" % number, partition=0)
    async with Admin(cluster.address) as admin:
        assert await admin.delete_records({T0: 6}) == {T0: 6}
    async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        assert (await consumer.poll(3000))[0].offset == 6
    async with Consumer(cluster.address, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        with pytest.raises(NoOffset, match="offset 2 is out of range"):
            await consumer.poll(3000)


async def test_a_batch_larger_than_the_fetch_limit_still_comes(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"x" * 500_000, partition=0)
    (record,) = await read(cluster, T0, count=1, max_partition_fetch_bytes=1000, fetch_max_bytes=1000)
    assert len(record.value) == 500_000


# ---------------------------------------------------------------------- administration


async def test_topics_live_grow_and_go(cluster: FakeCluster) -> None:
    async with Admin(cluster.address) as admin:
        (made,) = await admin.create_topics([NewTopic("fresh", 3, configs={"retention.ms": "5"})])
        assert (made.name, len(made.partitions), made.replication_factor) == ("fresh", 3, 1)
        with pytest.raises(TopicAlreadyExists):
            await admin.create_topics(["fresh"])
        await admin.create_partitions("fresh", 5)
        (described,) = await admin.describe_topics(["fresh"])
        assert [p.partition for p in described.partitions] == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidPartitions, match="5 already"):
            await admin.create_partitions("fresh", 5)
        assert await admin.list_topics() == ["fresh", "t"]
        await admin.delete_topics(["fresh"])
        with pytest.raises(UnknownTopicOrPartition, match="'fresh'"):
            await admin.describe_topics(["fresh"])
        with pytest.raises(TypeError, match="list of topic names"):
            await admin.delete_topics("fresh")


async def test_configs_are_told_and_changed_and_secrets_are_not(cluster: FakeCluster) -> None:
    async with Admin(cluster.address) as admin:
        await admin.alter_configs({"retention.ms": "77"}, topic="t")
        entries = {entry.name: entry for entry in await admin.describe_configs(topic="t")}
        assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("77", "topic")
        assert entries["secret"].value is None and entries["secret"].sensitive
        await admin.alter_configs({"retention.ms": None}, topic="t")
        entries = {entry.name: entry for entry in await admin.describe_configs(topic="t")}
        assert entries["retention.ms"].is_default
        with pytest.raises(InvalidConfig, match="colour"):
            await admin.alter_configs({"colour": "blue"}, topic="t")
        assert (await admin.describe_configs(broker=0))[0].read_only
        await admin.alter_configs({"consumer.assignor": "range"}, group="g")
        (own,) = await admin.describe_configs(group="g")
        assert (own.value, own.source) == ("range", "group")
        with pytest.raises(ValueError, match="one of"):
            await admin.describe_configs()


async def test_offsets_and_the_cluster_are_described(cluster: FakeCluster) -> None:
    async with Producer(cluster.address) as producer:
        await producer.send_and_wait("t", b"x", partition=1)
    async with Admin(cluster.address) as admin:
        found = await admin.list_offsets({T0: "latest", T1: "latest"})
        assert (found[T0].offset, found[T1].offset) == (0, 1)
        with pytest.raises(UnknownTopicOrPartition, match="0 to 1, not 9"):
            await admin.list_offsets({TopicPartition("t", 9): "latest"})
        with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
            await admin.list_offsets({TopicPartition("nowhere", 0): "latest"})
        described = await admin.describe_cluster()
        assert described.cluster_id == "fake-cluster"
        assert [(b.id, b.port) for b in described.brokers] == [(0, cluster.brokers[0].port)]


# ---------------------------------------------------------------------- wrong addresses


async def test_nobody_at_the_address_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(CannotConnect, match=f"Nothing listens at 127.0.0.1:{port}.*ottla up"):
            async with Admin(f"127.0.0.1:{port}"):
                pass


async def test_a_kafka_port_is_recognised_and_the_grpc_port_named() -> None:
    async def kafka(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = await reader.read(1000)
        if not frame.startswith(b"PRI"):
            writer.write(b"\0\0\0\x0a" + frame[8:12] + b"\0" * 6)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(kafka, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(CannotConnect, match=rf"Kafka protocol.*127\.0\.0\.1:{port + 100}"):
            async with Producer(f"127.0.0.1:{port}"):
                pass
    finally:
        server.close()
        await server.wait_closed()


async def test_one_live_address_among_dead_ones_is_enough(cluster: FakeCluster) -> None:
    async with Producer(["127.0.0.1:1", cluster.address]) as producer:
        assert (await producer.send_and_wait("t", b"x", partition=0)).offset == 0
    assert header_at(cluster.partitions[T0].batches[0][1]).count == 1
