"""A client that pretends to be a broker: the services between brokers are not for clients, on any port that they reach.

On the client port every such call is UNIMPLEMENTED or UNAUTHENTICATED, also a thousand of them, six hundred thousand
positions of a follower that does not exist, and JSON nested deeper than any parser likes. On the internal port, if the
broker has one, a call without the secret is refused. Elections and topic creation go on meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from uuid import UUID

import grpc
import pytest

from attack import effort
from attack.victim import MemoryWatch, Victim
from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind
from ottla_cli.local_cluster import LocalCluster
from ottla_core.pb import replication_pb2 as pb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

REFUSED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
CALLS = effort.count(1000, 200)
EARLY = 600_000
NESTED = 100_000
GROWTH_MAX = 40 << 20
CREATED_WITHIN_S = 5.0
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


#: What gRPC reports for a stream that was reset while its client was still writing: the status came too late.
RESET = {grpc.StatusCode.INTERNAL}


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with LocalCluster(brokers=3) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1, 3, min_insync_replicas="2")
        yield made


@pytest.fixture(params=["grpc", "internal"])
def address(victim: Victim, request: pytest.FixtureRequest) -> str:
    found: str | None = getattr(victim.cluster.brokers[0], request.param, None)
    assert found is not None, "the broker has no listener of its own for other brokers"
    return found


async def _outcome(channel: grpc.aio.Channel, method: str, message: bytes) -> grpc.StatusCode:
    try:
        await channel.unary_unary(f"/ottla.v1.Replication/{method}")(message, timeout=30)
        return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()


def _question(text: bytes) -> bytes:
    return pb.AskRequest(question=text).SerializeToString()


async def test_a_client_learns_nothing_and_asks_nothing(victim: Victim, address: str) -> None:
    nested = b"[" * NESTED + b"]" * NESTED
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        assert await _outcome(channel, "Probe", b"") in REFUSED
        assert await _outcome(channel, "Ask", _question(b'{"ask":"hold"}')) in REFUSED
        assert await _outcome(channel, "Ask", _question(nested)) in REFUSED
    victim.close_look()


async def test_many_questions_do_not_keep_others_from_theirs(victim: Victim, address: str) -> None:
    outcomes: Counter[grpc.StatusCode] = Counter()

    async def ask(channel: grpc.aio.Channel) -> None:
        outcomes[await _outcome(channel, "Ask", _question(b'{"ask":"hold"}'))] += 1

    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        asking = [asyncio.create_task(ask(channel)) for _ in range(CALLS)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await asyncio.to_thread(victim.create, f"meanwhile-{address.rpartition(':')[2]}", 6, 3)
        took_s = time.monotonic() - began
        await asyncio.gather(*asking)
    print(f"{dict(outcomes)}, a topic was created in {took_s:.2f} s")
    assert took_s < CREATED_WITHIN_S
    assert set(outcomes) <= REFUSED | {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    victim.close_look()


async def test_a_forged_follower_is_not_heard(victim: Victim, address: str) -> None:
    """With positions for partitions that do not exist, as many as fit; none of them stays."""
    stranger = UUID(int=99).bytes
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            reply = await channel.unary_unary("/ottla.v1.Replication/Probe")(b"", timeout=10)
            leader = pb.ProbeResponse.FromString(reply).incarnation
        except grpc.aio.AioRpcError:
            leader = stranger
        hello = wire.encode_hello(stranger, leader, 77, 0)
        assert await _follow(channel, []) in REFUSED
        assert await _follow(channel, [hello]) in REFUSED | RESET
        with MemoryWatch(victim.pids[0]) as memory:
            firsts = range(0, EARLY, 5000)
            frames = (wire.encode_positions(stranger, leader, _positions(first)) for first in firsts)
            code = await _follow(channel, itertools.chain([hello], frames))
    print(f"Follow: {code}, memory +{memory.grown >> 20} MB")
    assert code in REFUSED | RESET
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
    victim.close_look()


async def _follow(channel: grpc.aio.Channel, frames: Iterable[bytes]) -> grpc.StatusCode:
    """How a Follow stream with these frames ends; OK if the broker takes them all and does not mind."""
    call = channel.stream_stream("/ottla.v1.Replication/Follow")(timeout=60)
    try:
        for frame in frames:
            await call.write(frame)
        await asyncio.wait_for(call.read(), 3)
        return await call.code()
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.InvalidStateError:
        return await call.code()
    except TimeoutError:
        return grpc.StatusCode.OK


def _positions(first: int) -> list[PositionEntry]:
    return [
        PositionEntry(wire.partition_key(UUID(int=number), 0), PositionKind.WANT, 1, 1, 1 << 40, 1 << 40)
        for number in range(first, first + 5000)
    ]
