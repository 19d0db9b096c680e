"""Logins on the Kafka edge: order of requests, bounds before the login, sessions that end, floods of failures."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker.edge.fakes import FakeServices
from broker.edge.kafka_peer import Peer
from client.fake_services import FakeBroker, FakeCluster
from ottla_broker.authn.logins import Logins, TooManyLogins
from ottla_broker.authn.plain import UserPassword
from ottla_broker.caller import ANONYMOUS
from ottla_broker.config import BrokerConfig, GrpcEdgeConfig, KafkaEdgeConfig
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge, served
from ottla_broker.edge.kafka import sasl
from ottla_broker.edge.kafka.sasl import Sasl
from ottla_broker.edge.kafka.server import KafkaEdge
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.edge.seats import Seats
from ottla_broker.metadata.sections.scram_credentials import CredentialId
from ottla_broker.metrics import KafkaEdgeProbe, LoginsProbe
from ottla_client.security import Security
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc
from ottla_core.real.clock import RealClock
from ottla_core.real.offload import ThreadOffload
from ottla_core.scram import MECHANISMS, Credential

T = TypeVar("T")

ILLEGAL_STATE, UNSUPPORTED, FAILED = 34, 33, 58


class ShiftedClock(RealClock):
    def __init__(self) -> None:
        self.shift_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_s


class Guarded:
    """A Kafka edge whose clients log in, over fake services. The one user is alice, her password secret."""

    def __init__(self, seats: int = 10_000, **settings: str) -> None:
        given = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "connection.failed.authentication.delay.ms": "5",
        }
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.of(given)
        self.clock, self.services, self.probe = ShiftedClock(), FakeServices(), KafkaEdgeProbe()
        self.offload, self.stored = ThreadOffload(1), dict[CredentialId, Credential]()
        self.logins_probe = LoginsProbe()
        self.logins = Logins(
            lambda: self.stored,
            b"secret of the cluster",
            self.clock,
            self.offload,
            self.logins_probe,
            delay_s=config.sasl.failure_delay_ms / 1000,
            audit=self,
        )
        self.audited: list[tuple[str, ...]] = []
        self.seats = Seats(seats)
        self.edge = KafkaEdge(
            cast(Any, self.services),
            KafkaEdgeConfig(),
            self.probe,
            clock=self.clock,
            seats=self.seats,
            sasl=Sasl(self.logins, config.sasl, config.sasl.mechanisms, "SASL_PLAINTEXT"),
        )
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Guarded]:
        await self.logins.add_users({"alice": "secret", "bob": "hidden"})
        self.port = await self.edge.start("127.0.0.1", 0)
        try:
            yield self
        finally:
            await self.edge.stop(1.0)
            self.offload.close()

    def logged_in(self, user: str, *, mechanism: str, address: str, listener: str) -> None:
        self.audited.append((user, mechanism, address, listener))

    def login_failed(self, user: str, reason: str, *, mechanism: str, address: str, listener: str) -> None:
        self.audited.append((user, mechanism, address, listener, reason))

    async def peer(self) -> Peer:
        return await Peer.connect(self.port)

    async def login(self, user: str = "alice", password: str = "secret") -> tuple[Peer, Any]:
        peer = await self.peer()
        assert (await peer.ask(17, 1, mechanism="PLAIN")).error_code == 0
        return peer, await plain(peer, user, password)

    def dropped(self) -> dict[str, float]:
        return {sample.labels[0][1]: sample.value for sample in self.probe.connections_dropped.samples()}


async def plain(peer: Peer, user: str, password: str) -> Any:
    return await peer.ask(36, 2, auth_bytes=f"\0{user}\0{password}".encode())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_principal_is_the_user() -> None:
    async with Guarded().serving() as guarded:
        peer = await guarded.peer()
        assert (await peer.ask(18, 3, client_software_name="x", client_software_version="1")).error_code == 0
        assert (await peer.ask(17, 1, mechanism="PLAIN")).mechanisms == ("PLAIN", "SCRAM-SHA-256")
        assert guarded.services.caller.principal == ANONYMOUS
        answer = await plain(peer, "alice", "secret")
        assert (answer.error_code, answer.error_message) == (0, None)
        assert guarded.services.caller.principal == "User:alice"
        await peer.ask(3, 1, topics=None)
        # Requests may be large now: this one is above sasl.server.max.receive.size.
        peer.writer.write(struct.pack(">i", 20_000) + struct.pack(">hhih", 3, 99, 1, -1) + bytes(19_990))
        assert await peer.closed()
        await until(lambda: guarded.dropped().get("refused"))
        peer.close()


@pytest.mark.parametrize("key", sorted(set(APIS) - {17, 18, 36}))
async def test_every_other_api_is_refused_before_the_login(key: int) -> None:
    async with Guarded().serving() as guarded:
        for begun in (False, True):
            peer = await guarded.peer()
            if begun:
                await peer.ask(17, 1, mechanism="PLAIN")
            frame = struct.pack(">hhih", key, APIS[key].high, 7, -1) + bytes(64)
            peer.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await peer.closed()
        assert guarded.dropped() == {"refused": 2}


async def test_requests_of_the_login_out_of_order() -> None:
    async with Guarded().serving() as guarded:
        peer = await guarded.peer()
        peer.send(36, 2, auth_bytes=b"\0alice\0secret")
        assert await peer.closed()
        for again in ((17, 1, {"mechanism": "PLAIN"}), (18, 0, {})):
            peer = await guarded.peer()
            await peer.ask(17, 1, mechanism="PLAIN")
            peer.send(again[0], again[1], **again[2])
            assert await peer.closed()
        peer, _ = await guarded.login()
        assert (await peer.ask(17, 1, mechanism="PLAIN")).error_code == ILLEGAL_STATE
        assert (await plain(peer, "bob", "hidden")).error_code == ILLEGAL_STATE
        assert guarded.services.caller.principal == "User:alice"
        peer.close()


async def test_mechanisms_that_are_not_enabled() -> None:
    async with Guarded(sasl_enabled_mechanisms="SCRAM-SHA-512").serving() as guarded:
        for name in ("PLAIN", "SCRAM-SHA-256", "GSSAPI", ""):
            peer = await guarded.peer()
            answer = await peer.ask(17, 1, mechanism=name)
            assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED, ("SCRAM-SHA-512",))
            assert await peer.closed()


async def test_failed_logins_are_answered_alike_counted_and_closed() -> None:
    async with Guarded().serving() as guarded:
        sentences = set()
        for user, password in (("alice", "wrong"), ("nobody", "secret"), ("", "x"), ("alice", "")):
            peer, answer = await guarded.login(user, password)
            assert answer.error_code == FAILED
            sentences.add(answer.error_message)
            assert await peer.closed()
        assert len(sentences) == 1
        assert [sample.value for sample in guarded.logins_probe.failed.samples()] == [4]
        assert list(guarded.logins_probe.logins.samples()) == []


async def test_logins_reach_the_audit_log() -> None:
    async with Guarded().serving() as guarded:
        peer, _ = await guarded.login()
        peer.close()
        peer, refused = await guarded.login(password="wrong")
        assert refused.error_code != 0
        peer.close()
        where = ("alice", "PLAIN", "127.0.0.1", "SASL_PLAINTEXT")
        assert guarded.audited == [where, (*where, "unknown user or wrong password")]


async def test_what_a_client_may_send_before_its_login_is_bounded() -> None:
    async with Guarded().serving() as guarded:
        peer = await guarded.peer()
        peer.writer.write(struct.pack(">i", 16_385) + bytes(100))
        assert await peer.closed()
        peer, frames = await guarded.peer(), 0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            for _ in range(100):
                await peer.ask(18, 0)
                frames += 1
        assert frames == sasl._REQUESTS_MAX
        peer.close()
        assert guarded.dropped() == {"malformed": 1, "refused": 1}


async def test_half_open_logins_end_in_time() -> None:
    async with Guarded().serving() as guarded:
        idle = [await guarded.peer() for _ in range(20)]
        begun = await guarded.peer()
        await begun.ask(17, 1, mechanism="SCRAM-SHA-256")
        partial = await guarded.peer()
        partial.writer.write(b"\0\0\x10\0abc")
        peer, _ = await guarded.login()
        await until(lambda: guarded.seats.taken == 23)
        guarded.clock.shift_s = sasl.LOGIN_S + 1
        for half in (*idle, begun, partial):
            assert await half.closed()
        assert guarded.dropped() == {"no login": 22}
        assert (await peer.ask(18, 0)).error_code == 0
        peer.close()
        await until(lambda: guarded.seats.taken == 0)


async def test_silent_clients_give_way_to_others() -> None:
    """Before the login; those that have logged in stay."""
    async with Guarded(seats=20).serving() as guarded:
        first, _ = await guarded.login()
        silent = [await guarded.peer() for _ in range(50)]
        half = await guarded.peer()
        assert (await half.ask(17, 1, mechanism="PLAIN")).error_code == 0
        for _ in range(5):
            other, answer = await guarded.login("bob", "hidden")
            assert answer.error_code == 0
            other.close()
        assert (await first.ask(3, 1, topics=())).brokers is not None
        assert guarded.seats.taken <= 12
        assert guarded.dropped()["too many silent"] >= 40
        for peer in (first, half, *silent):
            peer.close()


async def test_a_session_ends_unless_the_same_user_logs_in_again() -> None:
    async with Guarded(connections_max_reauth_ms="60000").serving() as guarded:
        peer, answer = await guarded.login()
        assert answer.session_lifetime.total_seconds() == 60
        assert (await peer.ask(17, 1, mechanism="PLAIN")).error_code == ILLEGAL_STATE, "only once per second"
        guarded.clock.shift_s = 50
        assert (await peer.ask(17, 1, mechanism="PLAIN")).error_code == 0
        assert (await plain(peer, "alice", "secret")).error_code == 0
        guarded.clock.shift_s = 100
        await peer.ask(3, 1, topics=None)
        guarded.clock.shift_s = 111
        peer.send(3, 1, topics=None)
        assert await peer.closed()
        assert guarded.logins_probe.expired == 1

        peer, _ = await guarded.login()
        guarded.clock.shift_s += 30
        await peer.ask(17, 1, mechanism="PLAIN")
        assert (await plain(peer, "bob", "hidden")).error_code == FAILED, "another user"
        assert await peer.closed()


async def test_failing_logins_do_not_delay_others() -> None:
    async with Guarded(connection_failed_authentication_delay_ms="200").serving() as guarded:
        peer, _ = await guarded.login()
        loop = asyncio.get_running_loop()

        async def fail() -> bool:
            other = await guarded.peer()
            await other.ask(17, 1, mechanism="PLAIN")
            other.send(36, 2, auth_bytes=b"\0alice\0wrong")
            answer = await other.receive(timeout_s=60)
            return bool(answer.error_code == FAILED) and await other.closed()

        attackers = [asyncio.create_task(fail()) for _ in range(100)]
        slowest_s = 0.0
        while not all(task.done() for task in attackers):
            began = loop.time()
            await peer.ask(18, 0)
            slowest_s = max(slowest_s, loop.time() - began)
            await asyncio.sleep(0.02)
        assert all(await asyncio.gather(*attackers))
        assert slowest_s < 2.0
        peer.close()
        await until(lambda: guarded.seats.taken == 0)


class StuckOffload:
    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.running += 1
        await self.open.wait()
        return work()


async def test_checks_of_one_address_are_bounded_and_leave_others_a_turn() -> None:
    offload, probe = StuckOffload(), LoginsProbe()
    logins = Logins(dict, b"s" * 16, RealClock(), cast(Any, offload), probe, delay_s=0)
    given = [UserPassword("alice", str(number)) for number in range(256)]
    waiting = [asyncio.create_task(logins.check(each, "10.0.0.1")) for each in given]
    await until(lambda: offload.running == 2)
    with pytest.raises(TooManyLogins):
        await logins.check(UserPassword("alice", "x"), "10.0.0.1")
    other = asyncio.create_task(logins.check(UserPassword("alice", "x"), "10.0.0.2"))
    await until(lambda: offload.running == 3)
    assert probe.refused == 1
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)
    assert logins._lanes == {}


async def test_a_password_is_remembered_until_it_changes() -> None:
    offload = ThreadOffload(1)
    stored: dict[CredentialId, Credential] = {}
    logins = Logins(lambda: stored, b"s" * 16, RealClock(), offload, LoginsProbe(), delay_s=0)
    other = Logins(dict, b"other cluster---", RealClock(), offload, LoginsProbe(), delay_s=0)
    await other.add_users({"alice": "old", "bob": "x"})
    stored.update(other._fixed)
    old = UserPassword("alice", "old")
    assert not logins.is_remembered(old)
    await logins.check(old, "")
    assert logins.is_remembered(old)
    assert not logins.is_remembered(UserPassword("alice", "new"))
    await other.add_users({"alice": "new"})
    stored.update(other._fixed)
    assert not logins.is_remembered(old), "the password was changed"
    await logins.check(UserPassword("alice", "new"), "")
    stored.clear()
    assert not logins.is_remembered(UserPassword("alice", "new")), "the user was deleted"
    offload.close()


async def test_an_unknown_user_has_the_same_salt_at_every_broker() -> None:
    def first(secret: bytes, user: str) -> bytes:
        logins = Logins(
            dict, secret, RealClock(), cast(Any, None), LoginsProbe(), delay_s=0, nonce=lambda: "N"
        )
        return logins.scram(MECHANISMS["SCRAM-SHA-256"]).step(f"n,,n={user},r=c".encode())

    assert first(b"cluster", "nobody") == first(b"cluster", "nobody") != first(b"cluster", "noone")
    assert first(b"cluster", "nobody") != first(b"another", "nobody")
    assert b",i=4096" in first(b"cluster", "nobody")


@asynccontextmanager
async def native() -> AsyncIterator[tuple[LoginsProbe, FakeBroker, aio.Channel]]:
    """A gRPC edge whose callers log in, over fake services."""
    offload, probe = ThreadOffload(1), LoginsProbe()
    logins = Logins(dict, b"s" * 16, RealClock(), offload, probe, delay_s=0.01)
    await logins.add_users({"alice": "secret"})
    async with FakeCluster() as cluster:
        edge = GrpcEdge(cluster.brokers[0], GrpcEdgeConfig(), SilentProbe(), logins=logins)
        port = await edge.start("127.0.0.1", 0)
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield probe, cluster.brokers[0], channel
        await edge.stop(0.5)
    offload.close()


def header(user: str, password: str) -> tuple[tuple[str, str], ...]:
    return Security("SASL_PLAINTEXT", sasl_username=user, sasl_password=password).headers()


async def test_grpc_calls_need_a_password_which_is_checked_once() -> None:
    async with native() as (probe, services, channel):
        admin = broker_pb2_grpc.AdminStub(channel)
        for _ in range(5):
            await admin.Metadata(pb.MetadataRequest(), metadata=header("alice", "secret"))
        assert services.caller.principal == "User:alice"
        assert [sample.value for sample in probe.logins.samples()] == [1]
        for wrong in (header("alice", "x"), header("bob", "secret"), (("authorization", "Bearer x"),), ()):
            with pytest.raises(aio.AioRpcError) as refused:
                await admin.Metadata(pb.MetadataRequest(), metadata=wrong)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert sum(sample.value for sample in probe.failed.samples()) == 3


async def test_every_grpc_method_needs_a_login_but_health() -> None:
    async with native() as (_, _, channel):
        methods = [*served(), "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
        for method in methods:
            call = channel.stream_stream(f"/{method}", request_serializer=None, response_deserializer=None)()
            async with asyncio.timeout(10):
                assert await call.code() == grpc.StatusCode.UNAUTHENTICATED, method
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_grpc_streams_have_the_caller_too() -> None:
    async with native() as (_, services, channel):
        log = broker_pb2_grpc.LogStub(channel)
        call = log.Fetch(metadata=header("alice", "secret"))
        await call.write(pb.FetchRequest())
        await call.done_writing()
        async for _ in call:
            pass
        assert services.caller.principal == "User:alice"
