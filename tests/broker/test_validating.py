"""Batches that take long to check: their order, their refusal, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from broker.one_partition import NOW_MS, TP, World
from ottla_broker.requests import Appended
from ottla_broker.service import validating
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.records import RecordService
from ottla_core.errors import InvalidRecord, RequestTimedOut
from ottla_core.records.batch import header_at, reseal
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression
from ottla_core.records.structure import RECORDS_PER_TURN, RECORDS_PER_TURN_COMPILED
from sim.clock import ManualClock

T = TypeVar("T")
MANY = RECORDS_PER_TURN + 1


class Offload:
    def __init__(self) -> None:
        self.runs = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.runs += 1
        await asyncio.sleep(0)
        return work()


class Clock(ManualClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Place:
    def __init__(self, records_per_turn: int = RECORDS_PER_TURN, **config: str) -> None:
        self.world, self.offload = World(records_per_turn=records_per_turn, **config), Offload()
        self.service = RecordService(
            self.world.host,
            cast(ProducerIds, None),
            Clock(NOW_MS),
            self.offload,
            self.world.metrics,
            self.world.scheduler,
        )

    async def write(self, batch: bytes | bytearray) -> Appended:
        appended = self.service.append(TP, batch, 1)
        return appended if type(appended) is Appended else await appended


def many(count: int = MANY, *, sequence: int = -1, codec: int = 0, key: bytes | None = b"k") -> bytearray:
    records = [Record(0, NOW_MS, key, b"v" * 50, []) for _ in range(count)]
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} if sequence >= 0 else {}
    return build_batch(records, compression=codec, **producer)


async def test_a_small_batch_is_written_at_once() -> None:
    assert type(Place().service.append(TP, many(3), 1)) is Appended


async def test_what_counts_as_many_records_is_passed_in() -> None:
    """Compiled, the check of a full batch of a stock producer takes less than a copy of it and a task."""
    place = Place(records_per_turn=RECORDS_PER_TURN_COMPILED)
    assert type(place.service.append(TP, many(10_000), 1)) is Appended
    many_headers = [Record(0, NOW_MS, b"k", b"", [("", None)] * RECORDS_PER_TURN_COMPILED) for _ in range(2)]
    for batch in (many(RECORDS_PER_TURN_COMPILED + 1), build_batch(many_headers)):
        long = place.service.append(TP, batch, 1)
        assert type(long) is not Appended
        await long
    assert place.world.partition.log.end_offset == 10_000 + RECORDS_PER_TURN_COMPILED + 1 + 2


@pytest.mark.parametrize("codec", list(Compression))
async def test_order_is_kept_behind_a_batch_that_takes_long(codec: Compression) -> None:
    place = Place()
    buffer = many(sequence=0, codec=codec)
    long = place.service.append(TP, buffer, 1)
    assert type(long) is not Appended
    buffer[:] = bytes(len(buffer))  # As the receive buffer of a connection, used again for the next request.
    short = place.service.append(TP, many(2, sequence=MANY), 1)
    assert type(short) is not Appended, "it has overtaken the batch before it"
    results = await asyncio.gather(*(asyncio.ensure_future(one) for one in (long, short)))  # type: ignore[arg-type]
    assert [one.base_offset for one in results] == [0, MANY]
    assert type(place.service.append(TP, many(1, sequence=MANY + 2), 1)) is Appended
    assert place.service._validating.pending_bytes == 0
    assert place.offload.runs == (codec is not Compression.NONE and len(many(codec=codec)) > 64 << 10)


async def test_a_batch_that_is_refused_late_leaves_no_trace() -> None:
    place = Place()
    bad = many(key=None)
    with pytest.raises(InvalidRecord) as refused:
        await place.write(bad)
    assert [index for index, _ in refused.value.record_errors] == list(range(1000))
    assert place.world.partition.log.end_offset == 0
    assert (await place.write(many())).base_offset == 0


async def test_what_inflates_to_much_is_opened_on_a_thread_and_bounded() -> None:
    place = Place()
    zeros = [Record(0, NOW_MS, b"k", bytes(1 << 20), []) for _ in range(4)]
    assert (await place.write(build_batch(zeros, compression=Compression.ZSTD))).base_offset == 0
    assert place.offload.runs == 1
    bomb = build_batch([Record(0, NOW_MS, b"k", bytes(64 << 20), [])], compression=Compression.ZSTD)
    with pytest.raises(Exception, match="decompress"):
        await place.write(bomb)


async def test_a_client_that_has_gone_does_not_hold_up_those_behind_it() -> None:
    place = Place()
    first = asyncio.ensure_future(place.write(many(sequence=0)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(place.write(many(sequence=MANY)))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).base_offset == MANY


async def test_no_more_than_a_bounded_number_of_bytes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    monkeypatch.setattr(validating, "PENDING_BYTES_MAX", len(many()) + 10)
    first = asyncio.ensure_future(place.write(many()))
    await asyncio.sleep(0)
    with pytest.raises(RequestTimedOut):
        await place.write(many())
    await first
    await place.write(many())


async def test_compressed_records_are_not_opened_where_the_topic_says_so() -> None:
    poison = bytearray(build_batch([Record(0, NOW_MS, b"k", b"v", [])], compression=Compression.GZIP))
    poison[-6] ^= 0xFF
    reseal(poison, 0, len(poison))
    strict, relaxed = (
        Place(cleanup_policy="delete"),
        Place(cleanup_policy="delete", validate_compressed="false"),
    )
    with pytest.raises(InvalidRecord):
        await strict.write(poison)
    assert (await relaxed.write(poison)).base_offset == 0
    assert header_at(poison).count == 1
