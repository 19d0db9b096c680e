"""What one gRPC connection may have on its way in, and that it holds up nobody but itself."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.fake_services import FakeCluster
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.reads import Reads
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc


class Details(NamedTuple):
    method: str


class FakeCall:
    """A call whose message comes when the test lets it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.reads = 0
        self.message: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def peer(self) -> str:
        return self._peer

    async def read(self) -> str:
        self.reads += 1
        return await self.message


async def _echo(request: str, context: Any) -> str:
    return request


async def _served(reads: Reads) -> Any:
    async def found(details: Details) -> Any:
        return grpc.unary_unary_rpc_method_handler(_echo)

    return (await reads.intercept_service(found, Details("/s/Echo"))).stream_unary


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_wait_unread_for_their_own_connection_only() -> None:
    reads = Reads(2)
    served = await _served(reads)
    calls = [FakeCall("a") for _ in range(4)] + [FakeCall("b")]
    tasks = [asyncio.create_task(served(None, call)) for call in calls]
    await _settle()
    assert [call.reads for call in calls] == [1, 1, 0, 0, 1]
    calls[0].message.set_result("first")
    await _settle()
    assert tasks[0].result() == "first" and [call.reads for call in calls] == [1, 1, 1, 0, 1]
    tasks[1].cancel()
    await _settle()
    assert [call.reads for call in calls] == [1, 1, 1, 1, 1], "who is cancelled makes room"
    for call in calls[2:]:
        call.message.set_result("late")
    assert await asyncio.gather(*tasks[2:]) == ["late"] * 3
    assert not reads._connections, "nothing is kept of connections without calls"


async def test_a_connection_has_so_many_streams_and_its_calls_go_on() -> None:
    async with FakeCluster(config=GrpcEdgeConfig(reads_max=2)) as cluster:
        cluster.add_topic("t", 1)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with (
            aio.insecure_channel(cluster.address, options=options) as one,
            aio.insecure_channel(cluster.address, options=options) as other,
        ):
            request = pb.FetchRequest(correlation=1, max_bytes=1)
            log, health = broker_pb2_grpc.LogStub(one), health_pb2_grpc.HealthStub(one)  # type: ignore[no-untyped-call]
            streams = [log.Fetch(), log.Fetch()]
            for stream in streams:
                await stream.write(request)
                assert (await stream.read()).correlation == 1
            with pytest.raises(aio.AioRpcError) as refused:
                surplus = log.Fetch()
                await surplus.write(request)
                await surplus.read()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "at most 2 streams" in (refused.value.details() or "")
            checks = [health.Check(health_pb2.HealthCheckRequest()) for _ in range(10)]
            assert {answer.status for answer in await asyncio.gather(*checks)} == {1}
            await streams[0].done_writing()
            assert await streams[0].read() is aio.EOF
            for log_of in (log, broker_pb2_grpc.LogStub(other)):  # type: ignore[no-untyped-call]
                stream = log_of.Fetch()
                await stream.write(request)
                assert (await stream.read()).correlation == 1


async def test_a_call_without_a_message_is_refused() -> None:
    async with FakeCluster() as cluster, aio.insecure_channel(cluster.address) as channel:
        call = channel.stream_unary("/ottla.v1.Admin/Metadata")()
        await call.done_writing()
        with pytest.raises(aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_connections_above_the_limit_are_refused() -> None:
    async with FakeCluster(config=GrpcEdgeConfig(connections_max=2)) as cluster:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [aio.insecure_channel(cluster.address, options=options) for _ in range(3)]
        checks = [health_pb2_grpc.HealthStub(channel).Check for channel in channels]  # type: ignore[no-untyped-call]
        for check in checks[:2]:
            assert (await check(health_pb2.HealthCheckRequest(), timeout=10)).status == 1
        with pytest.raises(aio.AioRpcError) as refused:
            await checks[2](health_pb2.HealthCheckRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await channels[0].close()
        answer = await checks[2](health_pb2.HealthCheckRequest(), timeout=10, wait_for_ready=True)
        assert answer.status == 1, "who goes makes room"
        for channel in channels[1:]:
            await channel.close()
