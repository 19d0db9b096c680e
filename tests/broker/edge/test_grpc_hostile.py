"""Hostile input on the gRPC edge costs the call that brought it, and nothing else.

A witness keeps producing and fetching on another connection all the while; it must not notice.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from client.fake_services import FakeCluster
from ottla_broker.config import GrpcEdgeConfig
from ottla_client import Consumer, Producer, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.records.codec import Record, build_batch

METHODS = {
    "Log": ["Produce", "Fetch", "ListOffsets", "DeleteRecords", "InitProducerId"],
    "Admin": [
        "Metadata",
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "DescribeConfigs",
        "AlterConfigs",
    ],
}
ALL = [(service, method) for service, methods in METHODS.items() for method in methods]
STREAMS = {"Produce", "Fetch"}
REQUESTS: dict[str, Any] = {method: getattr(pb, f"{method}Request") for _, method in ALL}
GOOD = bytes(build_batch([Record(0, 1, None, b"good", [])] * 3))


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(config=GrpcEdgeConfig(message_max_bytes=4 << 20)) as made:
        made.add_topic("t", 1)
        made.add_topic("witness", 1)
        yield made


@pytest.fixture
async def channel(cluster: FakeCluster) -> AsyncIterator[Any]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with aio.insecure_channel(cluster.address, options=options) as made:
        yield made


@pytest.fixture(autouse=True)
async def witness(cluster: FakeCluster) -> AsyncIterator[None]:
    """Another client, before, during and after."""
    seen = 0
    async with Producer(cluster.address, linger_ms=0) as producer, Consumer(cluster.address) as consumer:
        consumer.assign([TopicPartition("witness", 0)])
        await consumer.position(("witness", 0))
        running = True

        async def keep_going() -> None:
            nonlocal seen
            while running:
                await producer.send_and_wait("witness", b"%d" % seen)
                for record in await consumer.poll(5000):
                    assert record.value == b"%d" % seen
                    seen += 1
                await asyncio.sleep(0.005)

        task = asyncio.ensure_future(keep_going())
        yield
        running = False
        async with asyncio.timeout(10):
            await task
    assert seen > 0


async def call(channel: Any, service: str, method: str, *messages: bytes) -> list[bytes] | str:
    """Send raw bytes; the raw answers, or the name of the status that ended the call."""
    path = f"/ottla.v1.{service}/{method}"
    try:
        async with asyncio.timeout(20):
            if method not in STREAMS:
                return [await channel.unary_unary(path)(messages[0], timeout=10)]
            stream = channel.stream_stream(path)()
            answers: list[bytes] = []
            for message in messages:
                await stream.write(message)
            await stream.done_writing()
            while (answer := await stream.read()) is not aio.EOF:
                answers.append(answer)
            return answers
    except aio.AioRpcError as error:
        assert "Traceback" not in (error.details() or "") and "File " not in (error.details() or "")
        return str(error.code().name)
    except asyncio.InvalidStateError:
        return "ENDED"


@pytest.mark.parametrize(("service", "method"), ALL)
async def test_random_and_bent_bytes(channel: Any, service: str, method: str) -> None:
    chance = random.Random(f"{service}.{method}")
    honest = _honest(method)
    for _ in range(40):
        kind = chance.randrange(4)
        if kind == 0:
            message = chance.randbytes(chance.randrange(200))
        elif kind == 1:
            message = honest[: chance.randrange(len(honest) + 1)]
        elif kind == 2:
            bent = bytearray(honest or b"\0")
            for _ in range(chance.randrange(1, 4)):
                bent[chance.randrange(len(bent))] ^= 1 << chance.randrange(8)
            message = bytes(bent)
        else:
            message = honest + chance.randbytes(chance.randrange(1, 30))
        if method == "Fetch":
            # A bent wait could be honest and long; a minute of waiting is the edge's right.
            message = _without_waiting(message)
        answer = await call(channel, service, method, message)
        assert isinstance(answer, list) or answer in _REFUSALS, answer


_REFUSALS = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "ENDED"}


async def test_batches_of_0_to_61_bytes(cluster: FakeCluster, channel: Any) -> None:
    for size in range(62):
        answers = await call(
            channel, "Log", "Produce", *(_produce(data) for data in (GOOD[:size], bytes(size), GOOD))
        )
        assert isinstance(answers, list), size
        refused, also_refused, written = [pb.ProduceResponse.FromString(a).partitions[0] for a in answers]
        wanted = ("CORRUPT_MESSAGE", "UNSUPPORTED_FOR_MESSAGE_FORMAT") if size else ("INVALID_RECORD",)
        assert refused.error.name in wanted, size
        assert also_refused.error.code > 0, size
        assert not written.HasField("error"), f"the stream goes on after a refusal of {size} bytes"
        assert len(cluster.partitions[TopicPartition("t", 0)].batches) == size + 1


LENGTHS = [-(2**31), -1, 0, 1, 48, 2**31 - 1]


@pytest.mark.parametrize("length", LENGTHS)
async def test_batches_whose_lengths_and_counts_lie(channel: Any, length: int) -> None:
    lying_length = bytearray(GOOD)
    struct.pack_into(">i", lying_length, 8, length)
    lying_count = bytearray(GOOD)
    struct.pack_into(">i", lying_count, 57, length)
    for lie in (lying_length, lying_count):
        answers = await call(channel, "Log", "Produce", _produce(bytes(lie)), _produce(GOOD))
        assert isinstance(answers, list)
        first, second = [pb.ProduceResponse.FromString(a).partitions[0] for a in answers]
        assert first.error.code > 0 and not second.HasField("error")


@pytest.mark.parametrize(("service", "method"), ALL)
async def test_a_message_above_the_limit_ends_its_call(channel: Any, service: str, method: str) -> None:
    answer = await call(channel, service, method, b"\x0a\x80\x80\x80\x03" + b"x" * (6 << 20))
    assert answer == "RESOURCE_EXHAUSTED"


#: The repeated field of each request that has one, as a tag byte.
_REPEATED = {
    "Produce": b"\x22",
    "Fetch": b"\x12",
    "ListOffsets": b"\x0a",
    "DeleteRecords": b"\x0a",
    "Metadata": b"\x0a",
    "CreateTopics": b"\x0a",
    "DeleteTopics": b"\x0a",
    "CreatePartitions": b"\x2a",
    "DescribeConfigs": b"\x0a",
    "AlterConfigs": b"\x12",
}


@pytest.mark.parametrize(("service", "method"), [pair for pair in ALL if pair[1] in _REPEATED])
async def test_millions_of_empty_entries_are_refused_before_they_are_parsed(
    channel: Any, service: str, method: str
) -> None:
    message = (_REPEATED[method] + b"\0") * 1_900_000
    answer = await call(channel, service, method, message)
    assert answer in ("INVALID_ARGUMENT", "ENDED"), answer


async def test_a_compressed_message_is_not_inflated(channel: Any) -> None:
    try:
        await channel.unary_unary("/ottla.v1.Admin/Metadata")(
            bytes(2 << 20), compression=grpc.Compression.Gzip, timeout=10
        )
    except aio.AioRpcError as error:
        assert error.code().name == "UNIMPLEMENTED"
    else:
        pytest.fail("the edge took a compressed message")


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: pb.FetchRequest(
            max_bytes=2**32 - 1,
            min_bytes=2**32 - 1,
            partitions=[_want(offset=2**63 - 1, max_bytes=2**32 - 1)],
        ),
        lambda: pb.FetchRequest(partitions=[_want(offset=-(2**63))]),
        lambda: pb.FetchRequest(max_bytes=0, partitions=[_want(partition=-(2**31)), _want(topic="\0" * 999)]),
        pb.FetchRequest,
    ],
)
async def test_extreme_numbers_in_fetches(channel: Any, request_of: Callable[[], pb.FetchRequest]) -> None:
    answers = await call(channel, "Log", "Fetch", request_of().SerializeToString())
    assert isinstance(answers, list) and len(answers) == 1


async def test_names_that_are_none(channel: Any) -> None:
    for name in ("", ".", "..", "a/b", "\0", "x" * 100_000, "ž\u202e"):
        request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name)])
        assert isinstance(
            await call(channel, "Admin", "CreateTopics", request.SerializeToString()), (list, str)
        )
        metadata = pb.MetadataRequest(topics=[name, name])
        answer = await call(channel, "Admin", "Metadata", metadata.SerializeToString())
        assert isinstance(answer, list)
        assert len(pb.MetadataResponse.FromString(answer[0]).topics) == 1


async def test_garbage_on_the_port_itself(cluster: FakeCluster) -> None:
    chance = random.Random(4)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(5000), preface + chance.randbytes(5000)):
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.brokers[0].port)
        writer.write(garbage)
        if garbage:
            async with asyncio.timeout(5):
                await reader.read()  # until the server hangs up
        writer.close()


def _produce(records: bytes) -> bytes:
    part = pb.PartitionRecords(topic="t", partition=0, records=records)
    return bytes(pb.ProduceRequest(acks=-1, timeout_ms=100, partitions=[part]).SerializeToString())


def _want(topic: str = "t", partition: int = 0, offset: int = 0, max_bytes: int = 1000) -> pb.FetchPartition:
    return pb.FetchPartition(
        topic=topic, partition=partition, offset=offset, max_bytes=max_bytes, leader_epoch=-1
    )


def _honest(method: str) -> bytes:
    """A request of that kind with something in every field."""
    made: dict[str, Any] = {
        "Fetch": pb.FetchRequest(correlation=3, partitions=[_want()], min_bytes=1, max_bytes=99),
        "ListOffsets": pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", timestamp_ms=-1)]),
        "DeleteRecords": pb.DeleteRecordsRequest(partitions=[pb.DeleteRecordsBefore(topic="x", offset=-1)]),
        "InitProducerId": pb.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=5),
        "Metadata": pb.MetadataRequest(topics=["t", "u"]),
        "CreateTopics": pb.CreateTopicsRequest(
            topics=[pb.NewTopic(name="n", partitions=1, configs={"a": "b"})], validate_only=True
        ),
        "DeleteTopics": pb.DeleteTopicsRequest(names=["nobody"]),
        "CreatePartitions": pb.CreatePartitionsRequest(topic="t", total=2, validate_only=True),
        "DescribeConfigs": pb.DescribeConfigsRequest(resources=[pb.ConfigResource(type=2, name="t")]),
        "AlterConfigs": pb.AlterConfigsRequest(
            resource=pb.ConfigResource(type=2, name="t"),
            changes=[pb.ConfigChange(kind=1, name="a", value="b")],
        ),
    }
    return _produce(GOOD) if method == "Produce" else bytes(made[method].SerializeToString())


def _without_waiting(message: bytes) -> bytes:
    try:
        request = pb.FetchRequest.FromString(message)
    except Exception:
        return message
    if request.max_wait_ms:
        request.max_wait_ms = 0
        return bytes(request.SerializeToString())
    return message
