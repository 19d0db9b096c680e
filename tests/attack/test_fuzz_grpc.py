"""The gRPC edge of a real broker under messages that are made from the descriptors and then damaged.

Each call ends with an answer that parses, or with a status that says whose fault it was. An INTERNAL of our own, or an
exception that nobody foresaw, is a bug.
"""

from __future__ import annotations

import asyncio
import pkgutil
import random
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from attack import effort, grpc_requests
from attack.victim import MemoryWatch, Victim
from ottla_broker.edge.grpc.server import served
from ottla_cli.local_cluster import LocalCluster
from ottla_core import pb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

#: Of each method. `make attack` asks for thousands.
REQUESTS = effort.count(40, 150)
CLIENTS = 4
GROWTH_MAX = 150 << 20
_PATIENCE_S = 20.0
#: Damaged bytes may ask for any time to wait.
_SHORT_PATIENCE_S = 0.2
_WAITING = ("Join", "Sync", "Fetch")
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)
#: Between brokers, on a listener of its own that asks for the cluster's secret.
_INTERNAL = "replication_pb2"
#: Of all services in the protocol: one that the broker does not serve is UNIMPLEMENTED, which is no refusal.
METHODS = [
    method
    for module in pkgutil.iter_modules(pb.__path__)
    if module.name.endswith("_pb2") and module.name != _INTERNAL
    for service in import_module(f"{pb.__name__}.{module.name}").DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
    with LocalCluster(settings=settings) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1)
        for number in range(3):
            made.create(f"fuzz-{number}", 4)
        yield made


async def _call(channel: grpc.aio.Channel, method: Any, data: bytes, timeout_s: float) -> bytes | None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    if not method.client_streaming:
        answer: bytes = await channel.unary_unary(path)(data, timeout=timeout_s)
        return answer
    call = channel.stream_stream(path)(timeout=timeout_s)
    await call.write(data)
    await call.done_writing()  # Without it, a request with acks=0 would have no end.
    read = await call.read()
    call.cancel()
    return None if read is grpc.aio.EOF else read


async def _try(channel: grpc.aio.Channel, method: Any, chance: random.Random, outcomes: Counter[str]) -> None:
    data, is_damaged = grpc_requests.request(GetMessageClass(method.input_type), chance)
    may_wait = is_damaged and method.name in _WAITING
    timeout_s = _SHORT_PATIENCE_S if may_wait else _PATIENCE_S
    what = f"{method.full_name} {data[:300].hex()}"
    start = time.monotonic()
    try:
        answer = await _call(channel, method, data, timeout_s)
    except grpc.aio.AioRpcError as error:
        code = error.code()
        # A broker also gives this status, in time, to a request that asked for a short timeout.
        is_late = time.monotonic() - start >= _PATIENCE_S
        assert code in _REFUSALS and not is_late, f"{code}: {error.details()} to {what}"
        outcomes[code.name] += 1
        return
    except asyncio.InvalidStateError:
        outcomes["ended"] += 1
        return
    if answer is None:
        outcomes["ended"] += 1
        return
    parsed = GetMessageClass(method.output_type).FromString(answer)
    assert "UNKNOWN_SERVER_ERROR" not in str(parsed), f"{parsed} to {what}"
    outcomes["answered"] += 1


def test_the_methods_are_those_that_the_broker_serves() -> None:
    assert {f"{method.containing_service.full_name}/{method.name}" for method in METHODS} == served()


async def test_every_call_ends_with_an_answer_or_a_status(victim: Victim) -> None:
    outcomes: Counter[str] = Counter()
    todo = list(METHODS)

    async def work() -> None:
        async with grpc.aio.insecure_channel(victim.cluster.grpc_bootstrap) as channel:
            while todo:
                method = todo.pop()
                chance = random.Random(f"{effort.SEED} {method.full_name}")
                for _ in range(REQUESTS):
                    await _try(channel, method, chance, outcomes)

    with MemoryWatch(victim.pids[0]) as memory:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(work())
    print(f"{len(METHODS)} methods, {dict(outcomes)}, memory +{memory.grown >> 20} MB")
    assert sum(outcomes.values()) == len(METHODS) * REQUESTS
    assert outcomes["answered"] > sum(outcomes.values()) // 4, "many requests get past the first check"
    victim.close_look()
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
