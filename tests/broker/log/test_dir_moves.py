"""Moves of a partition between log directories, on two simulated disks: a death at any step loses nothing."""

from __future__ import annotations

import asyncio
import copy
import errno
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

import pytest

from budget import some
from ottla_broker.log.dir_files import FUTURE_SUFFIX, MOVE_COUNT
from ottla_broker.log.dir_moves import DirMoves
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.partition.dir_mover import DirMover
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import InvalidRequest, KafkaStorageError, LogDirNotFound, ReplicaNotAvailable
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Disk, File, FolderLock
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch, read_batches
from sim.clock import ManualClock
from sim.disk import SimDisk, Stopped

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
A, B = "/a/log", "/b/log"
TP, TOPIC = TopicPartition("orders-eu.v2", 3), UUID(int=5 << 64)
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=200)
PLACES = [A, B]


class TwoDisks:
    """A volume for each directory: what survives a power loss on one says nothing of the other."""

    def __init__(self) -> None:
        self.disks = [SimDisk(), SimDisk()]
        for disk, path in zip(self.disks, PLACES, strict=True):
            disk.make_dirs(path)
            disk.sync_dir("/")

    def _of(self, path: str) -> SimDisk:
        return self.disks[path.startswith("/b")]

    def open(self, path: str, *, create: bool = False) -> File:
        return self._of(path).open(path, create=create)

    def exists(self, path: str) -> bool:
        return self._of(path).exists(path)

    def list(self, path: str) -> list[str]:
        return self._of(path).list(path)

    def make_dirs(self, path: str) -> None:
        self._of(path).make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        assert self._of(source) is self._of(target), "no rename between volumes"
        self._of(source).rename(source, target)

    def remove(self, path: str) -> None:
        self._of(path).remove(path)

    def remove_tree(self, path: str) -> None:
        self._of(path).remove_tree(path)

    def read_file(self, path: str) -> bytes:
        return self._of(path).read_file(path)

    def write_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._of(path).write_file(path, data, sync=sync)

    def sync_dir(self, path: str) -> None:
        self._of(path).sync_dir(path)

    def free_bytes(self, path: str) -> int:
        return self._of(path).free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._of(path).total_bytes(path)

    def lock(self, path: str) -> FolderLock:
        return self._of(path).lock(path)


