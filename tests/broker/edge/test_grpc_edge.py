"""The gRPC edge itself: order, back-pressure, long polls, stopping, health, reflection, a taken port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from client.fake_services import FakeCluster
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.bounds import bounded, check_fields
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.metrics import GrpcEdgeProbe
from ottla_broker.requests import Fetched
from ottla_core.errors import InvalidRequest
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc
from ottla_core.records.codec import Record, build_batch


def batch(value: bytes = b"x", count: int = 1) -> bytes:
    return bytes(build_batch([Record(0, 1, None, value, [])] * count))


def produce(
    correlation: int, *partitions: int, acks: int = -1, records: bytes | None = None
) -> pb.ProduceRequest:
    return pb.ProduceRequest(
        correlation=correlation,
        acks=acks,
        timeout_ms=5000,
        partitions=[
            pb.PartitionRecords(topic="t", partition=p, records=batch() if records is None else records)
            for p in partitions or (0,)
        ],
    )


def fetch(correlation: int, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1) -> pb.FetchRequest:
    return pb.FetchRequest(
        correlation=correlation,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        partitions=[
            pb.FetchPartition(topic="t", partition=0, offset=offset, max_bytes=1 << 20, leader_epoch=-1)
        ],
    )


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(config=GrpcEdgeConfig(stream_requests_max=4)) as made:
        made.add_topic("t", 3)
        yield made


@pytest.fixture
async def channel(cluster: FakeCluster) -> AsyncIterator[Any]:
    async with aio.insecure_channel(cluster.address) as made:
        yield made


@pytest.fixture
def log(channel: Any) -> Any:
    return broker_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]


async def test_requests_are_answered_in_order_each_partition_for_itself(log: Any) -> None:
    stream = log.Produce()
    await stream.write(produce(1, 0, 2))
    await stream.write(produce(2, 0, 9, 1))
    await stream.write(produce(3, acks=7))
    first, second, third = [await stream.read() for _ in range(3)]
    assert [p.base_offset for p in first.partitions] == [0, 0] and first.correlation == 1
    assert [p.error.name for p in second.partitions] == ["", "UNKNOWN_TOPIC_OR_PARTITION", ""]
    assert [p.base_offset for p in second.partitions] == [1, -1, 0]
    assert second.partitions[1].error.retriable and second.partitions[1].error.message
    assert third.error.name == "INVALID_REQUIRED_ACKS" and not third.partitions
    await stream.done_writing()
    assert await stream.read() is aio.EOF


async def test_later_requests_are_written_while_an_earlier_answer_waits(
    cluster: FakeCluster, log: Any
) -> None:
    cluster.hold = asyncio.Event()
    stream = log.Produce()
    for number in range(3):
        await stream.write(produce(number))
    async with asyncio.timeout(5):
        while len(cluster.appends) < 3:
            await asyncio.sleep(0.005)
    cluster.hold.set()
    assert [(await stream.read()).correlation for _ in range(3)] == [0, 1, 2]


async def test_a_produce_over_many_partitions_lets_others_go_first(cluster: FakeCluster, log: Any) -> None:
    cluster.add_topic("many", 9000)
    large, small = log.Produce(), log.Produce()
    await small.write(produce(1))
    await small.read()
    many = [pb.PartitionRecords(topic="many", partition=number, records=batch()) for number in range(9000)]
    before = len(cluster.appends)
    await large.write(pb.ProduceRequest(correlation=1, acks=1, partitions=many))
    while len(cluster.appends) == before:
        await asyncio.sleep(0)
    await small.write(produce(2))
    await small.read()
    assert len(cluster.appends) < before + 9000, "the other stream waited for the whole request"
    await large.write(produce(2, 1))
    first, second = await large.read(), await large.read()
    assert [(p.partition, p.base_offset) for p in first.partitions] == [(number, 0) for number in range(9000)]
    assert second.correlation == 2
    assert cluster.appends[-1][0] == TopicPartition("t", 1), (
        "requests of a stream are appended in their order"
    )
    large.cancel()
    small.cancel()


async def test_the_number_of_unanswered_requests_is_bounded(cluster: FakeCluster, log: Any) -> None:
    cluster.hold = asyncio.Event()
    stream = log.Produce()
    for number in range(20):
        await stream.write(produce(number))
    await asyncio.sleep(0.2)
    assert len(cluster.appends) == 4
    cluster.hold.set()
    assert [(await stream.read()).correlation for _ in range(20)] == list(range(20))


async def test_a_client_that_does_not_read_is_not_read_from_without_end(
    cluster: FakeCluster, log: Any
) -> None:
    stream = log.Produce()
    big = batch(b"x" * 60_000)
    written = 0
    cluster.hold = asyncio.Event()

    async def flood() -> None:
        nonlocal written
        while True:
            await stream.write(produce(written, records=big))
            written += 1

    flooding = asyncio.ensure_future(flood())
    await asyncio.sleep(0.5)
    flooding.cancel()
    assert len(cluster.appends) == 4
    assert written * len(big) < 16 << 20, "the peer's writes wait once the windows are full"
    stream.cancel()


async def test_acks_0_is_not_answered_unless_refused(cluster: FakeCluster, log: Any) -> None:
    stream = log.Produce()
    await stream.write(produce(1, acks=0))
    await stream.write(produce(2, 9, acks=0))
    await stream.write(produce(3, acks=1))
    assert [(await stream.read()).correlation for _ in range(2)] == [2, 3]
    assert len(cluster.appends) == 2


async def test_a_fetch_waits_for_bytes_up_to_its_max_wait(cluster: FakeCluster, log: Any) -> None:
    loop = asyncio.get_running_loop()
    fetching, producing = log.Fetch(), log.Produce()
    begun = loop.time()
    await fetching.write(fetch(1, wait_ms=100))
    answer = await fetching.read()
    assert 0.09 < loop.time() - begun < 2 and answer.partitions[0].records == b""
    await fetching.write(fetch(2, wait_ms=20_000))
    await asyncio.sleep(0.05)
    await producing.write(produce(1))
    async with asyncio.timeout(5):
        answer = await fetching.read()
    assert (
        answer.correlation == 2 and answer.partitions[0].records and answer.partitions[0].high_watermark == 1
    )


async def test_a_further_fetch_ends_the_waiting_of_those_before(log: Any) -> None:
    stream = log.Fetch()
    async with asyncio.timeout(5):
        await stream.write(fetch(1, wait_ms=30_000))
        await asyncio.sleep(0.05)
        await stream.write(fetch(2, wait_ms=30_000))
        assert (await stream.read()).correlation == 1
        await stream.write(fetch(3, wait_ms=50))
        assert [(await stream.read()).correlation for _ in range(2)] == [2, 3]


async def test_fetch_errors_are_per_partition(log: Any) -> None:
    stream = log.Fetch()
    request = fetch(1, offset=77, wait_ms=1000)
    request.partitions.add(topic="nowhere", partition=0, max_bytes=10)
    await stream.write(request)
    answer = await stream.read()
    names = [partition.error.name for partition in answer.partitions]
    assert names == ["OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PARTITION"]


async def test_a_fetch_that_names_a_partition_twice_is_refused(log: Any) -> None:
    stream = log.Fetch()
    request = fetch(1, wait_ms=30_000)
    request.partitions.add().CopyFrom(request.partitions[0])
    await stream.write(request)
    assert (await stream.read()).error.name == "INVALID_REQUEST"


async def test_stopping_answers_what_was_taken_and_ends_streams_cleanly(
    cluster: FakeCluster, log: Any
) -> None:
    cluster.hold = asyncio.Event()
    producing, fetching, idle = log.Produce(), log.Fetch(), log.Produce()
    await producing.write(produce(1))
    await fetching.write(fetch(1, offset=1, wait_ms=30_000))
    await idle.write(produce(5, acks=1))
    await idle.read()
    async with asyncio.timeout(5):
        while len(cluster.appends) < 2:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)  # the fetch is read by now too
    stopping = asyncio.ensure_future(cluster.brokers[0].stop(5.0))
    assert await idle.read() is aio.EOF
    cluster.hold.set()
    assert (await producing.read()).correlation == 1
    assert await producing.read() is aio.EOF
    assert (await fetching.read()).correlation == 1
    assert await fetching.read() is aio.EOF
    async with asyncio.timeout(2):
        await stopping
    assert [(await call.code()).name for call in (producing, fetching, idle)] == ["OK", "OK", "OK"]


async def test_a_broken_stream_leaves_no_waiter_behind(cluster: FakeCluster, channel: Any, log: Any) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(5):
        stream = log.Fetch()
        await stream.write(fetch(1, wait_ms=30_000))
        await asyncio.sleep(0.02)
        stream.cancel()
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.02)


async def test_an_unexpected_error_is_answered_without_details(cluster: FakeCluster, log: Any) -> None:
    cluster.partitions.clear()  # the fake now raises KeyError inside
    with capture_logs() as lines:
        stream = log.Produce()
        await stream.write(produce(1))
        error = (await stream.read()).partitions[0].error
    assert [line["event"] for line in lines] == ["call failed unexpectedly"]
    assert isinstance(lines[0]["exc_info"], KeyError)
    assert (error.code, error.name) == (-1, "UNKNOWN_SERVER_ERROR") and "KeyError" not in error.message
    with pytest.raises(aio.AioRpcError) as caught:
        await log.ListOffsets(pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", timestamp_ms=-1)]))
    assert caught.value.code().name == "INTERNAL" and "KeyError" not in (caught.value.details() or "")
    trailer = dict(caught.value.trailing_metadata())["ottla-error-bin"]
    assert pb.Error.FromString(trailer).name == "UNKNOWN_SERVER_ERROR"


async def test_a_rack_is_passed_on_and_the_preferred_replica_back(
    cluster: FakeCluster, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    racks: list[str | None] = []

    def found(wants: Any, *, rack: str | None, **limits: Any) -> list[Fetched]:
        racks.append(rack)
        replica = -1 if rack is None else 0
        return [Fetched(want.tp, None, 5, 5, 0, preferred_replica=replica) for want in wants]

    monkeypatch.setattr(cluster.brokers[0].records, "fetch", found)
    stream = log.Fetch()
    for rack in ("b", ""):
        request = fetch(1)
        request.rack = rack
        await stream.write(request)
        got = (await stream.read()).partitions[0]
        assert got.HasField("preferred_replica") == bool(rack)
    stream.cancel()
    assert racks == ["b", None]


async def test_the_end_of_a_leader_epoch(log: Any) -> None:
    queries = [pb.EpochQuery(topic="t", partition=p, current_leader_epoch=-1, leader_epoch=0) for p in (0, 9)]
    answer = await log.OffsetsForLeaderEpoch(pb.OffsetsForLeaderEpochRequest(queries=queries))
    known, unknown = answer.answers
    assert (known.leader_epoch, known.end_offset, known.HasField("error")) == (0, 0, False)
    assert (unknown.error.name, unknown.end_offset) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)


async def test_health_and_reflection_are_on(channel: Any) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "ottla.v1.Log", "ottla.v1.Admin"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    stream = reflection.ServerReflectionInfo()
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = {service.name for service in (await stream.read()).list_services_response.service}
    assert {"ottla.v1.Log", "ottla.v1.Admin", "grpc.health.v1.Health"} <= listed
    await stream.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="ottla.v1.Log"))
    assert (await stream.read()).file_descriptor_response.file_descriptor_proto
    stream.cancel()


async def test_every_error_in_an_answer_is_counted(cluster: FakeCluster) -> None:
    probe = GrpcEdgeProbe()
    edge = GrpcEdge(cluster.brokers[0], GrpcEdgeConfig(), probe)
    port = await edge.start("127.0.0.1", 0)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        log = broker_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        asked = [pb.OffsetQuery(topic="t", partition=p, timestamp_ms=-1, leader_epoch=-1) for p in (0, 8, 9)]
        await log.ListOffsets(pb.ListOffsetsRequest(queries=asked))
        stream = log.Produce()
        await stream.write(produce(1, 0, 7))
        await stream.read()
        stream.cancel()
    await edge.stop(1)
    assert (probe.requests.of("list_offsets").n, probe.requests.of("produce").n) == (1, 1)
    assert probe.errors.of("UNKNOWN_TOPIC_OR_PARTITION").n == 3


async def test_a_taken_port_is_an_error_that_names_it(cluster: FakeCluster) -> None:
    edge = GrpcEdge(cluster.brokers[0], GrpcEdgeConfig(), SilentProbe())
    with pytest.raises(OSError, match=str(cluster.brokers[0].port)):
        await edge.start("127.0.0.1", cluster.brokers[0].port)


def test_bounds_refuse_before_the_parser_sees_a_byte() -> None:
    seen: list[int] = []
    parse = bounded(lambda data: seen.append(len(data)), bytes_max=200_000, entries_max=10)
    parse(pb.MetadataRequest(topics=["a"] * 100).SerializeToString())
    assert "at most 200000" in str(parse(b"\0" * 200_001))
    assert "more than 10 entries" in str(
        parse(pb.MetadataRequest(topics=["topic" * 1000] * 30).SerializeToString())
    )
    parse(pb.MetadataRequest(topics=["topic" * 2000] * 10).SerializeToString())
    assert len(seen) == 2


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff", b"\xff" * 12, b"\x0b\x00", b"\x0f"])
def test_a_message_that_cannot_be_walked_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_fields(data, 5)
