"""What a fetch that waits costs when records are written: a look at what was written, however much it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.one_partition import NOW_MS, World
from broker.replication.cluster import InlineOffload
from budget import examples
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import Fetched, FetchWant
from ottla_broker.scheduler import SLICE_S, Scheduler
from ottla_broker.service.delayed_fetch import DelayedFetch
from ottla_broker.service.fetch_wait import FetchWait
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.ids import TopicPartition
from sim.batches import Rec, make_batch

MANY = 300


def batch(size: int = 10) -> bytes:
    return bytes(make_batch([Rec(b"k", bytes(size), NOW_MS)]))


def append(world: World, partition: int, size: int = 10) -> None:
    world.host.find(TopicPartition("t", partition)).append(batch(size), ACKS_ALL, NOW_MS)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def many_partitions() -> World:
    """Some are opened in each turn."""
    world = World(partitions=MANY)
    while len(list(world.host)) < MANY:
        await asyncio.sleep(0)
    return world


def waiting_fetch(world: World, wants: list[FetchWant], min_bytes: int) -> asyncio.Future[list[Fetched]]:
    producer_ids = ProducerIds(lambda: asyncio.sleep(0, range(0)))
    records = RecordService(
        world.host, producer_ids, world.clock, InlineOffload(), world.metrics, world.scheduler
    )
    found = records.fetch(wants, max_wait_s=60, min_bytes=min_bytes, max_bytes=50 << 20)
    assert not isinstance(found, list), "it waits"
    return asyncio.ensure_future(found)


async def test_a_write_costs_a_look_at_its_partition_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await many_partitions()
    wants = [FetchWant(TopicPartition("t", number), 0, 1 << 20) for number in range(MANY)]
    fetching = waiting_fetch(world, wants, 10 << 20)
    await turns(2 * MANY // 32 + 20)
    assert world.metrics.partitions.waiting_fetches == 1
    looks: list[TopicPartition] = []
    shipped = DelayedFetch._limit_of

    def limit_of(fetch: Any, partition: Any) -> int:
        looks.append(partition.tp)
        return shipped(fetch, partition)

    monkeypatch.setattr(DelayedFetch, "_limit_of", limit_of)
    for number in range(100):
        append(world, 7)
        if number % 10 == 0:
            append(world, 200)
        await turns(3)
    assert set(looks) == {TopicPartition("t", 7), TopicPartition("t", 200)}
    assert len(looks) <= 2 * 110
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert not world.host.find(TopicPartition("t", 7))._readers, "it is called back no more"


async def test_enough_in_all_partitions_together_ends_the_wait() -> None:
    world = await many_partitions()
    wants = [FetchWant(TopicPartition("t", number), 0, 1 << 20) for number in range(MANY)]
    size = len(batch())
    fetching = waiting_fetch(world, wants, 3 * size)
    await turns(2 * MANY // 32 + 20)
    for number in (3, 290):
        append(world, number)
        await turns()
        assert not fetching.done()
    append(world, 3)
    fetched = await asyncio.wait_for(fetching, 10)
    assert {each.tp.partition: len(each.records) for each in fetched if each.records} == {
        3: 2 * size,
        290: size,
    }


async def test_records_written_before_the_wait_began_are_noticed() -> None:
    world = World(partitions=2)
    fetching = waiting_fetch(world, [FetchWant(TopicPartition("t", 1), 0, 1 << 20)], 1)
    append(world, 1)  # Its task has not run yet.
    (fetched,) = await asyncio.wait_for(fetching, 10)
    assert fetched.records


async def test_one_range_over_the_limits_is_enough() -> None:
    world = World(partitions=2)
    wants = [FetchWant(TopicPartition("t", number), 0, 5) for number in range(2)]
    fetching = waiting_fetch(world, wants, 50)
    await turns()
    append(world, 1)
    fetched = await asyncio.wait_for(fetching, 10)
    assert [len(each.records) for each in fetched] == [0, len(batch())]


# ---------------------------------------------------------------------- the wait alone, against a simple twin


@dataclass
class FakePartition:
    readers: dict[Callable[[], None], None] = field(default_factory=dict)

    def when_readable(self, wake: Callable[[], None]) -> None:
        self.readers[wake] = None

    def forget_reader(self, wake: Callable[[], None]) -> None:
        self.readers.pop(wake, None)

    def wake(self) -> None:
        waiting, self.readers = self.readers, {}
        for wake in waiting:
            wake()


class FakePlaces:
    """Bytes written, and bytes seen by the last look."""

    def __init__(self, count: int) -> None:
        self.written, self.seen, self.looks = [0] * count, [0] * count, 0
        self.ended: set[int] = set()

    def readable(self, place: int) -> int:
        return self.seen[place]

    def look(self, place: int, *, is_first: bool) -> bool:
        assert is_first is not any(bytes for at, bytes in enumerate(self.seen) if at != place)
        self.looks += 1
        self.seen[place] = self.written[place]
        return place in self.ended

    def has_moved(self, place: int) -> bool:
        return self.written[place] != self.seen[place]


class Wait:
    def __init__(self, count: int, least_bytes: int, *, look_s: float = 0.0) -> None:
        self.now, self.later = 0.0, list[Callable[[], None]]()
        self.scheduler = Scheduler(lambda: self.now, self.later.append, lambda _: None)
        self.places, self.partitions = FakePlaces(count), [FakePartition() for _ in range(count)]
        shipped = self.places.look

        def look(place: int, *, is_first: bool) -> bool:
            self.now += look_s
            return shipped(place, is_first=is_first)

        self.places.look = look  # type: ignore[method-assign]
        wait = FetchWait(self.scheduler, self.places, cast(Any, self.partitions), least_bytes)
        self.over = asyncio.ensure_future(wait.over(60))

    def write(self, place: int, size: int) -> None:
        self.places.written[place] += size
        self.partitions[place].wake()

    async def turn(self) -> None:
        later, self.later[:] = list(self.later), []
        for call in later:
            call()
        await asyncio.sleep(0)

    async def settle(self) -> None:
        await asyncio.sleep(0)
        while self.later:
            await self.turn()
        await asyncio.sleep(0)


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100), st.booleans()), max_size=30),
)
@settings(max_examples=examples(200), deadline=None)
def test_it_is_over_when_a_look_at_everything_says_so(
    least_bytes: int, writes: list[tuple[int, int, bool]]
) -> None:
    asyncio.run(_over_as_the_twin(least_bytes, writes))


async def _over_as_the_twin(least_bytes: int, writes: list[tuple[int, int, bool]]) -> None:
    wait = Wait(6, least_bytes)
    await wait.settle()
    for place, size, settles in writes:
        wait.write(place, size)
        if settles:
            await wait.settle()
            assert wait.over.done() is (sum(wait.places.written) >= least_bytes)
        if wait.over.done():
            break
    await wait.settle()
    assert wait.over.done() is (sum(wait.places.written) >= least_bytes)
    wait.over.cancel()
    await asyncio.gather(wait.over, return_exceptions=True)
    assert not any(partition.readers for partition in wait.partitions)


async def test_looks_at_thousands_of_places_are_work_for_many_turns() -> None:
    wait = Wait(5000, 1 << 30, look_s=5e-6)
    for _ in range(10):
        await wait.settle()  # Watching so many takes some turns.
    wait.places.looks = 0
    other: list[float] = []

    class Other:
        def run(self, until: float) -> None:
            other.append(wait.now)

    for place in range(5000):
        wait.write(place, 1)
    wait.scheduler.queue(Other(), urgent=False)
    await wait.settle()
    assert wait.places.looks == 5000
    assert other[0] < 2 * SLICE_S, "the other's visit comes after the first slice"
    wait.over.cancel()
    await asyncio.gather(wait.over, return_exceptions=True)


async def test_a_place_that_is_written_often_is_looked_at_once_per_visit() -> None:
    wait = Wait(3, 1 << 30)
    await wait.settle()
    for _ in range(50):
        wait.write(1, 1)
    await wait.settle()
    assert wait.places.looks == 1
    wait.over.cancel()
    await asyncio.gather(wait.over, return_exceptions=True)


async def test_an_error_at_one_place_ends_the_wait() -> None:
    wait = Wait(3, 1 << 30)
    await wait.settle()
    wait.places.ended.add(2)
    wait.write(2, 0)
    await wait.settle()
    assert wait.over.done()