class Busy:
    """An Offload: while a thread works, the loop goes on with something else."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    async def run(self, work: Callable[[], T]) -> T:
        self.meanwhile()
        result = work()
        self.meanwhile()
        return result


class Broker:
    """Log directories with one partition, and what was promised about it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.dirs = LogDirs(disk, PLACES, broker_id=1, chance=RealChance(7))
        self.dirs.open(now_ms=NOW_MS)
        self.dirs.join_cluster("c")
        self.clock = ManualClock(NOW_MS)
        self.offload = Busy()
        self.rate: float | None = None
        self.mover = DirMover(
            self.dirs,
            disk,
            self.clock,
            self.offload,
            rate=lambda: self.rate,
            checkpoint=lambda: self.dirs.checkpoint_work({TP: self.flushed}),
        )
        self.log = self.dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
        #: All that is in the log, by offset, and up to where it was said to be durable.
        self.written = contents(self.log)
        self.flushed = 0

    def append(self, count: int = 1, *, flush: bool = False) -> None:
        for _ in range(count):
            number = len(self.written)
            record = Rec(b"k%d" % (number % 5), b"v%d" % number * 10, NOW_MS)
            batch = make_batch([record], producer_id=number % 3, epoch=0, sequence=number // 3)
            offset = self.log.end_offset
            self.written[offset] = record  # It may be there, even if the process dies in this call.
            self.log.append(batch, leader_epoch=1 + number // 7, now_ms=NOW_MS)
        if flush:
            self.flush()

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.recovery_point

    async def move(self, path: str = B) -> None:
        self.dirs.moves.request(TP, path)
        await self.carry_out()

    async def carry_out(self) -> None:
        task = asyncio.get_running_loop().create_task(self.mover.run())
        try:
            for _ in range(400):
                await self.clock.advance(0.2)
                if task.done() or not self.dirs.moves.under_way:
                    break
            if task.done():
                task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Stopped):
                await task

    @property
    def place(self) -> str:
        found = self.dirs.dir_of(TP)
        assert found is not None
        return found.path


def contents(log: Log) -> dict[int, Rec]:
    found: dict[int, Rec] = {}
    offset = log.start_offset
    while (extent := log.read(offset, 1 << 20, limit_offset=log.end_offset)) is not None:
        found.update(read_batches(extent.file.read(extent.position, extent.size)))
        offset = max(found) + 1
    return {at: record for at, record in found.items() if at >= log.start_offset}


def nothing() -> None:
    """Nothing happens on the loop while a thread works."""


def steps(each: list[Callable[[], object]]) -> Callable[[], object]:
    """One of these at each call."""
    left = iter(each)

    def step() -> object:
        return next(left, nothing)()

    return step


def folders(disk: Disk) -> list[str]:
    """Partition folders, and those that are to become one."""
    return [f"{path}/{name}" for path in PLACES for name in disk.list(path) if name.startswith(TP.topic)]


async def busy_move(broker: Broker, seed: int = 1) -> None:
    """A move while records are written and flushed."""
    turns, chance = 0, random.Random(seed)

    def meanwhile() -> None:
        nonlocal turns
        turns += 1
        if turns < 40:
            broker.append(flush=chance.random() < 0.6)

    broker.append(20, flush=True)
    broker.append(5)
    broker.offload.meanwhile = meanwhile
    await broker.move()
    broker.offload.meanwhile = lambda: None
    assert broker.place == B
    broker.append(3, flush=True)
    broker.append(2)


async def test_a_partition_moves_while_it_is_written_to() -> None:
    broker = Broker(TwoDisks())
    log = broker.log
    await busy_move(broker)
    assert broker.dirs.logs[TP] is log and log.path == f"{B}/{TP}"
    assert contents(log) == broker.written
    broker.dirs.purge_removed(NOW_MS + 60_000)
    assert folders(broker.disk) == [f"{B}/{TP}"]
    await broker.move(A)
    await broker.move(B)
    assert broker.disk.read_file(f"{B}/{TP}/{MOVE_COUNT}") == b"3"
    broker.dirs.close()
    again = Broker(broker.disk)
    assert again.place == B and contents(again.log) == broker.written
    again.append(3)  # The sequences of its producers go on.


def survivors(disk: TwoDisks, broker: Broker, seed: int | None) -> Broker:
    """The broker that starts after a death: by `kill -9`, or, with a seed, after a power loss of both volumes."""
    disk = copy.deepcopy(disk)
    for number, each in enumerate(disk.disks):
        if seed is None:
            each.kill()
        else:
            each.crash(RealChance(seed + number))
    found = Broker(disk)
    assert list(found.written) == list(broker.written)[: len(found.written)]
    assert all(broker.written[at] == record for at, record in found.written.items())
    return found


async def stopped(disk: TwoDisks, which: int, after: int) -> Broker | None:
    """The broker that dies at its n-th change of one of its volumes; None if it lived to the end."""
    broker = Broker(disk)
    disk.disks[which].stop_after(after, RealChance(after))
    try:
        await busy_move(broker, after)
    except Stopped:
        return broker
    return None


@pytest.mark.parametrize("which", [0, 1])
async def test_a_death_at_any_step_loses_nothing(which: int) -> None:
    died = ended = 0
    for after in some(range(1, 600)):
        disk = TwoDisks()
        broker = await stopped(disk, which, after)
        if broker is None:
            ended += 1
            if ended > 3:
                break
            continue
        died += 1
        found = survivors(disk, broker, None)
        assert len(found.written) >= len(broker.written) - 1, "only the last append may be missing"
        for seed in range(after, after + 4000, 1000):
            torn = survivors(disk, broker, seed)
            assert len(torn.written) >= broker.flushed, f"{broker.flushed} records were durable"
        found.append(3)
        await found.carry_out()
        assert contents(found.log) == found.written
        found.dirs.purge_removed(NOW_MS + 60_000)
        assert folders(found.disk) == [f"{found.place}/{TP}"]
    assert died > 20 or which


async def test_a_move_begins_again_after_a_restart() -> None:
    broker = Broker(TwoDisks())
    broker.append(30, flush=True)
    broker.dirs.moves.request(TP, B)
    assert any(name.endswith(FUTURE_SUFFIX) for name in broker.disk.list(B))
    broker.dirs.close()
    again = Broker(broker.disk)
    await again.carry_out()
    assert again.place == B and contents(again.log) == broker.written


async def test_truncations_and_deletions_reach_the_copy() -> None:
    broker = Broker(TwoDisks())
    broker.append(40, flush=True)
    broker.offload.meanwhile = steps(
        [
            *[nothing] * 2,
            lambda: broker.log.truncate_to(20, now_ms=NOW_MS),
            lambda: broker.log.advance_start(7),
            lambda: broker.log.append(make_batch([Rec(b"new", b"x", NOW_MS)]), leader_epoch=9, now_ms=NOW_MS),
        ]
    )
    await broker.move()
    found = contents(broker.log)
    assert (min(found), max(found)) == (7, 20) and found[20].key == b"new"
    assert broker.log.epochs.epoch_at(20) == 9 and broker.place == B


async def test_a_log_that_restarts_elsewhere_is_copied_from_there() -> None:
    for offset in (5, 900):
        broker = Broker(TwoDisks())
        broker.append(30, flush=True)
        broker.offload.meanwhile = steps(
            [*[nothing] * 4, partial(broker.log.restart_at, offset, now_ms=NOW_MS)]
        )
        await broker.move()
        assert (broker.log.start_offset, broker.log.end_offset) == (offset, offset)
        assert broker.place == B


async def test_it_keeps_to_the_rate() -> None:
    broker = Broker(TwoDisks())
    broker.append(200, flush=True)
    broker.rate = broker.log.size_bytes / 10
    await broker.move()
    assert 8 < broker.clock.monotonic() < 13


async def crawling() -> tuple[Broker, asyncio.Task[None]]:
    """A move whose first slice takes almost three hours."""
    broker = Broker(TwoDisks())
    broker.append(200, flush=True)
    broker.rate = broker.log.size_bytes / 10_000
    broker.dirs.moves.request(TP, B)
    task = asyncio.get_running_loop().create_task(broker.mover.run())
    await broker.clock.advance(60)
    return broker, task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_raised_rate_counts_at_once() -> None:
    broker, task = await crawling()
    assert broker.place == A
    broker.rate = None
    await broker.clock.advance(2)
    assert broker.place == B
    await ended(task)


async def test_a_cancelled_move_at_a_low_rate_does_not_hold_up_the_next() -> None:
    broker, task = await crawling()
    broker.dirs.moves.drop(TP)
    await broker.clock.advance(2)
    broker.dirs.moves.request(TP, B)
    broker.mover.wake()
    broker.rate = broker.log.size_bytes
    await broker.clock.advance(4)
    assert broker.place == B
    await ended(task)


async def test_back_to_where_it_is_cancels_the_move() -> None:
    broker = Broker(TwoDisks())
    broker.append(30, flush=True)
    broker.dirs.moves.request(TP, B)
    broker.dirs.moves.request(TP, A)
    await broker.carry_out()
    broker.dirs.purge_removed(NOW_MS)
    assert broker.place == A and folders(broker.disk) == [f"{A}/{TP}"]


async def test_a_full_volume_ends_the_move_and_nothing_else() -> None:
    disk = TwoDisks()
    broker = Broker(disk)
    broker.append(100, flush=True)
    disk.disks[1].capacity_bytes = 3000
    await broker.move()
    assert broker.place == A and not broker.dirs.offline
    assert contents(broker.log) == broker.written


async def test_a_volume_that_fails_takes_the_copy_with_it_and_nothing_else() -> None:
    disk = TwoDisks()
    broker = Broker(disk)
    broker.append(100, flush=True)
    disk.disks[1].fail("append", ".log", errno.EIO)
    await broker.move()
    assert [each.path for each in broker.dirs.offline] == [B]
    assert broker.place == A and contents(broker.log) == broker.written


def test_requests_that_cannot_be_carried_out_say_why() -> None:
    broker = Broker(TwoDisks())
    moves: DirMoves = broker.dirs.moves
    with pytest.raises(LogDirNotFound, match="/a/log, /b/log"):
        moves.request(TP, "/c")
    with pytest.raises(InvalidRequest, match="make room"):
        moves.request(TP, B, size_bytes=10, free_bytes=9)
    other = TopicPartition("later", 0)
    with pytest.raises(ReplicaNotAvailable, match=B):
        moves.request(other, B)
    broker.dirs.get_or_create(other, UUID(int=9 << 64), CONFIG, now_ms=NOW_MS)
    found = broker.dirs.dir_of(other)
    assert found is not None and found.path == B, "it is created where it was asked to be"
    broker.dirs.fail(found, OSError("gone"))
    with pytest.raises(KafkaStorageError, match="offline"):
        moves.request(TP, B)


async def test_of_two_folders_the_one_with_more_moves_is_right() -> None:
    broker = Broker(TwoDisks())
    await busy_move(broker)
    disk = broker.disk
    former = next(name for name in disk.list(A) if name.startswith(TP.topic))
    disk.rename(f"{A}/{former}", f"{A}/{TP}")  # As if a power loss had undone its last rename.
    broker.dirs.abandon()
    again = Broker(disk)
    assert again.place == B and contents(again.log) == broker.written


async def test_what_was_truncated_while_it_was_read_is_not_copied() -> None:
    disk = TwoDisks()
    disk.disks[0].cold = True
    broker = Broker(disk)
    broker.append(40, flush=True)
    broker.dirs.abandon()
    for turn in range(12):
        again = Broker(copy.deepcopy(disk))
        again.offload.meanwhile = steps([*[nothing] * turn, partial(cut_log, again)])
        await again.move()
        assert [contents(again.log)[at].key for at in range(30, 40)] == [b"new"] * 10
        assert again.place == B


def cut_log(broker: Broker) -> None:
    broker.log.truncate_to(30, now_ms=NOW_MS)
    for _ in range(10):
        broker.log.append(make_batch([Rec(b"new", b"x", NOW_MS)]), leader_epoch=9, now_ms=NOW_MS)


async def test_producers_whose_records_are_deleted_are_known_after_a_kill() -> None:
    disk = TwoDisks()
    broker = Broker(disk)
    record = Rec(b"k", bytes(600), NOW_MS)
    for number in range(12):  # The first three are of a producer that writes nothing more.
        batch = make_batch(
            [record],
            producer_id=9 if number < 3 else 1,
            epoch=0,
            sequence=number if number < 3 else number - 3,
        )
        broker.log.append(batch, leader_epoch=1, now_ms=NOW_MS)
    broker.log.advance_start(8)
    assert broker.log.housekeeping(NOW_MS, broker.log.end_offset)
    broker.flush()
    await broker.move()
    for each in disk.disks:
        each.kill()
    again = Broker(disk)
    assert again.place == B and len(again.log.producers) == 2
