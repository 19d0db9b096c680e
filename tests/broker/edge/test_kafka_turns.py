"""Many pipelined requests against others' single ones: a connection with a played loop, clock and transport."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.edge.fakes import FakeServices
from broker.edge.kafka_peer import request_frame
from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.edge.kafka.connection import Connection
from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.request import Context, Disconnect, Encoded, Request
from ottla_broker.edge.kafka.shared import Route, Shared
from ottla_broker.edge.kafka.versions import APIS, URGENT
from ottla_broker.edge.memory import Memory
from ottla_broker.edge.seats import Seats
from ottla_broker.metrics import Cell, KafkaEdgeProbe
from ottla_broker.request_metrics import ApiTimes
from ottla_broker.scheduler import SLICE_S, TURN_S, Scheduler

#: What one request costs on the played clock.
REQUEST_S = 0.00005
PER_TURN = round(TURN_S / REQUEST_S)
PER_SLICE = round(SLICE_S / REQUEST_S)
METADATA = request_frame(3, 1, 1, {"topics": None})


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        self.closed = False

    def get_extra_info(self, _name: str) -> Any:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        self.written.append(b"".join(buffers))

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.handled: list[str] = []
        self._later: list[Callable[[], None]] = []
        self.memory = Memory(1 << 20)
        self.scheduler = Scheduler(self.monotonic, self._later.append, lambda _: None)
        self.shared = Shared(
            cast(Any, FakeServices()),
            KafkaEdgeConfig(),
            KafkaEdgeProbe(),
            cast(Any, self),
            self.memory,
            self.scheduler,
            Seats(10_000),
        )
        self.steps = 0
        #: What a request waits for.
        self.held: asyncio.Future[Any] | None = None
        #: What a request in steps ends with instead of an answer.
        self.refusal: Exception | None = None
        self.shared.route = self.route  # type: ignore[method-assign]

    def monotonic(self) -> float:
        return self.now

    def route(self, key: int) -> Route:
        return Route(self.handle, False, False, Cell(), ApiTimes("Fake"))

    def handle(self, context: Context, request: Request) -> Any:
        self.handled.append(context.peer)
        if self.held is not None:
            return self.held
        if self.steps:
            return self.in_steps(self.steps)
        self.now += REQUEST_S
        return Encoded((b"ok",))

    def in_steps(self, steps: int) -> Any:
        for _ in range(steps):
            self.now += REQUEST_S
            yield
        if self.refusal is not None:
            raise self.refusal
        return Encoded((b"done",))

    def turn(self) -> None:
        due, self._later[:] = self._later[:], []
        for call in due:
            call()

    def client(self, name: str) -> Client:
        return Client(self, name)


class Client:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.transport = Transport()
        self.connection = Connection(world.shared)
        self.connection.connection_made(cast(Any, self.transport))
        self.connection._context.peer = name
        self._pending = b""

    def send(self, data: bytes) -> int:
        """As libuv: reads while there is something, up to 32 times; gives how often it was let read."""
        self._pending += data
        for number in range(32):
            if not self._pending or not self.transport.is_reading:
                return number
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0
            size = min(len(buffer), len(self._pending))
            buffer[:size] = self._pending[:size]
            self._pending = self._pending[size:]
            self.connection.buffer_updated(size)
        return 32

    @property
    def answers(self) -> int:
        return b"".join(self.transport.written).count(b"ok")


@pytest.fixture
def world() -> World:
    return World()


def test_a_flood_is_handled_one_turn_at_a_time_and_not_read_meanwhile(world: World) -> None:
    flood = world.client("flood")
    assert flood.send(METADATA * 50_000) == 1, "the socket is read again only when nothing is left"
    assert len(world.handled) <= PER_TURN + 1
    assert not flood.transport.is_reading
    for _ in range(5):
        before = len(world.handled)
        world.turn()
        assert 0 < len(world.handled) - before <= PER_TURN + 1


def test_another_clients_request_is_handled_within_a_slice_of_the_flood(world: World) -> None:
    flood, other = world.client("flood"), world.client("other")
    flood.send(METADATA * 10_000)
    before = len(world.handled)
    other.send(METADATA)
    world.turn()
    assert "other" in world.handled
    assert world.handled[before:].index("other") <= PER_SLICE + 1
    assert other.answers == 1


def empty_request(key: int) -> bytes:
    """Its header: the fake handler reads nothing else."""
    header = struct.pack(">hhih", key, APIS[key].low, 1, -1) + bytes(APIS[key].flexible_from <= APIS[key].low)
    return struct.pack(">i", len(header)) + header


@pytest.mark.parametrize("key", sorted(URGENT), ids=lambda key: APIS[key].name)
def test_what_keeps_groups_and_connections_alive_is_handled_before_four_hundred_floods(
    world: World, key: int
) -> None:
    floods = [world.client("flood") for _ in range(400)]
    for flood in floods:
        flood.send(METADATA * 100)
    before = len(world.handled)
    member = world.client("member")
    member.send(empty_request(key))
    world.turn()
    assert world.handled[before] == "member"


def test_every_heartbeat_join_and_login_is_urgent() -> None:
    names = (
        "heartbeat",
        "join_group",
        "sync_group",
        "leave_group",
        "sasl",
        "find_coordinator",
        "api_versions",
    )
    assert {key for key, api in APIS.items() if any(name in api.name for name in names)} == URGENT


@pytest.mark.parametrize("steps", [0, 3], ids=["whole", "in slices"])
@pytest.mark.parametrize("key", sorted(URGENT), ids=lambda key: APIS[key].name)
async def test_its_answer_is_sent_before_what_four_hundred_floods_ask(
    world: World, key: int, steps: int
) -> None:
    world.held = asyncio.get_running_loop().create_future()
    member = world.client("member")
    member.send(empty_request(key))
    answer, world.held = world.held, None
    floods = [world.client("flood") for _ in range(400)]
    for flood in floods:
        flood.send(METADATA * 100)
    handled_when_sent: list[int] = []
    shipped = member.transport.write

    def write(data: Any) -> None:
        handled_when_sent.append(len(world.handled))
        shipped(data)

    member.transport.write = write  # type: ignore[method-assign]
    before = len(world.handled)
    answer.set_result(world.in_steps(steps) if steps else Encoded((b"ok",)))
    await asyncio.sleep(0)
    world.turn()
    assert handled_when_sent == [before]


def test_all_answers_come_and_the_memory_is_given_back(world: World) -> None:
    clients = [world.client(str(n)) for n in range(5)]
    for client in clients:
        client.send(METADATA * 3000)
    for _ in range(2000):
        world.turn()
        for client in clients:
            client.send(b"")
    assert [client.answers for client in clients] == [3000] * 5
    assert all(client.transport.is_reading for client in clients)
    assert world.memory.used == 0


def test_a_large_request_is_handled_in_steps_and_what_follows_it_waits(world: World) -> None:
    large, other = world.client("large"), world.client("other")
    world.steps = 1000
    large.send(METADATA * 2)
    world.steps = 0
    other.send(METADATA)
    world.turn()
    assert other.answers == 1
    assert world.handled == ["large", "other"]
    turns = 0
    while large.answers == 0:
        world.turn()
        turns += 1
    assert turns >= 1000 / PER_TURN - 2
    assert b"".join(large.transport.written).index(b"done") < b"".join(large.transport.written).index(b"ok")


@pytest.mark.parametrize("steps", [1, 1000], ids=["in the first turn", "in a later one"])
@pytest.mark.parametrize("refusal", [Disconnect("acks=0"), Malformed("a name")], ids=["refused", "malformed"])
def test_a_large_request_that_is_refused_closes_the_connection(
    world: World, steps: int, refusal: Exception
) -> None:
    client = world.client("client")
    world.steps, world.refusal = steps, refusal
    client.send(METADATA * 2)
    for _ in range(200):
        world.turn()
    assert client.transport.closed
    assert client.transport.written == []


def test_a_client_that_leaves_takes_its_queued_requests_along(world: World) -> None:
    flood = world.client("flood")
    world.steps = 1000
    flood.send(METADATA * 1000)
    before = len(world.handled)
    flood.transport.closed = True
    flood.connection.connection_lost(None)
    for _ in range(10):
        world.turn()
    assert len(world.handled) == before
    assert world.memory.used == 0
    assert not world.scheduler.is_busy
