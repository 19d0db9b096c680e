"""Many gRPC streams against a real broker process: its memory follows the budget, not the number of streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest

from hostile.half_calls import HalfCalls
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Admin
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb.broker_pb2_grpc import LogStub
from ottla_core.records.codec import Record, build_batch

pytestmark = pytest.mark.integration

MIB = 1 << 20
BUDGET = 16 * MIB
#: Together the streams ask for over a gigabyte; what they may cost is the budget, its copies on the way, and slack.
STREAMS = 48
LARGE = 24 * MIB
GROWTH_MAX = 200 * MIB
#: As long as a message may be here; the budget has room for four of them.
LONGEST = 4 * MIB
WRITERS = 64
#: The messages of all writers are 256 MiB, and without turns cost 380. Four at a time have their copies on the way
#: (gRPC's slices, bytes, the parsed message), and each stream its window of 256 KiB.
WRITERS_GROWTH_MAX = 140 * MIB
#: Calls of one connection that each send all of the longest message but its end: 256 MiB, if they were let.
HALF_CALLS = 64
#: Eight of them are read, and all have their windows of 256 KiB.
HALF_CALLS_BYTES_MAX = 8 * LONGEST + HALF_CALLS * MIB // 4
HALF_CALLS_GROWTH_MAX = 100 * MIB


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"queued.max.request.bytes": str(BUDGET), "socket.request.max.bytes": str(8 * MIB)}
    settings["grpc.message.max.bytes"] = str(LONGEST)
    with LocalCluster(settings=settings) as made:
        with Admin(made.grpc_bootstrap) as admin:
            admin.create_topics(["t"])
        yield made


class Watched:
    """The greatest memory of a process while somebody looks."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._process.memory_info().rss
        self.growth = 0

    async def look(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.growth = max(self.growth, self._process.memory_info().rss - self._before)
            await asyncio.sleep(0.02)


def _channels(cluster: LocalCluster, count: int) -> list[grpc.aio.Channel]:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.http2.bdp_probe", 0),
    ]
    return [grpc.aio.insecure_channel(cluster.grpc_bootstrap, options=options) for _ in range(count)]


async def _fill(channel: grpc.aio.Channel) -> None:
    batch = bytes(build_batch([Record(0, 0, None, bytes(MIB // 2), [])]))
    part = pb.PartitionRecords(topic="t", partition=0, records=batch)
    call = LogStub(channel).Produce()
    for number in range(LARGE // len(batch) + 1):
        await call.write(pb.ProduceRequest(correlation=number, acks=1, timeout_ms=5000, partitions=[part]))
        answer = await call.read()
        assert answer.partitions[0].error.code == 0
    await call.done_writing()


async def test_readers_that_take_nothing(cluster: LocalCluster) -> None:
    channels = _channels(cluster, 8)
    await _fill(channels[0])
    watched = Watched(cluster.pids[0])
    ask = pb.FetchPartition(topic="t", partition=0, offset=0, max_bytes=LARGE, leader_epoch=-1)
    request = pb.FetchRequest(partitions=[ask], max_bytes=LARGE, min_bytes=1, max_wait_ms=100)
    calls = [LogStub(channels[n % len(channels)]).Fetch() for n in range(STREAMS)]
    for call in calls:
        await call.write(request)
    await watched.look(5.0)
    # Who takes its answer gets one, however many others do not.
    answer = await asyncio.wait_for(calls[-1].read(), 20)
    assert answer.partitions[0].records and not answer.HasField("error")
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    assert cluster.dead == []
    assert watched.growth < GROWTH_MAX, f"{watched.growth >> 20} MB more than before"


async def _write_once(channel: grpc.aio.Channel, request: pb.ProduceRequest) -> pb.ProduceResponse:
    """As a client does: whose stream ends without an answer opens another."""
    while True:
        call = LogStub(channel).Produce()
        try:
            await call.write(request)
            answer = await call.read()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            continue
        if answer is not grpc.aio.EOF:
            return answer


async def test_writers_that_all_wake_up_at_once(cluster: LocalCluster) -> None:
    channels = _channels(cluster, 8)
    watched = Watched(cluster.pids[0])
    looking = asyncio.create_task(watched.look(60.0))
    # No batch at all, so that it is refused: this is about the way in.
    part = pb.PartitionRecords(topic="t", partition=0, records=bytes(LONGEST - 1024))
    request = pb.ProduceRequest(correlation=1, acks=1, timeout_ms=5000, partitions=[part])
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            *(_write_once(channels[n % len(channels)], request) for n in range(WRITERS))
        )
    looking.cancel()
    assert all(answer.partitions[0].HasField("error") for answer in answers)
    for channel in channels:
        await channel.close()
    assert cluster.dead == []
    assert watched.growth < WRITERS_GROWTH_MAX, f"{watched.growth >> 20} MB more than before"


@pytest.mark.parametrize("method", ["Admin/Metadata", "Log/Fetch", "Groups/Join"])
async def test_calls_whose_messages_never_come_whole(cluster: LocalCluster, method: str) -> None:
    watched = Watched(cluster.pids[0])
    calls = HalfCalls(cluster.grpc_bootstrap, f"/ottla.v1.{method}", HALF_CALLS, LONGEST)
    looking = asyncio.create_task(watched.look(60.0))
    await calls.send(quiet_s=1.0)
    looking.cancel()
    assert 8 * (LONGEST - MIB) < calls.sent <= HALF_CALLS_BYTES_MAX, f"{calls.sent >> 20} MB were taken in"
    assert watched.growth < HALF_CALLS_GROWTH_MAX, f"{watched.growth >> 20} MB more than before"
    with Admin(cluster.grpc_bootstrap) as admin:
        assert admin.list_topics() == ["t"]


async def test_a_message_above_the_limit_is_refused_before_it_is_taken_in(cluster: LocalCluster) -> None:
    (channel,) = _channels(cluster, 1)
    watched = Watched(cluster.pids[0])
    looking = asyncio.create_task(watched.look(60.0))
    part = pb.PartitionRecords(topic="t", partition=0, records=bytes(100 * MIB))
    call = LogStub(channel).Produce()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.write(pb.ProduceRequest(correlation=1, acks=1, timeout_ms=5000, partitions=[part]))
        await call.read()
    looking.cancel()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await channel.close()
    assert watched.growth < 20 * MIB, f"{watched.growth >> 20} MB more than before"
