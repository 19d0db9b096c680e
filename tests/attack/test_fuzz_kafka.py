"""Structure-aware fuzzing of the Kafka edge of a real broker: every API in every version that is served.

Each request yields an answer that kio decodes in the same version, or a closed connection. The broker goes on, its log
holds no bug, and its memory stays.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from attack import effort, kafka_requests
from attack.fuzz_client import FuzzClient, mistakes
from attack.victim import MemoryWatch, Victim
from ottla_broker.edge.kafka.versions import APIS, Api
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

#: Of each version of each API. `make attack` asks for thousands.
REQUESTS = effort.count(30, 150)
CLIENTS = 8
GROWTH_MAX = 150 << 20


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    settings = {
        "socket.request.max.bytes": "4194304",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1",
    }
    with LocalCluster(settings=settings) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1)
        for number in range(3):
            made.create(f"fuzz-{number}", 4)
        yield made


async def _fuzz(port: int, api: Api, version: int, requests: int, outcomes: Counter[str]) -> list[str]:
    chance = random.Random(f"{effort.SEED} {api.name} {version}")
    client = FuzzClient(port, outcomes)
    failed = []
    try:
        for _ in range(requests):
            body, is_damaged = kafka_requests.body(api, version, chance)
            answer = await client.send(api, version, body, may_wait=is_damaged)
            if mistakes(answer):
                failed.append(f"{api.name} v{version} {body[:300].hex()}: {answer}")
    finally:
        client.close()
    return failed


async def test_every_request_is_answered_or_the_connection_closed(victim: Victim) -> None:
    todo = [(api, version) for api in APIS.values() for version in range(api.low, api.high + 1)]
    random.Random(effort.SEED).shuffle(todo)
    outcomes: Counter[str] = Counter()
    failed: list[str] = []

    async def work() -> None:
        while todo:
            api, version = todo.pop()
            failed.extend(await _fuzz(victim.port(), api, version, REQUESTS, outcomes))

    versions = len(todo)
    with MemoryWatch(victim.pids[0]) as memory:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(work())
    print(f"{versions} versions, {dict(outcomes)}, memory +{memory.grown >> 20} MB")
    assert failed == [], f"{len(failed)} answers of UNKNOWN_SERVER_ERROR, e.g. {failed[:3]}"
    assert sum(outcomes.values()) == versions * REQUESTS
    assert outcomes["answered"] > outcomes["closed"], "most requests get past the first check"
    victim.close_look()
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
