"""When a fetch has enough and need not wait: what could be read counts, not what the answer's limits let through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.one_partition import NOW_MS, TP, World
from broker.replication.cluster import InlineOffload
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import Fetched, FetchWant
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from sim.batches import Rec, make_batch

VALUE = bytes(9_000)
#: One batch on the disk.
BATCH = len(make_batch([Rec(b"k", VALUE, NOW_MS)]))


@pytest.fixture
def world() -> World:
    return World()


def append(world: World, count: int) -> None:
    for _ in range(count):
        world.partition.append(make_batch([Rec(b"k", VALUE, NOW_MS)]), ACKS_ALL, NOW_MS)


def answered_at_once(
    world: World, offset: int, *, min_bytes: int, max_bytes: int = 1 << 20, partition_bytes: int = 1 << 20
) -> list[Fetched] | None:
    """What the fetch gives without waiting; None if it waits."""
    producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
    records = RecordService(
        world.host, producer_ids, world.clock, InlineOffload(), world.metrics, world.scheduler
    )
    answer = records.fetch(
        [FetchWant(TP, offset, partition_bytes)], max_wait_s=60, min_bytes=min_bytes, max_bytes=max_bytes
    )
    if isinstance(answer, Awaitable):
        answer.close()  # type: ignore[attr-defined]
        return None
    return answer


async def test_too_little_waits_and_enough_does_not(world: World) -> None:
    append(world, 3)
    assert answered_at_once(world, 0, min_bytes=3 * BATCH + 1) is None
    assert answered_at_once(world, 3, min_bytes=1) is None
    found = answered_at_once(world, 0, min_bytes=3 * BATCH)
    assert found is not None and len(found[0].records) == 3 * BATCH


async def test_an_answer_that_is_cut_to_whole_batches_is_full(world: World) -> None:
    append(world, 20)
    limit = 5 * BATCH + BATCH // 2
    found = answered_at_once(world, 0, min_bytes=limit, partition_bytes=limit)
    assert found is not None and 0 < len(found[0].records) <= limit
    found = answered_at_once(world, 0, min_bytes=limit, max_bytes=limit)
    assert found is not None and 0 < len(found[0].records) <= limit


async def test_a_fetch_never_waits_for_more_than_one_response_holds(world: World) -> None:
    append(world, 20)
    found = answered_at_once(world, 0, min_bytes=1 << 20, max_bytes=5 * BATCH)
    assert found is not None and found[0].records
    assert answered_at_once(world, 0, min_bytes=1 << 20, partition_bytes=5 * BATCH) is None, "as in Kafka"


async def test_the_end_of_an_older_segment_is_not_waited_at(world: World) -> None:
    append(world, 2)
    world.partition.log.roll(NOW_MS)
    world.partition.log.segments[0].load()
    assert answered_at_once(world, 0, min_bytes=3 * BATCH) is None, "the next segment is empty"
    append(world, 1)
    found = answered_at_once(world, 0, min_bytes=3 * BATCH)
    assert found is not None and len(found[0].records) == 2 * BATCH
    assert answered_at_once(world, 2, min_bytes=3 * BATCH) is None
