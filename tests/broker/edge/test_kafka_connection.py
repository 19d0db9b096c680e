"""Order, overlap, limits and endings of a connection, over a real socket and fake services."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
import pytest
import uvloop
from structlog.testing import capture_logs

from broker.edge.fakes import FakeBroker
from broker.edge.kafka_batches import batch
from broker.edge.kafka_peer import Peer, request_frame
from broker.edge.test_kafka_handlers import fetch_fields, produce_fields
from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.requests import Write
from ottla_broker.service.producing import Producing
from ottla_core.ids import TopicPartition

T0 = TopicPartition("t", 0)


async def eventually(condition: Any, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        peer = await Peer.connect(broker.port)
        for _ in range(50):
            peer.send(18, 0)
            peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
            peer.send(3, 1, topics=None)
        for number in range(50):
            await peer.receive()
            assert (await peer.receive()).responses[0].partition_responses[0].base_offset == number
            await peer.receive()
        peer.close()


async def test_a_request_in_single_bytes_is_still_a_request() -> None:
    async with FakeBroker() as broker:
        peer = await Peer.connect(broker.port)
        for byte in request_frame(18, 0, 1, {}):
            peer.writer.write(bytes((byte,)))
            await peer.writer.drain()
            await asyncio.sleep(0)
        peer._sent.append((18, 0, 1))
        assert (await peer.receive()).error_code.value == 0
        peer.close()


async def test_the_next_produce_is_appended_while_the_first_waits_for_its_commit() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        broker.services.records.hold = asyncio.Event()
        peer = await Peer.connect(broker.port)
        for acks in (-1, -1, 1):
            peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}, acks=acks))
        await eventually(lambda: broker.services.records.find(T0).end == 3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.reader.read(1), 0.05)
        broker.services.records.hold.set()
        offsets = [(await peer.receive()).responses[0].partition_responses[0].base_offset for _ in range(3)]
        assert offsets == [0, 1, 2]
        peer.close()


async def test_the_next_produce_waits_while_a_transaction_is_verified() -> None:
    verdicts: asyncio.Future[list[Write]] = asyncio.get_running_loop().create_future()
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        broker.services.producing = Producing(broker.services.records, lambda *_: verdicts)
        peer, other = await Peer.connect(broker.port), await Peer.connect(broker.port)
        peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}, transactional_id="me"))
        peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"b", b"c")}))
        await other.ask(0, 9, **produce_fields(9, "t", {1: batch(b"d")}))
        assert broker.services.records.find(T0).end == 0, "pipelined requests are appended in their order"
        verdicts.set_result([Write(T0, batch(b"a"))])
        offsets = [(await peer.receive()).responses[0].partition_responses[0].base_offset for _ in range(2)]
        assert offsets == [0, 1]
        peer.close()
        other.close()


async def test_a_commit_that_does_not_come_times_out() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        broker.services.records.hold = asyncio.Event()
        peer = await Peer.connect(broker.port)
        fields = produce_fields(9, "t", {0: batch(b"a")}, timeout=timedelta(milliseconds=20))
        answer = await peer.ask(0, 9, **fields)
        assert answer.responses[0].partition_responses[0].error_code.value == 7
        peer.close()


async def test_a_waiting_fetch_holds_back_what_follows_it() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        peer = await Peer.connect(broker.port)
        peer.send(1, 12, **fetch_fields(12, "t", {0: 0}, max_wait=timedelta(milliseconds=100)))
        peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
        await asyncio.sleep(0.03)
        assert broker.services.records.find(T0).end == 0
        assert (await peer.receive()).responses[0].partitions[0].records in (b"", None)
        assert (await peer.receive()).responses[0].partition_responses[0].base_offset == 0
        peer.close()


async def test_a_waiting_fetch_is_given_up_when_its_client_goes() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        peer = await Peer.connect(broker.port)
        peer.send(1, 12, **fetch_fields(12, "t", {0: 0}, max_wait=timedelta(seconds=60)))
        await eventually(lambda: broker.services.records.find(T0).readers)
        peer.close()
        await eventually(lambda: broker.services.records.fetches_cancelled == 1)
        assert not broker.services.records.find(T0).readers


async def test_unanswered_requests_are_limited() -> None:
    async with FakeBroker(replace(KafkaEdgeConfig(), requests_max=5)) as broker:
        broker.services.add_topic("t")
        broker.services.records.hold = asyncio.Event()
        peer = await Peer.connect(broker.port)
        for _ in range(20):
            peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
        await eventually(lambda: broker.services.records.find(T0).end == 5)
        await asyncio.sleep(0.05)
        assert broker.services.records.find(T0).end == 5
        broker.services.records.hold.set()
        for _ in range(20):
            await peer.receive()
        assert broker.services.records.find(T0).end == 20
        peer.close()


async def test_large_requests_share_a_memory_budget() -> None:
    config = replace(KafkaEdgeConfig(), queued_max_bytes=1 << 20)
    async with FakeBroker(config) as broker:
        broker.services.add_topic("t")
        memory = broker.edge._shared.memory
        large = request_frame(0, 9, 1, produce_fields(9, "t", {0: batch(b"x" * 700_000)}))
        peers = [await Peer.connect(broker.port) for _ in range(6)]
        for peer in peers:  # all of the frame but its last byte: only one fits the budget
            peer.writer.write(large[:-1])
        await eventually(lambda: broker.probe.reading_paused == 5)
        assert memory.used < 2 << 20
        small = await Peer.connect(broker.port)
        assert (await small.ask(18, 0)).error_code.value == 0, "small requests need no budget"
        for peer in peers:
            peer.writer.write(large[-1:])
            peer._sent.append((0, 9, 1))
        answers = [await peer.receive() for peer in peers]
        assert sorted(a.responses[0].partition_responses[0].base_offset for a in answers) == list(range(6))
        assert memory.used == 0
        for peer in (*peers, small):
            peer.close()


async def test_a_closed_connection_releases_its_memory() -> None:
    async with FakeBroker() as broker:
        memory = broker.edge._shared.memory
        peer = await Peer.connect(broker.port)
        peer.writer.write(struct.pack(">i", 50 << 20) + bytes(1000))
        await eventually(lambda: memory.used >= 50 << 20)
        peer.close()
        await eventually(lambda: memory.used == 0)


async def test_a_client_that_does_not_read_is_not_answered_without_end() -> None:
    config = replace(KafkaEdgeConfig(), write_buffer_bytes=1 << 16)
    async with FakeBroker(config, stall_s=0.4) as broker:
        broker.services.add_topic("t")
        for _ in range(8):
            broker.services.records.append(T0, batch(b"x" * 900_000), 1)
        peer = await Peer.connect(broker.port)
        peer.writer.transport.pause_reading()
        for _ in range(100):
            peer.send(1, 12, **fetch_fields(12, "t", {0: 0}, max_bytes=8 << 20))
        await eventually(lambda: broker.edge._shared.memory.used > 0)
        assert broker.edge._shared.memory.used < 30 << 20
        await eventually(lambda: not broker.edge._shared.connections)
        assert broker.edge._shared.memory.used == 0
        peer.close()


async def test_clients_that_never_spoke_give_way_to_others() -> None:
    config = replace(KafkaEdgeConfig(), connections_max=20)
    async with FakeBroker(config) as broker:
        first = await Peer.connect(broker.port)
        await first.ask(18, 0)
        silent = [await Peer.connect(broker.port) for _ in range(60)]
        for _ in range(5):
            other = await Peer.connect(broker.port)
            assert (await other.ask(18, 0)).error_code.value == 0
            other.close()
        assert (await first.ask(18, 0)).error_code.value == 0, "a client that spoke once stays"
        assert broker.edge._shared.seats.taken <= 12
        for peer in (first, *silent):
            peer.close()


async def test_idle_and_stalled_connections_are_ended() -> None:
    config = replace(KafkaEdgeConfig(), idle_max_ms=300)
    async with FakeBroker(config, stall_s=0.2) as broker:
        idle, stalled = await Peer.connect(broker.port), await Peer.connect(broker.port)
        stalled.writer.write(b"\x00\x00\x00\x20\x00")
        assert await stalled.closed(2.0)
        assert await idle.closed(2.0)
        reasons = {sample.labels[0][1] for sample in broker.probe.connections_dropped.samples()}
        assert reasons == {"idle", "stalled request"}


async def test_what_came_before_a_malformed_frame_is_still_answered() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        broker.services.records.hold = asyncio.Event()
        peer = await Peer.connect(broker.port)
        peer.send(18, 0)
        peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
        peer.writer.write(struct.pack(">i", -1))
        await peer.receive()
        broker.services.records.hold.set()
        assert (await peer.receive()).responses[0].partition_responses[0].error_code.value == 0
        assert await peer.closed()


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with FakeBroker(replace(KafkaEdgeConfig(), connections_max=2)) as broker:
        peers = []
        for _ in range(2):
            peers.append(await Peer.connect(broker.port))
            await peers[-1].ask(18, 0)
        third = await Peer.connect(broker.port)
        assert await third.closed()
        await peers[0].ask(18, 0)
        for peer in (*peers, third):
            peer.close()


async def test_stop_finishes_what_is_in_hand() -> None:
    broker = FakeBroker()
    async with broker:
        broker.services.add_topic("t")
        broker.services.records.hold = asyncio.Event()
        peer = await Peer.connect(broker.port)
        peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
        await eventually(lambda: broker.services.records.find(T0).end == 1)
        stopping = asyncio.ensure_future(broker.edge.stop(5.0))
        await asyncio.sleep(0.02)
        broker.services.records.hold.set()
        assert (await peer.receive()).responses[0].partition_responses[0].error_code.value == 0
        assert await peer.closed()
        await asyncio.wait_for(stopping, 2.0)
        peer.close()


async def test_stop_closes_connections_after_the_grace_period() -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")
        peer = await Peer.connect(broker.port)
        peer.send(1, 12, **fetch_fields(12, "t", {0: 0}, max_wait=timedelta(seconds=60)))
        await eventually(lambda: broker.services.records.find(T0).readers)
        await asyncio.wait_for(broker.edge.stop(0.05), 2.0)
        assert await peer.closed()
        peer.close()


async def test_a_bug_in_a_service_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker() as broker:
        broker.services.add_topic("t")

        def broken(*args: Any) -> Any:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(broker.services.records, "init_producer_id", broken)
        peer = await Peer.connect(broker.port)
        second = timedelta(seconds=1)
        answer = await peer.ask(22, 0, transactional_id=None, transaction_timeout=second)
        assert answer.error_code.value == -1
        monkeypatch.setattr(broker.services.records, "append", broken)
        other = await Peer.connect(broker.port)
        other.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}))
        assert await other.closed(), "Produce has no error field at its top"
        assert (await peer.ask(18, 0)).error_code.value == 0
        peer.close()


ON_UVLOOP = [
    scenario
    for name, scenario in list(globals().items())
    if name.startswith("test_") and not inspect.signature(scenario).parameters
]


@pytest.mark.parametrize("scenario", ON_UVLOOP, ids=lambda scenario: scenario.__name__[5:])
def test_the_same_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """What production runs on; the plain loop above is closer to the simulated one."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_a_tls_and_a_grpc_client_are_named_in_the_log() -> None:
    """Real clients: the first bytes of OpenSSL and of gRPC, not ours."""
    async with FakeBroker() as broker:
        with capture_logs() as logs:
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", broker.port, ssl=ssl.create_default_context())
            async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary("/ottla.v1.Admin/Metadata")(b"", timeout=5)
            await eventually(lambda: len(_details(logs)) >= 2)
        assert any("TLS handshake" in each for each in _details(logs))
        assert any("HTTP/2" in each for each in _details(logs))


def _details(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(each["detail"]) for each in logs if each["event"] == "kafka connection dropped"]
